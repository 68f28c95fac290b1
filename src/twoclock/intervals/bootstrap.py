"""Statistics over seeds: mean, median, interquartile mean, bootstrap intervals, and slopes of mean curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from twoclock.protocols import InputError
from twoclock.validation import short_repr

if TYPE_CHECKING:
    import pandas as pd

# Prefix of the columns of a history that are not metrics but data for intervals.
TRACKED = "interval:"
# Beyond this size a mean over seeds is reported as infinite; its square would overflow.
_HUGE = 1e150
# The most columns for which a bootstrap is one matrix product; for more, its counts are made 64 MiB at a time.
_MANY_COLUMNS = 4096
_FEW_COLUMNS = 512
_COUNTS_AT_ONCE = 1 << 23
# Poisson(1) by 16 random bits: entry i is the count at the quantile i / 2¹⁶.
_UP_TO = np.cumsum([math.exp(-1) / math.factorial(count) for count in range(10)])
_POISSON = np.searchsorted(_UP_TO, np.arange(0.5, 2**16) / 2**16).astype(float)


class Estimate(NamedTuple):
    """A number with its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def summarise(
    history: pd.DataFrame, metric: str, last_step: Mapping[int, int], confidence: float = 0.95
) -> pd.DataFrame:
    """One row per step: mean, median, iqm, a bootstrap interval [low, high] of the mean, seeds, and how many diverged.

    A diverged seed stays in the statistics with its last finite state: leaving it out would flatter the method.
    ``last_step`` has the last finite step of each seed, ``confidence`` is the coverage of the interval.
    """
    import pandas as pd

    check_metric(metric, metric_names(history.columns))
    check_confidence(confidence)
    steps, seeds, values = by_step_and_seed(history, metric)
    nothing = np.isnan(values).all(axis=1)  # such as the mean return before any episode has ended
    low, high = (np.where(nothing, np.nan, end) for end in bootstrap_mean(values, confidence))
    ended = np.asarray([last_step[seed] for seed in seeds.tolist()])
    return pd.DataFrame(
        {
            "step": steps,
            "mean": values.mean(axis=1),
            "median": np.median(values, axis=1),
            "iqm": interquartile_mean(values),
            "low": low,
            "high": high,
            "seeds": values.shape[1],
            "diverged": (ended[None, :] < steps[:, None]).sum(axis=1),
        }
    )


def metric_names(columns: Iterable[str]) -> list[str]:
    """The columns of a history that are metrics."""
    return [name for name in columns if name not in ("seed", "step") and not name.startswith(TRACKED)]


def check_metric(metric: object, recorded: Sequence[str]) -> None:
    if not isinstance(metric, str) or metric not in recorded:
        raise InputError(
            f"`metric` must be one that was recorded ({', '.join(recorded) or 'none'}), got {short_repr(metric)}"
        )


def check_confidence(confidence: object) -> None:
    if isinstance(confidence, bool) or not isinstance(confidence, (int, float)) or not 0 < confidence < 1:
        raise InputError(f"`confidence` must lie between 0 and 1, got {short_repr(confidence)}; try 0.95")


def by_step_and_seed(history: pd.DataFrame, metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The steps, the seeds, both in order, and the metric as an array steps × seeds."""
    seed, step = history["seed"].to_numpy(), history["step"].to_numpy()
    marks = int(np.argmax(seed != seed[0])) or len(seed) if len(seed) else 0
    # A run writes all marks of one seed after the other, so this is an array already; a pivot would copy it often.
    if marks and len(seed) % marks == 0:
        seeds, steps = seed[::marks], step[:marks]
        whole = (seed.reshape(-1, marks) == seeds[:, None]).all() and (step.reshape(-1, marks) == steps).all()
        if whole and len(np.unique(seeds)) == len(seeds) and (np.diff(steps) > 0).all():
            order = np.argsort(seeds)
            values = history[metric].to_numpy(float).reshape(-1, marks)
            return steps, seeds[order], (values if (np.diff(order) == 1).all() else values[order]).T
    table = history.pivot(index="step", columns="seed", values=metric)
    return table.index.to_numpy(), table.columns.to_numpy(), table.to_numpy(float)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """The mean of the middle half of each row; robust to the best and the worst quarter of the seeds.

    NaN if an entry of the row is. It equals ``scipy.stats.trim_mean``, which takes most of a second to import.
    """
    count = values.shape[-1]
    first, last = count // 4, count - count // 4 - 1
    middle = np.partition(values, (first, last), axis=-1)[..., first : last + 1]
    return np.where(np.isnan(values).any(axis=-1), np.nan, middle.mean(axis=-1))


def bootstrap_mean(values: np.ndarray, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Percentile-bootstrap interval of each row's mean over its columns; NaN for a single column."""
    if values.shape[-1] < 2:
        return np.full(values.shape[:-1], np.nan), np.full(values.shape[:-1], np.nan)
    finite = np.clip(np.nan_to_num(values, nan=_HUGE, posinf=_HUGE), None, _HUGE)
    ends = np.quantile(resampled_means(finite, 1000), ((1 - confidence) / 2, (1 + confidence) / 2), axis=-1)
    low, high = (np.where(end > _HUGE / 1e6, np.inf, end) for end in ends)
    return low, high


def resampled_means(values: np.ndarray, resamples: int = 2000) -> np.ndarray:
    """Each row's mean over columns drawn with replacement, once per resample; the same draws for every row and call.

    A resample is a vector of counts, one per column, so all of them are one product of matrices.
    """
    columns = values.shape[-1]
    if columns > _MANY_COLUMNS:
        return _poisson_means(values, resamples)
    return values @ (_few_counts if columns <= _FEW_COLUMNS else _counts)(columns, resamples)


def _counts(columns: int, resamples: int) -> np.ndarray:
    """How often each column was drawn in each resample, over their number: [column, resample]."""
    drawn = np.random.default_rng(0).multinomial(columns, np.full(columns, 1 / columns), size=resamples)
    return drawn.T / columns


# Drawing them takes longer than using them, and a report needs the same ones hundreds of times.
_few_counts = lru_cache(maxsize=8)(_counts)


def _poisson_means(values: np.ndarray, resamples: int) -> np.ndarray:
    """``resampled_means`` of many columns, a few resamples at a time, so that their counts do not fill the memory.

    Each column is drawn a Poisson(1) number of times independently, and the mean is over what was drawn; with thousands
    of columns the total hardly varies (Chamandy, Muralidharan, Najmi & Naidu 2012).
    """
    columns, rng = values.shape[-1], np.random.default_rng(0)
    by_column = np.ascontiguousarray(np.moveaxis(values, -1, 0)).reshape(columns, -1)
    at_once = max(_COUNTS_AT_ONCE // columns, 1)
    means = np.empty((resamples, by_column.shape[1]))
    for first in range(0, resamples, at_once):
        some = slice(first, min(first + at_once, resamples))
        counts = _POISSON[rng.integers(1 << 16, size=(some.stop - first, columns), dtype=np.uint16)]
        means[some] = counts @ by_column / counts.sum(axis=1)[:, None]
    return np.moveaxis(means.reshape(resamples, *values.shape[:-1]), 0, -1)


def ratio_of_means(values: np.ndarray, base: np.ndarray) -> Estimate:
    """The mean of some values over that of others on the same seeds, with a 95 % bootstrap interval over the seeds."""
    return _estimate(values.mean() / base.mean(), resampled_means(values) / resampled_means(base))


def _estimate(value: float, samples: np.ndarray) -> Estimate:
    return Estimate(float(value), *np.quantile(samples, (0.025, 0.975)).tolist())


@dataclass(frozen=True)
class MeanCurve:
    """A metric's mean over seeds at the marks, and the same for bootstrap samples of the seeds.

    The bootstrap draws the same seeds in every call, so curves of methods on the same samples are compared in pairs.
    """

    k: np.ndarray  # the marks after 0
    mean: np.ndarray  # [mark]
    resampled: np.ndarray  # [sample, mark]

    @classmethod
    def of(cls, history: pd.DataFrame, metric: str, lowest: bool = False) -> MeanCurve:
        """Make it from a history; ``lowest`` takes the smallest mean so far, as in rates for non-convex problems."""
        steps, _, values = by_step_and_seed(history, metric)
        k, values = steps[steps > 0], np.ascontiguousarray(values[steps > 0])
        mean, resampled = values.mean(axis=1), resampled_means(values).T
        if lowest:
            mean, resampled = np.minimum.accumulate(mean), np.minimum.accumulate(resampled, axis=1)
        return cls(k, mean, resampled)

    def slopes(self, decades: float = 2.0) -> tuple[float, np.ndarray]:
        """The least-squares slope of log mean against log k over the last decades, and its bootstrap samples."""
        fit = self.k >= self.k[-1] / 10**decades
        x = np.log(self.k[fit])
        weights = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
        return float(np.log(self.mean[fit]) @ weights), np.log(self.resampled[:, fit]) @ weights


def log_slope(history: pd.DataFrame, metric: str, decades: float = 2.0, lowest: bool = False) -> Estimate:
    """The slope of log mean against log step over the last decades, with a 95 % bootstrap interval over seeds."""
    return _estimate(*MeanCurve.of(history, metric, lowest).slopes(decades))


def slope_difference(history: pd.DataFrame, base: pd.DataFrame, metric: str, decades: float = 2.0) -> Estimate:
    """The difference of two ``log_slope`` on the same seeds, resampled together, with a 95 % bootstrap interval."""
    (slope, samples), (other, others) = (MeanCurve.of(each, metric).slopes(decades) for each in (history, base))
    return _estimate(slope - other, samples - others)
