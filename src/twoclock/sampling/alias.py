"""Draws from finite distributions, one 32-bit word each: from alias tables, or from a distribution that changes.

An alias table costs one look-up for any number n of outcomes: column i has outcome i up to its threshold and one other
outcome, its alias, above it, and a uniform point in the columns is a draw. Both share one word, with ⌈log₂ n⌉ bits for
the alias. The sampled distribution differs from the given one by at most n·2⁻³¹ in total variation, 5e-5 for 10⁵
outcomes.

Reference: Walker 1977; Vose 1991; by prefix sums, without a loop, as in Hübschle-Schneider & Sanders, *Parallel
weighted random sampling*, 2022.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Int32, UInt32

from twoclock.protocols import InputError
from twoclock.validation.arrays import Array, Number, State

_HALF = 2**16 - 1  # up to here the column number is a product of 16-bit halves
_MOST = 2**20  # with more outcomes one word is too coarse: the sampled distribution would be off by more than 5e-4


def alias_table(law: Float[Array, "*rows n"]) -> UInt32[jax.Array, "*rows n"]:
    """The table of each distribution along the last axis, as uint32 of the same shape."""
    rows = jnp.asarray(law).reshape(-1, law.shape[-1])
    return jax.vmap(_one_table)(rows).reshape(law.shape)


def numpy_alias_table(law: Float[np.ndarray, "*rows n"]) -> UInt32[np.ndarray, "*rows n"]:
    """The same for known distributions: the formulas of ``_one_table`` in NumPy, which needs no compilation."""
    n = law.shape[-1]
    rows = law.reshape(-1, n).astype(float)
    shift = _alias_bits(n)
    unit, none = np.uint32(2 ** (31 - shift)), np.uint32(0)
    total = np.cumsum(rows, axis=1)[:, -1:]  # added up in order, as XLA does
    weight = np.round(rows / total * float(n * 2 ** (31 - shift))).astype(np.uint32)
    rest = np.uint32(n) * unit - weight.sum(axis=1, dtype=np.uint32)
    weight[np.arange(len(rows)), np.argmax(rows, axis=1)] += rest
    light = weight <= unit
    owed = np.where(light, unit - weight, none)
    debt = np.cumsum(owed, axis=1, dtype=np.uint32)
    surplus = np.cumsum(np.where(light, none, weight - unit), axis=1, dtype=np.uint32)
    filler = _first_of_rows(surplus, np.where(light, debt - owed, surplus), "right")
    overdrawn = np.take_along_axis(debt, _first_of_rows(debt, surplus, "left"), axis=1) - surplus
    threshold = np.where(light, weight, unit - overdrawn)
    return ((threshold << np.uint32(shift)) | filler.astype(np.uint32)).reshape(law.shape)


def lookup(table: UInt32[Array, "*rows n"], row: tuple[State, ...], bits: UInt32[Array, ""]) -> Int32[jax.Array, ""]:
    """The outcome that 32 random bits draw from the given row of a table."""
    n = table.shape[-1]
    shift = jnp.uint32(_alias_bits(n))
    size, half, low = jnp.uint32(n), jnp.uint32(16), jnp.uint32(0xFFFF)
    # The point bits·n/2³²: its whole part is the column, its fraction (the product modulo 2³²) the height.
    column = ((bits >> half) * size + (((bits & low) * size) >> half)) >> half if n <= _HALF else _high_word(bits, n)
    height = (bits * size) >> (shift + jnp.uint32(1))
    word = table[(*row, column.astype(jnp.int32))]
    threshold, alias = word >> shift, word & ((jnp.uint32(1) << shift) - jnp.uint32(1))
    return jnp.where(height < threshold, column, alias).astype(jnp.int32)


def _high_word(bits: UInt32[Array, ""], n: int) -> UInt32[Array, ""]:
    """⌊bits·n/2³²⌋ without 64-bit integers, from the four products of 16-bit halves."""
    half, low = jnp.uint32(16), jnp.uint32(0xFFFF)
    high_n, low_n = jnp.uint32(n >> 16), jnp.uint32(n & 0xFFFF)
    middle = (bits >> half) * low_n + (((bits & low) * low_n) >> half)  # below 2³²: (2¹⁶−1)² + 2¹⁶ − 1
    return (bits >> half) * high_n + (((bits & low) * high_n + (middle & low)) >> half) + (middle >> half)


def _one_table(law: Float[jax.Array, " n"]) -> UInt32[jax.Array, " n"]:
    n = law.shape[-1]
    shift = _alias_bits(n)
    unit = jnp.uint32(2 ** (31 - shift))
    # Whole units, n·unit in all: sums of integers are exact in any order, so no column is left over or empty.
    weight = jnp.round(law / law.sum() * float(n * 2 ** (31 - shift))).astype(jnp.uint32)
    weight = weight.at[jnp.argmax(law)].add(jnp.uint32(n) * unit - weight.sum(dtype=jnp.uint32))
    # Light columns (≤ unit) are filled from heavy ones. With both taken in order, light i is filled by the first heavy
    # column whose total surplus exceeds the debts before i; a heavy column that gave too much is filled by the next.
    light = weight <= unit
    owed = jnp.where(light, unit - weight, jnp.uint32(0))
    debt = jnp.cumsum(owed, dtype=jnp.uint32)
    surplus = jnp.cumsum(jnp.where(light, jnp.uint32(0), weight - unit), dtype=jnp.uint32)
    filler = jnp.searchsorted(surplus, jnp.where(light, debt - owed, surplus), side="right")
    overdrawn = debt[jnp.searchsorted(debt, surplus, side="left")] - surplus
    threshold = jnp.where(light, weight, unit - overdrawn)
    return (threshold << jnp.uint32(shift)) | jnp.minimum(filler, n - 1).astype(jnp.uint32)


def _first_of_rows(
    ascending: UInt32[np.ndarray, "rows n"], bound: UInt32[np.ndarray, "rows n"], side: Literal["left", "right"]
) -> Int[np.ndarray, "rows n"]:
    """``searchsorted`` in each row, the last index where there is none: one search over the concatenated rows."""
    rows, n = ascending.shape
    above = np.arange(rows, dtype=np.uint64)[:, None] << np.uint64(32)
    found = np.searchsorted((ascending + above).ravel(), (bound + above).ravel(), side).reshape(rows, n)
    return np.minimum(found - n * np.arange(rows)[:, None], n - 1)


def _alias_bits(n: int) -> int:
    if n > _MOST:
        raise InputError(
            f"a distribution to sample from must have at most {_MOST} outcomes, got {n}; draw in two stages"
        )
    return max(1, (n - 1).bit_length())


def choose(pi: Float[jax.Array, " actions"], bits: UInt32[Array, ""]) -> State:
    """The action that 32 random bits draw from a distribution: the number of its running sums at or below the point."""
    total, shift = pi, 1
    while shift < len(pi):  # sums by doubling, since a separate prefix sum would not fuse with the step
        total = total + jnp.pad(total[:-shift], (shift, 0))
        shift *= 2
    return jnp.sum(total[:-1] <= unit_point(bits, pi.dtype) * total[-1], dtype=jnp.int32)


def unit_point(bits: UInt32[Array, ""], dtype: jnp.dtype) -> Number:
    """A point of [0, 1): exact in float64, 24 bits of it in float32, where 32 would round up to 1."""
    drop = 0 if jnp.finfo(dtype).bits == 64 else 8
    return (bits >> jnp.uint32(drop)).astype(dtype) * jnp.asarray(2.0 ** (drop - 32), dtype)
