"""What variance reduction by anchors shares: a mean gathered at a point, and steps corrected by it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from twoclock.protocols import Operator, PyTree
from twoclock.tree_math import Sum, blend

Pair = tuple[PyTree, PyTree]


def corrected(
    F: Operator,
    G: Operator,
    x: PyTree,
    here: Pair,
    anchor: Pair,
    field: Sum,
    done: Float[Array, ""],
    gathers: Bool[Array, ""],
) -> tuple[Pair, Sum]:
    """The directions F(here) − F(anchor) + F̃ and the same of G, nothing while gathering; and (F̃, G̃) with the sample in.

    Args:
        field: (F̃, G̃), the mean of (F, G) at the anchor over the ``done`` samples gathered.
        gathers: whether this sample is gathered rather than moved on.
    """  # fmt: skip
    at_anchor = F(*anchor, x), G(*anchor, x)

    def direction(now: Array, then: Array, mean: Array) -> Array:
        return jnp.where(gathers, jnp.zeros_like(mean), now - then + mean)

    directions = jax.tree.map(direction, (F(*here, x), G(*here, x)), at_anchor, field.value)
    return directions, blend(field, jnp.where(gathers, 1 / (done + 1), 0), at_anchor)
