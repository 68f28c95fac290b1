"""The estimand, and the sums over the log that linear estimators need, in two passes.

    A = Σφ(φ − γφ̄')ᵀ        b = Σφr        C = Σφφᵀ        φ̄₀ = Σ_starts φ̄(s₀)             by groups of episodes
    v̂ − v ≈ Σ wδ + (φ̄₀(s₀)ᵀθ − v̂)/n₀,    δ = r + γφ̄'ᵀθ − φᵀθ,    w = xᵀφ                   by clusters of episodes

They are additive, so the parts of the log can be summed in any processes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from twoclock.logs.dataset import Batch, Log
from twoclock.logs.features import Matrix, PairFeatures, csr_rows, table_of, to_dense
from twoclock.logs.policies import Policy

SPARSE_FROM = 300  # features; for fewer, the sums of a table are dense, which is faster
OVERLAPPING_FROM = 600  # of overlapping features, such as tiles, whose C is not diagonal
MOST_DENSE = 4_000  # dense features, of which A is a d × d matrix
_MOST_WEIGHTS = 100_000
_LAGS = (1, 2, 4)  # each doubles the rows that a trace is over


@dataclass(frozen=True, eq=False)
class Estimand:
    """The value of a policy on a log, with features and a discount.

    Units are the independent parts: episodes, or, in one long stream, rows that are grouped into blocks.
    """

    log: Log
    policy: Policy
    features: PairFeatures
    gamma: float
    groups: int  # contiguous groups of units whose sums are separate, for resampling and cross-fitting
    clusters: int  # contiguous groups of units whose scores are separate, for the standard error
    stream: bool = False  # units are rows
    start: Float[np.ndarray, " d"] | None = None  # φ̄₀, if not the mean over the first states of the episodes
    visited: bool = False  # the value is the mean over all logged states, not over the first of each episode
    traced: bool = False  # A = Σ z(φ − γφ̄')ᵀ with traces z of the features instead of φ

    @property
    def units(self) -> int:
        return self.log.length if self.stream else self.log.episodes

    def index(self, batch: Batch, count: int) -> np.ndarray:
        """The group or cluster of each row, of ``count`` in all."""
        return (batch.row if self.stream else batch.episode) * count // self.units

    def span(self, part: int, count: int) -> range:
        """The groups or clusters, of ``count`` in all, in which a part of the log may have rows."""
        parts, at = self.log.parts, "row" if self.stream else "episode"
        first = max(getattr(parts[part], at) - 1, 0)
        last = getattr(parts[part + 1], at) - 1 if part + 1 < len(parts) else self.units - 1
        return range(first * count // self.units, max(last, first) * count // self.units + 1)

    def begins(self, batch: Batch) -> np.ndarray:
        """Mark the rows of the states over which the value is a mean."""
        if self.start is not None:
            return np.zeros(len(batch), bool)
        return np.ones(len(batch), bool) if self.visited else batch.first

    def rows(self, batch: Batch) -> tuple[Matrix, Matrix]:
        """φ(s, a) and φ̄'(s') = (1 − terminated) Σ_a' π(a'|s')φ(s', a')."""
        nodes, there = batch.nodes()
        encoded = self.features.encode(nodes)
        phi = self.features.pairs(encoded[: len(batch)], batch.action)
        after = self.features.mean(encoded[there], self.policy.acts(batch.next_state, (*batch.number, 0)))
        continues = (1.0 - batch.terminated)[:, None]
        if isinstance(after, np.ndarray):
            after *= continues
            return phi, after
        return phi, after.multiply(continues).tocsr()

    def products(self, batch: Batch, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """φ(s, a)ᵀc and φ̄'(s')ᵀc for the columns of c, of the same rows."""
        nodes, there = batch.nodes()
        encoded = self.features.encode(nodes)
        here = self.features.pairs_times(encoded[: len(batch)], batch.action, c)
        acts = self.policy.acts(batch.next_state, (*batch.number, 0))
        return here, self.features.mean_times(encoded[there], acts, c) * (1.0 - batch.terminated)[:, None]

    def instruments(self, phi: Matrix, batch: Batch) -> Matrix:
        """The instruments of the residuals: φ, or z = Σ_k γᵏφ(s₋ₖ, a₋ₖ) over the last rows of the episode.

        φ may be any columns of the batch's rows, such as φᵀc."""
        if not self.traced:
            return phi
        from scipy.sparse import csr_array  # slow to load

        row = np.arange(len(batch))
        place = row - np.maximum.accumulate(np.where(batch.first, row, 0))
        for lag in _LAGS:
            far = np.flatnonzero(place >= lag)
            earlier: Matrix = csr_array((np.full(len(far), self.gamma**lag), (far, far - lag)), (len(row), len(row)))
            phi = phi + earlier @ phi
        return phi

    def starts(self, batch: Batch) -> Matrix:
        """φ̄₀ of the starts in the batch."""
        states = batch.state[self.begins(batch)]
        return self.features.mean(self.features.encode(states), self.policy.acts(states, (*batch.number, 1)))

    def at(self, states: np.ndarray) -> Float[np.ndarray, "n d"]:
        """φ̄(s) of some states, dense."""
        return to_dense(self.features.mean(self.features.encode(states), self.policy.acts(states, (2**31, 0))))


@dataclass
class Moments:
    """Sums over transitions: A and b by group (A [group, d, d], or a list of sparse matrices), C in all."""

    first: int  # the number of the first group
    A: Matrix
    b: Float[np.ndarray, "g d"]
    C: Matrix
    phi0: Float[np.ndarray, "g d"]  # the sum of φ̄₀ over the starts, by group
    starts: Float[np.ndarray, " g"]  # how many there are
    rows: Float[np.ndarray, " g"]  # transitions, by group
    reward: Float[np.ndarray, " 2"] = field(default_factory=lambda: np.full(2, np.inf))  # the least, minus the largest
    start: Float[np.ndarray, " d"] | None = None  # φ̄₀ if it is given

    @classmethod
    def zeros(cls, estimand: Estimand, groups: range) -> Moments:
        d, g = estimand.features.size, len(groups)
        count = entries_of_a_row(estimand.features, estimand.log)
        if count is not None and d > (SPARSE_FROM if count <= 1 else OVERLAPPING_FROM):
            from scipy.sparse import csr_array  # slow to load

            C: Matrix = csr_array((d, d))
            A: Matrix = [C] * g
        else:
            A, C = np.zeros((g, d, d)), np.zeros((d, d))
        (b, phi0), (starts, rows) = np.zeros((2, g, d)), np.zeros((2, g))
        return cls(groups.start, A, b, C, phi0, starts, rows, start=estimand.start)

    @property
    def is_sparse(self) -> bool:
        return isinstance(self.A, list)

    def add(self, part: Moments) -> None:
        at = slice(part.first, part.first + len(part.rows))
        for group, A in enumerate(part.A, part.first):
            self.A[group] = self.A[group] + A
        for name in ("b", "phi0", "starts", "rows"):
            getattr(self, name)[at] += getattr(part, name)
        self.C = self.C + part.C
        self.reward = np.minimum(self.reward, part.reward)

    def total(self, weights: np.ndarray | None = None) -> tuple[Matrix, np.ndarray, np.ndarray]:
        """A, b and the mean φ̄₀ of all groups, each counted as often as its weight says."""
        weights = np.ones(len(self.rows)) if weights is None else weights
        starts = weights @ self.starts
        phi0 = self.start if self.start is not None else weights @ self.phi0 / max(starts, 1.0)
        if self.is_sparse:
            A = sum((w * A for w, A in zip(weights, self.A, strict=True) if w), start=0 * self.C)
        else:
            A = np.tensordot(weights, self.A, 1)
        return A, weights @ self.b, phi0


def matrix_fits(features: PairFeatures, log: Log) -> bool:
    """Whether A, a d × d matrix, is sparse or small enough."""
    return features.size <= MOST_DENSE or entries_of_a_row(features, log) is not None


def entries_of_a_row(features: PairFeatures, log: Log) -> int | None:
    """How many entries a row of φ has; None where rows are dense."""
    state, action = log.sample
    rows = features.pairs(features.encode(state[:1]), action[:1])
    return None if isinstance(rows, np.ndarray) else int(rows.nnz)


def part_moments(estimand: Estimand, part: int) -> Moments:
    """Sum A, b, C and φ̄₀ over one part of the log."""
    sums = Moments.zeros(estimand, estimand.span(part, estimand.groups))
    groups = len(sums.rows)
    for batch in estimand.log.batches(part):
        at = estimand.index(batch, estimand.groups) - sums.first
        phi, after = estimand.rows(batch)
        bounds, d = [*itertools.pairwise([*run_starts(at), len(at)])], phi.shape[1]
        z = estimand.instruments(phi, batch)
        if isinstance(phi, np.ndarray):
            after *= -estimand.gamma
            after += phi
            products = [z[i:j].T @ after[i:j] for i, j in bounds]
        else:  # one product for all runs, each with separate columns
            run = np.repeat(np.arange(len(bounds)), [j - i for i, j in bounds])
            index = z.indices.astype(np.int64) + np.repeat(run, np.diff(z.indptr)) * d
            wide = csr_rows(z.data, index, z.indptr, d * len(bounds))
            stacked = (wide.T @ (phi - estimand.gamma * after)).tocsr()
            stacked = stacked if sums.is_sparse else stacked.toarray()
            products = [stacked[i * d : (i + 1) * d] for i in range(len(bounds))]
        for (i, _), A in zip(bounds, products, strict=True):
            sums.A[at[i]] = sums.A[at[i]] + A
        C = phi.T @ phi
        sums.C = sums.C + (C if sums.is_sparse else to_dense(C))
        sums.b += _sum_by_group(phi, at, groups, batch.reward)
        begin = estimand.begins(batch)
        if begin.any():
            starts = at[begin]
            sums.phi0 += _sum_by_group(estimand.starts(batch), starts, groups, np.ones(len(starts)))
            sums.starts += np.bincount(starts, minlength=groups)
        sums.rows += np.bincount(at, minlength=groups)
        sums.reward = np.minimum(sums.reward, [batch.reward.min(), -batch.reward.max()])
    return sums


def _sum_by_group(rows: Matrix, at: np.ndarray, groups: int, weights: np.ndarray) -> np.ndarray:
    """Σ weight·row of each group."""
    from scipy.sparse import csr_array  # slow to load

    n = len(at)
    return to_dense(csr_array((weights, (at, np.arange(n))), shape=(groups, n)) @ rows)


def run_starts(labels: np.ndarray) -> np.ndarray:
    """Where each run of equal labels begins."""
    return np.flatnonzero(np.concatenate([[True], labels[1:] != labels[:-1]])) if len(labels) else np.zeros(0, int)


@dataclass
class Scores:
    """Sums over each cluster, for several pairs (θ, x) side by side.

    For the first pair there are also Σw², Σ|w| and the sum of |w| over negative w, a sample of weights w for a picture,
    and for tables Σδ², ΣγV(s') and Σ(γV(s'))² of each feature, and Σδ³ and Σδ⁴ of all.
    """

    first: int  # the number of the first cluster
    score: Float[np.ndarray, "k m"]  # Σwδ
    weight: Float[np.ndarray, "k m"]  # Σw
    start: Float[np.ndarray, "k m"]  # Σφ̄₀ᵀθ over the starts
    starts: Float[np.ndarray, " k"]  # how many there are
    rows: Float[np.ndarray, " k"]  # transitions
    squares: Float[np.ndarray, " 3"] = field(default_factory=lambda: np.zeros(3))
    sample: Float[np.ndarray, " w"] = field(default_factory=lambda: np.zeros(0))
    spread: Float[np.ndarray, "3 d"] = field(default_factory=lambda: np.zeros((3, 0)))
    powers: Float[np.ndarray, " 2"] = field(default_factory=lambda: np.zeros(2))

    @classmethod
    def zeros(cls, estimand: Estimand, clusters: range, pairs: int) -> Scores:
        k, d = len(clusters), 0 if table_of(estimand.features) is None else estimand.features.size
        (score, weight, start), (starts, rows) = np.zeros((3, k, pairs)), np.zeros((2, k))
        return cls(clusters.start, score, weight, start, starts, rows, spread=np.zeros((3, d)))

    def add(self, part: Scores) -> None:
        at = slice(part.first, part.first + len(part.rows))
        for name in ("score", "weight", "start", "starts", "rows"):
            getattr(self, name)[at] += getattr(part, name)
        self.squares += part.squares
        self.spread += part.spread
        self.powers += part.powers
        if len(self.sample) < _MOST_WEIGHTS:
            self.sample = np.concatenate([self.sample, part.sample])


def part_scores(estimand: Estimand, theta: np.ndarray, x: np.ndarray, part: int) -> Scores:
    """Sum the scores over one part of the log; the columns of θ and x are the pairs."""
    sums = Scores.zeros(estimand, estimand.span(part, estimand.clusters), theta.shape[1])
    for batch in estimand.log.batches(part):
        both, ahead = estimand.products(batch, np.hstack([theta, x]))
        (here, w), ahead = np.hsplit(both, 2), ahead[:, : theta.shape[1]]
        delta = batch.reward[:, None] + estimand.gamma * ahead - here
        score = w * delta
        begin, at = estimand.begins(batch), estimand.index(batch, estimand.clusters) - sums.first
        start = np.zeros_like(score)
        if begin.any():
            start[begin] = estimand.starts(batch) @ theta
        runs = run_starts(at)
        columns = {"score": score, "weight": w, "start": start, "starts": 1.0 * begin, "rows": np.ones(len(batch))}
        for name, column in columns.items():
            getattr(sums, name)[at[runs]] += np.add.reduceat(column, runs, axis=0)
        main = w[:, 0]
        sums.squares += [main @ main, np.abs(main).sum(), -np.minimum(main, 0).sum()]
        sums.sample = np.concatenate([sums.sample, main[:: max(1, len(main) // 200)]])
        if sums.spread.size:  # a table, whose rows have one entry each
            pair = estimand.features.pairs(estimand.features.encode(batch.state), batch.action).indices
            later = estimand.gamma * ahead[:, 0]
            sums.powers += [(delta[:, 0] ** 3).sum(), (delta[:, 0] ** 4).sum()]
            for sum_, column in zip(sums.spread, (delta[:, 0] ** 2, later, later**2), strict=True):
                sum_ += np.bincount(pair, column, minlength=len(sum_))
    return sums
