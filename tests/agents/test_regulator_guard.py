"""The guard's promise: a gain acts only if it is proved to stabilise, and a state that leaves is handed to K0."""

import warnings

import numpy as np
import pytest

import twoclock as tc
from twoclock.agents.plant_statistics import PlantStatistics, PlantWarning, _gain_below


def drive(agent, a, b, steps, seed=0, x=0.0):
    """A plant of one state; return the last state and the largest."""
    rng, largest, x = np.random.default_rng([3, seed]), 0.0, np.full(1, x)
    for _ in range(steps):
        u = agent.act(x)
        after = a * x + b * u + rng.standard_normal(1)
        agent.observe(x, u, after)
        x, largest = after, max(largest, abs(float(after[0])))
    return float(x[0]), largest


def test_the_norm_of_a_loop():
    """Against the largest singular value on a fine grid of the circle, just above and just below it."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        A = rng.normal(size=(4, 4))
        A *= rng.uniform(0.3, 0.98) / np.abs(np.linalg.eigvals(A)).max()
        B, C = rng.normal(size=(4, 2)), rng.normal(size=(5, 4))
        circle = np.exp(1j * np.linspace(0, np.pi, 4001))
        inverse = np.linalg.inv(circle[:, None, None] * np.eye(4) - A)
        norm = np.linalg.svd(C @ inverse @ B, compute_uv=False).max()
        assert _gain_below(A, B, C, 1.01 * norm)
        assert not _gain_below(A, B, C, 0.99 * norm)


def test_no_unstable_gain_is_proved():
    """Random gains, half of them unstable, on random plants in odd units: many are proved, none wrongly."""
    rng, proved, unstable = np.random.default_rng(1), 0, 0
    for _ in range(8):
        unit = 10.0 ** rng.uniform(-3, 3, 2)
        A = rng.normal(size=(2, 2))
        A *= rng.uniform(0.8, 1.1) / np.abs(np.linalg.eigvals(A)).max()
        A, B = unit[:, None] * A / unit, unit[:, None] * rng.normal(size=(2, 1))
        best = np.asarray(tc.models.Lqr(A, B, np.diag(unit**-2.0), np.eye(1)).gain)
        statistics, x, older = PlantStatistics(2, 1), np.zeros(2), np.zeros(3)
        for k in range(600):
            u = rng.standard_normal(1) - best @ x
            after = A @ x + B @ u + unit * rng.standard_normal(2)
            statistics.add(np.concatenate([x, u]), older, after)
            x, older = after, np.concatenate([x, u])
            if k > 100 and k % 5 == 0:
                K = best + np.abs(best) * rng.normal(size=best.shape) * 10.0 ** rng.uniform(-1, 0.7)
                stable = np.abs(np.linalg.eigvals(A - B @ K)).max() < 1
                unstable += not stable
                proved += statistics.proves(K)
                assert stable or not (statistics.proves(K) or statistics.passes(K))
    assert proved > 200
    assert unstable > 200


@pytest.mark.parametrize("seed", [0, 7])
def test_a_wandering_critic_does_not_take_the_plant_along(seed):
    """A quarter of such runs ended with an unstable gain, and states up to 10¹², without a flag."""
    agent = tc.agents.Regulator([[1.0]], [[1.0]], K0=[[0.5]], critic="q", guard=True, seed=seed)
    _, largest = drive(agent, 0.999, 0.05, 3000, seed)
    assert largest < 100
    assert abs(0.999 - 0.05 * agent.gain[0, 0]) < 1
    assert not agent.diverged


@pytest.mark.parametrize("critic", ["model", "q"])
def test_a_first_gain_that_does_not_stabilise_is_replaced(critic):
    """The plant went to 10¹¹⁸."""
    agent = tc.agents.Regulator([[1.0]], [[1.0]], K0=[[-1.0]], critic=critic, guard=tc.problems.Guard(log=200), seed=1)
    with pytest.warns(PlantWarning, match="`K0` does not stabilise"):
        x, largest = drive(agent, 0.9, 0.5, 700)
    assert largest < 1e6
    assert abs(x) < 100
    assert abs(0.9 - 0.5 * agent.gain[0, 0]) < 1
    assert agent.steps > 100  # it has a log of the new gain, and learns


def test_a_first_gain_on_outputs_that_does_not_stabilise_is_replaced():
    """With lags too little is known for a proof before the states are too large for one; their growth tells."""
    K0 = np.array([[0.9, -0.6, 0.0, 0.0, 0.0, 0.0, 0.0]])  # a spectral radius of 1.05 on the double integrator
    agent = tc.agents.Regulator([[1.0]], [[1.0]], K0, lags=4, guard=tc.problems.Guard(log=400), seed=0)
    rng, x, y, sizes = np.random.default_rng(5), np.zeros(2), np.zeros(1), []
    agent.quiet = True
    for _ in range(1200):
        u = agent.act(y)
        x = np.array([x[0] + x[1], x[1] + u[0]]) + rng.normal(size=2)
        after = x[:1] + rng.normal(size=1)
        agent.observe(y, u, after)
        y = after
        sizes.append(abs(y[0]))
    assert any("`K0` does not stabilise" in line for line in agent.warnings)
    assert not agent.diverged
    assert max(sizes[-300:]) < 100


def test_a_state_that_leaves_is_handed_to_the_first_gain():
    """And the cost speaks of what came after."""
    agent = tc.agents.Regulator([[1.0]], [[1.0]], K0=[[0.3]], guard=tc.problems.Guard(log=200))
    drive(agent, 0.9, 0.5, 800)
    assert np.isfinite(agent.cost().low)
    with pytest.warns(PlantWarning, match=r"left what the guard's log had shown, 1 times; `K0` took over"):
        u = agent.act([60.0])
    assert u == pytest.approx(-18.0, abs=4)  # K0's, and exploration
    agent.observe([60.0], u, [45.0])
    assert np.isnan(agent.cost().low)
    drive(agent, 0.9, 0.5, 200, seed=1, x=45.0)
    assert agent.interventions["guard_trips"] == 1
    assert agent.cost().value < 10  # 45² is not in it
    assert agent.cost().low >= 0


def test_a_plant_that_no_gain_holds_is_lost():
    agent = tc.agents.Regulator([[1.0]], [[1.0]], K0=[[0.3]], guard=tc.problems.Guard(log=100))
    drive(agent, 0.9, 0.5, 300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drive(agent, 2.5, 0.1, 30, seed=1)
    assert agent.diverged
    assert "the plant is lost" in agent.warnings[-1]


def test_costs_are_not_negative():
    agent = tc.agents.Regulator([[1.0]], [[1.0]], K0=[[0.01]], sigma=0.1)
    drive(agent, 0.999, 1.0, 130)
    for anytime in (False, 100):
        assert agent.cost(0.999, anytime=anytime).low >= 0


def test_costs_of_a_run_are_not_negative():
    """A slow plant: its interval at 99.9 % would go far below zero."""
    agent = tc.agents.Regulator([[1.0]], [[1.0]], K0=[[0.01]], sigma=0.1)
    result = tc.agents.run(agent, slow_plant, steps=250, x0=np.zeros(1))
    for how in ("random-scaling", "blocks"):
        found = result.interval(0.999, how)
        assert (found["low"] >= 0).all()
        assert (found["low"] == 0).any() == (2 * found["estimate"] < found["high"]).any()


def slow_plant(x, u, rng):
    return 0.999 * x + 0.01 * u + rng.normal(size=1)
