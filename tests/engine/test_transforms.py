"""Optax transformations and projections on either level; and nothing at all where there are none."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import twoclock as tc
from twoclock.cli import options
from twoclock.methods import Fast, Polyak, Standard
from twoclock.param_paths import with_settings


@pytest.fixture(autouse=True)
def _as_optax_needs_it():
    """Optax lets JAX promote numbers."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


F = lambda theta, omega, x: theta + omega + x  # noqa: E731
G = lambda theta, omega, x: omega - 2 * theta  # noqa: E731
box = partial(optax.projections.projection_box, lower=-0.3, upper=0.3)


def unit_ball(tree):
    return optax.projections.projection_l2_ball(tree, 1.0)


def simplex(theta):
    return optax.projections.projection_simplex(theta)


def walk(method, steps=5, start=(1.0, 0.0)):
    state = method.init(*(jnp.asarray(v) for v in start))
    for k in range(steps):
        state = jax.jit(method.step, static_argnums=(0, 1))(F, G, state, jnp.asarray(0.5 * k), k)
    return state


def plain(method):
    """The formulas alone, for `Standard` and for `Fast` in the paper's order."""

    def step(state, x, k):
        theta, omega, *means = state
        F_x, G_x = F(theta, omega, x), G(theta, omega, x)
        f, g = means or (F_x, G_x)
        moved = theta + -method.alpha(k) * f, omega + -method.beta(k) * g
        if not means:
            return moved
        lam = method.lam(k)
        return *moved, (1 - lam) * f + lam * F_x, (1 - lam) * g + lam * G_x

    return step


@pytest.mark.parametrize("method", [Standard("1/(k+3)", 0.1), Fast("1/(k+3)", 0.1, 0.3)])
def test_without_them_nothing_changes_by_a_bit(method):
    """The state has not one leaf more, and a hundred steps end on the same bits."""
    v = jnp.linspace(-1, 1, 3)
    state = method.init(v, v)
    assert len(jax.tree.leaves(state)) == (2 if isinstance(method, Standard) else 4)
    old = tuple(jax.tree.leaves(state))
    ours, theirs = jax.jit(lambda s, k: method.step(F, G, s, v, k)), jax.jit(lambda s, k: plain(method)(s, v, k))
    for k in range(100):
        state, old = ours(state, k), theirs(old, k)
    for left, right in zip(jax.tree.leaves(state), old, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("kind", [Standard, Fast])
def test_the_identity_changes_no_bit(kind):
    plain, dressed = kind(0.1, 0.2), kind(0.1, 0.2, transform_theta=optax.identity(), transform_omega=optax.identity())
    a, b = walk(plain), walk(dressed)
    assert (float(a.theta), float(a.omega)) == (float(b.theta), float(b.omega))


def test_adam_by_hand():
    """Adam's two moments and their corrections on θ, in NumPy; ω steps plainly."""
    state = walk(Standard(0.1, 0.2, transform_theta=optax.scale_by_adam(b1=0.9, b2=0.99, eps=1e-8)))
    theta, omega, m, s = 1.0, 0.0, 0.0, 0.0
    for k in range(5):
        f, g = theta + omega + 0.5 * k, omega - 2 * theta
        m, s = 0.9 * m + 0.1 * f, 0.99 * s + 0.01 * f**2
        theta -= 0.1 * (m / (1 - 0.9 ** (k + 1))) / (np.sqrt(s / (1 - 0.99 ** (k + 1))) + 1e-8)
        omega -= 0.2 * g
    np.testing.assert_allclose((state.theta, state.omega), (theta, omega), rtol=1e-12)


def test_projections_hold_at_every_step():
    problem = tc.problems.quadratic(dim=5)
    for method in (
        Standard(0.1, 0.1, project_theta=simplex, project_omega=unit_ball),
        Fast(0.1, 0.1, 0.3, project_theta=simplex, project_omega=unit_ball),
    ):
        result = tc.solve(problem, method, steps=200, seeds=4)
        np.testing.assert_allclose(result.theta.sum(axis=1), 1.0, atol=1e-12)
        assert (result.theta >= 0).all()
        assert (np.linalg.norm(result.omega, axis=1) <= 1 + 1e-12).all()
        start = method.init(jnp.ones(5), 9 * jnp.ones(5))
        np.testing.assert_allclose(jnp.sum(start.theta), 1.0, atol=1e-12)


def test_a_constrained_minimum_is_found():
    """min ½(θ−1)² over [−0.3, 0.3], the gradient seen through ω: θ = 0.3."""
    problem = tc.problems.custom(
        F=lambda theta, omega, x: omega - 1,
        G=lambda theta, omega, x: omega - theta + 0.1 * x,
        noise=lambda key: jax.random.normal(key),
        theta=0.0,
        omega=0.0,
    )
    result = tc.solve(problem, Fast(0.05, 0.1, 0.3, project_theta=box), steps=2000, seeds=4)
    assert np.abs(result.theta - 0.3).max() < 0.02


def test_the_residue_of_float32_stays_right_at_a_wall():
    """Sitting at the wall and pushed against it, no debt of rounding is piled up that would hold θ there later."""
    method = Standard(1e-3, 0.0, project_theta=box)
    theta = jnp.float32(0.3)
    state = method.init(theta, theta)
    step = jax.jit(lambda s, f, k: method.step(lambda *_: f, lambda *_: jnp.float32(0), s, None, k))
    for k in range(100):
        state = step(state, jnp.float32(-1), k)
    for k in range(100):
        state = step(state, jnp.float32(1), k)
    np.testing.assert_allclose(state.theta, 0.2, rtol=1e-5)


def adam():
    chain = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam())
    return Fast(0.01, 0.02, 0.3, transform_theta=chain, project_theta=box)


@pytest.mark.parametrize("around", [lambda method: method, Polyak, tc.PlugIn])
def test_they_run_record_and_resume(around, tmp_path):
    method = around(adam())
    problem = tc.problems.quadratic(dim=3)
    whole = tc.solve(problem, method, steps=300, seeds=3)
    tc.solve(problem, method, steps=300, seeds=3, marks=[100], checkpoint=tmp_path)
    again = tc.solve(problem, method, steps=300, seeds=3, marks=[100], checkpoint=tmp_path)
    np.testing.assert_array_equal(whole.theta, again.theta)
    loaded = tc.load(whole.save(tmp_path / "record"))
    assert loaded.spec["method"] == whole.spec["method"]


def test_another_transformation_is_another_run(tmp_path):
    problem = tc.problems.quadratic(dim=3)
    tc.solve(problem, adam(), steps=50, seeds=2, checkpoint=tmp_path)
    other = Fast(0.01, 0.02, 0.3, transform_theta=optax.scale_by_adam(b1=0.5), project_theta=box)
    with pytest.raises(tc.InputError):
        tc.solve(problem, other, steps=50, seeds=2, checkpoint=tmp_path)


@pytest.mark.parametrize("kind", [Standard, Fast])
def test_repr_names_transformations_and_projections(kind):
    method = kind(transform_theta=optax.scale_by_adam(), project_theta=box, project_omega=simplex)
    assert repr(method).endswith("transform_theta=scale_by_adam, project_theta=projection_box, project_omega=simplex)")


@pytest.mark.parametrize("kind", [Standard, Fast, Polyak])
def test_the_command_line_leaves_them_out(kind):
    values = {option.name: option.default for option in options.options_of_method(kind)}
    assert not {"transform_theta", "transform_omega", "project_theta", "project_omega"} & set(values)
    assert isinstance(with_settings(kind(), values), kind)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Fast(transform_theta=optax.adam(1e-3)), "keep the sign of a direction"),
        (lambda: Standard(transform_omega="adam"), "must be an optax transformation"),
        (lambda: Standard(project_theta=3), "must be a function from the variable to itself"),
    ],
)
def test_bad_input(make, words):
    with pytest.raises(tc.InputError, match=words) as error:
        make()
    assert "\n" not in str(error.value)
