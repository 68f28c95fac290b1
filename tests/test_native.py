"""Whatever a step computes, the loop as one function must agree with the loop as kernels, and never abort."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from twoclock.engine import native

TABLE = np.random.default_rng(0).random((7, 5))


def fold(x):
    return jax.random.fold_in(jax.random.key(0), jnp.abs(100 * x[0]).astype(jnp.int32))


STEPS = {
    "plain": lambda t, x: 0.9 * t + x,
    "noise unused": lambda t, x: 0.9 * t,
    "state unused": lambda t, x: x,
    "constant": lambda t, x: jnp.ones_like(t),
    "branch": lambda t, x: jax.lax.cond(x[0] > 0, lambda v: v / 2, lambda v: v - 1, t),
    "inner scan": lambda t, x: jax.lax.scan(lambda c, a: (0.9 * c + a, None), t, jnp.ones((4, 5)))[0] / 9,
    "inner while": lambda t, x: jax.lax.while_loop(lambda c: jnp.sum(c**2) > 1, lambda c: c / 2, t + x),
    "gather": lambda t, x: jnp.asarray(TABLE)[jnp.abs((3 * x).astype(jnp.int32)) % 7, jnp.arange(5)] + t / 2,
    "scatter": lambda t, x: t.at[jnp.abs((3 * x[0]).astype(jnp.int32)) % 5].add(1.0) / 2,
    "softmax": lambda t, x: jax.nn.softmax(t + x),
    "prefix sum": lambda t, x: jnp.cumsum(t + x) / 9,
    "network": lambda t, x: jax.grad(lambda p: jnp.sum(jnp.tanh(jnp.ones((16, 5)) @ p * x[0]) ** 2))(t),
    "hessian product": lambda t, x: jax.jvp(jax.grad(lambda p: jnp.sum(jnp.exp(-(p**2)))), (t,), (x,))[1],
    "sort": lambda t, x: jnp.sort(t + x) / 2,
    "linear solve": lambda t, x: jnp.linalg.solve(jnp.eye(5) + jnp.outer(x, x), t),
    "large product": lambda t, x: (jnp.ones((200, 200)) @ jnp.outer(jnp.ones(200), t))[0] / 400,
    "drawing inside": lambda t, x: t / 2 + jax.random.normal(fold(x), (5,)),
    "mixed types": lambda t, x: (t.astype(jnp.float32) / 2).astype(t.dtype) + (100 * x).astype(jnp.int32) % 7 * 1.0,
}


@pytest.mark.parametrize(("name", "lanes"), [(name, lanes) for name in STEPS for lanes in (1, 6)] + [("plain", 20_000)])
def test_agrees_with_kernels(name, lanes):
    def loop(t, xs, n):
        with jax.numpy_dtype_promotion("standard"):

            def body(i, t):
                return jax.vmap(STEPS[name])(t, jax.lax.dynamic_index_in_dim(xs, i, keepdims=False))

            return jax.lax.fori_loop(0, n, body, t)

    xs = np.random.default_rng(1).standard_normal((20, lanes, 5))
    arguments = np.full((lanes, 5), 0.3), xs, np.int32(17)
    np.testing.assert_allclose(native.jit_loop(loop, ())(*arguments), jax.jit(loop)(*arguments), rtol=1e-9, atol=1e-12)


def test_large_work_stays_with_the_library():
    def product(size):
        return jax.make_jaxpr(lambda a: a @ a)(np.ones((size, size))).jaxpr

    assert native._is_small(product(8))
    assert not native._is_small(product(100))
    assert not native._is_small(jax.make_jaxpr(jax.jit(jnp.sort))(np.ones(9)).jaxpr)


def test_a_loop_within_the_loop_stays_with_kernels():
    def loop(n, x):
        return jax.lax.fori_loop(0, n, lambda i, x: x / 2, x)

    def nested(n, x):
        return jax.lax.fori_loop(0, n, lambda i, x: loop(i, x), x)

    assert native._is_small(jax.make_jaxpr(loop)(3, 8.0).jaxpr)
    assert not native._is_small(jax.make_jaxpr(nested)(3, 8.0).jaxpr)


def test_the_options_are_known_to_this_xla():
    assert native._without_library_fusions() is not None
