"""The influence of each episode on an estimate: a second pass over the log.

v̂ − v ≈ Σ wδ + (φ̄₀(s₀)ᵀθ − v̂)/n₀,        δ = r + γφ̄'ᵀθ − φᵀθ,        w = xᵀφ
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from twoclock.logs.estimand import Target, runs


@dataclass
class Scores:
    """Sums over each cluster, for several pairs (θ, x) side by side.

    Attributes:
        score: Σwδ.
        weight: Σw.
        start: Σφ̄₀ᵀθ over the starts.
        starts: how many there are.
        rows: transitions.
        squares: Σw², Σ|w|, Σ of negative |w|, Σδ², Σ(wδ)², in all, for the first pair.
        sample: some of the weights w of the first pair, for a picture.
    """

    score: Float[np.ndarray, "k m"]
    weight: Float[np.ndarray, "k m"]
    start: Float[np.ndarray, "k m"]
    starts: Float[np.ndarray, " k"]
    rows: Float[np.ndarray, " k"]
    squares: Float[np.ndarray, " 5"]
    sample: Float[np.ndarray, " w"]

    @classmethod
    def empty(cls, target: Target, pairs: int) -> Scores:
        k = target.clusters
        score, weight, start = (np.zeros((k, pairs)) for _ in range(3))
        return cls(score, weight, start, np.zeros(k), np.zeros(k), np.zeros(5), np.zeros(0))

    def add(self, part: PartScores) -> None:
        at = part.clusters
        for name in ("score", "weight", "start", "starts", "rows"):
            getattr(self, name)[at] += getattr(part, name)
        self.squares += part.squares
        if len(self.sample) < 100_000:
            self.sample = np.concatenate([self.sample, part.sample])


@dataclass
class PartScores:
    clusters: np.ndarray
    score: np.ndarray
    weight: np.ndarray
    start: np.ndarray
    starts: np.ndarray
    rows: np.ndarray
    squares: np.ndarray
    sample: np.ndarray


def part_scores(target: Target, theta: np.ndarray, x: np.ndarray, part: int) -> PartScores:
    """The scores of one part; the columns of θ and x are the pairs."""
    found: list[tuple[np.ndarray, ...]] = []
    squares, samples = np.zeros(5), []
    for batch in target.log.batches(part):
        if not len(batch):
            continue
        here, ahead, w = target.products(batch, theta, x)
        delta = batch.reward[:, None] + target.gamma * ahead - here
        score, cluster, begin = w * delta, target.cluster(batch), target.begins(batch)
        begins = runs(cluster)
        starts = np.zeros_like(score)
        if begin.any():
            starts[begin] = target.starts(batch) @ theta
        sums = (np.add.reduceat(column, begins, axis=0) for column in (score, w, starts, 1.0 * begin))
        found.append((cluster[begins], *sums, np.diff(np.append(begins, len(batch)))))
        main, d = w[:, 0], delta[:, 0]
        squares += [main @ main, np.abs(main).sum(), -np.minimum(main, 0).sum(), d @ d, score[:, 0] @ score[:, 0]]
        samples.append(main[:: max(1, len(main) // 200)])
    if not found:
        none, nothing = np.zeros((0, theta.shape[1])), np.zeros(0)
        return PartScores(np.zeros(0, int), none, none, none, nothing, nothing, squares, nothing)
    names = np.concatenate([entry[0] for entry in found])
    clusters, at = np.unique(names, return_inverse=True)
    added = []
    for i in range(1, 6):
        entries = np.concatenate([entry[i] for entry in found])
        total = np.zeros((len(clusters), *entries.shape[1:]))
        np.add.at(total, at, entries)
        added.append(total)
    score, weight, start, starts, rows = added
    return PartScores(clusters, score, weight, start, starts, rows, squares, np.concatenate(samples))
