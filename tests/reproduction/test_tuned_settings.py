"""Settings of the experiments, as data: the file stores what `reproduce --tune` finds and what the experiments use."""

import contextlib
import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

import twoclock as tc
from reproduction import experiments, tuned_settings
from reproduction.__main__ import main
from reproduction.tuned_settings import MethodSearch

TUNABLE = tuned_settings.tunable(experiments.discover())


def make(beta, c):
    return tc.Standard(tc.Power(c, shift=10.0), beta)


def small():
    problem = tc.problems.quadratic(dim=2)
    methods = {"one": (partial(make, 0.1), {"c": (0.1, 10.0)}), "two": (partial(make, 0.3), {"c": (0.1, 10.0)})}
    return MethodSearch(problem, methods, steps=100, metric="error", runs=250, title="a quadratic")


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """An experiment that tunes one small case, and the file that it would read."""
    module = SimpleNamespace(TITLE="Tiny", cases=dict, draw=dict, searches=lambda: {"case": small()})
    known = {"tiny": module, "quadratic": SimpleNamespace(TITLE="nothing", cases=dict, draw=dict)}
    monkeypatch.setattr(experiments, "discover", lambda: known)
    monkeypatch.setattr(tuned_settings, "place", lambda name: tmp_path / "package" / f"{name}.json")
    tuned_settings.stored.cache_clear()
    yield module
    tuned_settings.stored.cache_clear()


@pytest.mark.parametrize("name", TUNABLE)
def test_every_method_of_a_search_has_settings_with_equal_budgets(name):
    whole = json.loads(tuned_settings.place(name).read_text(encoding="utf-8"))
    assert whole["made by"] == f"python -m reproduction {name} --tune"
    searches = TUNABLE[name].searches()
    assert list(whole["cases"]) == list(searches)
    for case, search in searches.items():
        kept = whole["cases"][case]
        assert list(kept["methods"]) == list(search.methods)
        if (
            kept["found by"] != tuned_settings.SEARCH
        ):  # not searched yet; the claim that methods are tuned alike says so
            continue
        assert (kept["steps"], kept["metric"]) == (search.steps, search.metric)
        assert kept["seed-steps for each method"] == search.runs * search.steps
        for method, (build, box) in search.methods.items():
            found = kept["methods"][method]
            assert {k: tuple(v) for k, v in found["box at first"].items()} == dict(box)
            assert all(low <= found["settings"][k] <= high for k, (low, high) in found["box"].items())
            assert found["seed-steps spent"] <= search.runs * search.steps
            assert isinstance(build(**found["settings"]), tc.Method)


def test_tuning_again_writes_what_the_experiment_reads(tiny, tmp_path, capsys):
    assert main(["tiny", "--tune"]) == 0
    assert "a quadratic (1 of 1): one, two" in capsys.readouterr().err
    kept = tuned_settings.stored("tiny")["case"]
    assert kept["seed-steps for each method"] == 25_000
    found = tuned_settings.settings("tiny", "case", "one")
    assert found == small().run()[1]["methods"]["one"]["settings"]
    low, high = (score for score in kept["methods"]["one"]["score on fresh seeds"][1:])
    assert low < kept["methods"]["one"]["score on fresh seeds"][0] < high
    before = tuned_settings.place("tiny").read_bytes()
    assert main(["tiny", "--tune", "--out", str(tmp_path / "other")]) == 0
    assert (tmp_path / "other" / "tiny.json").read_bytes() == before


@pytest.mark.parametrize(("own", "origin"), [(0.05, "the search of two"), (1.0, "its own search")])
def test_a_method_that_contains_another_has_its_settings_where_they_end_lower(own, origin):
    """On a quadratic c = 0.05 hardly moves and c = 1 is nearly the best."""
    search = replace(small(), contains={"one": "two"})
    other = {0.05: 1.0, 1.0: 0.05}[own]
    kept = {"one": {"settings": {"c": own}}, "two": {"settings": {"c": other}}}
    found = tuned_settings.try_contained(search, kept)["one"]
    assert found["settings"] == {"c": 1.0}
    assert found["settings from"] == origin
    assert set(found["further seeds"]) == {"its own search", "the search of two"}


def test_ctrl_c_leaves_the_settings_as_they_were(tiny, tmp_path):
    old = tmp_path / "package" / "tiny.json"
    old.parent.mkdir()
    old.write_text("as it was")

    def stop(**_):
        raise KeyboardInterrupt

    tiny.searches = lambda: {"done": small(), "stopped": SimpleNamespace(run=stop, title="t", methods={})}
    with contextlib.suppress(KeyboardInterrupt):
        assert main(["tiny", "--tune"]) != 0
    assert old.read_text() == "as it was"
    assert [path.name for path in old.parent.iterdir()] == ["tiny.json"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quadratic", "--tune"], "`quadratic` has nothing to tune; tiny"),
        (["tiny", "--tune", "--quick"], "`--tune` searches at the full horizon"),
        (["tiny", "--tune", "--resume"], "`--tune` searches at the full horizon"),
    ],
)
def test_one_clear_line(tiny, words, message, capsys):
    assert main([*words]) != 0
    assert message in capsys.readouterr().err


def test_what_was_not_tuned_says_how(tiny, tmp_path):
    with pytest.raises(tc.InputError, match=r"no tuned settings of one in case; `python -m reproduction tiny --tune`"):
        tuned_settings.settings("tiny", "case", "one")
    (tmp_path / "package").mkdir()
    tuned_settings.place("tiny").write_text("{torn")
    tuned_settings.stored.cache_clear()
    with pytest.raises(tc.InputError, match="cannot be read"):
        tuned_settings.stored("tiny")
