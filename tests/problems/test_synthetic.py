"""The six problems behind Table 1."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import twoclock as tc
from twoclock.protocols import InputError

SIX = list(itertools.product(("strongly-convex", "pl", "non-convex"), ("smooth", "kinked")))
ONE_DIMENSIONAL = {
    "strongly-convex": (lambda x: x**2 / 2, lambda x: x),
    "pl": (lambda x: (x**2 + 3 * np.sin(x) ** 2) / 8, lambda x: (2 * x + 6 * np.sin(x) * np.cos(x)) / 8),
    "non-convex": (lambda x: x**2 / (2 * (1 + x**2)), lambda x: x / (1 + x**2) ** 2),
}


@pytest.mark.parametrize(("h", "coupling"), SIX)
def test_one_dimension_is_the_problem_on_paper(h, coupling):
    problem = tc.problems.rates(h, coupling)
    value, slope = ONE_DIMENSIONAL[h]
    with jax.enable_x64(True):
        for x, w, u in np.random.default_rng(0).normal(size=(20, 3, 1)) * 2:
            wave = np.sin(x) / 2
            root = np.abs(wave) if coupling == "kinked" else wave
            off = w - root
            sample = problem.draw(jnp.asarray(u), jnp.asarray(x), None)[0]
            pull = 0.9 * (np.abs(off) if coupling == "kinked" else off)
            np.testing.assert_allclose(problem.F(x, w, sample), slope(x) + pull + u, rtol=1e-12)
            np.testing.assert_allclose(problem.G(x, w, sample), off + u, rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(problem.h(x), value(x)[0], rtol=1e-12)


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize(("h", "coupling"), SIX)
def test_gradient_root_and_metrics_agree(h, coupling, dim):
    problem = tc.problems.rates(h, coupling, dim=dim)
    with jax.enable_x64(True):
        theta = jnp.asarray(np.random.default_rng(1).normal(size=dim))
        root = problem.omega_star(theta)
        np.testing.assert_allclose(problem.mean_F(theta, root), jax.grad(problem.h)(theta), rtol=1e-12)
        np.testing.assert_allclose(problem.mean_G(theta, root), 0, atol=1e-15)
        metrics = problem.measure(theta, root + 1)
        assert float(metrics["tracking"]) == pytest.approx(dim)
        assert float(metrics["gap"]) == pytest.approx(float(problem.h(theta)))
        assert all(float(v) == 0 for v in problem.measure(jnp.zeros(dim), jnp.zeros(dim)).values())


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize(("h", "coupling"), SIX)
def test_no_slope_exceeds_the_stated_lipschitz_constant(h, coupling, dim):
    problem = tc.problems.rates(h, coupling, dim=dim, noise=0.5)
    known = problem.constants()
    assert known["noise"] == pytest.approx(0.25 * dim)
    with jax.enable_x64(True):
        jacobian = jax.jit(jax.vmap(jax.jacfwd(lambda t, w: (problem.mean_F(t, w), problem.mean_G(t, w)), (0, 1))))
        spread = np.random.default_rng(2).normal(size=(2, 2000, dim)) * 3
        parts = [np.asarray(leaf) for leaf in jax.tree.leaves(jacobian(*spread))]
        hessian = np.asarray(jax.vmap(jax.hessian(problem.h))(spread[0]))
    largest = max(np.linalg.norm(part, 2, axis=(1, 2)).max() for part in (*parts, hessian))
    assert largest <= known["L"] + 1e-12
    if dim == 1:
        assert largest > 0.95 * known["L"]


@pytest.mark.parametrize("correlation", [1.0, 0.5, 0.0, -1.0])
def test_the_noise_of_both_operators_has_the_stated_covariance(correlation):
    problem = tc.problems.rates(dim=2, noise=0.5, correlation=correlation)
    theta, omega = jnp.ones(2), jnp.zeros(2)

    def both(key):
        x, _ = problem.draw(problem.noise(key), theta, None)
        return jnp.concatenate([problem.F(theta, omega, x), problem.G(theta, omega, x)])

    with jax.enable_x64(True):
        drawn = np.asarray(jax.jit(jax.vmap(both))(jax.random.split(jax.random.key(0), 20_000)))
        means = np.concatenate([problem.mean_F(theta, omega), problem.mean_G(theta, omega)])
    np.testing.assert_allclose(drawn.mean(axis=0), means, atol=0.02)
    expected = 0.25 * np.kron([[1, correlation], [correlation, 1]], np.eye(2))
    np.testing.assert_allclose(np.cov(drawn.T), expected, atol=0.015)
    assert (problem.correlation is None) == (correlation == 1)  # one draw, as before


def test_pl_constant_is_the_largest():
    value, slope = ONE_DIMENSIONAL["pl"]
    worst = minimize_scalar(lambda x: slope(x) ** 2 / (2 * value(x)), bounds=(2, 2.4), method="bounded")
    assert tc.problems.rates("pl").constants()["mu_h"] == pytest.approx(worst.fun, rel=1e-6)
    x = np.linspace(1e-3, 40, 100_001)
    assert np.all(slope(x) ** 2 / 2 >= 0.021941 * value(x))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"correlation": 1.5}, r"correlation"),
        ({"h": "linear"}, r"rates\(h=…\)` must be 'strongly-convex', 'pl', 'non-convex' or 'flat'"),
        ({"coupling": "none"}, "must be 'smooth' or 'kinked'"),
        ({"dim": 0}, "must be at least 1, got 0"),
        ({"noise": -1.0}, "must be a finite number of at least 0, got -1"),
        ({"start": float("nan")}, "must be a finite number, got nan"),
    ],
)
def test_bad_input_gets_one_line(arguments, words):
    with pytest.raises(InputError, match=words) as caught:
        tc.problems.rates(**arguments)
    assert "\n" not in str(caught.value)
