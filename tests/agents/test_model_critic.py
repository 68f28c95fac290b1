"""The model critic: its operators against Riccati and Gaussian moments, its gain against certainty equivalence's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock.models.riccati import riccati
from twoclock.problems.lqr.model_based import solve_definite

PAPER = tc.problems.paper_lqr().lqr
PROBLEM = tc.problems.lqr_model(PAPER)


def test_elimination():
    rng = np.random.default_rng(0)
    root, b = rng.normal(size=(5, 7)), rng.normal(size=(5, 3))
    a = root @ root.T
    np.testing.assert_allclose(solve_definite(a, b), np.linalg.solve(a, b), rtol=1e-9)


def test_roots():
    """F is zero at the Riccati solution on the exact moments, and a step of it is a step of the Riccati recursion."""
    K, P = PAPER.gain, PAPER.value
    at_best = PROBLEM.omega_star({"K": K, "P": P})
    np.testing.assert_allclose(PROBLEM.operators.plant(at_best), np.hstack([PAPER.A, PAPER.B]), atol=1e-12)
    for found in jax.tree.leaves(PROBLEM.operators.F({"K": jnp.asarray(K), "P": jnp.asarray(P)}, at_best, None)):
        np.testing.assert_allclose(found, 0, atol=1e-10)
    near = P + 0.01 * np.eye(3)
    gain = np.linalg.solve(PAPER.R + PAPER.B.T @ near @ PAPER.B, PAPER.B.T @ near @ PAPER.A)
    loop = PAPER.A - PAPER.B @ gain
    value = PAPER.Q + gain.T @ PAPER.R @ gain + loop.T @ near @ loop
    f = PROBLEM.operators.F({"K": jnp.zeros((2, 3)), "P": jnp.asarray(near)}, at_best, None)
    np.testing.assert_allclose(-f["K"], gain, atol=1e-12)
    np.testing.assert_allclose(near - f["P"], value, atol=1e-12)
    far = PROBLEM.operators.F({"K": jnp.zeros((2, 3)), "P": 5 * jnp.asarray(near)}, at_best, None)
    assert not np.any(far["K"])  # the gain waits for the value


def test_as_good_as_certainty_equivalence_on_the_same_data():
    """ω is the mean of vvᵀ, so the Riccati equation on it is certainty equivalence; 1.1 of its excess cost, or less."""
    result = tc.solve(PROBLEM, tc.methods.running_means(), steps=1000, seeds=32)
    assert not result.diverged.any()
    ab = jax.vmap(PROBLEM.operators.plant)(jax.tree.map(jnp.asarray, result.omega))
    gains = jax.vmap(lambda ab: riccati(ab[:, :3], ab[:, 3:], PAPER.Q, PAPER.R)[0])(ab)
    costs = jax.vmap(lambda K: PAPER.J(K, 1.0))(gains)
    rival = float(np.mean(costs) - PROBLEM.plant.J_star)
    last = result.summary("gap")["mean"].iloc[-1]
    assert 2.5 < 1000 * rival < 8  # 4.44 in the long run
    assert last < 1.1 * rival


def test_unstable_plant_and_guard():
    """From a stabilising gain the value iteration passes through gains that are not; none of them acts."""
    lqr = tc.models.Lqr(A=[[1.2, 1.0], [0.0, 1.1]], B=[[0.0], [1.0]], Q=np.eye(2), R=np.eye(1))
    K0 = lqr.gain * 1.2
    for guard in (None, tc.problems.Guard(log=500)):
        problem = tc.problems.lqr_model(lqr, K0=K0, guard=guard)
        result = tc.solve(problem, tc.methods.running_means(), steps=300, seeds=8)
        assert not result.diverged.any()
        assert (result.history["spectral_radius"] < 1).all()
        assert result.summary("gap")["median"].iloc[-1] < result.summary("gap")["median"].iloc[0] / 5
    assert "guard_trips" in result.metrics


def test_a_guard_falls_back_to_the_first_gain():
    problem = tc.problems.lqr_model(PAPER, K0=0.1 * PAPER.gain, guard=tc.problems.Guard(log=100))
    theta, omega, _ = problem.init(jax.random.key(0))
    theta = theta | {"K": theta["K"] + 1}
    sample = {"z": jnp.ones(5), "next": jnp.ones(5), "c": jnp.ones(()), "held": jnp.asarray(True)}
    np.testing.assert_allclose(theta["K"] - problem.F(theta, omega, sample)["K"], 0.1 * PAPER.gain)


def test_one_line():
    with pytest.raises(tc.InputError, match="forgetting"):
        tc.methods.running_means(1.5)
    with pytest.raises(tc.InputError, match=r"ModelCritic\(Q=…\)` must be square"):
        tc.problems.ModelCritic(np.ones((2, 3)), np.eye(1))
    with pytest.raises(tc.InputError, match="ridge=…"):
        tc.problems.lqr_model(PAPER, ridge=0.0)


@pytest.mark.parametrize("known", [np.ones((1, 2)), np.ones((2, 3)), "deep"])
def test_known_rows_are_fewer_than_the_states_and_have_an_entry_for_each_state_and_action(known):
    if isinstance(known, str):
        known = 1.0
        for _ in range(2000):
            known = [known]
    with pytest.raises(tc.InputError, match=r"`ModelCritic\(known=…\)` must") as error:
        tc.problems.ModelCritic(np.eye(2), np.eye(1), known=known)
    assert "\n" not in str(error.value)
    assert "known" in repr(tc.problems.ModelCritic(np.eye(2), np.eye(1), known=np.ones((1, 3))))
