"""Scores of settings on shared seeds: their order, and rows of a ranking with intervals."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from twoclock.intervals.bootstrap import resampled_means

_RESAMPLES = 1000
_HUGE = 1e150  # as good as infinite; squares of it would overflow
_NOTHING = 1e-16  # of the best value at the first mark: as good as zero


class ScoreTable(NamedTuple):
    """Settings × seeds × marks: the metric; whether the seed diverged; without truth also the squared residuals and the
    standard error of the metric from the fresh samples.

        score = m(n)   or   exp(mean of log m(k) over marks k)        m(k) = the metric's mean over seeds at step k

    The second is the area under the curve of m in a log-log picture, in the unit of the metric. On a linear axis the
    first steps, decades above the last ones, would dominate. The mean over seeds is taken first, so that a failed seed
    counts as it does at the end point; logarithms of single seeds would hide it.
    """

    values: Float[np.ndarray, "settings seeds marks"]
    diverged: Bool[np.ndarray, "settings seeds"]
    start: Float[np.ndarray, "settings seeds"] | None = None  # the metric at the start
    F: Float[np.ndarray, "settings seeds"] | None = None
    G: Float[np.ndarray, "settings seeds"] | None = None
    noise: Float[np.ndarray, "settings seeds"] | None = None

    def best_first(self) -> Int[np.ndarray, " settings"]:
        """The settings in order: fewer diverged seeds first, then the smaller score.

        An estimate without truth may be negative; far from any solution, where it is mostly noise, very negative. One
        that is further below zero than three standard errors of the quieter settings therefore counts as its own
        standard error.
        """
        key = self.scores()
        if self.noise is not None:
            noise = np.hypot.reduce(self.noise, axis=1) / self.noise.shape[1]
            usual = np.quantile(noise, 0.25, method="lower")
            key = np.where(key < -3 * usual, noise, key)
        return np.lexsort((key, self.diverged.mean(axis=1)))

    def scores(self) -> Float[np.ndarray, " settings"]:
        """One score per setting."""
        with np.errstate(over="ignore"):
            return self._score_curves(self.values.mean(axis=1))

    def rows(self, best: int | None = None) -> list[dict[str, float]]:
        """One row per setting, with intervals; ``best`` is the denominator of the ratios, seed by seed."""
        # Seeds drawn with replacement, the same draws for every setting.
        means = resampled_means(np.clip(np.moveaxis(self.values, 1, 2), None, _HUGE), _RESAMPLES)
        drawn = self._score_curves(np.moveaxis(means, 1, 2))
        drawn, scores = np.where(drawn > _HUGE / 1e6, np.inf, drawn), self.scores()
        ratio, ratios = np.full(len(scores), np.nan), np.full(drawn.shape, np.nan)
        if best is not None and scores[best] > 0:
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                ratios = np.where(drawn[best] > 0, drawn / drawn[best], np.inf)
                ratio = scores / scores[best]
        # At drawn values, without interpolation, so that infinite ones stay separate.
        ends = [np.quantile(part, [0.025, 0.975], axis=1, method="nearest") for part in (drawn, ratios)]
        names = ("score", "low", "high", "ratio", "ratio_low", "ratio_high")
        columns = dict(zip(names, (scores, *ends[0], ratio, *ends[1]), strict=True))
        columns["diverged"] = self.diverged.mean(axis=1)
        for name, part in (("F", self.F), ("G", self.G)):
            if part is not None:
                with np.errstate(invalid="ignore", over="ignore"):
                    error = part.std(axis=1, ddof=1) / np.sqrt(part.shape[1])
                columns |= {name: part.mean(axis=1), f"{name}_se": error}
        return [{name: float(column[i]) for name, column in columns.items()} for i in range(len(scores))]

    def select(self, i: int) -> ScoreTable:
        """One of the settings."""
        return jax.tree.map(lambda part: part[i : i + 1], self)

    def join(self, others: ScoreTable) -> ScoreTable:
        """Join these settings and others on the same seeds."""
        return jax.tree.map(lambda *parts: np.concatenate(parts), self, others)

    def _score_curves(self, means: np.ndarray) -> np.ndarray:
        """Score mean curves, whose marks are the last axis."""
        if means.shape[-1] == 1:
            return means[..., 0]
        first = self.values[:, :, 0].mean(axis=1)
        floor = max(_NOTHING * float(first[np.isfinite(first)].min(initial=np.inf)), np.finfo(float).tiny)
        return np.exp(np.log(np.maximum(means, floor)).mean(axis=-1))
