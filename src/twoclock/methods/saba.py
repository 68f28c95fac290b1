"""Variance reduction by memory: the values of each item of finite data when it was last drawn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from twoclock import tree_math
from twoclock.methods.update_rule import Both
from twoclock.protocols import (
    IndexedBatch,
    InputError,
    Method,
    Operator,
    PyTree,
    RowTable,
    Scalar,
    checked,
    indexed_batches,
    pytree,
)
from twoclock.schedules import StepSize, step_size
from twoclock.tree_math import Sum
from twoclock.validation import whole


@pytree
class ItemMemory:
    """The values of the items of one level when each was last drawn.

    Attributes:
        values: (F, G) of each.
        seen: which have been drawn.
        total: the sum over those.
        count: how many they are.
    """

    values: RowTable
    seen: Bool[Array, " items"]
    total: Sum
    count: Float[Array, ""]


def _check_items(what: str, items: object) -> tuple[int, ...]:
    given = items if isinstance(items, (tuple, list)) else (items,)
    if not given:
        raise InputError(f"`{what}` must name how many items the data have, got ()")
    return tuple(whole(what, n) for n in given)


@pytree
class SABAState(Both):
    slow: Sum
    fast: Sum
    memories: tuple[ItemMemory, ...]


@pytree
class SABA(Method):
    """SAGA for both variables: an item's F and G are corrected by its last values and the mean of all.

        θ ← θ − α_k[F_i(θ, ω) − F̃_i + mean F̃],    F̃_i ← F_i(θ, ω)
        ω ← ω − β_k[G_i(θ, ω) − G̃_i + mean G̃],    G̃_i ← G_i(θ, ω)        averaged over the items i of the batch

    The noise vanishes where the iterates settle, so that constant steps converge linearly to the exact solution. For
    `bilevel` and `minimax` with finite data (`sampling.Minibatches`), whose losses are means over the batch. Each level
    of a bilevel problem has a memory of its own, as inner and outer items are drawn apart. An item that is drawn for
    the first time has nothing to be corrected by, and the mean is over those drawn so far: no pass ahead of the run.
    The memory holds a θ and an ω for every item.

    Args:
        alpha: step size of the slow variable θ; a constant suits.
        beta: step size of the fast variable ω.
        items: how many items the data have; for a bilevel problem the pair (inner, outer).

    >>> import twoclock as tc
    >>> problem = tc.problems.quadratic_bilevel(samples=64)
    >>> result = tc.solve(problem, tc.methods.SABA(0.2, 0.2, items=(64, 64)), steps=5000, seeds=2)
    >>> bool(result.summary("error")["mean"].iloc[-1] < 1e-20)
    True

    Reference: Dagréou, Ablin, Vaiter & Moreau, *A framework for bilevel optimization that enables stochastic and global
    variance reduction algorithms*, 2022, Section 3.2; Defazio, Bach & Lacoste-Julien, *SAGA*, 2014. There the first
    memory is that of a pass at the start.
    """

    alpha: StepSize = step_size("0.05")
    beta: StepSize = step_size("0.1")
    items: int | tuple[int, ...] = checked(_check_items, default=(64, 64), static=True)

    @property
    def _counts(self) -> tuple[int, ...]:
        return self.items if isinstance(self.items, tuple) else (self.items,)

    def init(self, theta: PyTree, omega: PyTree) -> SABAState:
        slow, fast = tree_math.start(theta, "theta"), tree_math.start(omega, "omega")
        both = slow.value, fast.value

        def memory(items: int) -> ItemMemory:
            values = jax.tree.map(lambda leaf: jnp.zeros((items, *leaf.shape), leaf.dtype), both)
            nothing = tree_math.start(jax.tree.map(jnp.zeros_like, both))
            return ItemMemory(RowTable(values), jnp.zeros(items, bool), nothing, jnp.zeros(()))

        return SABAState(slow, fast, tuple(memory(items) for items in self._counts))

    def step(self, F: Operator, G: Operator, state: SABAState, x: PyTree, k: Scalar) -> SABAState:
        parts, theta, omega = self._parts(x), state.theta, state.omega
        directions, memories = [], []
        for i, memory in enumerate(state.memories):

            def share(one: IndexedBatch, i: int = i) -> PyTree:
                alone = tuple(one if j == i else part.without() for j, part in enumerate(parts))
                sample = alone if isinstance(x, tuple) else one
                return F(theta, omega, sample), G(theta, omega, sample)

            direction, memory = correct_by_memory(memory, parts[i], jax.vmap(share)(parts[i].one_by_one()))
            directions.append(direction)
            memories.append(memory)
        f, g = jax.tree.map(lambda *shares: sum(shares[1:], shares[0]), *directions)
        slow, fast = tree_math.descend(state.slow, self.alpha(k), f), tree_math.descend(state.fast, self.beta(k), g)
        return SABAState(slow, fast, tuple(memories))

    def _parts(self, x: PyTree) -> tuple[IndexedBatch, ...]:
        parts = indexed_batches(x)
        if parts is None:
            raise InputError(
                "`SABA` must know which items a sample holds, and this problem has no finite data, or F and G are no "
                "sums over them; take `bilevel` or `minimax` with `sampling.Minibatches`, or tc.Fast()"
            )
        counts = tuple(part.items for part in parts)
        if counts != self._counts:
            raise InputError(f"`SABA(items={self.items})` must count the data's items, which are {counts}")
        return parts

    def estimate(self, state: SABAState) -> tuple[PyTree, PyTree]:
        return state.theta, state.omega


def correct_by_memory(memory: ItemMemory, part: IndexedBatch, now: PyTree) -> tuple[PyTree, ItemMemory]:
    """The batch's mean of its items' values now, less those before, plus the mean of all; and the next memory.

    An item that a batch holds twice is remembered once.
    """
    index = jnp.asarray(part.index)
    known = memory.seen[index]
    once = 1 / jnp.sum(index[:, None] == index[None, :], axis=1)
    mean = jax.tree.map(lambda total: total / jnp.maximum(memory.count, 1).astype(total.dtype), memory.total.value)
    old = jax.tree.map(lambda values: values[index], memory.values.rows)

    def along(flags: Array, leaf: Array) -> Array:
        return flags.reshape(-1, *(1,) * (leaf.ndim - 1)).astype(leaf.dtype)

    direction = jax.tree.map(
        lambda new, was, mean: jnp.mean(new - along(known, new) * (was - mean[None]), axis=0), now, old, mean
    )
    change = jax.tree.map(lambda new, was: along(once, new) * (new - was), now, old)
    return direction, ItemMemory(
        # Rows are added to, not set: XLA then changes the table where it stands instead of copying it.
        RowTable(jax.tree.map(lambda values, rows: values.at[index].add(rows), memory.values.rows, change)),
        memory.seen.at[index].set(True),
        tree_math.add(memory.total, jax.tree.map(lambda rows: jnp.sum(rows, axis=0), change)),
        memory.count + jnp.sum(jnp.where(known, 0, once)),
    )
