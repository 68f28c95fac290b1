"""Features φ(s, a) of logged transitions: a name, a specification, or any function of (state, action)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from twoclock.logs.dataset import Log, encode_labels, rows_as_labels
from twoclock.logs.features.state_features import Fittable, Fourier, Matrix, Network, Rbf, StateFeatures, Tiles
from twoclock.logs.policies import Actions, call_on_batch
from twoclock.logs.row_checks import is_written_number
from twoclock.protocols import InputError
from twoclock.validation import lookup, short_repr

__all__ = ["Fourier", "Matrix", "Network", "OneHot", "PairFeatures", "Rbf", "Tiles", "build"]

_MOST_STATES = 200_000
_FEWEST_LOOKED_AT, _MOST_DIFFERENT = (
    100,
    0.5,
)  # states of a sample; beyond this share of different ones states do not recur
_WRITTEN = "they are numbers written as text: convert them, as with `pandas.to_numeric`, and read the log again"
NAMES: dict[str, Callable[[], Fittable] | None] = {"onehot": None, "rbf": Rbf, "tiles": Tiles, "fourier": Fourier}


def build(given: object, log: Log, others: np.ndarray | None = None) -> PairFeatures:
    """Make the features of a log's pairs.

    Args:
        given: "onehot", "rbf", "tiles" or "fourier"; one of their classes with settings; a ``Network``; or a function
            of (states, actions), both batches, that returns one row per pair.
        log: its states scale the features; its actions, where discrete, each have a copy.
        others: further states, which the log may lack, such as a given start.

    >>> import twoclock as tc
    >>> log = tc.logs.read({"state": [0, 1], "action": [0, 1], "reward": [0.0, 1.0], "terminated": [True, True]})
    >>> build("onehot", log).size
    4
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
    states, actions = log.sample
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


def vectors(state: np.ndarray) -> np.ndarray:
    """Return states as rows of numbers."""
    if state.dtype.kind not in "biuf":
        if is_written_number(state):
            raise InputError(f"`features` of this kind need numbers, and states are text; {_WRITTEN}")
        raise InputError("`features` must be 'onehot' or a function where states are text")
    return state.astype(float).reshape(len(state), -1)


def _has_fractions(sample: np.ndarray) -> bool:
    numbers = sample.astype(float)
    return bool((numbers != np.floor(numbers)).any())


@dataclass(frozen=True, eq=False)
class OneHot:
    """ψ(s) = e_s for the states of a log, whole numbers or text; in sparse form.

    Args:
        states: the different states, sorted.

    >>> OneHot(np.array([3, 5, 8]))(np.array([5, 3])).toarray().tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """

    states: np.ndarray

    @classmethod
    def of(cls, log: Log, others: np.ndarray | None = None) -> OneHot:
        """Collect the states of the log, next states too, and some others.

        Args:
            log: the log.
            others: further states.
        """
        sample = log.sample[0]
        written = is_written_number(sample)
        if (written or sample.dtype.kind == "f") and len(sample) >= _FEWEST_LOOKED_AT and _has_fractions(sample):
            different = len(np.unique(rows_as_labels(sample)))
            if different > _MOST_DIFFERENT * len(sample):  # before a slow table of them is made
                remedy = _WRITTEN if written else "take features='rbf'"
                raise InputError(
                    f"`features` 'onehot' needs states that come back, and of {len(sample):,} states of this log "
                    f"{different:,} are different, such as {short_repr(sample[0].tolist())}; {remedy}"
                )
        found = np.zeros(0) if others is None else rows_as_labels(others)
        for batch in log:
            some = rows_as_labels(batch.state), rows_as_labels(batch.next_state[~batch.follows & ~batch.terminated])
            found = np.unique(np.concatenate([*map(np.unique, some), *([found] if len(found) else [])]))
            if len(found) > _MOST_STATES:
                raise InputError(
                    f"`features` 'onehot' needs states that come back; this log has more than {_MOST_STATES:,} "
                    f"different ones, such as {short_repr(found[0])}; try features='rbf'"
                )
        return cls(found)

    @property
    def size(self) -> int:
        return len(self.states)

    def rows(self) -> np.ndarray:
        """The states of the log."""
        fields = self.states.dtype.names
        return self.states if fields is None else np.column_stack([self.states[name] for name in fields])

    def __call__(self, x: np.ndarray) -> Matrix:
        found = encode_labels(rows_as_labels(x), self.states)
        known = found >= 0
        start = np.concatenate([[0], np.cumsum(known)])
        return csr_rows(np.ones(int(start[-1])), found[known], start, self.size)


def csr_rows(data: np.ndarray, index: np.ndarray, start: np.ndarray, width: int) -> Matrix:
    """Make a sparse matrix whose row i has the entries ``start[i]`` to ``start[i + 1]``."""
    from scipy.sparse import csr_array  # slow to load

    return csr_array((data, index, start), shape=(len(start) - 1, width))


def to_dense(rows: Matrix) -> np.ndarray:
    return rows if isinstance(rows, np.ndarray) else rows.toarray()


@runtime_checkable
class PairFeatures(Protocol):
    """φ(s, a) ∈ R^size.

    A state is encoded once, for its pair with the logged action and for its mean over a policy's.
    """

    @property
    def size(self) -> int:
        """How many features there are."""

    def encode(self, state: np.ndarray) -> Matrix:
        """Compute everything that does not depend on the action; indexed by rows like the states."""

    def pairs(self, encoded: Matrix, action: np.ndarray) -> Matrix:
        """φ(s, a) [n, size]."""

    def mean(self, encoded: Matrix, actions: Actions) -> Matrix:
        """Σ_a π(a|s)φ(s, a) [n, size]."""

    def pairs_times(self, encoded: Matrix, action: np.ndarray, c: np.ndarray) -> np.ndarray:
        """φ(s, a)ᵀc for the columns of c [n, m]."""

    def mean_times(self, encoded: Matrix, actions: Actions, c: np.ndarray) -> np.ndarray:
        """Σ_a π(a|s)φ(s, a)ᵀc [n, m]."""


@dataclass(frozen=True, eq=False)
class Crossed:
    """φ(s, a) = ψ(s) ⊗ e_a: a copy of the state's features for each discrete action.

    For a table, ``alike`` [size, size] has for each pair without data the weights of the pairs whose mean replaces it.
    """

    base: StateFeatures
    actions: int
    labels: bool = False
    alike: Matrix = None

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

    def mean(self, encoded: Matrix, actions: Actions) -> Matrix:
        n, A = len(actions.law), self.actions
        if isinstance(encoded, np.ndarray):
            return (encoded[:, :, None] * actions.law[:, None, :]).reshape(n, -1)
        row = np.repeat(np.arange(n), np.diff(encoded.indptr))
        index = (encoded.indices.astype(np.int64)[:, None] * A + np.arange(A)).ravel()
        found = csr_rows((encoded.data[:, None] * actions.law[row]).ravel(), index, encoded.indptr * A, self.size)
        return found if self.alike is None else found + found @ self.alike

    def pairs_times(self, encoded: Matrix, action: np.ndarray, c: np.ndarray) -> np.ndarray:
        return self._of_each_action(encoded, c)[np.arange(len(action)), action]

    def mean_times(self, encoded: Matrix, actions: Actions, c: np.ndarray) -> np.ndarray:
        each = self._of_each_action(encoded, c if self.alike is None else c + self.alike @ c)
        return np.einsum("na,nam->nm", actions.law, each)

    def _of_each_action(self, encoded: Matrix, c: np.ndarray) -> np.ndarray:
        """φ(s, a)ᵀc [n, actions, m], without the rows φ, which are mostly 0."""
        by_state = np.asarray(c).reshape(self.base.size, -1)
        return np.asarray(encoded @ by_state).reshape(-1, self.actions, c.shape[1])


def table_of(features: PairFeatures) -> OneHot | None:
    """The table of states behind one-hot features; None for others."""
    base = features.base if isinstance(features, Crossed) else None
    return base if isinstance(base, OneHot) else None


def without_alike(features: PairFeatures, mean: np.ndarray) -> np.ndarray:
    """A mean φ̄ of a table's pairs without the pairs that replace those without data."""
    alike = features.alike if isinstance(features, Crossed) else None
    return mean if alike is None else mean - alike.T @ mean


@dataclass(frozen=True, eq=False)
class Joint:
    """φ(s, a) of a function of both, which is called once for each of the policy's actions."""

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

    def pairs_times(self, encoded: Matrix, action: np.ndarray, c: np.ndarray) -> np.ndarray:
        return np.asarray(self.pairs(encoded, action) @ c)

    def mean_times(self, encoded: Matrix, actions: Actions, c: np.ndarray) -> np.ndarray:
        return np.asarray(self.mean(encoded, actions) @ c)

    def _rows(self, state: np.ndarray, action: np.ndarray) -> Matrix:
        rows = as_rows(call_on_batch("features", self.function, state, action))
        if rows.shape != (len(state), self.size):
            raise InputError(
                f"`features` must give {self.size} numbers per pair, the shape {(len(state), self.size)}, got "
                f"{rows.shape}; it is called with a batch of states and one of actions"
            )
        if not np.isfinite(rows if isinstance(rows, np.ndarray) else rows.data).all():
            raise InputError("`features` must be finite, got NaN or infinity for a pair of the log")
        return rows


def as_rows(found: object) -> Matrix:
    """Return the output of a user's function as a matrix of numbers."""
    if hasattr(found, "tocsr"):
        return found.tocsr().astype(float)
    try:
        rows = np.asarray(found)
        if rows.dtype.kind not in "biufO":
            raise TypeError
        return rows.astype(float, copy=False)
    except (TypeError, ValueError):
        raise InputError(f"`features` must give numbers, got {short_repr(found)}") from None
