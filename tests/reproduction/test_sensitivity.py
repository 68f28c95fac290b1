"""Shares of settings that do well, and the verdicts that follow from them: made-up records lead to what they were made
for."""

import numpy as np
import pandas as pd
import pytest

import twoclock as tc
from reproduction import tuned_settings
from reproduction.tuned_settings import NearbySettings, around, easier, nearby, tuned_alike
from reproduction.verdicts import confirm_claims
from twoclock.result import Result

COUNT = 32


def made_up(level, seeds=8, spread=0.0, salt=0):
    """A result that ends at a level, times a factor of each seed's own that all settings share, and noise."""
    shared = np.random.default_rng(0).lognormal(size=seeds)
    noise = np.exp(spread * np.random.default_rng(salt).normal(size=seeds))
    history = pd.DataFrame({"seed": range(1000, 1000 + seeds), "step": 100, "error": level * shared * noise})
    spec = {"seeds": list(range(1000, 1000 + seeds)), "steps": 100}
    return Result(np.zeros((seeds, 1)), np.zeros((seeds, 1)), history, np.zeros(seeds, bool), np.full(seeds, 100), spec)


def records(**levels):
    """method → how many times its best each of its settings ends at."""
    return {f"{m}: {i}": made_up(level) for m, found in levels.items() for i, level in enumerate(found)}


def shares(good, level=1.0):
    """``good`` settings at the best level, the others at three times that."""
    return [level] * good + [3 * level] * (COUNT - good)


def test_settings_around_are_spread_evenly_over_the_box_and_the_same_for_all():
    def build(c, ratio, weight=1.0):
        return tc.Fast(tc.Power(c), tc.Power(ratio * c), 0.5 * weight)

    chosen = {"c": 2.0, "ratio": 3.0, "weight": 1.0}
    found = around(build, chosen)
    assert len(found) == COUNT
    assert found[0].alpha.c == 2.0
    moves = np.log([[m.alpha.c / 2.0, m.beta.c / m.alpha.c / 3.0] for m in found]) / np.log(tuned_settings.SPAN)
    assert (np.abs(moves) <= 1 + 1e-12).all()
    assert np.abs(moves.mean(axis=0)).max() < 0.1
    for side in moves.T:  # a Sobol sequence has as many below as above
        assert abs(int((side > 0).sum()) - COUNT // 2) <= 1
    assert {float(m.lam(0)) for m in found} == {0.5}
    other = around(build, {"c": 0.1, "ratio": 9.0, "weight": 1.0})
    assert np.allclose([m.alpha.c / 0.1 for m in other], [m.alpha.c / 2.0 for m in found])


def test_shares_are_of_the_own_best_and_of_the_best_of_all():
    found = NearbySettings.of(records(Fast=shares(16, 2.5), Standard=shares(8)), "error")
    assert (found.share("Fast"), found.share("Standard")) == (0.5, 0.25)
    assert (found.share("Fast", of_all=True), found.share("Standard", of_all=True)) == (0.0, 0.25)
    assert found.share("Fast", 3.1) == 1.0
    assert found.lead("Fast", "Standard").value == 0.25


@pytest.mark.parametrize(
    ("fast", "standard", "verdict"),
    [
        (28, 8, "reproduced"),
        (8, 28, "not reproduced"),
        (16, 16, "not reproduced"),  # the same settings
        (17, 16, "not decided"),
    ],
)
def test_easier_steps_need_a_lead_whose_interval_shows_it(fast, standard, verdict):
    tried = {"around": records(Fast=shares(fast), Standard=shares(standard))}

    def judge(some):
        return [
            easier(
                NearbySettings.of(some["around"], "error"), "Fast", "Standard", name="n", where="w", cases=("around",)
            )
        ]

    (claim,) = confirm_claims(judge, tried)
    assert claim.verdict == verdict


def test_a_lost_seed_is_no_good_setting():
    tried = records(Fast=shares(16), Standard=shares(16))
    history = tried["Fast: 3"].history
    history.loc[2, "error"] = np.nan
    assert NearbySettings.of(tried, "error").share("Fast") == 15 / 32


@pytest.mark.parametrize(
    ("best", "edge", "verdict"),
    [
        (1.0, {}, "reproduced"),
        (1.05, {}, "reproduced"),
        (1.3, {}, "not reproduced"),
        (1.0, {"c": "high"}, "not decided"),
    ],
)
def test_tuned_alike_means_nothing_better_around_and_no_edge(monkeypatch, best, edge, verdict):
    kept = {
        "case": {
            "steps": 100,
            "found by": "tc.tune",
            "methods": {"Fast": {"at the edge": edge}, "Standard": {"at the edge": {}}},
        }
    }
    monkeypatch.setattr(tuned_settings, "stored", lambda name: kept)
    tried = records(Fast=[best, 1.0, *[2.0] * 30], Standard=[1.0, 1.2, *[2.0] * 30])
    claim = tuned_alike(NearbySettings.of(tried, "error"), "exp", "case", name="n", where="w", cases=())
    assert claim.verdict == verdict
    kept["case"]["found by"] = "hand"
    assert (
        tuned_alike(NearbySettings.of(tried, "error"), "exp", "case", name="n", where="w", cases=()).verdict
        == "not decided"
    )
    assert claim.numbers["Fast: tuned / best around"].value == pytest.approx(best)


def test_tuned_alike_is_not_decided_by_noise(monkeypatch):
    kept = {"case": {"steps": 100, "found by": "tc.tune", "methods": {"Fast": {"at the edge": {}}}}}
    monkeypatch.setattr(tuned_settings, "stored", lambda name: kept)
    tried = {f"Fast: {i}": made_up(1.1 if i == 0 else 1.0, spread=0.3, salt=i) for i in range(2)}
    claim = tuned_alike(NearbySettings.of(tried, "error"), "exp", "case", name="n", where="w", cases=())
    assert claim.verdict == "not decided"


def test_the_picture_has_a_row_a_case_and_a_line_a_method():
    found = NearbySettings.of(records(Fast=shares(16, 2.5), Standard=shares(8)), "error")
    fig = tuned_settings.draw_nearby({"one": found, "two": found}, "c moved")
    assert len(fig.axes) == 4
    fast = fig.axes[0].get_lines()[0]
    x, y = fast.get_xdata(), fast.get_ydata()
    assert y[np.searchsorted(x, 2.0)] == 0.5
    assert y[-1] == 1.0


def test_labels_tell_methods_apart(monkeypatch):
    monkeypatch.setattr(tuned_settings, "settings", lambda experiment, case, name: {"c": 1.0})
    found = nearby("exp", "case", {"Fast, averaged": lambda c: tc.Fast(tc.Power(c))}, count=2)
    assert list(found) == ["Fast, averaged: 0", "Fast, averaged: 1"]
    assert set(NearbySettings.of(dict.fromkeys(found, made_up(1.0)), "error").logs) == {"Fast, averaged"}
