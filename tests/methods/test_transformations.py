"""Transformations that fit one structure of the variable alone, as ``optax.multi_transform`` makes them."""

import jax
import numpy as np
import optax
import pytest

import twoclock as tc

LABELS = {"u": "a", "v": "b"}


@pytest.fixture(autouse=True)
def _as_optax_needs_it():
    """Optax lets JAX promote numbers."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def solve(transform):
    problem = tc.problems.custom(
        F=lambda theta, omega, x: jax.tree.map(lambda leaf: leaf - 1 + x, theta), G=lambda theta, omega, x: omega,
        noise=lambda key: 0.1 * jax.random.normal(key), theta={"u": 0.0, "v": np.zeros(2)}, omega=0.0,
    )  # fmt: skip
    return tc.solve(problem, tc.Standard(0.1, 0.1, transform_theta=transform), steps=200, seeds=2)


@pytest.mark.parametrize(
    "transform",
    [
        optax.multi_transform({"a": optax.scale_by_adam(), "b": optax.identity()}, LABELS),
        optax.multi_transform({"a": optax.scale(2.0), "b": optax.identity()}, lambda theta: LABELS),
        optax.masked(optax.scale_by_adam(), {"u": True, "v": False}),
    ],
)
def test_parts_of_a_variable_may_move_each_in_its_way(transform):
    found = solve(transform)
    np.testing.assert_allclose(found.theta["v"], 1.0, atol=0.2)


def test_what_does_not_fit_the_variable_or_ascends_is_refused_in_one_line():
    with pytest.raises(tc.InputError, match=r"`transform_theta` must keep the sign .* turns descent into ascent"):
        solve(optax.multi_transform({"a": optax.sgd(1.0), "b": optax.identity()}, LABELS))
    with pytest.raises(
        tc.InputError, match=r"`transform_theta` must fit its variable, and fails on it with ValueError"
    ):
        solve(optax.multi_transform({"a": optax.identity()}, {"w": "a"}))
