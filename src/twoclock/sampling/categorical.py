"""A choice from a law that changes from step to step, such as a policy's; for fixed laws there are alias tables."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float, UInt32

from twoclock.validation.arrays import Array, Number, State


def choose(pi: Float[jax.Array, " actions"], bits: UInt32[Array, ""]) -> State:
    """The action that 32 random bits draw from a law: how many of its running sums lie at or below the point."""
    total, shift = pi, 1
    while shift < len(pi):  # sums by doubling, since a prefix sum of its own would not fuse with the step
        total = total + jnp.pad(total[:-shift], (shift, 0))
        shift *= 2
    return jnp.sum(total[:-1] <= unit_point(bits, pi.dtype) * total[-1], dtype=jnp.int32)


def unit_point(bits: UInt32[Array, ""], dtype: jnp.dtype) -> Number:
    """A point of [0, 1): exact in float64, 24 bits of it in float32, where 32 would round up to 1."""
    drop = 0 if jnp.finfo(dtype).bits == 64 else 8
    return (bits >> jnp.uint32(drop)).astype(dtype) * jnp.asarray(2.0 ** (drop - 32), dtype)
