"""Residuals that must not be believed: flat directions, steps without derivatives, standing still; and other units."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from rescaled import UNITS, rescaled, rescaled_result
from twoclock.tuning.objective import judge_by_leader

N = jax.random.normal


def river_swim():
    """Six states, γ = .95, one-hot features; the behaviour goes right with .6, the target with .9."""
    n, s = 6, np.arange(6)
    P = np.zeros((n, 2, n))
    P[s, 0, np.maximum(s - 1, 0)] = 1
    P[0, 1, :2] = P[-1, 1, -2:] = 0.4, 0.6
    for state in s[1:-1]:
        P[state, 1, state - 1 : state + 2] = 0.05, 0.6, 0.35
    reward = np.zeros((n, 2))
    reward[0, 0], reward[-1, 1] = 0.005, 1
    target, behaviour = (np.tile([1 - p, p], (n, 1)) for p in (0.9, 0.6))
    mdp = tc.models.Mdp(P, reward, 0.95)
    return tc.problems.policy_evaluation(mdp, np.eye(n), target, behaviour, "tdc", "markov")


def test_a_direction_without_curvature_to_see_is_no_arrival():
    """The error is above 10, nearly all of it in directions that 500 samples hardly show."""
    problem = river_swim()
    result = tc.solve(problem, tc.Zap(), 500, 4)
    assert result.history.groupby("seed")["error"].last().mean() > 10
    found = tc.residual(problem, result)
    assert not found.arrived.any()
    assert found.unsure >= 1
    assert found.high == np.inf
    assert "cannot be bounded" in found.verdict


def custom(F, G, theta, omega=0.0):
    return tc.problems.custom(F=F, G=G, noise=lambda key: N(key), theta=theta, omega=omega)


BLIND = {
    "quantile": (custom(lambda t, w, x: w, lambda t, w, x: w - (jnp.where(x < t, 1.0, 0.0) - 0.9), 0.0), 1.2816),
    "stop_gradient": (custom(lambda t, w, x: jax.lax.stop_gradient(w) - 1, lambda t, w, x: w - t + x, 0.0), 1.0),
}


@pytest.mark.parametrize("name", BLIND)
def test_slopes_are_seen_where_there_is_no_derivative(name):
    problem, star = BLIND[name]
    method = tc.Polyak(tc.Standard("10/(k+100)^0.7", "10/(k+100)^0.7"))
    early, late = (tc.residual(problem, tc.solve(problem, method, steps, 4), 20_000) for steps in (30, 20_000))
    off = np.square(tc.solve(problem, method, 30, 4).theta - star).mean()
    assert early.seen
    assert early.value == pytest.approx(off, rel=0.5)
    assert not early.arrived.any()
    assert late.arrived.all()
    assert late.high < 0.01


def test_standing_still_is_no_arrival():
    problem = tc.problems.quadratic(dim=3, sigma=0.3)
    found = tc.residual(problem, tc.solve(problem, tc.Standard(1e-12, 0.5), 500, 4))
    assert not found.arrived.any()
    assert found.value == pytest.approx(found.start, rel=1e-3)
    assert not tc.residual(problem, tc.solve(problem, tc.Standard(0.0, 0.0), 500, 4)).arrived.any()


def test_a_nearly_flat_function_far_away_is_no_arrival():
    """From 50 on tanh is flat, and what is seen of it does not say how far the root is."""
    problem = custom(lambda t, w, x: jnp.tanh(t - 1) + 0.5 * (w - t), lambda t, w, x: w - t + 0.5 * x, 50.0)
    found = tc.residual(problem, tc.solve(problem, tc.Standard(0.001, 0.5), 1000, 4))
    assert found.seen
    assert not found.arrived.any()


def test_arrived_results_say_so_and_their_noise_is_bounded():
    problem = tc.problems.quadratic(dim=3, sigma=0.3)
    result = tc.solve(problem, tc.Zap(), 4000, 8)
    found = tc.residual(problem, result)
    assert found.arrived.mean() >= 7 / 8
    assert found.high < 0.01


@pytest.mark.parametrize("unit", UNITS[::3], ids=lambda unit: " ".join(f"{k}={v:g}" for k, v in unit.items()))
def test_other_units_change_nothing(unit):
    """θ, ω, F and G in their own units: the distance scales with θ² and the verdict is the same."""
    problem, _ = BLIND["quantile"]
    result = tc.solve(problem, tc.Standard("10/(k+100)", "10/(k+100)"), 2000, 4)
    plain = tc.residual(problem, result)
    other = tc.residual(rescaled(problem, **unit), rescaled_result(result, **unit), check=False)
    np.testing.assert_allclose(other.by_seed["value"], unit["theta"] ** 2 * plain.by_seed["value"], rtol=1e-4)
    np.testing.assert_array_equal(other.arrived, plain.arrived)
    assert other.unsure == plain.unsure


def steep():
    """F grows like an exponential on one side: a Newton step is short there, however far the root is."""
    return tc.problems.custom(
        F=lambda t, w, x: jnp.exp(w) - 1 + 0.3 * x[0], G=lambda t, w, x: w - t + 0.3 * x[1],
        noise=lambda key: N(key, (2,)), theta=6.0, omega=6.0, measure=lambda t, w: {"error": t**2},
    )  # fmt: skip


def test_tuning_without_truth_does_not_win_by_standing_still():
    """By their own slopes all settings that stand still look as near as 1, and the start is 36 away."""
    space = {"alpha.c": (1e-9, 10.0), "alpha.shift": (10.0, 1e9)}
    method = tc.Standard("0.1/(k+1000)", "50/(k+100)")
    blind, truth = (tc.tune(steep(), method, space, steps=2000, rungs=3, metric=m) for m in ("residual", "error"))
    errors = {
        name: tc.solve(steep(), found.method, 2000, 8, marks=[2000]).history["error"].mean()
        for name, found in (("blind", blind), ("truth", truth))
    }
    assert errors["blind"] < 3 * errors["truth"] + 0.01
    assert blind.ranking["score"].iloc[0] < blind.start
    assert "standing still" not in repr(blind)


@pytest.mark.parametrize("metric", ["error", "residual"])
def test_where_nothing_beats_standing_still_the_result_says_so(metric):
    problem = tc.problems.quadratic(dim=2, sigma=0.3)
    found = tc.tune(problem, tc.Standard(1e-14, 0.5), {"alpha.c": (1e-15, 1e-13)}, steps=200, rungs=1, metric=metric)
    assert found.ranking["score"].iloc[0] == pytest.approx(found.start, rel=1e-3)
    assert "standing still" in repr(found)


def test_a_former_leader_is_remembered():
    """Alone, settings that stand still are judged by their own slopes; beside a leader by its own."""
    from twoclock.engine.loop import drive
    from twoclock.engine.run_batch import Lanes, make_instances
    from twoclock.tuning.fresh_samples import read_samples

    def means(method):
        lanes = Lanes.of(make_instances(steep(), range(4)), [method], range(4), None)
        return read_samples(lanes, drive(lanes, [2000]).carry, 2000, 2000)

    still, moved = means(tc.Standard(1e-12, "50/(k+100)")), means(tc.Standard("0.03/(k+1)^0.5", "50/(k+100)"))
    alone, _ = judge_by_leader(still)
    _, leader = judge_by_leader(moved)
    beside, _ = judge_by_leader(still, leader)
    assert np.median(alone.distance.value) < 4
    assert np.median(beside.distance.value) > 36
