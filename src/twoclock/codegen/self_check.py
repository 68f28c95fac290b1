"""The comparison of a compiled program with XLA before its first use."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from twoclock.codegen.arrays import ShapedType
from twoclock.codegen.ir import Tree

# Differences that rounding may make in a few steps, relative to the size of an array's numbers.
_ROUNDING = {"float64": 1e-9, "float32": 1e-3}


def compare(found: Tree, expected: Tree, when: str = "") -> str | None:
    """Describe how the numbers of two pytrees differ beyond rounding; None if they do not."""
    for a, b in zip(map(np.asarray, jax.tree.leaves(found)), map(np.asarray, jax.tree.leaves(expected)), strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"it gives {a.dtype}{list(a.shape)} where XLA gives {b.dtype}{list(b.shape)}"
        if b.dtype.kind != "f":
            if not np.array_equal(a, b):
                return "its whole numbers differ from XLA's"
        elif not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return "its numbers overflow where XLA's do not, or the reverse"
        elif b.size:
            finite = np.isfinite(b)
            size = np.max(np.abs(b), where=finite, initial=0.0)
            worst = np.max(np.abs(a[finite] - b[finite]), initial=0.0)
            if worst > _ROUNDING.get(b.dtype.name, 1e-2) * max(size, 1.0):
                return f"it differs from XLA by {worst:.1e}{when}"
    return None


def sample(shapes: Sequence[ShapedType]) -> list[np.ndarray]:
    """Draw harmless operands: numbers near one, square matrices that are far from singular, small whole numbers."""
    rng = np.random.default_rng(0)
    drawn: list[np.ndarray] = []
    values: np.ndarray
    for leaf in shapes:
        shape, dtype = tuple(leaf.shape), np.dtype(leaf.dtype)
        if dtype.kind == "f":
            values = rng.uniform(0.5, 1.5, shape)
            if len(shape) > 1 and shape[-1] == shape[-2] > 1:
                values = values / (4 * shape[-1]) + np.eye(shape[-1])
        elif dtype.name == "uint32":  # probably the word of a random key
            values = rng.integers(0, 1 << 32, shape)
        else:
            values = rng.integers(0, 2, shape)
        drawn.append(np.asarray(values).astype(dtype))
    return drawn
