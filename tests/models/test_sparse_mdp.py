"""Sparse transition tables: the same answers as the dense ones, and 10⁵ states in seconds."""

import dataclasses
import os
import subprocess
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import twoclock as tc
from twoclock.models import Mdp, constrained_optimum, limit_law
from twoclock.protocols import InputError


def pair(seed=0, states=30, actions=3, gamma=0.9, width=4):
    """A random table with few successors, some of them twice in a list, sparse and dense."""
    rng = np.random.default_rng(seed)
    successors = rng.integers(0, states, (states, actions, width))
    successors[:, 0, 0] = (np.arange(states) + 1) % states  # every state reaches every other
    P, r = rng.dirichlet(np.ones(width), (states, actions)), rng.normal(size=(states, actions, width))
    sparse = Mdp(P, r, gamma, successors)
    return sparse, sparse.dense("a test"), rng.dirichlet(np.ones(actions), states)


def test_the_dense_table_of_a_list_has_its_means():
    sparse, dense, pi = pair()
    for s, a in ((0, 0), (7, 2)):
        for t in range(30):
            listed = sparse.successors[s, a] == t
            assert dense.P[s, a, t] == pytest.approx(sparse.P[s, a, listed].sum())
    np.testing.assert_allclose(sparse.mean_reward, dense.mean_reward, atol=1e-14)
    np.testing.assert_allclose(sparse.chain(pi).toarray(), dense.chain(pi), atol=1e-15)


@pytest.mark.parametrize("seed", range(3))
def test_values_laws_and_soft_answers_are_those_of_the_dense_table(seed):
    sparse, dense, pi = pair(seed)
    for ask in (
        lambda m: m.values(pi),
        lambda m: m.stationary(pi),
        lambda m: m.visitation(pi, 3),
        lambda m: m.soft_values(0.1),
        lambda m: m.soft_values(0.0),
        lambda m: m.soft_policy(0.2),
        lambda m: m.soft_gradient(np.log(pi), 0.1, 3),
        lambda m: m.gain(pi),
        lambda m: m.average_reward(0.1).solve().gain,
        lambda m: m.average_reward(0.1).evaluate(np.log(pi)).bias,
        lambda m: m.average_reward(0.1).gradient(np.log(pi)),
    ):
        np.testing.assert_allclose(ask(sparse), ask(dense), atol=1e-11)
    assert sparse.over.tolist() == dense.over.tolist()


def test_scipy_matrices_are_read_with_rewards_and_discounts_per_transition():
    rng = np.random.default_rng(1)
    P = rng.dirichlet(np.ones(6), (6, 2)) * (np.arange(6) != rng.integers(0, 6, (6, 2, 1)))
    P /= P.sum(axis=2, keepdims=True)
    r, gamma = rng.normal(size=P.shape), rng.uniform(0, 0.9, P.shape)
    dense, pi = Mdp(P, r, gamma), rng.dirichlet(np.ones(2), 6)
    matrices = [[sp.csr_array(table[:, a]) for a in range(2)] for table in (P, r, gamma)]
    for given in (matrices, (matrices[0], r, gamma)):
        sparse = Mdp(*given)
        assert sparse.P.shape[2] == 5
        np.testing.assert_allclose(sparse.values(pi), dense.values(pi), atol=1e-13)
    ends = np.array([0.9, 0.9, 0.0, 0.9, 0.9, 0.9])  # a discount for each next state, as broadcasting has it
    np.testing.assert_allclose(Mdp(matrices[0], r, ends).values(pi), Mdp(P, r, ends).values(pi), atol=1e-13)


def test_slow_and_periodic_chains_are_solved_too():
    n, one = 400, np.ones((400, 1))
    ring = Mdp([sp.csr_array((np.ones(n), (np.arange(n), (np.arange(n) + 1) % n)))], one, 0.9999)
    np.testing.assert_allclose(ring.stationary(one), 1 / n, rtol=1e-12)
    np.testing.assert_allclose(ring.values(one), 1e4, rtol=1e-10)
    walk = sp.diags_array([np.full(n - 1, 0.5), np.full(n - 1, 0.5)], offsets=[-1, 1]).tolil()
    walk[0, 0] = walk[n - 1, n - 1] = 0.5
    gamma = np.ones((n, 1, n))
    gamma[0, 0, 0] = gamma[n - 1, 0, n - 1] = 0  # the two ends
    V = Mdp([walk.tocsr()], one, gamma).values(one)
    s = np.arange(1, n + 1)
    np.testing.assert_allclose(V, s * (n + 1 - s), rtol=1e-9)  # the expected time until a walk leaves


@pytest.mark.parametrize("sampling", ["iid", "markov"])
def test_policy_evaluation_and_its_limit_law_are_those_of_the_dense_table(sampling):
    listed, _, pi = pair(4)
    # A list may have one successor twice with two rewards: the dense table has their mean, and so a smaller variance.
    sparse = Mdp(listed.P, listed.mean_reward, 0.9, listed.successors)
    dense, rng = sparse.dense("a test"), np.random.default_rng(0)
    Phi, b = sp.csr_array(rng.normal(size=(30, 4))), rng.dirichlet(np.ones(3), 30)
    options = [{}] if sampling == "iid" else [{}, {"lam": 0.7}, {"operator": "etd", "lam": 0.5}]
    for option in options:
        make = partial(tc.problems.policy_evaluation, features=Phi, target=pi, behaviour=b, sampling=sampling, **option)
        ours, theirs = make(sparse), make(dense)
        np.testing.assert_allclose(ours.truth.theta_star, theirs.truth.theta_star, atol=1e-10)
    law, exact = (limit_law(m, Phi, pi, b, sampling) for m in (sparse, dense))
    np.testing.assert_allclose(law.covariance(), exact.covariance(), rtol=1e-9)
    if sampling == "markov":
        with pytest.raises(InputError, match="`block` must be None or 1"):
            law.covariance(block=5)


def means(problem, samples=40_000):
    """How often each transition is drawn, and the mean reward, at the start."""
    theta, _, first = problem.init(jax.random.key(1))

    def draw(env, key):
        u = problem.noise(key)
        x, env = problem.draw(u, theta, env)
        return env, (x.s, x.next_state, x.r)

    s, t, r = jax.lax.scan(draw, first, jax.random.split(jax.random.key(2), samples))[1]
    return np.asarray(jnp.zeros((30, 30)).at[s, t].add(1.0)) / samples, float(r.mean())


@pytest.mark.parametrize("make", [tc.problems.entropy_mdp, tc.problems.average_reward])
def test_samples_and_metrics_are_those_of_the_dense_table(make):
    sparse, dense, _ = pair(5)
    ours, theirs = make(sparse, 0.1), make(dense, 0.1)
    rng = np.random.default_rng(3)
    theta = rng.normal(size=(30, 3))
    omega = rng.normal(size=30)
    omega = (np.float64(0.2), omega) if make is tc.problems.average_reward else omega
    with jax.enable_x64(True):
        known = jax.tree.map(float, ours.measure(theta, omega))
        for name, value in theirs.measure(theta, omega).items():
            assert known[name] == pytest.approx(float(value), rel=1e-9, abs=1e-12), name
        for name in ("field", "omega_star"):
            for a, b in zip(*(jax.tree.leaves(getattr(p, name)(theta)) for p in (ours, theirs)), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-10)
        (pairs, reward), (expected, mean) = means(ours), means(theirs)
    np.testing.assert_allclose(pairs, expected, atol=0.01)
    assert reward == pytest.approx(mean, abs=0.05)
    result = tc.solve(ours, tc.Standard(0.01, 0.05), steps=200, seeds=2, engine="xla")
    assert np.isfinite(result.history.gap).all()


def test_constrained_answers_are_those_of_the_dense_table():
    sparse, dense, _ = pair(6)
    cost = np.random.default_rng(0).random((30, 3))
    free = constrained_optimum(dense, cost, 100.0)
    limit = (free.free_cost + free.least_cost) / 2
    for temp in (0.0, 0.1):
        ours, theirs = (constrained_optimum(m, cost, limit, temp) for m in (sparse, dense))
        assert ours.reward == pytest.approx(theirs.reward, abs=1e-8)
        assert ours.multiplier == pytest.approx(theirs.multiplier, abs=1e-8)
    problem = tc.problems.constrained_mdp(sparse, cost, limit, 0.1)
    assert np.isfinite(tc.solve(problem, tc.Standard(0.01, 0.05), steps=50, seeds=1, engine="xla").history.gap).all()


def slow_ring(states=2000, gamma=0.9999):
    """A ring whose states see their neighbours alone, so that a discount this near 1 forgets slowly."""
    rng = np.random.default_rng(0)
    around = (np.arange(states)[:, None, None] + np.arange(-4, 6)) % states
    P = rng.dirichlet(np.ones(10), (states, 2))
    return Mdp(P, rng.normal(size=(states, 2)), gamma, np.broadcast_to(around, P.shape)), rng.random((states, 2))


@pytest.mark.parametrize("temp", [0.0, 0.1])
def test_a_ring_that_mixes_slowly_is_solved_to_rounding_within_seconds(temp):
    ring, _ = slow_ring()
    begin = time.process_time()
    soft = ring.soft(temp)
    log_pi, V = soft.solve()
    known = soft.evaluate(log_pi)
    assert time.process_time() - begin < 10
    np.testing.assert_allclose(soft.improve(soft.q(V))[1], V, rtol=1e-13)
    np.testing.assert_allclose(known.V, V, rtol=1e-12)
    assert known.visits.sum() == pytest.approx(1e4, rel=1e-11)
    assert tc.problems.entropy_mdp(ring, temp).truth.J_star == pytest.approx(V.mean(), rel=1e-13)


@pytest.mark.parametrize("temp", [0.0, 0.1])
def test_a_limit_on_a_slow_ring_binds_and_its_multiplier_is_the_slope(temp):
    ring, cost = slow_ring(500, 0.999)
    free = constrained_optimum(ring, cost, 1e6, temp)
    limit, step = (free.free_cost + free.least_cost) / 2, 1e-2
    left, best, right = (constrained_optimum(ring, cost, limit + h, temp) for h in (-step, 0, step))
    assert best.cost == pytest.approx(limit, rel=1e-10)
    assert best.multiplier == pytest.approx((right.reward - left.reward) / (2 * step), rel=1e-3)
    spent = ring.soft(0.0).evaluate(np.log(np.maximum(best.policy, 1e-300))).visits @ np.sum(best.policy * cost, axis=1)
    assert spent == pytest.approx(limit, rel=1e-9)


def test_kinks_of_sparse_tables_are_those_of_the_linear_program():
    """At the cost of a deterministic policy there are several multipliers, and without a limit that binds it is 0."""
    sparse, dense, _ = pair(6)
    cost = np.random.default_rng(0).random((30, 3))
    free = constrained_optimum(dense, cost, 100.0)
    kink = constrained_optimum(dense, cost, (free.free_cost + free.least_cost) / 2)
    soft = dataclasses.replace(dense.soft(0.0), r=dense.mean_reward - (kink.low + 0.01) * cost)
    at = float(dataclasses.replace(soft, r=cost).J(soft.solve()[0]))
    for limit in (at, free.free_cost, free.least_cost, 100.0):
        ours, theirs = (constrained_optimum(m, cost, limit) for m in (sparse, dense))
        for name in ("reward", "cost", "low", "high"):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=1e-6), (limit, name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda P, r: Mdp(P, r, 0.9, np.zeros((2, 1, 2))), "`successors` must be whole numbers"),
        (lambda P, r: Mdp(P, r, 0.9, np.array([[[0, 2]], [[0, 1]]])), "`successors` must be states from 0 to 1, got 2"),
        (lambda P, r: Mdp(P, r, 0.9, np.array([[0, 1], [0, 1]])), "with the shape"),
        (lambda P, r: Mdp([sp.eye_array(2), sp.eye_array(3)], r, 0.9), "square sparse matrices"),
        (lambda P, r: Mdp([0.5 * sp.eye_array(2)], r, 0.9), "must sum to 1"),
        (lambda P, r: Mdp([sp.eye_array(2)], r, 0.9, np.zeros((2, 1, 1), int)), "leave them out"),
        (lambda P, r: Mdp([sp.eye_array(2)], r, np.ones(3)), "`gamma` must broadcast"),
        (lambda P, r: Mdp([sp.eye_array(2)], [sp.eye_array(3)], 0.9), "`r` must have one sparse matrix"),
        (lambda P, r: Mdp([sp.eye_array(2)], r, 1.0), "no end is in reach from state 0"),
    ],
)
def test_wrong_lists_are_refused_in_one_line(make, message):
    with pytest.raises(InputError, match=message) as error:
        make(np.full((2, 1, 2), 0.5), np.zeros((2, 1)))
    assert "\n" not in str(error.value)


def test_dense_tables_beyond_memory_are_refused_with_the_remedy(monkeypatch):
    mdp, dense, pi = pair()
    monkeypatch.setattr("twoclock.validation.available_memory", lambda: 60_000)
    Phi = np.ones((30, 1))
    for make in (
        lambda m: tc.problems.entropy_mdp(m, 0.1),
        lambda m: tc.problems.average_reward(m, 0.1),
        lambda m: tc.problems.policy_evaluation(m, Phi, pi),
    ):
        with pytest.raises(InputError, match=r"a dense table of 30 states .* give the transitions as sparse ones"):
            make(dense)
        make(mdp)


SIZES = """
def peak():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines["VmHWM"].split()[0]) / 2**20
import sys, time
import numpy as np, twoclock as tc
states, rng = int(sys.argv[1]), np.random.default_rng(0)
P, r = rng.dirichlet(np.ones(10), (states, 2)), rng.normal(size=(states, 2))
mdp = tc.models.Mdp(P, r, 0.95, rng.integers(0, states, P.shape))
around = np.broadcast_to((np.arange(states)[:, None, None] + np.arange(-4, 6)) % states, P.shape)
ring, cost = tc.models.Mdp(P, r, 0.999, around), rng.random((states, 2))
even = np.full((states, 2), 0.5)
Phi = np.eye(50)[rng.integers(0, 50, states)]
for turn, make in enumerate((
    lambda: tc.problems.policy_evaluation(mdp, Phi, even, sampling="markov"),
    lambda: tc.problems.entropy_mdp(mdp, 0.1),
    lambda: tc.problems.average_reward(mdp, 0.1),
    lambda: tc.problems.entropy_mdp(ring, 0.1),
    lambda: tc.problems.constrained_mdp(mdp, cost, 7.0, 0.1),
    lambda: tc.problems.constrained_mdp(ring, cost, 350.0, 0.1),
    lambda: tc.problems.average_reward(ring, 0.1),
)):
    begin = time.process_time()
    problem = make()
    seconds = time.process_time() - begin
    if turn < 3:
        result = tc.solve(problem, tc.Standard(1e-3, 1e-2), steps=100, seeds=1, marks=[100])
        assert np.isfinite(result.history.to_numpy()).all()
    print(seconds, peak())
"""


@pytest.mark.slow
def test_set_up_and_sampling_of_a_large_table_take_time_and_memory_in_proportion_to_it():
    """10⁵ states within ten seconds and two gibibytes; here a fifth of them, or all if TWOCLOCK_LARGE is set."""
    share = 1.0 if os.environ.get("TWOCLOCK_LARGE") else 0.2
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # threads of BLAS that wait count as processor time
    command = [sys.executable, "-c", SIZES, str(int(share * 100_000))]
    answer = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    for line in answer.stdout.splitlines():
        seconds, gibibytes = map(float, line.split())
        assert seconds < max(10 * share, 3)  # on a busy machine a second or two go into compilation
        assert gibibytes < 0.4 + 1.6 * share  # of which .4 are there before the table is
