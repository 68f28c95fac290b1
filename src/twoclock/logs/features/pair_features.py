"""PairFeatures φ(s, a) of a state and an action, and how to make them from what a user names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from twoclock.logs.dataset import Log
from twoclock.logs.features.state_features import (
    Fittable,
    Fourier,
    Matrix,
    OneHot,
    Rbf,
    StateFeatures,
    Tiles,
    csr_rows,
    vectors,
)
from twoclock.logs.policies import Actions, call_on_batch
from twoclock.protocols import InputError
from twoclock.validation import lookup, short_repr

NAMES: dict[str, Callable[[], Fittable] | None] = {"onehot": None, "rbf": Rbf, "tiles": Tiles, "fourier": Fourier}


def build(given: object, log: Log, others: np.ndarray | None = None) -> PairFeatures:
    """Make the features of a log's pairs.

    Args:
        given: "onehot", "rbf", "tiles" or "fourier"; one of their classes with settings; a ``Network``; or a function
            of (states, actions), both batches, that gives a row each.
        log: its states scale the features; its actions, where discrete, each have a copy.
        others: states that the log may lack, such as a given start.
    """
    spec = given
    if isinstance(given, str):
        kind = lookup(NAMES, given, "features")
        if kind is None:
            if log.actions is None:
                raise InputError(
                    "`features` 'onehot' needs discrete actions; take 'rbf' or a function of (state, action)"
                )
            return Crossed(OneHot.of(log, others), len(log.actions), labels=True)
        spec = kind()
    states, actions = log.sample()
    if isinstance(spec, type):
        raise InputError(f"`features` must be an object, got the class {spec.__name__}; write {spec.__name__}(…)")
    if isinstance(spec, Fittable):
        if log.actions is not None:
            return Crossed(spec.fit(vectors(states)), len(log.actions))
        base = spec.fit(_side_by_side(states, actions))
        return Joint(lambda state, action: base(_side_by_side(state, action)), base.size)
    if callable(spec):
        labels = None if log.actions is None else np.asarray(log.actions)
        some = actions[:2] if labels is None else labels[actions[:2]]
        first = as_rows(call_on_batch("features", spec, states[:2], some))
        if first.ndim != 2 or not first.shape[1]:
            raise InputError(
                f"`features` must be a function of a batch of (states, actions) that gives a row of numbers for each, "
                f"got the shape {first.shape} for {len(some)} pairs"
            )
        return Joint(spec, int(first.shape[1]), labels)
    raise InputError(
        f"`features` must be a name ({', '.join(NAMES)}), a class with `fit`, or a function, got {short_repr(given)}"
    )


def _side_by_side(state: np.ndarray, action: np.ndarray) -> np.ndarray:
    return np.hstack([vectors(state), action.astype(float).reshape(len(state), -1)])


@runtime_checkable
class PairFeatures(Protocol):
    """φ(s, a) ∈ R^size.

    A state is encoded once, for its pair with the logged action and for its mean over a policy's.
    """

    @property
    def size(self) -> int:
        """How many features there are."""

    def encode(self, state: np.ndarray) -> Matrix:
        """Compute what does not depend on the action; it is indexed by rows like the states."""

    def pairs(self, encoded: Matrix, action: np.ndarray) -> Matrix:
        """φ(s, a) [n, size]."""

    def mean(self, encoded: Matrix, actions: Actions) -> Matrix:
        """Σ_a π(a|s)φ(s, a) [n, size]."""


@dataclass(frozen=True, eq=False)
class Crossed:
    """φ(s, a) = ψ(s) ⊗ e_a: a copy of the state's features for each discrete action."""

    base: StateFeatures
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
        return csr_rows(encoded.data, index, encoded.indptr, self.size)

    def dots(self, encoded: Matrix, columns: np.ndarray) -> np.ndarray:
        """φ(s, a)ᵀθ for every action a and every column θ [n, actions, columns], without any row of φ."""
        return (encoded @ columns.reshape(self.base.size, -1)).reshape(encoded.shape[0], self.actions, -1)

    def mean(self, encoded: Matrix, actions: Actions) -> Matrix:
        n, A = len(actions.law), self.actions
        if isinstance(encoded, np.ndarray):
            return (encoded[:, :, None] * actions.law[:, None, :]).reshape(n, -1)
        row = np.repeat(np.arange(n), np.diff(encoded.indptr))
        index = (encoded.indices.astype(np.int64)[:, None] * A + np.arange(A)).ravel()
        return csr_rows((encoded.data[:, None] * actions.law[row]).ravel(), index, encoded.indptr * A, self.size)


def table_of(features: PairFeatures) -> OneHot | None:
    """The table of states behind one-hot features; None for others."""
    base = features.base if isinstance(features, Crossed) else None
    return base if isinstance(base, OneHot) else None


@dataclass(frozen=True, eq=False)
class Joint:
    """φ(s, a) of a function of both, which is asked once for each of the policy's actions."""

    function: Callable[[np.ndarray, np.ndarray], Matrix]
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
        rows = as_rows(call_on_batch("features", self.function, state, action))
        if rows.shape != (len(state), self.size):
            raise InputError(
                f"`features` must give one row of {self.size} numbers a pair, the shape {(len(state), self.size)}, got "
                f"{rows.shape}; it is called with a batch of states and one of actions"
            )
        if not np.isfinite(rows if isinstance(rows, np.ndarray) else rows.data).all():
            raise InputError("`features` must be finite, got NaN or infinity for a pair of the log")
        return rows


def as_rows(found: object) -> Matrix:
    """Return what a user's function gave as a matrix of numbers."""
    if hasattr(found, "tocsr"):
        return found.tocsr().astype(float)
    try:
        rows = np.asarray(found)
        if rows.dtype.kind not in "biufO":
            raise TypeError
        return rows.astype(float, copy=False)
    except (TypeError, ValueError):
        raise InputError(f"`features` must give numbers, got {short_repr(found)}") from None
