"""Means of F and G at frozen points, over samples that came after the freezing: what a test for arrival needs.

The estimate is frozen whenever the number of samples is a power of two, and both operators are evaluated there at every
later sample, in 16 batches until the next power of two. So batches have one length, which depends on the step alone,
and a chain may be slow. While fewer than eight batches are complete, the window before speaks.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from twoclock.protocols import Scalar, pytree

BATCHES, _ENOUGH = 16, 8


@pytree
class FrozenCheck:
    point: Float[Array, " n"]  # where the estimate was frozen last
    sums: Float[Array, "batches n"]  # of (F, G) there, by batches
    before: Float[Array, " n"]  # the same of the window before
    sums_before: Float[Array, "batches n"]
    since: Float[Array, ""]  # the samples at the last freezing; 0 before the first
    count: Float[Array, ""]  # the samples so far
    start: Float[Array, " n"]  # the mean of (F, G) at the start of the run, over all samples
    start_square: Float[Array, " n"]  # and of their squares


class Batches(NamedTuple):
    """Batch means at a frozen point; weights of batches that are not complete are 0."""

    point: Float[Array, " n"]
    means: Float[Array, "batches n"]
    weights: Float[Array, " batches"]


def begin(z: Float[Array, " n"]) -> FrozenCheck:
    zero, sums = jnp.zeros((), z.dtype), jnp.zeros((BATCHES, z.size), z.dtype)
    return FrozenCheck(z, sums, z, sums, zero, zero, jnp.zeros_like(z), jnp.zeros_like(z))


def add_sample(check: FrozenCheck, here: Float[Array, " n"], at_start: Float[Array, " n"], k: Scalar) -> FrozenCheck:
    """Count sample k: (F, G) at the frozen point and at the start of the run."""
    k = jnp.maximum(jnp.asarray(k, jnp.int32), 1)
    top = top_power(k)
    batch = jnp.minimum((k - top) // jnp.maximum(top // BATCHES, 1), BATCHES - 1)
    now = (jnp.arange(BATCHES, dtype=jnp.int32) == batch).astype(here.dtype)
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


def freeze(check: FrozenCheck, estimate: Float[Array, " n"], k: Scalar) -> FrozenCheck:
    """Freeze the estimate after step k if the samples are then a power of two; else change nothing."""
    now = is_power(jnp.asarray(k, jnp.int32) + 1)
    new = FrozenCheck(
        estimate, jnp.zeros_like(check.sums), check.point, check.sums, check.count, check.count, check.start,
        check.start_square,
    )  # fmt: skip
    return jax.tree.map(lambda a, b: jnp.where(now, a, b), new, check)


def batches(check: FrozenCheck) -> Batches:
    """The batch means of this window if half of it is complete, else of the one before."""
    length = jnp.maximum(check.since / BATCHES, 1)
    done = jnp.floor((check.count - check.since) / length)
    this = (done >= _ENOUGH) & (check.since >= BATCHES)
    full = jnp.arange(BATCHES, dtype=done.dtype) < done
    had_one = check.since >= 2 * BATCHES
    means = jnp.where(this, check.sums / length, check.sums_before / jnp.maximum(length / 2, 1))
    weights = jnp.where(this, full, had_one).astype(means.dtype)
    return Batches(jnp.where(this, check.point, check.before), means, weights)


def start_squares(check: FrozenCheck, D: Float[Array, "m n"]) -> Float[Array, ""]:
    """‖D·mean of (F, G) at the start‖², without the bias of its noise by independent samples."""
    noise = jnp.maximum(check.start_square - check.start**2, 0) / jnp.maximum(check.count, 1)
    return jnp.sum((D @ check.start) ** 2) - jnp.sum(D**2 @ noise)


def top_power(n: Array) -> Array:
    """The largest power of two that is not above a positive whole number."""
    for shift in (1, 2, 4, 8, 16):
        n = n | (n >> shift)
    return n - (n >> 1)


def is_power(n: Array) -> Bool[Array, ""]:
    return n == top_power(n)
