"""The experiment's verdicts follow from records alone, every method has the same grid, and its examples run."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import twoclock as tc
from reproduction.comparisons import at_equal_seconds, standing
from reproduction.experiments import bilevel
from twoclock.result import Result

MARKS = [1, 10, 100, 1_000, 10_000, 40_000]


def made_up(error, seeds=20, wall=2.0):
    """A result whose error is the given function of k, times a factor of each seed's own that all methods share."""
    factor = np.random.default_rng(0).lognormal(size=seeds)
    rows = [(s, k, factor[s] * error(k)) for s in range(seeds) for k in MARKS]
    history = pd.DataFrame(rows, columns=["seed", "step", "error"])
    spec = {"seeds": list(range(seeds)), "steps": MARKS[-1], "wall_seconds": wall, "precision": "float64"}
    return Result(np.zeros(1), np.zeros(1), history, np.zeros(seeds, bool), np.full(seeds, MARKS[-1]), spec)


def records(fast):
    found = {}
    for name, case in bilevel.cases(quick=True).items():
        (label,) = case.methods
        found[name] = {label: made_up(fast if label == bilevel.FAST else lambda k: 2 / k)}
    return found


@pytest.fixture(autouse=True)
def _no_problem_needed(monkeypatch):
    monkeypatch.setattr(bilevel, "problem", lambda kind: tc.problems.quadratic(dim=2))


@pytest.mark.parametrize(
    ("fast", "verdict"),
    [
        (lambda k: 1 / k, "reproduced"),
        (lambda k: 3 / k if k < 40_000 else 1 / k, "reproduced only where k ≥ 40,000"),
        (lambda k: 2 / k, "not reproduced"),
        (lambda k: 1 / k if k < 10_000 else 3 / k, "not reproduced"),
    ],
)
def test_verdicts(fast, verdict):
    claims = bilevel.claims(records(fast))
    assert len(claims) == 3
    assert {claim.verdict for claim in claims} == {verdict}


def test_figures_words_and_advice():
    found = records(lambda k: 1 / k)
    assert set(bilevel.draw(found)) == {"bilevel"}
    pair = {f"minimax-16-{name}": {name: made_up(lambda k: 1 / k)} for name in (bilevel.FAST, bilevel.SGDA)}
    assert set(bilevel.draw(found | pair)) == set(bilevel.ALT) - {"bilevel-sensitivity"}  # no settings around here
    assert all("Fast ends lowest" in line for line in bilevel.advice(found))


def test_cases_are_what_was_promised():
    cases = bilevel.cases(quick=False)
    for kind in bilevel.COMPARED:
        near = cases[f"around-{kind}-16"]
        assert len(near.methods) == 16 * len(bilevel.COMPARED[kind])
        assert near.steps == 640_000 // 16
    measured = {name: case for name, case in cases.items() if name.split("-")[0] in bilevel.COMPARED}
    assert {case.seeds for case in measured.values()} == {20}


def reduced_records(saba):
    """As many items as a whole run for Fast, fewer for SABA, whose error is saba(k)."""
    found = records(lambda k: 1 / k)
    cut = made_up(saba)
    history = cut.history[cut.history["step"] <= 1_000]
    short = dataclasses.replace(cut, history=history, spec={**cut.spec, "steps": 1_000, "wall_seconds": 1.0})
    return found | {"bilevel-16-SABA": {bilevel.SABA: short}}


@pytest.mark.parametrize(
    ("saba", "verdict", "words"),
    [
        (lambda k: 10.0**-k, "not reproduced", "SABA ends below all of these"),
        (lambda k: 5 / k, "reproduced", "it does not pay"),
    ],
)
def test_variance_reduction_is_compared_over_the_marks_it_has(saba, verdict, words):
    found = reduced_records(saba)
    (claim,) = [claim for claim in bilevel.claims(found) if "SABA" in claim.name]
    assert claim.verdict == verdict
    assert "after 16,000 items" in next(iter(claim.numbers))
    assert words in " ".join(bilevel.advice(found))
    assert "SABA is at" in bilevel.captions(found)["bilevel"]
    assert "SABA 1" not in bilevel.captions(found)["bilevel"]  # it ends elsewhere, so it is in no ranking


def test_settings_around_those_of_variance_reduction():
    """As good as any around, or not."""
    for level, verdict in ((1.0, "reproduced"), (1e-3, "not reproduced")):
        tried = {f"SABA: {i}": made_up(lambda k, i=i, level=level: level if i == 5 else 1.0) for i in range(8)}
        claims = bilevel.claims({"near-bilevel-16": tried})
        assert [claim.verdict for claim in claims] == [verdict]


def test_equal_seconds():
    """A method twice as fast a step has twice the steps in the same time."""
    slow, quick = made_up(lambda k: 1 / k, wall=4.0), made_up(lambda k: 1 / k, wall=2.0)
    ratio = at_equal_seconds(slow, quick, "error")
    assert ratio.value == pytest.approx(2.0, rel=1e-6)
    assert standing(ratio) == "worse"
    assert standing(at_equal_seconds(quick, slow, "error")) == "better"
    assert standing(at_equal_seconds(quick, quick, "error")) == "a tie"
