"""What features are to an estimator, and how features of states become features of pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from twoclock.logs.policies import Actions, called
from twoclock.protocols import InputError
from twoclock.validation import shown

Matrix = Any
"""A NumPy array, or a scipy.sparse CSR array where most entries are 0."""


@runtime_checkable
class Features(Protocol):
    """φ(s, a) ∈ R^size.

    A state is encoded once, for its pair with the logged action and for its mean over a policy's.
    """

    @property
    def size(self) -> int:
        """How many features there are."""

    def encode(self, state: np.ndarray) -> Matrix:
        """What of a batch of states does not depend on the action."""

    def pairs(self, encoded: Matrix, action: np.ndarray) -> Matrix:
        """φ(s, a) [n, size]."""

    def mean(self, encoded: Matrix, actions: Actions) -> Matrix:
        """Σ_a π(a|s)φ(s, a) [n, size]."""


@runtime_checkable
class Base(Protocol):
    """Features of a state alone (or of a state and a continuous action, side by side)."""

    @property
    def size(self) -> int: ...
    def __call__(self, x: np.ndarray) -> Matrix: ...


def vectors(state: np.ndarray) -> np.ndarray:
    """States as rows of numbers."""
    if state.dtype.kind not in "biuf":
        raise InputError("`features` must be 'onehot' or a function where states are text")
    return state.astype(float).reshape(len(state), -1)


@dataclass(frozen=True, eq=False)
class Crossed:
    """φ(s, a) = ψ(s) ⊗ e_a: a copy of the state's features for each discrete action."""

    base: Base
    actions: int
    labels: bool = False

    @property
    def size(self) -> int:
        return self.base.size * self.actions

    def encode(self, state: np.ndarray) -> Matrix:
        return self.base(state if self.labels else vectors(state))

    def pairs(self, encoded: Matrix, action: np.ndarray) -> Matrix:
        n, k = encoded.shape
        if isinstance(encoded, np.ndarray):
            found = np.zeros((n, k, self.actions))
            found[np.arange(n), :, action] = encoded
            return found.reshape(n, -1)
        index = encoded.indices.astype(np.int64) * self.actions + np.repeat(action, np.diff(encoded.indptr))
        return _csr(encoded.data, index, encoded.indptr, (n, self.size))

    def dots(self, encoded: Matrix, columns: np.ndarray) -> np.ndarray:
        """φ(s, a)ᵀθ for every action a and every column θ [n, actions, columns], without any row of φ."""
        return (encoded @ columns.reshape(self.base.size, -1)).reshape(encoded.shape[0], self.actions, -1)

    def mean(self, encoded: Matrix, actions: Actions) -> Matrix:
        n, A = len(actions.law), self.actions
        if isinstance(encoded, np.ndarray):
            return (encoded[:, :, None] * actions.law[:, None, :]).reshape(n, -1)
        row = np.repeat(np.arange(n), np.diff(encoded.indptr))
        index = (encoded.indices.astype(np.int64)[:, None] * A + np.arange(A)).ravel()
        return _csr((encoded.data[:, None] * actions.law[row]).ravel(), index, encoded.indptr * A, (n, self.size))


@dataclass(frozen=True, eq=False)
class Joint:
    """φ(s, a) of a function of both, which is asked once for each of the policy's actions."""

    function: Callable[[np.ndarray, np.ndarray], Any]
    size: int
    labels: np.ndarray | None = None

    def encode(self, state: np.ndarray) -> Matrix:
        return state

    def pairs(self, encoded: Matrix, action: np.ndarray) -> Matrix:
        return self._rows(encoded, action if self.labels is None else self.labels[action])

    def mean(self, encoded: Matrix, actions: Actions) -> Matrix:
        total: Matrix = 0.0
        for j in range(actions.law.shape[1]):
            if self.labels is not None:
                if not actions.law[:, j].any():
                    continue
                action = np.full(len(encoded), self.labels[j])
            else:
                assert actions.nodes is not None
                action = actions.nodes[:, j]
            rows = self._rows(encoded, action)
            weight = actions.law[:, j : j + 1]
            total = total + (rows * weight if isinstance(rows, np.ndarray) else rows.multiply(weight).tocsr())
        return total

    def _rows(self, state: np.ndarray, action: np.ndarray) -> Matrix:
        rows = as_rows(called("features", self.function, state, action))
        if rows.shape != (len(state), self.size):
            raise InputError(
                f"`features` must give one row of {self.size} numbers a pair, the shape {(len(state), self.size)}, got "
                f"{rows.shape}; it is called with a batch of states and one of actions"
            )
        if not np.isfinite(rows if isinstance(rows, np.ndarray) else rows.data).all():
            raise InputError("`features` must be finite, got NaN or infinity for a pair of the log")
        return rows


def as_rows(found: object) -> Matrix:
    """What a user's function gave, as a matrix of numbers."""
    if hasattr(found, "tocsr"):
        return found.tocsr().astype(float)
    try:
        rows = np.asarray(found)
        if rows.dtype.kind not in "biufO":
            raise TypeError
        return rows.astype(float, copy=False)
    except (TypeError, ValueError):
        raise InputError(f"`features` must give numbers, got {shown(found)}") from None


def _csr(data: np.ndarray, index: np.ndarray, start: np.ndarray, shape: tuple[int, int]) -> Matrix:
    from scipy.sparse import csr_array  # slow to load

    return csr_array((data, index, start), shape=shape)
