"""Networks as variables: of a module with functions in it (an Equinox MLP and its activation) the arrays are learned.

A run carries the module with None in place of all else, as ``equinox.filter_grad`` returns it; the user's functions see
the whole.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.protocols import PyTree

Join = Callable[[PyTree], PyTree]


def is_module(tree: PyTree) -> bool:
    """Whether a tree holds functions beside arrays of floats."""
    leaves = jax.tree.leaves(tree)
    return any(map(_is_learned, leaves)) and any(callable(leaf) and not _is_array(leaf) for leaf in leaves)


def numbers(tree: PyTree) -> PyTree:
    """The tree with None in place of what is no array of floats."""
    return jax.tree.map(lambda leaf: leaf if _is_learned(leaf) else None, tree)


def joining(tree: PyTree) -> Join:
    """What puts the rest of the tree back around its numbers."""
    rest = jax.tree.map(lambda leaf: None if _is_learned(leaf) else leaf, tree)

    def join(learned: PyTree) -> PyTree:
        return jax.tree.map(lambda a, b: b if a is None else a, learned, rest, is_leaf=lambda leaf: leaf is None)

    return join


def _is_array(leaf: object) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def _is_learned(leaf: object) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray)) and bool(jnp.issubdtype(leaf.dtype, jnp.floating))
