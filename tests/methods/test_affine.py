"""Operators that are affine in the iterate: recognised by their program, and solved with one exact Jacobian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock.methods import zap
from twoclock.methods.affine import Slopes, slopes

A = np.arange(9.0).reshape(3, 3)


def point_and_sample():
    return jnp.zeros(3), (jnp.zeros(3), jnp.int32(0))


@jax.custom_jvp
def with_own_rule(z):
    return 2 * z


with_own_rule.defjvp(lambda primal, tangent: (2 * primal[0], 5 * tangent[0]))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda z, x: jnp.asarray(A) @ z + x[0], Slopes.NOTHING),
        (lambda z, x: jnp.concatenate([z[::-1], -z]).sum() / 3 - x[0][x[1]], Slopes.NOTHING),
        (lambda z, x: jax.jit(lambda z: jnp.outer(z, jnp.ones(3)))(z), Slopes.NOTHING),
        (lambda z, x: jnp.zeros(3).at[1].add(z[0]), Slopes.NOTHING),
        (lambda z, x: x[0] * jnp.maximum(x[0], 0), Slopes.NOTHING),
        (lambda z, x: x[0] * (x[0] @ z), Slopes.SAMPLE),
        (lambda z, x: z[x[1]], Slopes.SAMPLE),
        (lambda z, x: jnp.where(x[0] > 0, z, 2 * z), Slopes.SAMPLE),
        (lambda z, x: z / (1 + x[0] ** 2), Slopes.SAMPLE),
        (lambda z, x: jax.jit(lambda y: y * z)(x[0]), Slopes.SAMPLE),
        (lambda z, x: z * z, Slopes.POINT),
        (lambda z, x: jnp.abs(z), Slopes.POINT),
        (lambda z, x: jnp.where(z > x[0], 1.0, 0.0), Slopes.POINT),
        (lambda z, x: x[0] / z, Slopes.POINT),
        (lambda z, x: z.astype(int).astype(float), Slopes.POINT),
        (lambda z, x: z + jnp.sign(z), Slopes.POINT),
        (lambda z, x: jax.lax.stop_gradient(z), Slopes.POINT),
        (lambda z, x: with_own_rule(z), Slopes.POINT),
        (lambda z, x: x[0][z.astype(int)], Slopes.POINT),
        (lambda z, x: jax.lax.fori_loop(0, 3, lambda i, z: 2 * z, z), Slopes.POINT),
        (lambda z, x: jax.pure_callback(np.negative, z, z), Slopes.POINT),
    ],
)
def test_slopes_say_what_the_jacobian_depends_on(function, expected):
    assert slopes(function, *point_and_sample()) == expected


def test_arrays_of_an_enclosing_trace_are_constants():
    found, (z, x) = [], point_and_sample()

    def outer(scale, z):
        found.append(slopes(lambda z, x: scale * z + x[0], z, x))
        return z

    jax.make_jaxpr(outer)(jnp.asarray(2.0), z)
    assert found == [Slopes.NOTHING]


def noisy_slopes():
    """θ = 2 and ω = θ, with slopes that differ from sample to sample."""
    return tc.problems.custom(
        F=lambda theta, omega, x: (1 + x[0]) * (theta - 2) + 0.5 * (omega - theta) + x[1],
        G=lambda theta, omega, x: (2 + x[1]) * (omega - theta) + x[0],
        noise=lambda key: 0.5 * jax.random.normal(key, (2,)),
        theta=1.0,
        omega=0.0,
    )


@pytest.mark.parametrize(
    ("problem", "expected"), [(tc.problems.quadratic(dim=2), Slopes.NOTHING), (noisy_slopes(), Slopes.SAMPLE)]
)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_derivatives_of_affine_operators_give_what_differences_give(monkeypatch, problem, expected, precision):
    theta, omega, env = problem.init(jax.random.key(0))
    x, _ = problem.draw(problem.noise(jax.random.key(1)), theta, env)
    assert slopes(lambda z, x: (problem.F(*z, x), problem.G(*z, x)), (theta, omega), x) == expected
    by_derivatives = tc.solve(problem, tc.Zap(), 700, 3, precision=precision, engine="xla")
    monkeypatch.setattr(zap, "slopes", lambda *_: Slopes.POINT)
    by_differences = tc.solve(problem, tc.Zap(power=0.2501), 700, 3, precision=precision, engine="xla")
    close = {"rtol": 1e-6, "atol": 1e-9} if precision == "float64" else {"rtol": 2e-3, "atol": 1e-3}
    np.testing.assert_allclose(by_derivatives.theta, by_differences.theta, **close)
    last = by_derivatives.history.step == 700
    # Differences count the first sample's distance from an empty model as noise, so it is larger by a little.
    one, other = (result.history["noise_sq"][last] for result in (by_derivatives, by_differences))
    np.testing.assert_allclose(one, other, rtol=0.1)


def states(problem, steps):
    """The states of three lanes after some steps without ``refine``, stacked."""
    method, key = tc.Zap(), jax.random.key(5)

    def lane(seed):
        theta, omega, env = problem.init(jax.random.fold_in(key, seed))
        state = method.init(theta, omega)

        def one(k, state):
            x, _ = problem.draw(problem.noise(jax.random.fold_in(key, 1000 * seed + k)), state.theta, env)
            return method.step(problem.F, problem.G, state, x, k)

        state = jax.lax.fori_loop(0, steps, one, state)
        x, _ = problem.draw(problem.noise(key), state.theta, env)
        return method.between(problem.F, problem.G, state, x, jnp.int32(steps))

    return jax.device_get(jax.jit(jax.vmap(lane))(jnp.arange(3)))


@pytest.mark.parametrize("problem", [tc.problems.quadratic(dim=2), tc.problems.rates(), noisy_slopes()])
def test_refine_gives_the_same_in_numpy_and_in_jax(problem):
    method = tc.Zap()
    for steps in (39, 127, 300):
        lanes = states(problem, steps)
        with np.errstate(all="ignore"):
            on_host = method.refine(lanes, steps)
        for i in range(3):
            one = jax.jit(method.refine)(jax.tree.map(lambda leaf, i=i: leaf[i], lanes), jnp.int32(steps))
            jax.tree.map(
                lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-6, atol=1e-8),
                on_host,
                jax.device_get(one),
            )


def test_step_is_between_and_where_due_refine():
    problem, method = noisy_slopes(), tc.Zap()
    theta, omega, env = problem.init(jax.random.key(0))
    state = method.init(theta, omega)
    due = method.is_due(state, np.arange(200, dtype=np.int32))
    assert due.any()
    assert not due.all()
    assert due.tolist() == [bool(method.is_due(state, jnp.int32(k))) for k in range(200)]
    x, _ = problem.draw(problem.noise(jax.random.key(1)), theta, env)
    for k in (int(np.flatnonzero(due)[0]), int(np.flatnonzero(~due)[0])):
        whole = method.step(problem.F, problem.G, state, x, k)
        split = method.between(problem.F, problem.G, state, x, jnp.int32(k))
        split = method.refine(split, jnp.int32(k)) if due[k] else split
        jax.tree.map(np.testing.assert_array_equal, whole, split)
