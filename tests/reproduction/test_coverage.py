"""The experiment on coverage: its closed forms, and verdicts that follow the table."""

import numpy as np
import pandas as pd
import pytest

from reproduction.experiments import coverage
from reproduction.experiments import coverage_settings as settings
from reproduction.verdicts import kind
from twoclock import solve
from twoclock.models import limit_law


def rows(**columns):
    """Two runs at 10⁵ samples, 95 %: one without notes, one with notes alone."""
    made = pd.DataFrame(
        {
            "case": ["walk-td-markov", "walk-gtd2-markov"], "method": ["TD", "GTD2"], "part": "b", "title": "a walk",
            "step": 100_000, "level": 0.95, "runs": 500, "coverage": [0.95, 0.8], "quiet": [1.0, 0.0],
            "clean": [0.95, np.nan], "noted": [np.nan, 0.8], "length": 1.0, "ratio": 1.3, "first": 0.95,
            "first_length": 1.0, "spread": [1.0, 1.1],
        }
    )  # fmt: skip
    return made.assign(**columns)


@pytest.mark.parametrize(("clean", "verdict"), [(0.95, "yes"), (0.92, "no"), (0.98, "no")])
def test_intervals_without_a_note_are_judged_and_only_those(clean, verdict):
    found = rows(clean=[clean, np.nan])
    assert kind(coverage._cover(found).verdict) == verdict
    assert len(settings.judged(found)) == 1


def test_few_runs_are_given_their_noise_and_very_few_decide_nothing():
    def found(clean, runs):
        return kind(coverage._cover(rows(clean=[clean, np.nan], runs=runs)).verdict)

    assert [found(0.91, 250), found(0.90, 250), found(0.95, 50)] == ["yes", "no", "undecided"]


def test_notes_must_warn_of_more_misses():
    assert settings.failures(rows()) == pytest.approx((0.05, 0.2))
    assert kind(coverage._notes(rows()).verdict) == "yes"
    assert kind(coverage._notes(rows(noted=[np.nan, 0.97])).verdict) == "no"


def test_a_short_run_is_judged_at_its_end_and_claims_no_limit():
    found = rows(step=10_000)
    assert "from 10,000 samples on" in coverage._cover(found).statement
    assert coverage._same_limit(found) is None
    assert coverage._independent(found) is None
    assert kind(coverage._same_limit(rows()).verdict) == "yes"
    assert kind(coverage._same_limit(rows(spread=[1.0, 1.2])).verdict) == "partly"


def test_the_information_of_logistic_regression_is_the_mean_over_samples():
    beta = np.linspace(0, 1, 6)[1:]
    x = np.random.default_rng(0).normal(size=(400_000, 5))
    p = 1 / (1 + np.exp(-x @ beta))
    np.testing.assert_allclose(settings._information(beta), x.T * (p * (1 - p)) @ x / len(x), atol=1e-3)


def test_the_random_mdp_is_the_papers():
    """V in the span of the features, so that even independent weights for each step would cover."""
    law = limit_law(**settings.random_mdp(), sampling="markov")
    np.testing.assert_allclose(law.coverage(np.eye(10)), 0.95, atol=1e-9)


def test_all_looks_are_judged_together():
    task, case = settings.task("mdp-blocks-markov"), "mdp-blocks-markov"
    marks = [1_000, 2_000, 5_000, 10_000, 15_000, 20_000]
    result = solve(task.problem(), task.methods[settings.LSTD], marks[-1], 40, marks=marks)
    once, all_, length, looks = coverage.at_all_looks(result, case, 1_000)
    assert looks == 6
    assert once < 0.9 < all_
    assert 1.5 < length < 2.2
    assert kind(coverage._of_all_looks({case: result}).verdict) == "yes"
