"""One suite over every experiment that the catalogue finds: the contract, without running any of them."""

import functools
import json
import re
import string
from pathlib import Path
from typing import get_args

import jax
import pytest

import made_up
from reproduction import experiments, runner
from reproduction.experiment import Case, Claim, Experiment, require
from reproduction.experiments.auto_races import Race
from reproduction.experiments.logs import LogCase
from reproduction.report import gather
from reproduction.verdicts import Kind, kind
from twoclock import plot
from twoclock.protocols import InputError, Method, Problem

EXPERIMENTS = experiments.discover()


@functools.cache
def cases(name, quick):
    with jax.enable_x64(True):
        return EXPERIMENTS[name].cases(quick)


@functools.cache
def claims(name):
    """Of a full run, which claims more than a quick one."""
    with jax.enable_x64(True):
        return runner.hook(EXPERIMENTS[name], "claims", made_up.records(cases(name, False)), [])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_parts(name):
    module = require(name, EXPERIMENTS[name])
    assert isinstance(module, Experiment)
    assert module.TITLE
    assert module.__doc__
    for part in ("claims", "captions", "advice", "relative_errors", "panel"):
        assert callable(getattr(module, part, len))
    assert all(isinstance(words, str) and words for words in getattr(module, "ALT", {}).values())
    assert isinstance(getattr(module, "TIMED", False), bool)


def test_what_is_no_experiment_is_refused():
    with pytest.raises(InputError, match="the experiment `json` lacks TITLE, cases, draw"):
        require("json", json)


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
def test_cases_are_well_formed(name, quick):
    found = cases(name, quick)
    assert bool(found) == (name != "exact"), "closed forms need no runs"
    for case in found.values():
        assert isinstance(case, Case | LogCase | Race)
        assert case.methods
        if isinstance(case, Case):
            assert isinstance(case.problem, Problem) or callable(case.problem)
            assert all(isinstance(method, Method) for method in case.methods.values())
        assert case.steps > 0
        assert case.lanes >= len(case.methods)
        assert case.role in ("compare", "tune", "warm up")
        folders = [runner._slug(method) for method in case.methods]
        assert len(set(folders)) == len(folders), "two methods would share a folder"
    assert len({runner._slug(label) for label in found}) == len(found), "two cases would share a folder"
    if quick and found:
        full = cases(name, False)
        assert set(found) <= set(full)
        assert sum(c.steps * c.lanes for c in found.values()) < sum(c.steps * c.lanes for c in full.values()) / 5


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_claims(name):
    module = EXPERIMENTS[name]
    if not hasattr(module, "claims"):
        pytest.skip("claims nothing")
    labels, found = cases(name, False), claims(name)
    assert found
    for claim in found:
        assert isinstance(claim, Claim)
        assert claim.statement[0] not in string.ascii_lowercase
        assert not claim.statement.endswith(".")
        assert claim.place
        assert len(claim.rule) > 20
        assert claim.numbers
        json.dumps(dict(claim.numbers))
        assert kind(claim.verdict) in get_args(Kind)
        assert set(claim.cases) <= set(labels)
        assert claim.ours != claim.place.startswith(
            ("Section", "Theorem", "Table", "Figure", "Algorithm", "Assumption", "Remark")
        )
    for part in ("name", "statement"):
        values = [getattr(claim, part) for claim in found]
        assert len(set(values)) == len(values), f"two claims have the same {part}"
    ours = [claim.ours for claim in found]
    assert not hasattr(module, "panel") or all(ours) or not ours[0], "the paper's claim comes first"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_figure_that_a_page_quotes_is_one_of_a_claim(name):
    """Else ``python -m docs.quoted RUN`` would fail after the next full run."""
    root = Path(__file__).parents[2]
    text = "".join(page.read_text() for page in (root / "README.md", *(root / "docs").glob("**/*.md")))
    asked = re.findall(r"<!-- quoted: (?:number|percent|range) (.+?) -->", text)
    wanted = [what.split(": ")[1:] for what in asked if what.startswith(f"{name}: ")]
    if not wanted:
        pytest.skip("no page quotes it")
    numbers = {claim.name: claim.numbers for claim in claims(name)}
    for claim, *number in wanted:
        assert claim in numbers
        assert set(number) <= set(numbers[claim])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_reader_meets_words_and_no_labels(name, tmp_path):
    module, found = EXPERIMENTS[name], cases(name, False)
    records = made_up.records(found)
    outcome = runner.ExperimentOutcome(
        name, module.TITLE, tmp_path, records, {}, {label: case.title or label for label, case in found.items()},
        [label for label, case in found.items() if case.role == "compare"], claims(name),
        runner.hook(module, "advice", records, []),
    )  # fmt: skip
    picture = runner.Picture("", {}, b"")
    (section,) = gather([outcome], picture, tmp_path, {}, quick=False)["sections"]
    rows = [
        (claim.statement, claim.place, claim.rule, claim.verdict, row["numbers"], [run[0] for run in row["runs"]])
        for row in section["rows"]
        for claim in [row["claim"]]
    ]
    text = str([rows, section["advice"], section["table"]])
    labels = [label for label in found if re.search(r"\d", label) and "," not in label]
    assert not [label for label in labels if label in text]
    assert not re.search(r"\b(\S+) to \1 times", text)
    assert bool(section["table"]) == bool(found)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_figures_and_words(name):
    module = EXPERIMENTS[name]
    records = made_up.records(cases(name, True))
    figures = module.draw(records)
    assert figures
    assert all(isinstance(figure, plot.Figure) for figure in figures.values())
    assert set(figures) <= set(module.ALT)
    assert set(figures) == set(module.captions(records))
    advice = module.advice(records) if hasattr(module, "advice") else []
    for sentence in [*module.ALT.values(), *module.captions(records).values(), *advice]:
        assert sentence.endswith(".")
        assert "nan" not in sentence
        assert sentence.count("`") % 2 == 0
    if hasattr(module, "relative_errors"):
        assert all(ratio > 0 for methods in module.relative_errors(records).values() for ratio in methods.values())
    if hasattr(module, "panel"):
        _, axes = plot.figure()
        module.panel(axes[0, 0], records)
        assert axes[0, 0].lines
