"""Is this a matrix, a number, a plant that can be worked with? Answered in one line."""

from __future__ import annotations

from typing import Any

import numpy as np

from twoclock.core import InputError


def number(name: str, value: Any, least: int, *, above: bool = False) -> float:
    """The value as a float that is at least ``least``, or above it."""
    try:
        new = float(value)
    except (TypeError, ValueError):
        raise InputError(f"`{name}` must be one number, got {value!r}") from None
    if not np.isfinite(new) or new < least or (above and new == least):
        raise InputError(
            f"`{name}` must be a finite number {'above' if above else 'of at least'} {least:g}, got {new:g}"
        )
    return new


def matrix(name: str, value: Any) -> np.ndarray:
    """The value as a float64 matrix, or a complaint about ``name``."""
    try:
        matrix = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"`{name}` must be a matrix of numbers, got {type(value).__name__}") from None
    if matrix.ndim != 2 or not matrix.size:
        raise InputError(f"`{name}` must be a matrix, got shape {matrix.shape}; write a column as [[a], [b]]")
    if not np.isfinite(matrix).all():
        raise InputError(f"`{name}` must be finite, got an entry that is not")
    return matrix


def definite(name: str, value: np.ndarray, floor: float) -> None:
    """Complain unless the matrix is symmetric and its eigenvalues lie above ``floor``, relative to its size."""
    kind = "definite" if floor == 0 else "semidefinite"
    if not np.allclose(value, value.T, rtol=0, atol=1e-10 * np.abs(value).max()):
        raise InputError(f"`{name}` must be symmetric positive {kind}, got one that is not symmetric; try (M + Mᵀ)/2")
    smallest = np.linalg.eigvalsh(value)[0]
    if smallest <= floor * max(1.0, np.abs(value).max()):
        raise InputError(f"`{name}` must be symmetric positive {kind}, got the smallest eigenvalue {smallest:.3g}")


def stabilisable(A: np.ndarray, B: np.ndarray) -> None:
    """Complain unless some gain stabilises. Hautus: B must move every eigenvalue that is not inside the circle."""
    n = len(A)
    for mode in np.linalg.eigvals(A):
        if abs(mode) >= 1 - 1e-12:
            singular = np.linalg.svd(np.hstack([A - mode * np.eye(n), B]), compute_uv=False)
            if singular[n - 1] <= 1e-10 * singular[0]:
                raise InputError(f"`(A, B)` must be stabilisable: no gain moves the mode {mode:.4g} of `A`")
