"""Batches of finite data that say which items they hold."""

from __future__ import annotations

import jax
from jaxtyping import Array, Int

from twoclock.protocols import PyTree, pytree, static


@pytree
class IndexedBatch:
    """A batch of finite data and which items it holds, for methods that remember what an item said before.

    A sample is one such batch, or a tuple of them (the inner data and the outer ones) of which F and G are the sum of
    shares: with the others left out, they give the share of one.

    Attributes:
        batch: the data of the items, along the first axis; None where the batch is left out.
        index: their numbers.
        items: how many items there are.
        replace: whether they are drawn with replacement; otherwise every item comes once an epoch.
    """

    batch: PyTree
    index: Int[Array, ...] | None
    items: int = static()
    replace: bool = static(default=False)

    @property
    def left_out(self) -> bool:
        return self.index is None

    def without(self) -> IndexedBatch:
        """The batch left out."""
        return IndexedBatch(None, None, self.items, self.replace)

    def one_by_one(self) -> IndexedBatch:
        """As batches of one item each, stacked."""
        batch, index = jax.tree.map(lambda leaf: leaf[:, None], (self.batch, self.index))
        return IndexedBatch(batch, index, self.items, self.replace)


def parts_of(x: PyTree) -> tuple[IndexedBatch, ...] | None:
    """The numbered batches of a sample; None where the sample is anything else."""
    parts = x if isinstance(x, tuple) else (x,)
    return parts if parts and all(isinstance(part, IndexedBatch) for part in parts) else None
