"""The verdict without truth: against the truth it did not see, and what it refuses."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc

PROBLEM = tc.problems.quadratic(dim=3, sigma=0.3)


@pytest.fixture(scope="module")
def early():
    with jax.enable_x64(True):
        return tc.solve(PROBLEM, tc.Fast(), 20, 20)


@pytest.fixture(scope="module")
def seen(early):
    with jax.enable_x64(True):
        return tc.residual(PROBLEM, early)


def end(result, metric="error"):
    return result.history[result.history["step"] == result.spec["steps"]][metric].to_numpy()


def test_the_distance_is_reported_far_from_a_solution(early, seen):
    """F and G are affine here: each seed's error lies in its own interval, all in all 95 % of the time."""
    error, table = end(early), seen.by_seed
    assert seen.what == "distance"
    assert seen.seen
    assert seen.value == pytest.approx(error.mean(), rel=0.02)
    assert seen.low <= seen.value <= seen.high
    off = np.abs(table["value"] - error) / table["se"]
    assert np.mean(off < 2.13) >= 0.75
    assert table["seed"].tolist() == list(range(20))
    assert repr(seen).startswith("Residual(not at a solution yet: ‖θ−θ*‖² is about 0.1")
    assert "20 seeds, 1,000 fresh samples each" in repr(seen)


def test_intervals_of_seeds_have_nominal_coverage():
    """200 seeds a step away from θ*, where the noise of the samples is all there is; slopes are exact here."""
    result = tc.solve(PROBLEM, tc.Fast(), 20, 200)
    table, error = tc.residual(PROBLEM, result).by_seed, end(result)
    inside = np.mean((table["low"] <= error) & (error <= table["high"]))
    assert 0.88 <= inside <= 1.0


def test_at_a_solution_only_an_upper_bound_is_reported(early):
    at = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (20, *np.shape(leaf))), PROBLEM.theta_star)
    omega = jax.vmap(PROBLEM.omega_star)(jnp.asarray(at))
    there = dataclasses.replace(early, theta=np.asarray(at), omega=np.asarray(omega))
    verdict = tc.residual(PROBLEM, there)
    assert not verdict.seen
    assert verdict.verdict.startswith("no distance from a solution can be seen: ‖θ−θ*‖² is at most ")
    assert verdict.low <= 0 <= verdict.high
    assert abs(verdict.value) <= 4 * verdict.noise


def test_the_truth_is_never_used():
    def forbidden(theta, omega):
        raise AssertionError("a look at the answer")

    def make(measure):
        return tc.problems.custom(
            F=lambda t, w, x: w - 1, G=lambda t, w, x: w - t + x, noise=lambda key: jax.random.normal(key),
            theta=0.0, omega=0.0, measure=measure,
        )  # fmt: skip

    result = tc.solve(make(lambda t, w: {"error": (t - 1) ** 2}), tc.Standard(0.01, 0.1), 50, 8)
    verdict = tc.residual(make(forbidden), result, samples=4000, check=False)
    assert verdict.value == pytest.approx(end(result).mean(), rel=0.1)


def test_one_seed_and_a_loaded_result(early, seen, tmp_path):
    kept = tc.load(early.save(tmp_path / "run"))
    assert tc.residual(PROBLEM, kept).by_seed.equals(seen.by_seed)
    one = tc.residual(PROBLEM, tc.solve(PROBLEM, tc.Fast(), 20, 1))
    assert one.value == pytest.approx(seen.by_seed["value"].iloc[0])
    assert (one.low, one.high) == pytest.approx(tuple(seen.by_seed.loc[0, ["low", "high"]]))
    assert "1 seed, " in repr(one)


def test_a_changed_constant_is_seen():
    target = [1.0]
    problem = tc.problems.custom(
        F=lambda t, w, x: w - target[0], G=lambda t, w, x: w - t + x, noise=lambda key: jax.random.normal(key),
        theta=0.0, omega=0.0,
    )  # fmt: skip
    result = tc.solve(problem, tc.Fast(), 2000, 4)
    assert not tc.residual(problem, result).seen
    target[0] = 5.0
    assert tc.residual(problem, result).value == pytest.approx(16, rel=0.1)


def test_one_instance_per_seed():
    problem = partial(tc.problems.random_policy_evaluation, states=4, actions=2, features=2)
    result = tc.solve(problem, tc.Fast(), 50, 12)
    verdict = tc.residual(problem, result, samples=20_000)
    np.testing.assert_allclose(verdict.by_seed["value"], end(result), rtol=0.5, atol=0.1)


def test_diverged_seeds_are_left_out_with_a_note(early):
    lost = dataclasses.replace(early, diverged=np.arange(20) < 3)
    verdict = tc.residual(PROBLEM, lost)
    assert verdict.by_seed["diverged"].sum() == 3
    assert "3 of 20 seeds diverged and are left out" in repr(verdict)
    assert np.isfinite(verdict.value)


def test_flat_directions_and_on_policy_samples_are_noted():
    baird = tc.problems.baird()
    verdict = tc.residual(baird, tc.solve(baird, tc.Fast(), 100, 4))
    assert verdict.flat >= 1
    assert "outside" in verdict.verdict
    lqr = tc.problems.paper_lqr()
    steps = tc.Fast(tc.Power(1, shift=3000), tc.Power(8, shift=3000), tc.Power(200, shift=3000))
    assert "the samples follow θ" in repr(tc.residual(lqr, tc.solve(lqr, steps, 100, 4)))


def test_large_problems_report_the_gradient_instead():
    problem = tc.problems.quadratic(dim=40, sigma=0.01)
    result = tc.solve(problem, tc.Standard(0.05, 0.5), 60, 4)
    verdict = tc.residual(problem, result)
    assert verdict.what == "gradient"
    assert "‖∇h(θ)‖² is about" in repr(verdict)
    assert verdict.value == pytest.approx(end(result, "gradient").mean(), rel=0.5)


CASES = {
    "no result": (lambda early: tc.residual(PROBLEM, {"a": early}), "`result` must be a Result of tc.solve, got dict"),
    "no problem": (lambda early: tc.residual(3, early), "`problem` must have init, noise, draw, F and G"),
    "another problem": (
        lambda early: tc.residual(tc.problems.quadratic(dim=3, sigma=0.2), early), "`result` is of another problem"
    ),
    "another shape": (
        lambda early: tc.residual(tc.problems.quadratic(dim=2), early, check=False), "`result` does not fit the problem"
    ),
    "samples": (lambda early: tc.residual(PROBLEM, early, samples=0), "`samples` must be a whole number from 1"),
    "too many": (lambda early: tc.residual(PROBLEM, early, samples=2**31 - 1), r"`samples` must leave steps"),
    "all diverged": (
        lambda early: tc.residual(PROBLEM, dataclasses.replace(early, diverged=np.ones(20, bool))),
        "`result` has no seed that did not diverge",
    ),
    "a projection": (
        lambda early: tc.residual(PROBLEM, tc.solve(PROBLEM, tc.Fast(project_theta=jnp.abs), 5, 2)),
        "the residual says nothing here: `project_theta` keeps a variable in a set",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_argument_is_one_line(case, early):
    make, words = CASES[case]
    with pytest.raises(tc.InputError, match=words) as error:
        make(early)
    assert "\n" not in str(error.value)
