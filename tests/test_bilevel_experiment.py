"""The experiment's verdicts follow from records alone, every method has the same grid, and its examples run."""

import numpy as np
import pandas as pd
import pytest

import twoclock as tc
from twoclock.result import Result
from twoclock.study.experiments import bilevel

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
    monkeypatch.setattr(bilevel, "problem", lambda kind, batch: tc.problems.quadratic(dim=2))


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
    assert set(bilevel.draw(found | pair)) == set(bilevel.ALT) - {"bilevel-sensitivity"}
    assert all("Fast ends lowest" in line for line in bilevel.advice(found))


def test_cases_are_what_was_promised():
    cases = bilevel.cases(quick=False)
    for kind, batch in bilevel.PANELS:
        near = cases[f"around-{kind}-{batch}"]
        assert len(near.methods) == 16 * len(bilevel.COMPARED[kind])
        assert near.steps == 640_000 // batch
    measured = {name: case for name, case in cases.items() if name.split("-")[0] in bilevel.COMPARED}
    assert {case.seeds for case in measured.values()} == {20}
