"""NumPy arrays in a user's functions: JAX converts one once for all traces that live, whatever their precision.

A run in float64 must not meet arrays that the user's own jitted functions have left in float32, and must leave none in
float64 for the user's own calls in float32 after it.
"""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc

HALF = tc.Standard(0.5, 0.5)
TENTHS = np.array([0.1, 0.2, 0.3])


class Functions:
    """A user's functions that read a NumPy array of float64, and one of integers as an index."""

    def __init__(self):
        self.roots, self.order = TENTHS.copy(), np.array([2, 1, 0])
        roots, order = self.roots, self.order
        self.distance = lambda t: t - jnp.asarray(roots) + 0.0 * t[order]
        self.F = lambda t, w, x: self.distance(t) + 0 * x
        self.measure = lambda t, w: {"error": jnp.sum(self.distance(t) ** 2)}

    @property
    def problem(self):
        noise = lambda key: jax.random.normal(key, (3,))  # noqa: E731
        zeros = np.zeros(3)
        return tc.problems.custom(self.F, lambda t, w, x: w - t, noise, zeros, zeros, measure=self.measure)


def learner(user):
    made = tc.Learner(user.F, lambda t, w, x: w - t, HALF, np.zeros(3), np.zeros(3), measure=user.measure)
    made.update_many(np.zeros((200, 3)))
    return made.theta


CALLS = {
    "xla": lambda user: tc.solve(user.problem, HALF, 200, 1, engine="xla").theta[0],
    "c": lambda user: tc.solve(user.problem, HALF, 200, 1, engine="c").theta[0],
    "learner": learner,
}


@pytest.fixture(autouse=True)
def single():
    """The user's own calls are in float32, as JAX has it."""
    with jax.enable_x64(False):
        yield


@pytest.fixture
def no_collection():
    """What is in a cycle would go by chance."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("name", ["xla", "c", "learner"])
def test_arrays_that_jax_holds_in_float32_are_not_rounded(name):
    user = Functions()
    jax.jit(user.distance)(np.zeros(3))
    assert CALLS[name](user) == pytest.approx(TENTHS, abs=1e-15)


@pytest.mark.parametrize("name", ["xla", "c", "learner"])
def test_the_users_own_calls_find_their_arrays_in_float32(name, no_collection):
    user = Functions()
    CALLS[name](user)
    assert jnp.asarray(user.roots).dtype == jnp.float32
    assert jax.jit(user.F)(np.zeros(3), 0.0, 0.0) == pytest.approx(-TENTHS)
    assert user.F(jnp.zeros(3), 0.0, 0.0) == pytest.approx(-TENTHS)
    assert CALLS[name](user) == pytest.approx(TENTHS, abs=1e-15)


def test_a_sweep_leaves_no_array_in_float64(no_collection):
    user = Functions()
    tc.sweep({"a": user.problem}, {"b": HALF}, 20, 1)
    assert jnp.asarray(user.roots).dtype == jnp.float32


def test_an_array_that_another_function_holds_is_refused():
    """That function is nowhere to be found, so its trace cannot be dropped."""
    user = Functions()
    held = jax.jit(jax.grad(lambda t: jnp.sum(user.distance(t) ** 2)))
    held(np.zeros(3))
    with pytest.raises(tc.InputError, match=r"`a\.copy\(\)`"):
        tc.solve(user.problem, HALF, 200, 1)
    del held


def test_arrays_that_are_float32_by_choice_are_taken():
    """One that outlives the trace, a view of one, and one that is made in it."""
    kept = np.array([[0.1, 0.2, 0.3]], np.float32)
    F = lambda t, w, x: t - jnp.asarray(kept[0] + np.full(3, 0.5, np.float32), t.dtype)  # noqa: E731
    noise = lambda key: jax.random.normal(key, (3,))  # noqa: E731
    problem = tc.problems.custom(F, lambda t, w, x: w - t, noise, np.zeros(3), np.zeros(3))
    found = tc.solve(problem, HALF, 200, 1).theta[0]
    assert found == pytest.approx((kept[0] + np.float32(0.5)).astype(float), abs=1e-15)
