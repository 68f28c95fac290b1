"""The theorems' experiment at a small size: its verdicts follow its records."""

from dataclasses import replace

import pytest

import twoclock as tc
from twoclock.stats import log_slope
from twoclock.study.experiments import theorems


@pytest.fixture(scope="module")
def records():
    small = {name: replace(case, steps=400, seeds=6) for name, case in theorems.cases(quick=True).items()}
    return {name: tc.solve(case.problem, case.methods, case.steps, case.seeds) for name, case in small.items()}


def verdicts(records):
    return {claim.name: claim.verdict for claim in theorems.claims(records)}


def changed(records, case, method, metric, change):
    result = records[case][method]
    history = result.history.assign(**{metric: change(result.history)})
    return {**records, case: {**records[case], method: replace(result, history=history)}}


def test_a_bound_that_is_broken_is_not_reproduced(records):
    assert verdicts(records)["theorem-1"].startswith("reproduced only where")
    worse = changed(records, "strongly-convex", "tight", "error", lambda h: h["error"] * 1e4)
    assert verdicts(worse)["theorem-1"] == "not reproduced"
    assert verdicts(worse)["theorem-2"].startswith("reproduced only where")


def test_lambda_one_is_standard_only_where_blended_first(records):
    assert "blended before the step" in verdicts(records)["lambda-1"]
    standard = records["lambda-1"]["Standard"].history["error"]
    same = changed(records, "lambda-1", "Fast, λ = 1", "error", lambda h: standard)
    assert verdicts(same)["lambda-1"] == "reproduced"
    other = changed(records, "lambda-1", "Fast, λ = 1, blended first", "error", lambda h: 2 * h["error"])
    assert verdicts(other)["lambda-1"] == "not reproduced"


def test_the_printed_conditions_stand_or_fall_with_the_gradient(records):
    assert verdicts(records)["printed-conditions"] == "not reproduced"
    falling = changed(records, "printed", "Fast", "gradient", lambda h: 1 / (1 + h["step"]))
    assert verdicts(falling)["printed-conditions"] == "reproduced"


@pytest.mark.parametrize(
    ("power", "verdict"),
    [
        (-0.3, "not reproduced"),
        (-0.5, "reproduced"),
        (-0.8, "reproduced only where it is read as an upper bound: it falls faster"),
    ],
)
def test_the_rate_is_read_off_the_slope(records, power, verdict):
    shaped = changed(records, "nonlinear", "Fast", "gradient", lambda h: (1.0 + h["step"]) ** power * (1 + h["seed"]))
    slope, low, high = log_slope(shaped["nonlinear"]["Fast"].history, "gradient", decades=1.0)
    assert slope == pytest.approx(power, abs=0.02)
    assert low - 1e-9 <= slope <= high + 1e-9
    assert verdicts(shaped)["nonlinear-policy-evaluation-rate"] == verdict


def test_figures_have_words_for_those_who_cannot_see_them(records):
    assert set(theorems.draw(records)) == set(theorems.ALT)
