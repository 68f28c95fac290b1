"""Arithmetic on pytrees of floating-point arrays.

Below float64 a denoised step α·f soon falls under one unit in the last place of θ and the run would freeze. So the sums
that a method keeps may carry a *residue*: what rounding dropped from each of them, added back at the next step (Kahan,
*Further remarks on reducing truncation errors*, 1965). In float64 the residue is None and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from twoclock.core import PyTree, Scalar


def residue(*trees: PyTree) -> tuple[PyTree, ...]:
    """A zero residue for each tree, or None for each where all their leaves are float64."""
    if all(jnp.finfo(leaf.dtype).bits >= 64 for leaf in jax.tree.leaves(trees)):
        return (None,) * len(trees)
    return tuple(jax.tree.map(jnp.zeros_like, tree) for tree in trees)


def add(total: PyTree, step: PyTree, low: PyTree) -> tuple[PyTree, PyTree]:
    """``total + step``, and the new residue."""
    if low is None:
        return jax.tree.map(jnp.add, total, step), None
    exact = jax.tree.map(jnp.add, step, low)
    new = jax.tree.map(jnp.add, total, exact)
    return new, jax.tree.map(lambda e, n, t: e - (n - t), exact, new, total)


def descend(x: PyTree, size: Scalar, direction: PyTree, low: PyTree = None) -> tuple[PyTree, PyTree]:
    """``x − size·direction``, and the new residue."""
    return add(x, jax.tree.map(lambda leaf, d: -_like(size, leaf) * _like(d, leaf), x, direction), low)


def blend(mean: PyTree, weight: Scalar, value: PyTree, low: PyTree = None) -> tuple[PyTree, PyTree]:
    """``(1 − weight)·mean + weight·value``, and the new residue. A weight of 1 gives the value itself, to the bit."""
    if low is not None:
        return add(mean, jax.tree.map(lambda m, v: _like(weight, m) * (_like(v, m) - m), mean, value), low)
    return jax.tree.map(lambda m, v: (1 - _like(weight, m)) * m + _like(weight, m) * _like(v, m), mean, value), None


def sqnorm(tree: PyTree) -> jax.Array:
    """Squared Euclidean norm over all leaves."""
    return sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)), jnp.zeros(()))


def difference(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.subtract, a, b)


def _pinv(matrix: jax.Array) -> jax.Array:
    return jnp.linalg.pinv(matrix)


# The pseudo-inverse, one matrix after the other under vmap. JAX hands a batch of LAPACK calls to the pool of threads
# that it waits on: two batches at once, one for each group of seeds, can each hold a thread of a pool of two and wait
# for ever.
pinv: Callable[[jax.Array], jax.Array] = jax.custom_batching.sequential_vmap(_pinv)


def _like(value: Any, leaf: jax.Array) -> jax.Array:
    return jnp.asarray(value, leaf.dtype)
