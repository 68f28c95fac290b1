"""The paper's own rows: their words, their rules on made-up records, and the methods that they need."""

import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest

import made_up
import twoclock as tc
from reproduction import __main__, report, runner, verdicts
from reproduction.experiments import exact, fig2_settings, paper
from reproduction.verdicts import kind

WORDS = tomllib.loads((Path(paper.__file__).parents[1] / "claims.toml").read_text())


def falling(case, method, k):
    """Fast and SGD fall at the paper's rates, standard with its two exponents more slowly, TDC leads late."""
    slow = "two time scales" in method or method in (fig2_settings.TWO, "Standard, exponents 1 and 2/3")
    if case in ("nonlinear", "mdp 0") or case.startswith("non-convex"):
        return (1 + k) ** -(0.4 if slow else 0.5)
    if case == "smooth":
        return 1 / (1 + k)
    return (1 + k) ** -(0.66 if slow else 1.0)


@pytest.fixture(scope="module")
def records():
    return made_up.records(paper.cases(True), falling)


def test_every_row_of_the_paper_has_its_words(records):
    found = {"paper": paper.claims(records), "exact": exact.claims({})}
    for name, claims in found.items():
        assert [claim.name for claim in claims] == list(dict.fromkeys(claim.name for claim in claims))
        assert {claim.name for claim in claims} == set(WORDS[name])
        for claim in claims:
            assert claim.quote
            assert "L" in claim.place
            assert claim.finding.endswith(".")
            assert not claim.ours
    total = len(found["paper"]) + len(found["exact"])
    assert 28 <= total <= 33


def test_rates_and_table_1_follow_from_the_records(records):
    judged = {claim.name: kind(claim.verdict) for claim in paper.claims(records)}
    assert {judged[name] for name in judged if name.startswith("table1-")} == {"yes"}
    assert {judged[name] for name in ("tdc-rate", "lqr-rate", "mdp-rate", "mdp-cold", "sgd", "remark-1")} == {"yes"}
    assert judged["lqr-improves"] == judged["mdp-improves"] == "yes"


@pytest.mark.parametrize(("logs", "rate", "answer"), [(0, 1.0, True), (2, 1.0, True), (0, 1.4, True), (0, 0.7, False)])
def test_a_rate_up_to_logarithms(logs, rate, answer):
    """log² k/k passes for 1/k, what falls faster too, and k^-0.7 does not."""
    made = made_up.result(lambda k: np.log(k + 3) ** logs / (1 + k) ** rate, 1_000_000)
    assert paper.slope_up_to_logs(made, "error", 1.0)[0] is answer


def test_a_lead_before_ten_thousand_is_named(records):
    def value(case, method, k):
        ahead = case == "fig1" and method.startswith("Fast TDC, factor") and 300 <= k <= 3000
        return (0.5 if ahead else 2.0 if method.startswith("Fast TDC, factor") else 1.0) / (1 + k)

    some = {"fig1": made_up.records({"fig1": paper.cases(True)["fig1"]}, value)["fig1"]}
    verdict = paper._lead(*(paper.printed(some)[name] for name in ("Fast TDC", "TDC")), "error")[1]
    assert kind(verdict) == "partly"
    assert verdict.steps[0] >= 300
    assert verdict.steps[1] <= 3000


def test_a_quick_run_leaves_what_it_cannot_decide():
    undecided = verdicts.Claim("a", "b", "Section 1", "rule", {}, verdicts.NOT_DECIDED)
    decided = verdicts.Claim("a", "b", "Section 1", "rule", {}, verdicts.REPRODUCED, needs=1_000_000)
    assert kind(verdicts.leave_open(undecided, 10).verdict) == "left"
    assert kind(verdicts.leave_open(decided, 100_000).verdict) == "left"
    assert kind(verdicts.leave_open(decided, 1_000_000).verdict) == "yes"


def test_the_factor_and_td_are_numbers_of_one_program():
    """F without the factor 2 is F with half of α, and TD(0) is TDC whose ω stays 0, so both run beside it."""

    def make(**how):
        return lambda key: tc.problems.random_policy_evaluation(key, states=5, actions=3, features=2, **how)

    one = tc.solve(make(operator="tdc", factor=1.0), tc.Standard(5e-4, 2e-3), 200, 3)
    half = tc.solve(make(operator="tdc"), tc.Standard(2.5e-4, 2e-3), 200, 3)
    td = tc.solve(make(operator="td"), tc.Standard(5e-4, 0.0), 200, 3)
    still = tc.solve(make(operator="tdc"), tc.Standard(2.5e-4, 0.0), 200, 3)
    assert np.allclose(one.theta, half.theta, rtol=1e-9)
    assert np.allclose(td.theta, still.theta, rtol=1e-9)


def test_the_oracle_takes_f_at_the_solution():
    problem = paper.table1_problem("strongly-convex", "kinked", 0.0)
    sgd = tc.problems.oracle(problem)
    with jax.enable_x64(True):
        theta, x = np.array([0.7]), (np.array([0.3]), np.array([0.1]))
        assert np.allclose(sgd.F(theta, np.array([9.0]), x), theta + 0.3)
    with pytest.raises(tc.InputError, match="knows `omega_star`"):
        tc.problems.oracle(3)


def test_the_flat_problem_is_pl_and_not_strongly_convex():
    problem = tc.problems.rates("flat", dim=2)
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        for theta in rng.normal(size=(20, 2)):
            slope = np.asarray(problem.gradient(theta))
            assert np.allclose(slope, jax.grad(problem.h)(theta))
            assert np.isclose(np.sum(slope**2) / 2, float(problem.h(theta)))
        assert np.allclose(problem.gradient(np.array([1.0, -1.0])), 0)


def test_the_nested_loop_moves_the_gain_once_a_loop():
    method = fig2_settings.NestedLoop(tc.Standard(0.5, 0.25), inner=3)
    problem = tc.problems.rates(noise=0.0)
    errors = tc.solve(problem, method, 6, 1, [1, 2, 3, 4, 5, 6]).history["error"].tolist()
    assert errors[0] == errors[1] == 1.0
    assert errors[2] == errors[3] == errors[4] != 1.0
    assert errors[5] != errors[4]


def test_the_terminal_ends_in_one_screen(records, tmp_path, capsys, monkeypatch):
    """What ran, findings, a line for each figure, where the report is; every claim only with --verbose."""
    monkeypatch.setattr(__main__, "_facts", lambda outcomes: {})  # made-up records have no versions
    folder = tmp_path / "quick"
    folder.mkdir()
    cases = paper.cases(True)
    picture = runner.Picture("words", {}, b'<svg xmlns="http://www.w3.org/2000/svg" width="1pt" height="1pt"/>')
    outcome = runner.ExperimentOutcome(
        "paper", paper.TITLE, folder / "paper", records, dict.fromkeys(paper.ALT, picture),
        {label: case.title for label, case in cases.items()}, list(cases), paper.claims(records),
        judged=paper.JUDGED,
    )  # fmt: skip
    assert 3 <= len(report.findings([outcome])) <= 5
    shown = {}
    for args in (["--quick"], ["--quick", "--verbose"]):
        __main__._publish({"paper": outcome}, {"paper": paper}, folder, args)
        shown[len(args)] = capsys.readouterr().out
    assert shown[1].startswith("Everything ran: 1 experiment, 0 errors")
    assert shown[1].count("\n") < 30
    labels = [label for about in paper.JUDGED.values() for label in about.values()]
    assert all(f" {label}: " in shown[1] for label in labels)
    assert "report.html" in shown[1]
    assert "On the LQR the online" not in shown[1]
    assert len(shown[2]) > 3 * len(shown[1])
