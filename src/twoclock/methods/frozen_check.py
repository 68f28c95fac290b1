"""Means of F and G at frozen points, over samples after the freezing, for the test of arrival.

The estimate is frozen whenever the number of samples is a power of two, and both operators are evaluated there at every
later sample, in 16 batches, or fewer, until the next power of two. So batches have one length, which depends on the
step alone and grows, so that a chain may be slow. While fewer than five in eight of them are complete, the previous
window is used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from twoclock.protocols import Scalar, pytree
from twoclock.validation.arrays import Array

BATCHES = 16


@pytree
class FrozenCheck:
    point: Float[Array, "*lanes n"]  # where the estimate was frozen last
    sums: Float[Array, "*lanes batches n"]  # of (F, G) there, by batches
    before: Float[Array, "*lanes n"]  # the same of the previous window
    sums_before: Float[Array, "*lanes batches n"]
    since: Float[Array, "*lanes"]  # the samples at the last freezing; 0 before the first
    count: Float[Array, "*lanes"]  # the samples so far
    start: Float[Array, "*lanes n"]  # the mean of (F, G) at the start of the run, over all samples
    start_square: Float[Array, "*lanes n"]  # and of their squares


class Batches(NamedTuple):
    """Batch means at a frozen point; weights of batches that are not complete are 0."""

    point: Float[Array, "*lanes n"]
    means: Float[Array, "*lanes batches n"]
    weights: Float[Array, "*lanes batches"]
    length: Float[Array, "*lanes"]  # of a batch, in samples


def begin(z: Float[Array, " n"], batches: int = BATCHES) -> FrozenCheck:
    zero, sums = jnp.zeros((), z.dtype), jnp.zeros((batches, z.size), z.dtype)
    return FrozenCheck(z, sums, z, sums, zero, zero, jnp.zeros_like(z), jnp.zeros_like(z))


def add_sample(check: FrozenCheck, here: Float[Array, " n"], at_start: Float[Array, " n"], k: Scalar) -> FrozenCheck:
    """Count sample k: (F, G) at the frozen point and at the start of the run."""
    k = jnp.maximum(jnp.asarray(k, jnp.int32), 1)
    top = top_power(k)
    number = len(check.sums)
    batch = jnp.minimum((k - top) // jnp.maximum(top // number, 1), number - 1)
    now = (jnp.arange(number, dtype=jnp.int32) == batch).astype(here.dtype)
    count = check.count + 1
    weight = 1 / count
    return FrozenCheck(
        check.point,
        check.sums + now[:, None] * here[None, :],
        check.before,
        check.sums_before,
        check.since,
        count,
        check.start + weight * (at_start - check.start),
        check.start_square + weight * (at_start**2 - check.start_square),
    )


def freeze(check: FrozenCheck, estimate: Float[Array, "*lanes n"], k: Any) -> FrozenCheck:
    """Freeze the estimate after step k if the samples are then a power of two; else change nothing."""
    xp = check.count.__array_namespace__()
    new = FrozenCheck(
        estimate, xp.zeros_like(check.sums), check.point, check.sums, check.count, check.count, check.start,
        check.start_square,
    )  # fmt: skip
    now = is_power(k + 1)
    return jax.tree.map(lambda a, b: xp.where(now, a, b), new, check)


def batches(check: FrozenCheck) -> Batches:
    """The batch means of this window if enough of it is complete, else of the previous one; of one lane, or of many."""
    xp = check.count.__array_namespace__()
    number = check.sums.shape[-2]
    length = xp.maximum(check.since / number, 1)
    done = xp.floor((check.count - check.since) / length)
    this = (done >= max(5 * number // 8, 3)) & (check.since >= number)
    full = xp.arange(number, dtype=done.dtype) < done[..., None]
    had_one = (check.since >= 2 * number)[..., None]
    size, half = length[..., None, None], xp.maximum(length / 2, 1)[..., None, None]
    means = xp.where(this[..., None, None], check.sums / size, check.sums_before / half)
    weights = xp.where(this[..., None], full, had_one).astype(means.dtype)
    return Batches(
        xp.where(this[..., None], check.point, check.before), means, weights, xp.where(this, length, length / 2)
    )


def start_squares(check: FrozenCheck, D: Float[Array, "... m n"]) -> Float[Array, "*lanes"]:
    """‖D·mean of (F, G) at the start‖², without the bias of its noise by independent samples."""
    xp = check.count.__array_namespace__()
    noise = xp.maximum(check.start_square - check.start**2, 0) / xp.maximum(check.count, 1)[..., None]
    mean, squares = (D @ check.start[..., None])[..., 0], (D**2 @ noise[..., None])[..., 0]
    return (mean**2).sum(axis=-1) - squares.sum(axis=-1)


def top_power(n: Any) -> Any:
    """The largest power of two that is not above a positive whole number below 2³²."""
    for shift in (1, 2, 4, 8, 16):
        n = n | (n >> shift)
    return n - (n >> 1)


def is_power(n: Any) -> Any:
    return n == top_power(n)
