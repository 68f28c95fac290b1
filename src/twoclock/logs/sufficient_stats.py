"""The sums that linear estimators need, by groups of episodes: one pass over the log.

    A = Σφ(φ − γφ̄')ᵀ        b = Σφr        C = Σφφᵀ        φ̄₀ = Σ_starts φ̄(s₀)

They are additive, so parts of the log can be summed anywhere and in any number of places.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from twoclock.logs.dataset import Batch, Log
from twoclock.logs.estimand import Target, runs
from twoclock.logs.features.protocol import Crossed, Features, Matrix

SPARSE_FROM = 300  # features; below, the sums of a table are dense, which is faster
OVERLAPPING_FROM = 2_000  # of features that overlap, such as tiles, whose C is no diagonal


@dataclass
class Moments:
    """Sums over transitions: A and b by group (A [group, d, d], or a list of sparse matrices), C in all.

    Attributes:
        phi0: the sum of φ̄₀ over the starts, by group.
        starts: how many there are.
        rows: transitions, by group.
        reward: least and largest.
    """

    A: Any
    b: Float[np.ndarray, "g d"]
    C: Matrix
    phi0: Float[np.ndarray, "g d"]
    starts: Float[np.ndarray, " g"]
    rows: Float[np.ndarray, " g"]
    reward: tuple[float, float]
    start: np.ndarray | None = None

    @property
    def is_sparse(self) -> bool:
        return isinstance(self.A, list)

    @classmethod
    def empty(cls, target: Target) -> Moments:
        d, g = target.features.size, target.groups
        A: Any = [_nothing(d) for _ in range(g)] if sums_are_sparse(target) else np.zeros((g, d, d))
        C: Any = _nothing(d) if sums_are_sparse(target) else np.zeros((d, d))
        b, phi0, starts, rows = np.zeros((g, d)), np.zeros((g, d)), np.zeros(g), np.zeros(g)
        return cls(A, b, C, phi0, starts, rows, (np.inf, -np.inf), target.start)

    def add(self, part: Part) -> None:
        for i, group in enumerate(part.groups):
            self.A[group] = self.A[group] + part.A[i]
        at = part.groups
        self.b[at] += part.b
        self.phi0[at] += part.phi0
        self.starts[at] += part.starts
        self.rows[at] += part.rows
        self.C = self.C + part.C
        self.reward = min(self.reward[0], part.reward[0]), max(self.reward[1], part.reward[1])

    def total(self, weights: np.ndarray | None = None) -> tuple[Matrix, np.ndarray, np.ndarray]:
        """A, b and the mean φ̄₀ of all groups, each counted as often as its weight says."""
        weights = np.ones(len(self.rows)) if weights is None else weights
        starts = weights @ self.starts
        phi0 = self.start if self.start is not None else weights @ self.phi0 / max(starts, 1.0)
        if self.is_sparse:
            A = sum((w * A for w, A in zip(weights, self.A, strict=True) if w), start=_nothing(self.b.shape[1]))
            return A, weights @ self.b, phi0
        return np.tensordot(weights, self.A, 1), weights @ self.b, phi0


@dataclass
class Part:
    """The sums of one part of a log, for the groups that occur in it."""

    groups: np.ndarray
    A: Any
    b: np.ndarray
    C: Matrix
    phi0: np.ndarray
    starts: np.ndarray
    rows: np.ndarray
    reward: tuple[float, float]


def sums_are_sparse(target: Target) -> bool:
    count = entries_of_a_row(target.features, target.log)
    return count is not None and target.features.size > (SPARSE_FROM if count <= 1 else OVERLAPPING_FROM)


def entries_of_a_row(features: Features, log: Log) -> int | None:
    """How many entries a row of φ has; None where rows are dense."""
    state, action = log.sample(2)
    rows = features.pairs(features.encode(state[:1]), action[:1])
    return int(rows.nnz) if hasattr(rows, "indptr") else None


def part_moments(target: Target, sparse: bool, part: int) -> Part:
    """The sums of one part."""
    d = target.features.size
    none = np.zeros((0, d))
    found = Part(np.zeros(0, int), [], none, 0.0, none, np.zeros(0), np.zeros(0), (np.inf, -np.inf))
    for batch in target.log.batches(part):
        if not len(batch):
            continue
        group = target.group(batch)
        begins = runs(group)
        new = np.setdiff1d(group[begins], found.groups)
        if len(new):
            _grow(found, new, d, sparse)
        at = np.searchsorted(found.groups, group)
        if not _copies(found, target, batch, at):
            _rows(found, target, batch, begins, at, sparse)
        begin = target.begins(batch)
        if begin.any():
            starts = at[begin]
            found.phi0 += _summed(target.starts(batch), starts, len(found.groups), np.ones(len(starts)))
            found.starts += np.bincount(starts, minlength=len(found.groups))
        found.rows += np.bincount(at, minlength=len(found.groups))
        low, high = found.reward
        found.reward = min(low, float(batch.reward.min())), max(high, float(batch.reward.max()))
    return found


def _copies(found: Part, target: Target, batch: Batch, at: np.ndarray) -> bool:
    """Add a batch where φ(s, a) = ψ(s) ⊗ e_a and ψ is dense, without the zeros of φ; False if it is not so.

    A[a, b] = Σ_{rows of a} ψ(1[a = b]ψ − γπ(b|s')ψ')ᵀ
    """
    features, n = target.features, len(batch)
    if not isinstance(features, Crossed) or not isinstance(features.encode(batch.state[:1]), np.ndarray):
        return False
    nodes, there = batch.nodes()
    encoded = features.encode(nodes)
    law = target.policy.acts(batch.next_state, (*batch.number, 0)).law * (1.0 - batch.terminated)[:, None]
    order = np.lexsort((batch.action, at))
    psi, after, reward, law = encoded[order], encoded[there[order]], batch.reward[order], law[order]
    d, A = features.size, features.actions
    C = np.zeros((features.base.size, A, features.base.size, A))
    begins = runs(at[order] * A + batch.action[order])
    for i, j in zip(begins, np.append(begins[1:], n), strict=True):
        group, a, rows = at[order[i]], batch.action[order[i]], psi[i:j].T
        square = rows @ psi[i:j]
        C[:, a, :, a] += square
        of_group = found.A[group].reshape(C.shape)
        of_group[:, a, :, a] += square
        for b in range(A):
            of_group[:, a, :, b] -= rows @ (after[i:j] * (target.gamma * law[i:j, b : b + 1]))
        found.b[group].reshape(-1, A)[:, a] += rows @ reward[i:j]
    found.C = found.C + C.reshape(d, d)
    return True


def _rows(found: Part, target: Target, batch: Batch, begins: np.ndarray, at: np.ndarray, sparse: bool) -> None:
    """Add a batch, whatever the features are."""
    phi, after = target.rows(batch)
    for i, A in zip(at[begins], _by_run(phi, after, target.gamma, begins, at, sparse), strict=True):
        found.A[i] = found.A[i] + A
    C = phi.T @ phi
    found.C = found.C + (C if sparse or isinstance(C, np.ndarray) else C.toarray())
    found.b += _summed(phi, at, len(found.groups), batch.reward)


def _by_run(
    phi: Matrix, after: Matrix, gamma: float, begins: np.ndarray, at: np.ndarray, sparse: bool
) -> Iterable[Matrix]:
    """Σφ(φ − γφ̄')ᵀ of each run of rows of one group."""
    if isinstance(phi, np.ndarray):
        ahead = after
        ahead *= -gamma
        ahead += phi
        ends = np.append(begins[1:], len(phi))
        return [phi[i:j].T @ ahead[i:j] for i, j in zip(begins, ends, strict=True)]
    from scipy.sparse import csr_array  # slow to load

    d, order = phi.shape[1], np.cumsum(np.concatenate([[0], at[1:] != at[:-1]]))
    wide = csr_array(
        (phi.data, phi.indices.astype(np.int64) + np.repeat(order, np.diff(phi.indptr)) * d, phi.indptr),
        shape=(phi.shape[0], d * len(begins)),
    )
    stacked = (wide.T @ (phi - gamma * after)).tocsr()
    found = [stacked[i * d : (i + 1) * d] for i in range(len(begins))]
    return found if sparse else list(stacked.toarray().reshape(len(begins), d, d))


def _summed(rows: Matrix, at: np.ndarray, groups: int, weights: np.ndarray) -> np.ndarray:
    """Σ weight·row of each group."""
    from scipy.sparse import csr_array  # slow to load

    n = len(at)
    gather = csr_array((weights, (at, np.arange(n))), shape=(groups, n))
    found = gather @ rows
    return found if isinstance(found, np.ndarray) else found.toarray()


def _grow(found: Part, new: np.ndarray, d: int, sparse: bool) -> None:
    groups = np.concatenate([found.groups, new])  # episodes are in order, so new groups come after the old
    more = len(new)
    found.groups = groups
    found.A = [*found.A, *([_nothing(d)] * more if sparse else np.zeros((more, d, d)))]
    found.b, found.phi0 = (np.vstack([old, np.zeros((more, d))]) for old in (found.b, found.phi0))
    found.starts, found.rows = (np.append(old, np.zeros(more)) for old in (found.starts, found.rows))


def _nothing(d: int) -> Matrix:
    from scipy.sparse import csr_array  # slow to load

    return csr_array((d, d))
