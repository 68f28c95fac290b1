"""A stream cut into blocks of one length as it comes in, without knowing how long it will be.

There are ``SLOTS`` sums at most. When all are taken, blocks become twice as long: neighbours are added up in pairs, one
pair whenever a new block begins, and the new block takes the slot that becomes free. So between half and all of the
slots are in use, every step costs the same, and nothing is ever moved.

With SLOTS = 2ᵇ and blocks of 2ʳ samples, step k lies in block i = ⌊k/2ʳ⌋, and block i in the slot whose number is i
with its b bits turned left r times: pair (2j, 2j+1) of length 2ʳ⁻¹ is block j of length 2ʳ, and leaves its second slot
to block SLOTS/2 + j.
"""

from __future__ import annotations

from typing import TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from twoclock import trees
from twoclock.core import Scalar, pytree
from twoclock.trees import Sum, add

Numbers = TypeVar("Numbers", Int[Array, ""], Int[np.ndarray, " i"])

_BITS = 5
SLOTS = 1 << _BITS


@pytree
class BlockSums:
    """The sum of the block that is being filled, and those of all blocks, this one included, in their slots."""

    current: Sum
    slots: Float[Array, "slots n"]


def begin(row: Float[Array, " n"]) -> BlockSums:
    """No block yet, for rows like this one."""
    nothing = jnp.zeros_like(row)
    return BlockSums(trees.start(nothing), jnp.broadcast_to(nothing[None, :], (SLOTS, nothing.size)))


def advance(sums: BlockSums, row: Float[Array, " n"], k: Scalar) -> BlockSums:
    """The sums with the row of step k = 0, 1, …"""
    k = jnp.asarray(k, jnp.int32)
    r = _bit_length(k >> _BITS)
    i = k >> r
    first = k == i << r
    newest, partner = _turned(i, r), _turned(i ^ (SLOTS >> 1), r)
    slots = sums.slots.at[partner].add(jnp.where(first, sums.slots[newest], 0))
    empty = trees.start(jnp.zeros_like(row))
    current = add(_where(first, empty, sums.current), row)
    return BlockSums(current, slots.at[newest].set(current.value))


def in_order(slots: Float[np.ndarray, "slots n"], steps: int) -> Float[np.ndarray, "b n"]:
    """The sums of all blocks after so many steps, in the order of time."""
    if steps == 0:
        return slots[:0]
    r = ((steps - 1) >> _BITS).bit_length()
    last, half = (steps - 1) >> r, SLOTS >> 1
    sums = slots[_turned(np.arange(last + 1), r)]
    if r:  # pairs that no new block has asked for yet
        later = np.arange(last - half + 1, half)
        sums[later] += slots[_turned(later + half, r)]
    return sums


def _turned(i: Numbers, r: Numbers | int) -> Numbers:
    """The numbers with their bits turned left r times."""
    turn = r % _BITS
    return ((i << turn) | (i >> (_BITS - turn))) & (SLOTS - 1)


def _bit_length(k: Int[Array, ""]) -> Int[Array, ""]:
    """The number of binary digits of k ≥ 0: every digit below the first one set, then counted."""
    for shift in (1, 2, 4, 8, 16):
        k = k | k >> shift
    return jnp.bitwise_count(k)


def _where(which: Array, a: Sum, b: Sum) -> Sum:
    residue = None if a.residue is None or b.residue is None else jnp.where(which, a.residue, b.residue)
    return Sum(jnp.where(which, a.value, b.value), residue)
