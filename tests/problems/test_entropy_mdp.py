"""The actor-critic on entropy-regularised MDPs: its means by enumeration, its sampling, and what it refuses."""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

import twoclock as tc
from tests.models.test_mdp import random_mdp
from tests.models.test_soft_mdp import forest, lake
from twoclock import prng
from twoclock.problems.entropy_mdp import Step
from twoclock.protocols import InputError


def varying(seed=3):
    """A different discount for every transition, with ends, and rewards that depend on s'."""
    mdp, _ = random_mdp(seed)
    rng = np.random.default_rng(seed)
    gamma = rng.uniform(0.3, 0.95, mdp.P.shape) * (rng.random(mdp.P.shape) > 0.2)
    return tc.models.Mdp(mdp.P, mdp.r, gamma), rng.dirichlet(np.ones(6))


def enumerated(problem, mdp, law, theta, omega, horizon=None):
    """Σ law(s) π(a|s) P(s'|s, a) of F and of G, one transition at a time."""
    pi = problem.policy(theta)
    r, gamma = (np.broadcast_to(v, mdp.P.shape) for v in (mdp.r if mdp.r.ndim == 3 else mdp.r[:, :, None], mdp.gamma))
    s, a, t = (np.asarray(axis, np.int32) for axis in zip(*itertools.product(*map(range, mdp.P.shape)), strict=True))
    varies = problem.gamma.size > 1
    x = Step(s, a, t, r[s, a, t], gamma[s, a, t] if varies else None, None)
    if horizon is not None:
        x = x._replace(horizon=np.full(len(s), horizon))
    weight = law[s] * pi[s, a] * mdp.P[s, a, t]
    return [np.tensordot(weight, part, axes=1) for part in each_sample(problem, theta, omega, x)]


@jax.jit
def each_sample(problem, theta, omega, x):
    """F and G at every sample; the problem is an argument, so that another temperature compiles nothing."""
    return jax.vmap(lambda x: (problem.F(theta, omega, x), problem.G(theta, omega, x)))(x)


@jax.jit
def means(problem, theta, omega):
    return problem.mean_F(theta, omega), problem.mean_G(theta, omega)


@jax.jit
def drawn(problem, seed, theta, env, steps):
    """The sample that each step would draw in the same environment, and the environment after it."""
    return jax.vmap(lambda k: problem.draw(problem.noise(prng.step_key(seed, k)), theta, env))(steps)


@pytest.mark.parametrize("temp", [0.0, 0.3])
@pytest.mark.parametrize("where", ["forest", "lake", "varying"])
def test_under_restarts_f_averages_to_the_gradient_and_g_to_zero(where, temp):
    mdp, rho = {"forest": lambda: (forest(), [0.2, 0.3, 0.5]), "lake": lake, "varying": varying}[where]()
    problem = tc.problems.entropy_mdp(mdp, temp, rho)
    theta = np.random.default_rng(1).standard_normal((mdp.states, mdp.actions))
    pi = np.asarray(problem.policy(theta))
    V, d = jnp.asarray(mdp.soft_values(temp, pi)), mdp.visitation(pi, rho)
    length = mdp.soft(0.0, rho).evaluate(theta).visits.sum()
    horizon = None if where == "forest" else length
    f, g = enumerated(problem, mdp, d, jnp.asarray(theta), V, horizon)
    np.testing.assert_allclose(f, -mdp.soft_gradient(theta, temp, rho), atol=1e-10)
    np.testing.assert_allclose(g, 0, atol=1e-10)
    np.testing.assert_allclose(means(problem, theta, V)[0], f, atol=1e-10)
    other = V + 1.0
    _, g = enumerated(problem, mdp, d, jnp.asarray(theta), other, horizon)
    np.testing.assert_allclose(means(problem, theta, other)[1], g, atol=1e-10)


@pytest.mark.parametrize("sampling", ["stationary", "iid"])
def test_other_samplings_reweigh_the_states_and_keep_the_zeros(sampling):
    mdp = forest()
    problem = tc.problems.entropy_mdp(mdp, 0.3, [0.2, 0.3, 0.5], sampling)
    theta = np.random.default_rng(2).standard_normal((3, 2))
    pi = np.asarray(problem.policy(theta))
    V = jnp.asarray(mdp.soft_values(0.3, pi))
    law = mdp.stationary(pi) if sampling == "stationary" else np.array([0.2, 0.3, 0.5])
    f, g = enumerated(problem, mdp, law, jnp.asarray(theta), V)
    np.testing.assert_allclose(problem.mean_F(theta, V), f, atol=1e-10)
    np.testing.assert_allclose(g, 0, atol=1e-10)
    # A row of the gradient is the visits times the advantage; only the visits differ.
    exact, visits = -mdp.soft_gradient(theta, 0.3, [0.2, 0.3, 0.5]), mdp.visitation(pi, [0.2, 0.3, 0.5])
    np.testing.assert_allclose(f / law[:, None], exact / visits[:, None], atol=1e-10)
    best = jnp.log(jnp.asarray(mdp.soft_policy(0.3)))
    np.testing.assert_allclose(problem.mean_F(best, problem.omega_star(best)), 0, atol=1e-10)


@pytest.mark.parametrize("sampling", ["restart", "stationary", "iid"])
def test_linear_critic_and_log_linear_policy_by_enumeration(sampling):
    mdp, rho = varying()
    rng = np.random.default_rng(3)
    Phi, Psi = rng.standard_normal((mdp.states, 2)), rng.standard_normal((mdp.states, mdp.actions, 3))
    problem = tc.problems.entropy_mdp(mdp, 0.3, rho, sampling, features=Phi, policy_features=Psi)
    theta = jnp.asarray(rng.standard_normal(3))
    omega = problem.omega_star(theta)
    pi = np.asarray(problem.policy(theta))
    law = {"restart": lambda: mdp.visitation(pi, rho), "stationary": lambda: mdp.stationary(pi), "iid": lambda: rho}
    length = mdp.soft(0.0, rho).evaluate(np.log(pi)).visits.sum() if sampling == "restart" else None
    f, g = enumerated(problem, mdp, law[sampling](), theta, omega, length)
    np.testing.assert_allclose(problem.mean_F(theta, omega), f, atol=1e-10)
    np.testing.assert_allclose(g, 0, atol=1e-10)
    measured = problem.measure(theta, omega)
    assert measured["gap"] == pytest.approx(float(problem.truth.J_star) - mdp.soft_return(pi, 0.3, rho), abs=1e-10)
    assert measured["gradient"] == pytest.approx(float(jnp.sum(jax.grad(problem.h)(theta) ** 2)), rel=1e-9)


def test_features_of_every_state_are_the_table():
    mdp, rho = varying()
    theta = np.random.default_rng(4).standard_normal((6, 3))
    plain = tc.problems.entropy_mdp(mdp, 0.3, rho)
    wide = tc.problems.entropy_mdp(
        mdp, 0.3, rho, features=np.eye(6), policy_features=np.eye(18).reshape(6, 3, 18), theta0=theta.ravel()
    )
    known = jax.jit(lambda problem, theta: (problem.omega_star(theta), jax.grad(problem.h)(theta)))
    (omega, slope), (same, gradient) = known(wide, theta.ravel()), known(plain, theta)
    np.testing.assert_allclose(omega, same, rtol=1e-9)
    np.testing.assert_allclose(slope, gradient.ravel(), atol=1e-12)


def test_delta_sees_the_next_state_and_never_the_fresh_start():
    """All transitions lead to state 1 and all episodes begin in state 0."""
    mdp = tc.models.Mdp(np.tile([0.0, 1.0], (2, 2, 1)), np.zeros((2, 2)), 0.6)
    problem = tc.problems.entropy_mdp(mdp, 0.1, start=0)
    theta, _, env = problem.init(prng.start_key(0))
    x, (s, _) = drawn(problem, 0, theta, env, np.arange(4000))
    assert (np.asarray(x.next_state) == 1).all()
    assert set(np.asarray(s).tolist()) == {0, 1}
    assert np.mean(np.asarray(s) == 1) == pytest.approx(0.6, abs=0.04)


def test_a_draw_costs_the_same_for_any_number_of_states():
    def largest(states):
        mdp, _ = random_mdp(0, states=states)
        problem = tc.problems.entropy_mdp(mdp)
        theta, _, env = problem.init(prng.start_key(0))
        u = problem.noise(prng.step_key(0, 0))
        inside = jax.make_jaxpr(problem.draw)(u, theta, env).jaxpr
        return max(v.aval.size for e in inside.eqns for v in e.outvars)

    assert largest(60) == largest(6)


def test_actions_are_drawn_from_the_policy():
    problem = tc.problems.entropy_mdp(random_mdp(0, states=2, actions=7)[0])
    theta = jnp.asarray(np.random.default_rng(0).standard_normal((2, 7)))
    x, _ = drawn(problem, 1, theta, (np.int32(1), None), np.arange(40_000))
    seen = np.bincount(x.a, minlength=7) / 40_000
    np.testing.assert_allclose(seen, problem.policy(theta)[1], atol=0.012)  # five standard deviations


def test_metrics_at_the_optimum():
    for temp in (0.0, 0.1):
        problem = tc.problems.frozen_lake(temp)
        best, V = problem.truth.soft.solve()
        found = problem.measure(jnp.asarray(best), jnp.asarray(V))
        for name in ("gap", "error", "gradient", "tracking"):
            assert abs(float(found[name])) < 1e-12, name
        assert found["least_probability"] == pytest.approx(np.exp(best[~(problem.truth.soft.P == 0).all((1, 2))]).min())
        start = problem.measure(*problem.init(prng.start_key(0))[:2])
        assert start["least_probability"] == 0.25
        assert start["error"] > 0.1


@pytest.mark.parametrize("temp", [0.0, 0.3])
@pytest.mark.parametrize("sampling", ["restart", "stationary", "iid"])
def test_the_actor_critic_learns(sampling, temp):
    # Steps too bold at first would leave the forest cut always: without restarts its other ages are then not seen.
    method = tc.Fast(tc.Power(400, shift=80_000), tc.Power(400, shift=1600), tc.Power(3200, shift=12_800))
    result = tc.solve(tc.problems.forest(temp, sampling=sampling), method, steps=20_000, seeds=8, marks=[0])
    gap = result.summary("gap")["mean"]
    assert gap.iloc[-1] < 0.03 * gap.iloc[0]


def test_the_model_based_rival_finds_the_optimum_from_the_same_samples():
    problem, fast = tc.problems.forest(0.3), tc.Fast(0.01, 0.1, 0.2)
    rival = tc.PlugIn(fast, tc.models.EmpiricalMdp(states=3, actions=2, gamma=0.9, temp=0.3))
    result = tc.solve(problem, rival, steps=20_000, seeds=8)
    assert result.history.groupby("step")["gap"].mean().iloc[-1] < 2e-3
    # Counts of a table that is visited everywhere are the table itself.
    mdp, (visits,) = forest(), (np.array([[0.1, 0.2], [0.3, 0.1], [0.2, 0.1]]),)
    mean = {"visits": visits, "reward": visits * mdp.r, "next": 0.9 * visits[:, :, None] * mdp.P}
    log_pi, V = rival.model.solve(mean)
    np.testing.assert_allclose(V, mdp.soft_values(0.3), rtol=1e-12)
    np.testing.assert_allclose(np.exp(log_pi), mdp.soft_policy(0.3), rtol=1e-10)


GOOD = forest()
TWO_ENDS = tc.models.Mdp(np.eye(3)[:, None, :].repeat(2, axis=1), np.ones((3, 2)), 0.9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tc.problems.entropy_mdp(GOOD, -1.0), r"`temp` must be a finite number of at least 0, got -1"),
        (
            lambda: tc.problems.entropy_mdp(GOOD, start=[0.5, 0.6, 0.1]),
            r"`start` must be a distribution over the 3 states",
        ),
        (lambda: tc.problems.entropy_mdp(GOOD, theta0=np.zeros((2, 3))), r"`theta0` must have the shape \(3, 2\)"),
        (
            lambda: tc.problems.entropy_mdp(GOOD, sampling="markov"),
            r"`sampling` must be 'restart', 'stationary' or 'iid'",
        ),
        (lambda: tc.problems.entropy_mdp(GOOD, start=0, sampling="iid"), r"`start` must give every state some weight"),
        (
            lambda: tc.problems.entropy_mdp(GOOD, features=np.ones((2, 2))),
            r"`features` must have one vector for each of the 3 states",
        ),
        (
            lambda: tc.problems.entropy_mdp(GOOD, policy_features=np.ones((3, 2))),
            r"`policy_features` must have one vector",
        ),
        (
            lambda: tc.problems.entropy_mdp(GOOD, policy_features=np.ones((3, 2, 4)), theta0=np.ones(3)),
            r"`theta0` must have the shape \(4,\), one entry per policy feature",
        ),
        (lambda: tc.problems.entropy_mdp("lake"), r"`mdp` must be a `tc\.models\.Mdp\(P, r, gamma\)`, got str"),
        (lambda: tc.problems.entropy_mdp(TWO_ENDS, sampling="stationary"), r"has 3 recurrent classes"),
        (lambda: tc.models.Mdp(GOOD.P, GOOD.r, 1.0), r"`gamma` is 1 and no end is in reach"),
        (lambda: tc.models.Mdp(GOOD.P, GOOD.r, 1.5), r"`gamma` must lie in \[0, 1\], got 1\.5"),
        (
            lambda: tc.problems.entropy_mdp(tc.models.Mdp(GOOD.P, GOOD.r, np.array([0.0, 1.0, 1.0]))),
            r"`mdp` must have gamma < 1 everywhere, got 1",
        ),
        (lambda: tc.problems.frozen_lake(size=5), r"`size` must be 4 or 8"),
        (
            lambda: tc.problems.random_entropy_mdp(prng.instance_key(0), gamma=1.0),
            r"`gamma` must lie in \[0, 1\), got 1",
        ),
        (lambda: tc.problems.random_entropy_mdp(prng.instance_key(0), temp=-1.0), r"`temp` must be a finite number"),
        (lambda: tc.problems.random_entropy_mdp(prng.instance_key(0), states=0), r"`states` must be at least 1, got 0"),
        (lambda: tc.models.EmpiricalMdp(3, 2, 1.0), r"`EmpiricalMdp\(gamma=…\)` must lie in \[0, 1\), got 1"),
        (lambda: tc.models.EmpiricalMdp(0, 2), r"`EmpiricalMdp\(states=…\)` must be at least 1, got 0"),
    ],
)
def test_bad_input_gets_one_line(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_without_gymnasium_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(InputError, match="needs Gymnasium, which is not installed; try `pip install gymnasium`"):
        tc.models.from_gymnasium("FrozenLake-v1")
    assert tc.problems.frozen_lake().truth.J_star > 0


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("slippery", [True, False])
def test_the_lake_is_gymnasiums(size, slippery):
    mdp, start = tc.models.from_gymnasium(FrozenLakeEnv(map_name=f"{size}x{size}", is_slippery=slippery), 0.95)
    theirs, ours = tc.problems.entropy_mdp(mdp, 0.01, start), tc.problems.frozen_lake(size=size, slippery=slippery)
    assert jax.tree.structure(theirs) == jax.tree.structure(ours)
    for name in ("P", "r", "temp", "start"):
        np.testing.assert_allclose(getattr(ours.truth.soft, name), getattr(theirs.truth.soft, name), atol=1e-15)
    for a, b in ((ours.r, theirs.r), (ours.gamma, theirs.gamma)):
        np.testing.assert_array_equal(np.where(mdp.P > 0, a, 0), np.where(mdp.P > 0, b, 0))
