"""A regulator on plants as they are: pushed, with a set point, seen in part, with limits, and with a bad first gain."""

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import scipy.linalg

import twoclock as tc
from twoclock.agents.plant_statistics import PlantWarning
from twoclock.problems.lqr.model_based import steady_state

DT = 0.1
CART = tc.models.Lqr([[1.0, DT], [0.0, 1.0]], [[DT**2 / 2], [DT]], np.diag([1.0, 0.1]), [[0.1]], 0.0025 * np.eye(2))
INTEGRATOR = tc.models.Lqr([[1.0, 1.0], [0.0, 1.0]], [[0.0], [1.0]], np.eye(2), np.eye(1))


def drive(agent, lqr, steps, seed=0, push=0.0, C=None, sensor=0.0, limit=np.inf, x=None):
    """Let it act and learn on a plant, and return the last state and all outputs."""
    rng, root = np.random.default_rng([9, seed]), np.linalg.cholesky(lqr.noise)
    C = np.eye(len(lqr.A)) if C is None else C
    x = np.zeros(len(lqr.A)) if x is None else x
    y, ys = C @ x + sensor * rng.standard_normal(len(C)), []
    for _ in range(steps):
        u = np.clip(agent.act(y), -limit, limit)
        x = lqr.A @ x + lqr.B @ u + push + root @ rng.standard_normal(len(x))
        after = C @ x + sensor * rng.standard_normal(len(C))
        agent.observe(y, u, after)
        y = after
        ys.append(y)
    return x, np.asarray(ys)


def lqg(lqr, C, sensor):
    """The least mean cost where only Cx with noise is seen, x estimated with the present output."""
    P = np.asarray(lqr.value)
    S = scipy.linalg.solve_discrete_are(lqr.A.T, C.T, lqr.noise, sensor**2 * np.eye(len(C)))
    S = S - S @ C.T @ np.linalg.solve(C @ S @ C.T + sensor**2 * np.eye(len(C)), C @ S)
    K = np.asarray(lqr.gain)
    return float(np.trace(P @ lqr.noise) + np.trace(K.T @ (lqr.R + lqr.B.T @ P @ lqr.B) @ K @ S))


def output_cost(agent, lqr, C, sensor):
    """The mean cost of the learnt law on the true plant without exploration, by its stationary covariance."""
    K, known, n = agent.gain, agent._history.known, len(lqr.A)
    shift, into, k = known[:, : K.shape[1]], known[:, K.shape[1] :], K.shape[1]
    p = len(C)
    loop = np.block([[lqr.A, -lqr.B @ K], [C @ lqr.A, -C @ lqr.B @ K], [np.zeros((k - p, n)), shift - into @ K]])
    root = np.linalg.cholesky(lqr.noise)
    enter = np.zeros((n + k, n + p))
    enter[:n, :n], enter[n : n + p, :n], enter[n : n + p, n:] = root, C @ root, sensor * np.eye(p)
    X = scipy.linalg.solve_discrete_lyapunov(loop, enter @ enter.T)
    return float(np.trace(lqr.Q @ X[:n, :n]) + np.trace(lqr.R @ K @ X[n:, n:] @ K.T))


def test_steady_state_is_the_cheapest():
    """Against the definition: feasible, and cheaper than its neighbours along all directions that stay feasible."""
    rng = np.random.default_rng(0)
    A, B, d = rng.normal(size=(3, 3)) * 0.4, rng.normal(size=(3, 2)), rng.normal(size=3)
    Q, R = np.diag([1.0, 0.0, 2.0]), np.diag([0.5, 3.0])
    for effort in (1.0, 1e-6):
        x, u = steady_state(np.hstack([A, B]), d, Q, R, effort)
        np.testing.assert_allclose(x, A @ x + B @ u + d, atol=1e-9)
        W = scipy.linalg.block_diag(Q, effort * R)
        free = scipy.linalg.null_space(np.hstack([np.eye(3) - A, -B]))
        np.testing.assert_allclose(free.T @ W @ np.concatenate([x, u]), 0, atol=1e-8)


def test_a_constant_push_is_part_of_the_model():
    """Without an intercept the gain was [6.0, 5.8] for [2.8, 2.5], silently."""
    agent = tc.agents.Regulator(CART.Q, CART.R, K0=[[1.0, 1.5]], sigma=0.5)
    drive(agent, CART, 3000, push=[0.0, 0.1])
    np.testing.assert_allclose(agent.gain, CART.gain, rtol=0.15)
    _, u = agent.steady_state
    assert u == pytest.approx(-1.0, abs=0.1)
    assert agent.warnings == []
    best = float(CART.J(CART.gain, 0.5)) + 0.1  # to hold against the push
    assert agent.history["cost"].iloc[-1] == pytest.approx(best, rel=0.05)


def test_set_point_without_offset():
    """The mean of the position is the set point, in spite of a push and a spring that no exact zero would cancel."""
    spring = tc.models.Lqr([[1.0, DT], [-0.05, 0.9]], CART.B, CART.Q, [[3.0]], CART.noise)
    means = {}
    for reference in (None, [2.0, 0.0]):
        agent = tc.agents.Regulator(spring.Q, spring.R, sigma=0.3, reference=reference, seed=1)
        with pytest.warns(PlantWarning, match="goal") if reference is None else nullcontext():
            _, xs = drive(agent, spring, 3000, push=[0.0, 0.1])
        means[reference is None] = xs[1000:].mean(axis=0)
    assert means[False][0] == pytest.approx(2.0, abs=0.05)
    # Without a set point the cheapest steady state is held, which the push moves off zero.
    x, _ = steady_state(np.hstack([spring.A, spring.B]), np.array([0.0, 0.1]), spring.Q, spring.R, 1.0)
    assert means[True][0] == pytest.approx(x[0], abs=0.2)
    assert x[0] > 0.5


def test_position_only_is_as_good_as_lqg():
    """One stream from an unstable start; what is charged for a speed, differences of positions cost but a constant."""
    C = np.array([[1.0, 0.0]])
    best = lqg(INTEGRATOR, C, 1.0)
    assert best == pytest.approx(27.78, abs=0.01)
    agent = tc.agents.Regulator([[2.0, -1.0], [-1.0, 1.0]], [[1.0]], lags=5, outputs=1)
    drive(agent, INTEGRATOR, 6000, C=C, sensor=1.0)
    assert output_cost(agent, INTEGRATOR, C, 1.0) < 1.05 * best
    assert agent.warnings == []


def test_three_states_two_outputs():
    rng = np.random.default_rng(5)
    A = rng.normal(size=(3, 3))
    A *= 0.95 / np.abs(np.linalg.eigvals(A)).max()
    C = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    lqr = tc.models.Lqr(A, rng.normal(size=(3, 1)), C.T @ C, np.eye(1))
    agent = tc.agents.Regulator(np.eye(2), [[1.0]], lags=4)
    drive(agent, lqr, 6000, C=C, sensor=0.5)
    assert output_cost(agent, lqr, C, 0.5) < 1.05 * lqg(lqr, C, 0.5)


def test_a_state_that_is_none_is_said():
    """The position of a mass is not its state, nor is a state whose action comes a step late."""
    agent = tc.agents.Regulator([[1.0]], [[1.0]])
    slow = tc.models.Lqr([[0.9, 0.3], [0.0, 0.8]], [[0.0], [1.0]], np.eye(2), np.eye(1))
    with pytest.warns(PlantWarning, match="the state is incomplete"):
        drive(agent, slow, 600, C=np.array([[1.0, 0.0]]), sensor=0.1)
    assert "try `lags=4`" in agent.warnings[0]
    late = tc.models.Lqr([[0.9, 1.0], [0.0, 0.0]], [[0.0], [1.0]], np.eye(2), np.eye(1), np.diag([1.0, 1e-9]))
    agent = tc.agents.Regulator([[1.0]], [[1.0]])
    with pytest.warns(PlantWarning, match="the state is incomplete"):
        drive(agent, late, 600, C=np.array([[1.0, 0.0]]))


def test_limits_of_an_actuator_are_learnt_from_and_said():
    agent = tc.agents.Regulator([[1.0]], [[1.0]], seed=2)
    plant = tc.models.Lqr([[0.9]], [[0.5]], [[1.0]], [[1.0]])
    with pytest.warns(PlantWarning, match="of the actions were not applied as asked"):
        drive(agent, plant, 1500, limit=0.8)
    np.testing.assert_allclose(agent.gain, plant.gain, atol=0.1)  # as if what was asked had been applied: 0.2 off


def test_a_goal_out_of_reach_is_said():
    """A point on a circle never comes near its middle, as cosine and sine of a pendulum."""
    agent, rng, angle = tc.agents.Regulator(np.eye(2), [[1.0]]), np.random.default_rng(0), 0.0
    x = np.array([1.0, 0.0])
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        for _ in range(1100):
            u = agent.act(x)
            angle += 0.3 * float(np.clip(u[0], -1, 1)) + 0.2 * rng.standard_normal()
            after = np.array([np.cos(angle), np.sin(angle)])
            agent.observe(x, u, after)
            x = after
    assert any("came near the goal [0.0, 0.0]" in line for line in agent.warnings)


def test_a_goal_in_directions_without_cost_is_no_goal():
    """The speed has no cost, so a set point that gives 0 for it is reached where the position is."""
    plant = tc.models.Lqr([[0.98, 0.05], [-0.02, 0.6]], [[0.0], [0.8]], np.diag([1.0, 0.0]), [[0.05]], 4e-4 * np.eye(2))
    agent = tc.agents.Regulator(plant.Q, plant.R, reference=[1.5, 0.0], sigma=0.2)
    drive(agent, plant, 2500, push=-0.05)
    assert agent.steady_state[0][1] > 1
    assert agent.warnings == []
    turned = tc.agents.Regulator(np.eye(2), plant.R, reference=[1.5, 0.0], sigma=0.2)
    with pytest.warns(PlantWarning, match=r"came near the goal \[1.5, 0.0\]"):
        drive(turned, plant, 1100, push=-0.05)


def test_a_learner_that_diverged_is_said():
    agent = tc.agents.Regulator([[1.0]], [[1.0]], K0=[[0.5]], critic="q", method=tc.Standard(0.5, 0.5))
    with pytest.warns(tc.DivergedWarning), pytest.warns(PlantWarning, match="the learner diverged, and K0 acts since"):
        drive(agent, tc.models.Lqr([[0.999]], [[0.05]], [[1.0]], [[1.0]]), 300)
    assert agent.diverged
    np.testing.assert_array_equal(agent.gain, [[0.5]])


def test_what_is_saved_resumes(tmp_path):
    """With lags, a set point and a guard: bit-for-bit identical in the middle of the log and behind it."""
    C = np.array([[1.0, 0.0]])
    agent = tc.agents.Regulator(
        [[1.0]], [[1.0]], K0=[[0.1]], lags=2, reference=[1.0], guard=tc.problems.Guard(log=150), seed=4
    )
    slow = tc.models.Lqr([[0.9, 0.3], [0.0, 0.8]], [[0.0], [1.0]], np.eye(2), np.eye(1))
    x = None
    for steps in (100, 150):
        x, _ = drive(agent, slow, steps, seed=steps, C=C, x=x)
        agent.save(tmp_path / "a")
        again = tc.agents.Regulator.load(tmp_path / "a")
        (_, here), (_, there) = (drive(one, slow, 60, seed=7, C=C, x=x) for one in (agent, again))
        assert np.array_equal(here, there)
        assert np.array_equal(agent.gain, again.gain)
        assert str(agent.cost()) == str(again.cost())
        assert agent.warnings == again.warnings


def test_a_record_of_an_older_version_says_why(tmp_path, monkeypatch):
    agent = tc.agents.Regulator([[1.0]], [[1.0]])
    monkeypatch.setattr(tc.agents.Regulator, "_FORMAT", 1)
    agent.save(tmp_path / "a")
    monkeypatch.undo()
    with pytest.raises(tc.InputError, match=r"a version whose `Regulator` had other state.*tc.load"):
        tc.agents.Regulator.load(tmp_path / "a")
    assert tc.load(tmp_path / "a").theta["K"].shape == (1, 1, 1)


def test_environments_with_other_actions_or_goals():
    """`CartPole` takes left or right; `Pendulum` shows cosine and sine, which are never both zero."""
    pytest.importorskip("gymnasium")
    with pytest.raises(tc.InputError, match=r"must take actions of a Box for Regulator.*Discrete"):
        tc.agents.run(tc.agents.Regulator(np.eye(4), [[1.0]]), "CartPole-v1", steps=10)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = tc.agents.run(tc.agents.Regulator(np.eye(3), [[1.0]]), "Pendulum-v1", steps=1100)
    assert any("came near the goal" in str(warning.message) for warning in said)
    assert any("seed 0: no output" in note for note in result.spec["notes"])
