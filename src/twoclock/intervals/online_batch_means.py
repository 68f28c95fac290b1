"""A stream cut into blocks of one length as it comes in, without knowing how long it will be.

There are 32 sums at most. When all are taken, blocks become twice as long: neighbours are added up in pairs, one pair
whenever a new block begins, and the new block takes the slot that becomes free. So between 16 and 32 are in use once
there are so many samples, every step costs the same, and nothing is ever moved.

With 2ᵇ slots and blocks of 2ʳ samples, step k lies in block i = ⌊k/2ʳ⌋, and block i in the slot whose number is i with
its b bits turned left r times: the pair (2j, 2j+1) of length 2ʳ⁻¹ is block j of length 2ʳ, in the slot of its first,
and its second leaves its slot to block 2ᵇ⁻¹ + j.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from twoclock import tree_math
from twoclock.intervals.batch_means import BLOCKS
from twoclock.protocols import Scalar, pytree
from twoclock.tree_math import Sum, add

_BITS = BLOCKS.bit_length() - 1
_HALF = BLOCKS >> 1

Whole = Int[Array, "..."]


@pytree
class BlockSums:
    """Sums of rows over blocks.

    Attributes:
        current: of the block that is being filled.
        slots: of every block, this one included.
        count: the rows so far.
    """

    current: Sum
    slots: Float[Array, "slots n"]
    count: Int[Array, ""]


def begin(row: Float[Array, " n"]) -> BlockSums:
    """No rows yet, of the size of this one."""
    nothing = jnp.zeros_like(row)
    return BlockSums(
        tree_math.start(nothing), jnp.zeros((BLOCKS, nothing.size), nothing.dtype), jnp.zeros((), jnp.int32)
    )


def advance(sums: BlockSums, row: Float[Array, " n"], k: Scalar) -> BlockSums:
    """The sums with row k, the count so far: given, for it is the same for all lanes that run side by side."""
    k = jnp.asarray(k, jnp.int32)
    r = _doublings(k)
    i = k >> r
    first = k == i << r
    newest, partner = _turned(i, r), _turned(i ^ _HALF, r)
    slots = sums.slots.at[partner].add(jnp.where(first, sums.slots[newest], jnp.zeros_like(row)))
    current = add(_unless(first, sums.current), row)
    return BlockSums(current, slots.at[newest].set(current.value), k + 1)


def in_order(sums: BlockSums) -> tuple[Float[Array, "slots n"], Float[Array, " slots"]]:
    """The sums of all blocks in the order of time, and how many rows each is of: 0 where there is no block yet."""
    last = jnp.maximum(sums.count - 1, 0)
    r = _doublings(last)
    i = jnp.arange(BLOCKS, dtype=jnp.int32)
    sizes = jnp.clip(sums.count - (i << r), 0, 1 << r)
    # A pair that no new block has asked for yet has its second half in the slot of block i + _HALF.
    later = (r > 0) & (i < _HALF) & (i + _HALF > last >> r)
    own, second = sums.slots[_turned(i, r)], sums.slots[_turned(i ^ _HALF, r)]
    full = own + jnp.where(later[:, None], second, jnp.zeros_like(second))
    return jnp.where((sizes > 0)[:, None], full, jnp.zeros_like(full)), sizes.astype(full.dtype)


def _doublings(k: Whole) -> Whole:
    """How often blocks have doubled when row k comes: the binary digits of k/BLOCKS, counted after filling them up."""
    k = k >> _BITS
    for shift in (1, 2, 4, 8, 16):
        k = k | k >> shift
    return jax.lax.population_count(k)


def _turned(i: Whole, r: Whole) -> Whole:
    """The numbers with their bits turned left r times."""
    turn = r % _BITS
    return ((i << turn) | (i >> (_BITS - turn))) & (BLOCKS - 1)


def _unless(first: Array, total: Sum) -> Sum:
    """The sum, or nothing where a block begins."""
    residue = None if total.residue is None else jnp.where(first, jnp.zeros_like(total.residue), total.residue)
    return Sum(jnp.where(first, jnp.zeros_like(total.value), total.value), residue)
