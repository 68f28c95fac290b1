"""Figure 1's verdicts follow from the records alone, so made-up records must lead to the verdicts they were made
for."""

import numpy as np
import pandas as pd
import pytest

from reproduction.experiments import fig1
from reproduction.experiments.fig1 import with_steps
from twoclock.result import Result

MARKS = [1, 10, 100, 300, 1_000, 3_000, 10_000, 100_000, 1_000_000]


def made_up(error, seeds=20, marks=MARKS):
    """A result whose error is the given function of k, times a factor of each seed's own that all methods share."""
    factor = np.random.default_rng(0).lognormal(size=seeds)
    rows = [(s, k, factor[s] * error(k)) for s in range(seeds) for k in marks]
    history = pd.DataFrame(rows, columns=["seed", "step", "error"])
    spec = {"seeds": list(range(seeds)), "steps": marks[-1], "problem": {"name": "made up"}, "precision": "float64"}
    return Result(np.zeros(1), np.zeros(1), history, np.zeros(seeds, bool), np.full(seeds, marks[-1]), spec)


def records(fast, averaged=lambda k: 1.2 / k):
    """Everyone's error is 2/k and LSTD's 1/k, except Fast TDC's as printed and averaged."""
    found = {}
    for name, case in fig1.cases(quick=True).items():
        errors = dict.fromkeys(case.methods, lambda k: 2 / k) | {fig1.LSTD: lambda k: 1 / k}
        errors |= {f"{fig1.FAST}, {fig1.PRINTED}": fast, f"{fig1.FAST}, {fig1.AVERAGED}": averaged}
        found[name] = {label: made_up(errors[label]) for label in case.methods}
    return found


def verdicts(found, words):
    return {claim.verdict for claim in fig1.claims(found) if words in claim.name}


@pytest.mark.parametrize(
    ("fast", "verdict"),
    [
        (lambda k: 1 / k, "reproduced"),
        (lambda k: 1 / k if k <= 1_000 else 9 / k, "reproduced only where k is about 100 to 1,000"),
        (lambda k: 1 / k if k == 10_000 else 3 / k, "not reproduced"),
        (lambda k: 2 / k, "not reproduced"),
        (lambda k: 3 / k, "not reproduced"),
    ],
    ids=["ahead", "ahead-for-a-while", "ahead-once", "tie", "behind"],
)
def test_the_paper_is_judged_by_the_records(fast, verdict):
    found = records(fast)
    assert verdicts(found, "with the printed step sizes") == {verdict}
    assert verdicts(found, "with both tuned") == {"not reproduced"}


@pytest.mark.parametrize(("ratio", "verdict"), [(1.29, "reproduced"), (1.31, "not reproduced")])
def test_efficiency_is_measured_against_lstd(ratio, verdict):
    found = records(lambda k: 1 / k, averaged=lambda k: ratio / k)
    assert verdicts(found, "nearly as good as LSTD") == {verdict}


def test_the_figures_are_drawn_from_records():
    figures = fig1.draw(records(lambda k: 1 / k))
    assert set(figures) == {"fig1", "fig1-efficiency"}


def test_cases_are_what_was_promised():
    cases = fig1.cases(quick=False)
    compared = {name: case for name, case in cases.items() if not name.startswith("around")}
    assert {case.steps for case in compared.values()} == {1_000_000}
    assert {(name.split("-")[0], case.seeds) for name, case in compared.items()} == {("50", 100), ("100", 24)}
    near = cases["around-50-tdc"]
    assert len(near.methods) == 64
    assert (near.steps, len(near.seeds)) == (1_000_000, 8)
    run = cases["50-iid-tdc"].methods[f"{fig1.FAST}, {fig1.TUNED}"]
    assert str(near.methods[f"{fig1.FAST}: 0"]) == str(run)  # the first is the tuned one


def test_steps_are_what_their_numbers_say():
    fast = with_steps(fig1.FAST, 10.0, c=2.0, ratio=3.0, weight=5.0)
    assert [float(s(0)) for s in (fast.alpha, fast.beta, fast.lam)] == pytest.approx([0.01, 0.03, 0.25])
    k = 10**9
    assert [k * float(s(k)) for s in (fast.alpha, fast.beta, fast.lam)] == pytest.approx([2.0, 6.0, 30.0], rel=1e-5)
    td = with_steps(fig1.TD, 10.0, c=2.0, first=0.4)
    assert (float(td.alpha(0)), float(td.beta(0))) == pytest.approx((0.04, 0.0))


def test_settings_around_are_judged_and_drawn():
    found = records(lambda k: 1 / k)
    near = [f"{name}: {i}" for name in (fig1.FAST, fig1.TDC) for i in range(4)]
    found["around-50-tdc"] = {label: made_up(lambda k: 1 / k, seeds=8) for label in near}
    assert "fig1-sensitivity" in fig1.draw(found)
    assert verdicts(found, "tuned alike") <= {"reproduced", "not decided"}
    assert verdicts(found, "easier to choose") == {"not reproduced"}
