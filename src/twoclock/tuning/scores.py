"""What settings are worth: a mean over seeds at the end, or the area under the mean curve; its interval, its ratios."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from twoclock.intervals.bootstrap import resampled_means
from twoclock.protocols import InputError

By = Literal["end", "area"]

_DECADES, _PER_DECADE = 2, 10
_RESAMPLES = 1000
_HUGE = 1e150  # as good as infinite; squares of it would overflow
_NOTHING = 1e-16  # of the best value at the first mark: as good as zero


def marks_of(by: By, steps: int) -> list[int]:
    """The steps at which the metric is looked at: the last alone, or ten a decade over the last two decades.

    The decades before them would weigh as much, and tell of the start rather than of the method.
    """
    if by == "end":
        return [steps]
    grid = steps / 10 ** (np.arange(_DECADES * _PER_DECADE + 1) / _PER_DECADE)
    return sorted({max(round(mark), 1) for mark in grid.tolist()})


@dataclass(frozen=True)
class Scores:
    """Settings × seeds × marks: the metric; whether the seed diverged; without truth also the squared residuals and the
    standard error of the metric from the fresh samples.

        score = m(n)   or   exp(mean of log m(k) over marks k)        m(k) = the metric's mean over seeds at step k

    The second is the area under the curve of m in a log-log picture, in the unit of the metric. On a linear axis the
    first steps, decades above the last ones, would be all of it. The mean over seeds comes first, so that a seed that
    fails counts as it does at the end point; logs of single seeds would hide it.
    """

    values: Float[np.ndarray, "settings seeds marks"]
    diverged: Bool[np.ndarray, "settings seeds"]
    F: Float[np.ndarray, "settings seeds"] | None = None
    G: Float[np.ndarray, "settings seeds"] | None = None
    noise: Float[np.ndarray, "settings seeds"] | None = None

    def best_first(self) -> Int[np.ndarray, " settings"]:
        """The settings in order: fewer diverged seeds first, then the smaller score.

        An estimate without truth may be negative, and far from any solution, where noise is all it is, hugely so. One
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
        with np.errstate(over="ignore"):
            return self._under(self.values.mean(axis=1))

    def rows(self, best: int | None = None) -> list[dict[str, float]]:
        """One for each setting; ``best`` is the one that ratios are taken to, seed by seed."""
        drawn, scores = self._resampled(), self.scores()
        low, high = _interval(drawn)
        nothing = np.full(len(scores), np.nan)
        columns = {"score": scores, "low": low, "high": high}
        columns |= {"ratio": nothing, "ratio_low": nothing, "ratio_high": nothing}
        if best is not None and scores[best] > 0:
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                ratios = np.where(drawn[best] > 0, drawn / drawn[best], np.inf)
                columns["ratio"] = scores / scores[best]
            columns["ratio_low"], columns["ratio_high"] = _interval(ratios)
        columns["diverged"] = self.diverged.mean(axis=1)
        for name, part in (("F", self.F), ("G", self.G)):
            if part is not None:
                columns |= {name: part.mean(axis=1), f"{name}_se": _standard_error(part)}
        return [{name: float(column[i]) for name, column in columns.items()} for i in range(len(scores))]

    def only(self, i: int) -> Scores:
        """One of the settings."""
        parts = (None if part is None else part[i : i + 1] for part in (self.F, self.G, self.noise))
        return Scores(self.values[i : i + 1], self.diverged[i : i + 1], *parts)

    def joined(self, others: Scores) -> Scores:
        """These settings and others, on the same seeds."""
        parts = (
            None if mine is None or theirs is None else np.concatenate([mine, theirs])
            for mine, theirs in ((self.F, others.F), (self.G, others.G), (self.noise, others.noise))
        )
        values = np.concatenate([self.values, others.values])
        return Scores(values, np.concatenate([self.diverged, others.diverged]), *parts)

    def check(self, metric: str) -> Scores:
        """Complain of a metric that has no area in a log-log picture."""
        if self.values.shape[2] > 1 and (self.values < 0).any():
            raise InputError(f"`by='area'` needs a metric that is never negative, and {metric!r} is; use by='end'")
        return self

    def _under(self, means: np.ndarray) -> np.ndarray:
        """The score of mean curves, whose marks are the last axis."""
        if means.shape[-1] == 1:
            return means[..., 0]
        first = self.values[:, :, 0].mean(axis=1)
        floor = max(_NOTHING * float(first[np.isfinite(first)].min(initial=np.inf)), np.finfo(float).tiny)
        return np.exp(np.log(np.maximum(means, floor)).mean(axis=-1))

    def _resampled(self) -> Float[np.ndarray, "settings resamples"]:
        """Scores of seeds drawn with replacement, the same draws for every setting."""
        means = resampled_means(np.clip(np.moveaxis(self.values, 1, 2), None, _HUGE), _RESAMPLES)
        drawn = self._under(np.moveaxis(means, 1, 2))
        return np.where(drawn > _HUGE / 1e6, np.inf, drawn)


def _interval(drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 %, row by row; at drawn values themselves, so that an infinite one stays where it is."""
    low, high = np.quantile(drawn, [0.025, 0.975], axis=1, method="nearest")
    return low, high


def _standard_error(part: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        return part.std(axis=1, ddof=1) / np.sqrt(part.shape[1])
