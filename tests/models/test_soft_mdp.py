"""Soft values, policies, visits, returns and gradients of finite MDPs, against published and independent answers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.envs.toy_text.taxi import TaxiEnv
from quantecon.markov import DiscreteDP

import twoclock as tc
from tests.models.test_mdp import random_mdp
from twoclock.models import Mdp, from_gymnasium
from twoclock.protocols import InputError


def forest():
    P = np.zeros((3, 2, 3))
    P[:, 0] = [[0.1, 0.9, 0.0], [0.1, 0.0, 0.9], [0.1, 0.0, 0.9]]
    P[:, 1, 0] = 1
    return Mdp(P, [[0.0, 0.0], [0.0, 1.0], [4.0, 2.0]], 0.9)


def lake(size=4):
    return from_gymnasium(FrozenLakeEnv(map_name=f"{size}x{size}"), 0.95)


@pytest.mark.parametrize(("temp", "values"), [(0, (26.244, 29.484, 33.484)), (1, (26.399975, 29.567829, 33.56004))])
def test_forest_has_its_published_values(temp, values):
    np.testing.assert_allclose(forest().soft_values(temp), values, atol=1e-6)
    with jax.enable_x64(False):  # whatever JAX's default
        np.testing.assert_allclose(forest().soft_values(temp), values, atol=1e-6)


@pytest.mark.parametrize(("temp", "value"), [(0, 0.180472), (0.01, 0.225642), (0.1, 1.163521)])
def test_frozen_lake_has_its_known_value(temp, value):
    mdp, start = lake()
    assert mdp.soft_values(temp)[0] == pytest.approx(value, abs=1e-6)
    assert tc.problems.frozen_lake(float(temp)).truth.J_star == pytest.approx(value, abs=1e-6)
    # An absorbing state with an ordinary discount is the same end, and earns no bonus either.
    P, over = mdp.P.copy(), np.flatnonzero(mdp.over)
    P[over] = 0
    P[over, :, over] = 1
    assert Mdp(P, mdp.r, 0.95).soft_values(temp)[0] == pytest.approx(value, abs=1e-6)
    assert start.tolist() == [1.0] + [0.0] * 15


@pytest.mark.parametrize("seed", range(3))
def test_temperature_zero_is_the_hard_mdp_of_quantecon(seed):
    mdp, _ = random_mdp(seed, states=12, actions=4, gamma=0.95)
    r = np.einsum("sat,sat->sa", mdp.P, mdp.r)
    theirs = DiscreteDP(r, mdp.P, 0.95).solve(method="value_iteration", epsilon=1e-11, max_iter=100_000)
    np.testing.assert_allclose(mdp.soft_values(0), theirs.v, atol=1e-9)
    assert (mdp.soft_policy(0).argmax(axis=1) == theirs.sigma).all()


@pytest.mark.parametrize("make", [TaxiEnv, CliffWalkingEnv, FrozenLakeEnv])
@pytest.mark.parametrize("gamma", [0.9, 0.95, 0.999])
def test_temperature_zero_is_even_among_equally_good_actions(make, gamma):
    """Two ways of one length are equally good; the last bit of their sums is no reason to prefer one."""
    mdp, _ = from_gymnasium(make(), gamma)
    Q = mdp.soft(0).q(mdp.soft_values(0))
    best = Q.max(axis=1, keepdims=True) - Q < 1e-6
    np.testing.assert_allclose(mdp.soft_policy(0), best / best.sum(axis=1, keepdims=True), rtol=1e-12)
    assert make is FrozenLakeEnv or (best.sum(axis=1) == 2).any()


@pytest.mark.parametrize("temp", [0.0, 1e-3, 0.1, 1.0, 30.0])
def test_the_best_values_are_what_soft_value_iteration_ends_at(temp):
    """The plain iteration V ← τ log Σ exp(Q/τ), written out with SciPy's log-sum-exp."""
    from scipy.special import logsumexp

    mdp, _ = random_mdp(4)
    r, V = np.einsum("sat,sat->sa", mdp.P, mdp.r), np.zeros(mdp.states)
    for _ in range(250):
        Q = r + 0.8 * mdp.P @ V
        V = temp * logsumexp(Q / temp, axis=1) if temp else Q.max(axis=1)
    np.testing.assert_allclose(mdp.soft_values(temp), V, rtol=1e-12)
    np.testing.assert_allclose(mdp.soft_values(temp, mdp.soft_policy(temp)), V, rtol=1e-12)


@pytest.mark.parametrize("temp", [0.0, 1e-300, 1e-12, 1e12, 1e300])
def test_no_temperature_over_or_underflows(temp):
    mdp, _ = random_mdp(5)
    V, pi = mdp.soft_values(temp), mdp.soft_policy(temp)
    assert np.isfinite(V).all()
    np.testing.assert_allclose(pi.sum(axis=1), 1)
    if temp < 1:
        np.testing.assert_allclose(V, mdp.soft_values(0), rtol=1e-10)
    else:
        np.testing.assert_allclose(V / temp, np.log(mdp.actions) / (1 - 0.8), rtol=1e-10)
        np.testing.assert_allclose(pi, 1 / mdp.actions, rtol=1e-10)


def test_a_policy_with_zeros_has_a_finite_value():
    mdp, _ = random_mdp(6)
    pi = np.eye(3)[[0, 1, 2, 0, 1, 2]]
    np.testing.assert_allclose(mdp.soft_values(0.5, pi), mdp.values(pi), rtol=1e-12)


@pytest.mark.parametrize("temp", [0.0, 0.3])
def test_return_and_gradient_against_an_independent_derivation(temp):
    """J and its gradient from an independent linear solve, with a discount that depends on the transition."""
    mdp, _ = random_mdp(7)
    rng = np.random.default_rng(0)
    gamma = rng.uniform(0, 0.95, mdp.P.shape)
    mdp, rho = Mdp(mdp.P, mdp.r, gamma), rng.dirichlet(np.ones(6))
    theta = rng.standard_normal((6, 3))

    def J(theta):
        pi = jax.nn.softmax(theta)
        chain = jnp.einsum("sa,sat->st", pi, mdp.P * gamma)
        reward = jnp.einsum("sa,sat->s", pi, mdp.P * mdp.r) - temp * jnp.sum(pi * jnp.log(pi), axis=1)
        return rho @ jnp.linalg.solve(jnp.eye(6) - chain, reward)

    assert mdp.soft_return(jax.nn.softmax(theta), temp, rho) == pytest.approx(float(J(theta)), rel=1e-12)
    np.testing.assert_allclose(mdp.soft_gradient(theta, temp, rho), jax.grad(J)(jnp.asarray(theta)), atol=1e-12)


def test_visits_are_those_of_the_chain_that_restarts():
    mdp, pi = random_mdp(8)
    rho = np.random.default_rng(0).dirichlet(np.ones(6))
    d = mdp.visitation(pi, rho)
    restarting = 0.8 * mdp.chain(pi) + 0.2 * rho[None, :]
    np.testing.assert_allclose(d @ restarting, d, atol=1e-15)
    np.testing.assert_allclose(
        d, 0.2 * sum(0.8**k * rho @ np.linalg.matrix_power(mdp.chain(pi), k) for k in range(200))
    )


@pytest.mark.parametrize(
    ("make", "states", "actions", "ends"),
    [(FrozenLakeEnv, 64, 4, 11), (TaxiEnv, 500, 6, 4), (CliffWalkingEnv, 48, 4, 1)],
)
def test_gymnasium_tables_are_read_as_they_are_played(make, states, actions, ends):
    env = make(map_name="8x8") if make is FrozenLakeEnv else make()
    mdp, start = from_gymnasium(env, 0.99)
    assert (mdp.states, mdp.actions, int(mdp.over.sum())) == (states, actions, ends)
    assert start.sum() == pytest.approx(1)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(500):
        s, a = int(env.s), int(env.action_space.sample())
        t, reward, done, _, _ = env.step(a)
        assert mdp.P[s, a, t] > 0
        assert mdp.r[s, a, t] == pytest.approx(reward)
        assert mdp.gamma[s, a, t] == (0 if done else 0.99)
        if done:
            env.reset()


def test_taxi_and_cliff_have_the_values_one_counts_by_hand():
    mdp, start = from_gymnasium(CliffWalkingEnv(), 0.9)
    assert mdp.soft_values(0)[start.argmax()] == pytest.approx(-sum(0.9**k for k in range(13)))
    env = TaxiEnv()
    mdp, _ = from_gymnasium(env, 0.9)
    # At R with the passenger aboard who wants to get out there: one step, 20 points.
    assert mdp.soft_values(0)[env.encode(0, 0, 4, 0)] == pytest.approx(20)
    assert mdp.soft_values(0)[env.encode(0, 1, 4, 0)] == pytest.approx(-1 + 0.9 * 20)


class Table:
    initial_state_distrib = (1.0, 0.0)

    def __init__(self, P):
        self.P = P


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: forest().soft_values(-0.1), r"`temp` must be a finite number of at least 0, got -0\.1"),
        (lambda: forest().soft_values(np.inf), r"`temp` must be a finite number"),
        (lambda: forest().soft_values("hot"), r"`temp` must be one number, got 'hot'"),
        (lambda: forest().soft_values(1, np.ones((2, 3)) / 3), r"`policy` must have the shape \(3, 2\)"),
        (lambda: forest().soft_gradient(np.ones((2, 3)), 1), r"`logits` must have the shape \(3, 2\)"),
        (
            lambda: forest().visitation(np.ones((3, 2)) / 2, [0.5, 0.6, 0.0]),
            r"`start` must be a distribution .* got a sum of 1\.1",
        ),
        (
            lambda: forest().visitation(np.ones((3, 2)) / 2, [1.5, -0.5, 0.0]),
            r"`start` must be a distribution .* negative entry",
        ),
        (
            lambda: forest().visitation(np.ones((3, 2)) / 2, [0.5, 0.5]),
            r"`start` must be a distribution .* got the shape \(2,\)",
        ),
        (lambda: forest().soft(1, 3), r"`start` must be a state from 0 to 2 or a distribution over them, got 3"),
        (lambda: from_gymnasium(object()), r"`env` must have a table `unwrapped\.P`"),
        (lambda: from_gymnasium("NoSuchLake-v0"), r"`env` must be a name that Gymnasium knows"),
        (lambda: from_gymnasium(FrozenLakeEnv(), 1.5), r"`gamma` must lie in \[0, 1\], got 1\.5"),
        (
            lambda: from_gymnasium(
                Table({0: {0: [(0.5, 1, 0, True), (0.5, 1, 0, False)]}, 1: {0: [(1, 0, 0, False)]}})
            ),
            r"`env` ends some episodes in state 1 and continues others there",
        ),
    ],
)
def test_bad_input_gets_one_line(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_successors_that_are_no_array_are_refused_in_one_line():
    deep = [1]
    for _ in range(70):  # NumPy takes 64 axes
        deep = [deep]
    with pytest.raises(InputError, match="`successors` must be an array"):
        tc.models.SoftMdp(np.full((2, 2, 2), 0.5), np.zeros((2, 2)), np.ones(2), np.full(2, 0.5), successors=deep)
