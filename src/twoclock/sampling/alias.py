"""Alias tables: a draw from any finite law for one 32-bit word and one look-up, however many outcomes it has.

Spread n outcomes over n columns of height 1, so that column i holds outcome i up to its threshold and one other
outcome, its alias, above. A uniform point in the columns is then a draw. Threshold and alias share one word, ⌈log₂ n⌉
bits for the alias and the rest for the threshold: about as many as one 32-bit draw can tell apart. The law sampled
differs from the law given by at most n·2⁻³¹ in total variation, 5e-8 for a hundred outcomes, far below what 10⁹ draws
can see.

Reference: Walker 1977; Vose 1991; by prefix sums, so that a table is built without a loop and inside a ``jit``, as in
Hübschle-Schneider & Sanders, *Parallel weighted random sampling*, 2022.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Int32, UInt32

from twoclock.core import InputError
from twoclock.inputs.arrays import Array, State

_MOST = 2**16 - 1  # the column number below is a product of 16-bit halves
_FEW = 1024  # rows that take longer to compile for than to fill


def alias_table(law: Float[Array, "*rows n"]) -> UInt32[jax.Array, "*rows n"]:
    """The table of each law along the last axis, as uint32 of the same shape."""
    n = law.shape[-1]
    if n > _MOST:
        raise InputError(f"a law must have at most {_MOST} outcomes to be sampled, got {n}; split it in two stages")
    rows = jnp.asarray(law).reshape(-1, n)
    return jax.vmap(_one_table)(rows).reshape(law.shape)


def tables_of(law: Float[np.ndarray, "*rows n"]) -> UInt32[np.ndarray, "*rows n"]:
    """The same for laws that are known, in double precision."""
    rows = law.reshape(-1, law.shape[-1])
    if len(rows) <= _FEW:  # made up to a power of two, so that few programs do for all
        rows = np.vstack([rows, np.ones(((1 << (len(rows) - 1).bit_length()) - len(rows), rows.shape[1]))])
    with jax.enable_x64(True):
        return np.asarray(_compiled(rows))[: law.size // law.shape[-1]].reshape(law.shape)


_compiled = jax.jit(alias_table)


def lookup(table: UInt32[Array, "*rows n"], row: tuple[State, ...], bits: UInt32[Array, ""]) -> Int32[jax.Array, ""]:
    """The outcome that 32 random bits draw from the given row of a table."""
    n = table.shape[-1]
    shift = jnp.uint32(_alias_bits(n))
    size, half, low = jnp.uint32(n), jnp.uint32(16), jnp.uint32(0xFFFF)
    # The point bits·n/2³²: its whole part is the column, its fraction (the product modulo 2³²) the height.
    column = ((bits >> half) * size + (((bits & low) * size) >> half)) >> half
    height = (bits * size) >> (shift + jnp.uint32(1))
    word = table[(*row, column.astype(jnp.int32))]
    threshold, alias = word >> shift, word & ((jnp.uint32(1) << shift) - jnp.uint32(1))
    return jnp.where(height < threshold, column, alias).astype(jnp.int32)


def _one_table(law: Float[jax.Array, " n"]) -> UInt32[jax.Array, " n"]:
    n = law.shape[-1]
    shift = _alias_bits(n)
    unit = jnp.uint32(2 ** (31 - shift))
    # Whole units, n·unit in all: sums of integers are exact in any order, so no column is left over or empty.
    weight = jnp.round(law / law.sum() * float(n * 2 ** (31 - shift))).astype(jnp.uint32)
    weight = weight.at[jnp.argmax(law)].add(jnp.uint32(n) * unit - weight.sum(dtype=jnp.uint32))
    # Light columns (≤ unit) owe what they lack to heavy ones. With both taken in order, the heavy column that fills
    # light i is the first whose total surplus exceeds the debts before i; a heavy column that gave too much is filled
    # by the next.
    light = weight <= unit
    owed = jnp.where(light, unit - weight, jnp.uint32(0))
    debt = jnp.cumsum(owed, dtype=jnp.uint32)
    surplus = jnp.cumsum(jnp.where(light, jnp.uint32(0), weight - unit), dtype=jnp.uint32)
    filler = _first(surplus, jnp.where(light, debt - owed, surplus), "right")
    overdrawn = debt[_first(debt, surplus, "left")] - surplus
    threshold = jnp.where(light, weight, unit - overdrawn)
    return (threshold << jnp.uint32(shift)) | jnp.minimum(filler, n - 1).astype(jnp.uint32)


def _first(ascending: UInt32[jax.Array, " n"], bound: UInt32[jax.Array, " n"], side: str) -> Int[jax.Array, " n"]:
    """For each bound the first index whose entry exceeds it (side right) or reaches it (left)."""
    return jnp.searchsorted(ascending, bound, side=side)


def _alias_bits(n: int) -> int:
    return max(1, (n - 1).bit_length())
