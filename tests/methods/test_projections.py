"""Projections: constrained quadratics whose solution is known, on every method that takes one."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import twoclock as tc

H = np.array([[2.0, 0.4, 0.0], [0.4, 1.0, 0.3], [0.0, 0.3, 0.5]])
INSIDE = np.array([0.5, 0.2, 0.3])


def clip(z):
    return jax.tree.map(lambda leaf: jnp.clip(leaf, 0.0, 1.0), z)


def simplex(z):
    """The Euclidean projection onto the probability simplex (Duchi et al., 2008)."""
    ordered = jnp.sort(z)[::-1]
    excess = jnp.cumsum(ordered) - 1
    many = jnp.arange(1.0, z.size + 1.0, dtype=z.dtype)
    count = jnp.sum(ordered * many > excess)
    return jnp.maximum(z - excess[count - 1] / count.astype(z.dtype), 0.0)


def problem(target, noise=0.0, start=(0.0, 0.0, 0.0)):
    """h(θ) = ½(θ − target)ᵀH(θ − target), and ω follows its gradient."""
    return tc.problems.custom(
        F=lambda t, w, x: w + x, G=lambda t, w, x: w - jnp.asarray(H) @ (t - target),
        noise=lambda key: noise * jax.random.normal(key, (3,)), theta=np.array(start), omega=np.zeros(3),
    )  # fmt: skip


def constrained_optimum(target, project):
    """By projected gradient descent in NumPy, with the curvature known."""
    theta = np.zeros(3)
    for _ in range(3000):
        theta = np.asarray(project(jnp.asarray(theta - 0.3 * H @ (theta - target))))
    return theta


@pytest.mark.parametrize("order", ["paper", "fresh"])
@pytest.mark.parametrize("project", [clip, simplex])
def test_fast_does_not_jump_between_the_walls_at_large_steps(project, order):
    """α times the curvature is 4: θ ← P(θ − αf) swings over the whole set without end."""
    large = tc.Fast(4 / np.linalg.norm(H, 2), 0.5, "40/(k+160)", lam_g=1.0, order=order, project_theta=project)
    result = tc.solve(problem(INSIDE), large, steps=20_000, seeds=1, marks=[19_900, 20_000])
    assert np.linalg.norm(result.theta[0] - INSIDE) < 0.1


@pytest.mark.parametrize("project", [clip, simplex])
@pytest.mark.parametrize("method", ["Standard", "Fast", "Polyak"])
def test_the_solution_on_the_boundary_is_found(method, project):
    target = np.array([1.4, -0.6, 0.1])
    fast = tc.Fast("2/(k+20)", "8/(k+40)", "40/(k+160)", project_theta=project)
    methods = {
        "Standard": tc.Standard("2/(k+20)", "8/(k+40)", project_theta=project), "Fast": fast, "Polyak": tc.Polyak(fast),
    }  # fmt: skip
    result = tc.solve(problem(target, 0.3), methods[method], steps=5000, seeds=4)
    assert np.sqrt(np.mean((result.theta - constrained_optimum(target, project)) ** 2)) < 0.03
    np.testing.assert_allclose(project(jnp.asarray(result.theta[0])), result.theta[0], atol=1e-15)


def test_where_the_projection_does_nothing_the_step_is_the_plain_one():
    plain, inside = tc.Fast(), tc.Fast(project_theta=lambda t: jnp.clip(t, -9.0, 9.0), project_omega=lambda w: w)
    one, two = (tc.solve(problem(INSIDE, 0.1), method, steps=300, seeds=2).theta for method in (plain, inside))
    np.testing.assert_allclose(one, two, rtol=1e-10)


def test_a_weight_of_one_is_the_standard_method_with_its_projection():
    fast = tc.Fast(0.3, 0.2, 1.0, order="fresh", project_theta=clip, project_omega=clip)
    standard = tc.Standard(0.3, 0.2, project_theta=clip, project_omega=clip)
    one, two = (tc.solve(problem(INSIDE, 0.5), method, steps=50, seeds=3).theta for method in (fast, standard))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("beta", ["8/(k+40)", ("8/(k+40)", "12/(k+40)")])
def test_levels_of_omega_are_projected_each_with_its_own_step(beta):
    """Both levels follow means that lie outside of [0, 1]: ω stops at the wall, θ at the sum of what is left."""
    levels = tc.problems.custom(
        F=lambda t, w, x: t - w[0] - w[1], G=lambda t, w, x: (w[0] - 2 + x, w[1] + 0.5 + x),
        noise=lambda key: jax.random.normal(key), theta=0.0, omega=(0.5, 0.5),
    )  # fmt: skip
    result = tc.solve(levels, tc.Fast("2/(k+20)", beta, "40/(k+160)", project_omega=clip), steps=4000, seeds=3)
    np.testing.assert_allclose(result.omega[0], 1.0, atol=1e-9)
    np.testing.assert_allclose(result.omega[1], 0.0, atol=1e-9)
    np.testing.assert_allclose(result.theta, 1.0, atol=1e-2)


def test_float32_stays_in_the_set():
    with jax.numpy_dtype_promotion("standard"):
        method = tc.Fast(project_theta=optax.projections.projection_simplex)
        result = tc.solve(problem(INSIDE, 0.3), method, steps=500, seeds=2, precision="float32")
    assert result.theta.min() >= 0
    np.testing.assert_allclose(result.theta.sum(axis=1), 1.0, atol=1e-6)
