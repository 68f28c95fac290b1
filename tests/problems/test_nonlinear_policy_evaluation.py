"""Nonlinear policy evaluation: the mean of F is the exact gradient, with any pytree of parameters."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from twoclock.models import Mdp
from twoclock.problems.policy_evaluation.linear import policy_evaluation
from twoclock.problems.policy_evaluation.nonlinear import nonlinear_policy_evaluation, value_operators
from twoclock.protocols import InputError
from twoclock.sampling.transitions import Transition

S, A = 4, 2


def parts(seed=0):
    rng = np.random.default_rng(seed)
    mdp = Mdp(rng.dirichlet(np.ones(S), (S, A)), rng.normal(size=(S, A, S)), rng.uniform(0.3, 0.95, (S, A, S)))
    return mdp, rng.dirichlet(np.ones(A), S), rng.dirichlet(2 * np.ones(A), S), rng.normal(size=(S, 2))


def network(params, state):
    return params["out"] @ jnp.tanh(params["in"] @ state)


WEIGHTS = {"in": np.array([[0.5, -0.3]]), "out": np.array([0.8])}


def exact_mspbe(mdp, pi, b, seen, params):
    """‖Π_θ(TV − V)‖²_D from its definition, E[δφ]ᵀE[φφᵀ]⁻¹E[δφ]."""
    flat, back = jax.flatten_util.ravel_pytree(params)
    V = jax.vmap(lambda s: network(params, s))(seen)
    phi = jax.vmap(lambda s: jax.grad(lambda p: network(back(p), s))(flat))(seen)
    D = jnp.diag(mdp.stationary(b))
    gap = phi.T @ D @ (mdp.reward(pi) + mdp.discounted_chain(pi) @ V - V)
    return gap @ jnp.linalg.solve(phi.T @ D @ phi, gap)


def every_transition(mdp, pi, b):
    s, a, t = (i.ravel() for i in np.indices(mdp.P.shape))
    x = Transition(s, t, pi[s, a] / b[s, a], mdp.r[s, a, t], mdp.gamma[s, a, t])
    return mdp.stationary(b)[s] * b[s, a] * mdp.P[s, a, t], x


@jax.jit
def enumerated(problem, theta, omega, p, x):
    """The mean of F and of G over the transitions; the problem is an argument, so that another MDP compiles nothing."""
    each = jax.vmap(lambda x: (problem.F(theta, omega, x), problem.G(theta, omega, x)))(x)
    return jax.tree.map(lambda leaf: jnp.tensordot(p, leaf, 1), each)


def assert_close(a, b, atol):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), a, b)


@pytest.mark.parametrize("operator", ["tdc", "gtd2"])
def test_the_enumerated_mean_of_F_is_the_gradient_of_the_exact_mspbe(operator):
    mdp, pi, b, seen = parts()
    problem = nonlinear_policy_evaluation(mdp, network, WEIGHTS, pi, b, operator, states=seen)
    theta = jax.tree.map(jnp.asarray, WEIGHTS)
    omega = jax.jit(problem.omega_star)(theta)
    p, x = every_transition(mdp, pi, b)
    value, gradient = jax.jit(jax.value_and_grad(lambda params: exact_mspbe(mdp, pi, b, seen, params)))(theta)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) > 1e-2
    f, g = enumerated(problem, theta, omega, p, x)
    assert_close(f, gradient, 1e-8)
    assert_close(g, jax.tree.map(jnp.zeros_like, theta), 1e-12)
    h, slope = jax.jit(jax.value_and_grad(problem.h))(theta)
    assert_close(slope, gradient, 1e-8)
    assert float(h) == pytest.approx(float(value), rel=1e-10)


@pytest.mark.parametrize("operator", ["tdc", "gtd2", "tdrc", "td"])
def test_mean_operators_by_enumeration(operator):
    mdp, pi, b, seen = parts(1)
    problem = nonlinear_policy_evaluation(mdp, network, WEIGHTS, pi, b, operator, states=seen, factor=1.5)
    theta, omega, _ = problem.init(jax.random.key(0))
    omega = jax.tree.map(lambda leaf: leaf + 0.7, omega)
    p, x = every_transition(mdp, pi, b)
    exact = jax.jit(lambda problem, *at: (problem.mean_F(*at), problem.mean_G(*at)))(problem, theta, omega)
    assert_close(enumerated(problem, theta, omega, p, x), exact, 1e-12)


@pytest.mark.parametrize("operator", ["tdc", "gtd2", "tdrc", "td"])
def test_a_linear_value_function_is_linear_policy_evaluation(operator):
    mdp, pi, b, seen = parts(2)
    linear = policy_evaluation(mdp, seen, pi, b, operator)
    same = nonlinear_policy_evaluation(mdp, lambda p, s: p @ s, np.zeros(2), pi, b, operator, states=seen)
    theta, omega = jnp.asarray([0.4, -1.1]), () if operator == "td" else jnp.asarray([0.2, 0.6])
    u = linear.noise(jax.random.key(5))
    (x, _), (y, _) = linear.draw(u, theta, None), same.draw(u, theta, None)
    assert_close(linear.F(theta, omega, x), same.F(theta, omega, y), 1e-14)
    assert_close(linear.G(theta, omega, x), same.G(theta, omega, y), 1e-14)
    expected, got = linear.measure(theta, omega), same.measure(theta, omega)
    assert set(got) == set(expected) - {"error", "gap"}
    for name, value in got.items():
        assert float(value) == pytest.approx(float(expected[name]), rel=1e-9)


def test_tdrc_tracks_the_ridge_solution():
    """ω*(θ) = (E[φφᵀ] + ridge·I)⁻¹E[δφ] is where the mean of G vanishes, and what ``tracking`` is measured from."""
    mdp, pi, b, seen = parts()
    problem = nonlinear_policy_evaluation(mdp, network, WEIGHTS, pi, b, "tdrc", states=seen, ridge=0.7)
    theta = jax.tree.map(jnp.asarray, WEIGHTS)
    omega = jax.jit(problem.omega_star)(theta)
    _, g = enumerated(problem, theta, omega, *every_transition(mdp, pi, b))
    assert_close(g, jax.tree.map(jnp.zeros_like, theta), 1e-13)
    assert float(jax.jit(problem.measure)(theta, omega)["tracking"]) < 1e-25
    plain = nonlinear_policy_evaluation(mdp, network, WEIGHTS, pi, b, "tdc", states=seen)
    assert (
        max(abs(x - y).max() for x, y in zip(*map(jax.tree.leaves, (omega, plain.omega_star(theta))), strict=True))
        > 0.1
    )


def test_no_hessian_is_made():
    """With n parameters no array of the step has n² entries."""
    mdp, pi, b, seen = parts()
    n = 50
    params = {"in": np.ones((n, 2)), "out": np.ones(n)}
    problem = nonlinear_policy_evaluation(mdp, network, params, pi, b, states=seen)
    theta, omega, _ = problem.init(jax.random.key(0))
    x, _ = problem.draw(problem.noise(jax.random.key(1)), theta, None)
    for operator in (problem.F, problem.G):
        text = jax.jit(operator).lower(theta, omega, x).as_text()
        assert "100x100x" not in text
        assert "150x150x" not in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operator": "etd"}, "`operator` must be 'td', 'tdc', 'gtd2' or 'tdrc', got 'etd'"),
        ({"ridge": 0.5}, "`ridge` belongs to operator 'tdrc', got operator 'tdc'"),
        ({"value": lambda p, s: s}, r"`value` must return one number, got the shape \(2,\)"),
        ({"states": np.ones((3, 2))}, "`states` must have one row for each of the 4 states"),
        ({"sampling": "no"}, "`sampling` must be"),
        ({"target": np.ones((4, 2))}, r"`target\[0\]` must sum to 1, got 2"),
    ],
)
def test_bad_input_gets_one_line(change, message):
    mdp, pi, b, seen = parts()
    good = {"mdp": mdp, "value": network, "params": WEIGHTS, "target": pi, "behaviour": b, "states": seen}
    with pytest.raises(InputError, match=message):
        nonlinear_policy_evaluation(**(good | change))


def test_samples_may_be_dicts_and_own_classes():
    def value(params, state):
        return jnp.tanh(params @ state)

    s, after = jnp.asarray([1.0, 0.5]), jnp.asarray([0.0, 1.0])
    rest = {"rho": 1.5, "r": 2.0, "gamma": 0.9}
    own = types.SimpleNamespace(s=s, next_state=after, **rest)
    samples = [Transition(s, after, **rest), {"s": s, "next_state": after, **rest}, own]
    theta, omega = jnp.asarray([0.3, -0.2]), jnp.asarray([0.1, 0.4])
    for operator in value_operators(value):
        wanted, *others = (operator(theta, omega, x) for x in samples)
        for got in others:
            np.testing.assert_array_equal(got, wanted)
        with pytest.raises(InputError, match=r"`x` must be a sample with s, next_state, .*; it has no gamma"):
            operator(theta, omega, {"s": s, "next_state": after, "rho": 1.0, "r": 0.0})
