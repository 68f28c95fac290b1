"""Checks of a regulator's arguments: its cost, its first gain, states and actions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from twoclock import validation
from twoclock.protocols import InputError
from twoclock.validation.arrays import definite, matrix


def check_costs(Q: ArrayLike, R: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """The cost of states and of actions as matrices, semidefinite and definite."""
    checked = matrix("Q", Q), matrix("R", R)
    for name, value, floor in zip("QR", checked, (-1e-12, 0.0), strict=True):
        if value.shape[0] != value.shape[1]:
            raise InputError(f"`{name}` must be square, got shape {value.shape}")
        definite(name, value, floor)
    return checked


def first_gain(K0: np.ndarray, m: int, p: int, n: int) -> np.ndarray:
    """Complete the first gain to a column per entry of the state; columns of older outputs and actions may be left
    out."""
    if K0.shape in ((m, n), (m, p)):
        return np.pad(K0, ((0, 0), (0, n - K0.shape[1])))
    remedy = ""
    if K0.ndim == 1 and len(K0) == m * p and 1 in (m, p):
        rows = K0.reshape(m, p).tolist()
        remedy = f"; write it as {rows}"
    raise InputError(
        f"`K0` must have a row for each action and a column for each state, {(m, p)}, got {K0.shape}{remedy}"
    )


def check_vector(name: str, value: ArrayLike, size: int) -> np.ndarray:
    """A state, output or action as a finite vector."""
    try:
        new = np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"`{name}` must be a vector of {size} numbers, got {validation.short_repr(value)}") from None
    if new.shape != (size,):
        raise InputError(f"`{name}` must have shape {(size,)}, got {new.shape}")
    if not np.isfinite(new).all():
        raise InputError(
            f"`{name}` must be finite, got {validation.short_repr(new.tolist())}; the plant has left all bounds"
        )
    return new
