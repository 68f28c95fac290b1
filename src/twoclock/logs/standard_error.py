"""Standard errors and intervals of estimates from a log.

    se² = Σ_clusters ψ² · k/(k − 1)  +  ½(max ψ² + min ψ²)  +  Σ_missing rows (xd)²  +  (ℓ (max Q − min Q)/2)²

* ψ is the contribution of a cluster of episodes to the error. Half a cluster more like the largest, and half of one
like the smallest, are added: where tails are heavy the sample lacks its largest about as often as not.
* A pair of a table that was seen n times has the weight x in each row. Its n rows fit their own mean, so n equal rows
have no residual, although the next row may differ. So half a row is added, which leads where any row of its state
leads, or stays; such a row is a rare event, so its error is skewed. Residuals smaller than those of the log are
replaced in part by these, ``_borrowed``.
* ℓ is the share of the policy's path that leads to pairs without data in the log.

The interval is value ± t·se. It is widened to the interval with corrected skewness where that is wider: with few
episodes and large but rare rewards, a symmetric interval is wrong on the side of the tail. It is widened to bootstrap-t
too: where the log lacks rare states, the estimate and its standard error are wrong together. And it is widened to the
intervals with richer features and with traces, since these comparisons show only up to their noise whether the features
represent the value.

Reference: Hall, *On the removal of skewness by transformation*, 1992; Hall, *The bootstrap and Edgeworth expansion*,
1992, for bootstrap-t; Agresti & Coull, *Approximate is better than "exact"*, 1998, for observations that are added;
Bühlmann, *Experience rating and credibility*, 1967.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from twoclock.intervals.batch_means import in_blocks, memory_factor
from twoclock.logs.estimators import EstimatorContext, Influence, ValueEstimate
from twoclock.logs.estimators.least_squares import unseen_share
from twoclock.logs.features import table_of

_TINY = 1e-300
MOVES = 2.5  # standard errors; from here on a shift of the value by richer features is no noise
_MORE = 1 / 2  # how often a log lacks a cluster as far off as its largest, or as its smallest
_RATE = 1 / 8  # how often a log lacks each of the four rows that represent half a row of a pair


class Interval(NamedTuple):
    """A standard error with its clusters, and the ends of the interval."""

    se: float
    clusters: int
    low: float
    high: float


def interval(
    value: float,
    influence: Influence,
    level: float,
    *,
    stream: bool = False,
    missing: Float[np.ndarray, " p"] | None = None,
    studentized: Float[np.ndarray, " b"] | None = None,
    stretch: float = 1.0,
) -> Interval:
    """The interval of a value from the contributions of clusters to its error, which sum to about 0.

    Args:
        value: the estimate.
        influence: one entry per cluster; those of a stream are consecutive blocks, which are joined first.
        level: the coverage.
        stream: whether clusters follow each other in one stream.
        missing: the errors of rows that the log may lack, as ``thin_errors`` gives them.
        studentized: (v* − v̂)/se* on resamples.
        stretch: the factor by which an interval that holds at many looks is longer.

    >>> import numpy as np
    >>> band = interval(1.0, np.array([0.1, -0.1, 0.1, -0.1]), 0.95)
    >>> round(band.se, 4), round(band.high, 4)
    (0.2517, 1.8009)
    """
    from scipy.special import stdtrit

    clustered, clusters, correlation = cluster_error(influence, stream=stream)
    factor = float(memory_factor(correlation, clusters)) if stream else 1.0
    clustered, freedom = clustered * factor**0.5, (clusters - 1) / factor**0.5
    missing = np.zeros(0) if missing is None else missing
    sums = in_blocks(influence)[0] if stream else influence
    off = sums - sums.mean()
    ends = np.array([off.max(), off.min()])
    se = float(np.sqrt(clustered**2 + missing @ missing + _MORE * ends @ ends))
    if not np.isfinite(se):
        return Interval(se, clusters, -np.inf, np.inf)
    squares, cubes, fourths = ((off**power).sum() for power in (2, 3, 4))
    # Satterthwaite: if few clusters carry the error, the degrees of freedom are those of few clusters.
    freedom = min(freedom, 2 * float(squares**2 / max(fourths - squares**2 / len(off), _TINY)))
    t = stretch * float(stdtrit(max(freedom, 2.0), (1 + level) / 2))
    # The skewness of the estimate is that of its clusters over √k, and of the counts of what is missing.
    counts = float((missing**3).sum()) / _RATE**0.5 + _MORE * float((ends**3).sum())
    skewness = (float(cubes / max(squares**1.5, _TINY)) * clustered**3 + counts) / max(se**3, _TINY)
    # The statistic lies between these quantiles, so the value lies between the estimate minus either.
    above, below = max(t, _corrected(t, skewness)), min(-t, _corrected(-t, skewness))
    if studentized is not None:
        least, most = stretch * np.quantile(studentized, ((1 - level) / 2, (1 + level) / 2))
        above, below = max(above, float(most)), min(below, float(least))
    low, high = -above, -below
    return Interval(se, clusters, value + low * se, value + high * se)


class ClusterError(NamedTuple):
    """The error of an estimate by clusters, and the correlation of neighbours."""

    error: float  # inf where there is only one
    clusters: int
    correlation: float


def cluster_error(influence: Influence, *, stream: bool) -> ClusterError:
    """√(Σψ² k/(k − 1)) over clusters; in a stream neighbours are joined to ``batch_means.BLOCKS`` blocks."""
    sums = in_blocks(influence)[0] if stream else influence
    k, off = len(sums), sums - sums.mean()
    squares = float(off @ off)
    error = np.sqrt(squares * k / (k - 1)) if k > 1 else np.inf
    return ClusterError(float(error), k, float(off[1:] @ off[:-1]) / max(squares, _TINY))


def _corrected(t: float, skewness: float) -> float:
    """Hall's cubic transformation of Student's quantile, inverted: the quantile of a skewed statistic."""
    if abs(skewness) < 1e-6:
        return t
    return 3 / skewness * (float(np.cbrt(1 + skewness * (t - skewness / 6))) - 1)


def interval_of(
    one: ValueEstimate, level: float, *, stream: bool, minus: ValueEstimate | None = None, stretch: float = 1.0
) -> Interval:
    """The interval of an estimate, or of its difference from another on the same log."""
    if minus is not None:
        one = difference(one, minus)
    return hull(bands_of(one, level, stream=stream, stretch=stretch))


def bands_of(one: ValueEstimate, level: float, *, stream: bool, stretch: float = 1.0) -> list[Interval]:
    """The interval of the estimate alone, then those with each shift."""
    assert one.influence is not None
    shared: dict[str, Any] = {"missing": one.thin, "studentized": one.studentized, "stretch": stretch}
    shifts = ((0.0, np.zeros(len(one.influence))), *one.shifts)
    return [interval(one.value + gap, one.influence + moved, level, stream=stream, **shared) for gap, moved in shifts]


def hull(bands: Sequence[Interval]) -> Interval:
    """The first interval, widened to hold the others."""
    return bands[0]._replace(low=min(band.low for band in bands), high=max(band.high for band in bands))


def standard_errors(gap: float, se: float, value: float) -> float:
    """The gap in standard errors; a gap that rounding or an iteration may leave counts as zero."""
    return 0.0 if abs(gap) <= 1e-6 * abs(value) else abs(gap) / max(se, _TINY)


def shift_size(one: ValueEstimate, gap: float, moved: Influence, *, stream: bool) -> float:
    """The shift in its standard errors; at most three times its size in standard errors of the estimate."""
    assert one.influence is not None
    noise = cluster_error(moved, stream=stream).error
    se = interval(one.value, one.influence, 0.95, stream=stream, missing=one.thin).se
    return min(standard_errors(gap, noise, one.value), 3 * standard_errors(gap, se, one.value))


def does_move(one: ValueEstimate, gap: float, moved: Influence, *, stream: bool) -> bool:
    """Whether a shift is larger than its error."""
    return shift_size(one, gap, moved, stream=stream) > MOVES


def is_determined(one: ValueEstimate, moved: Influence, *, stream: bool) -> bool:
    """Whether a shift has an error of at most two standard errors of the estimate; otherwise it tests nothing."""
    assert one.influence is not None
    noise = cluster_error(moved, stream=stream).error
    return noise <= 2 * interval(one.value, one.influence, 0.95, stream=stream, missing=one.thin).se


def difference(one: ValueEstimate, other: ValueEstimate) -> ValueEstimate:
    """The difference of two estimates on the same log; errors that both share cancel."""
    assert one.influence is not None
    assert other.influence is not None
    both, shifts = missing_side_by_side([one, other]), one.shifts
    if shifts and other.shifts:  # where only one has those of a second test, the other's would be like its last
        lengths = [max(len(other.shifts) - len(shifts), 0), max(len(shifts) - len(other.shifts), 0)]
        padded = [(*own, *own[-1:] * more) for own, more in zip((shifts, other.shifts), lengths, strict=True)]
        pairs = zip(*padded, strict=True)
        shifts = tuple((gap - less, moved - minus) for (gap, moved), (less, minus) in pairs)
    return ValueEstimate(
        one.value - other.value, one.influence - other.influence, thin=both @ [1.0, -1.0], shifts=shifts
    )


def missing_side_by_side(ones: Sequence[ValueEstimate]) -> Float[np.ndarray, "p m"]:
    """The errors of rows that the log may lack, a column for each estimate; those of other estimators in other rows."""
    found = {len(one.thin): np.zeros((len(one.thin), len(ones))) for one in ones if one.thin is not None}
    for i, one in enumerate(ones):
        if one.thin is not None:
            found[len(one.thin)][:, i] = one.thin
    return np.vstack([np.zeros((0, len(ones))), *found.values()])


def thin_errors(context: EstimatorContext) -> Float[np.ndarray, " p"] | None:
    """The errors of rows that a table's log may lack, the last two for pairs without data; None for other features.

    Each is the shift of the value by one such row, times the root of the possible number of such rows. Their squares
    add up to a variance.
    """
    estimand, table = context.estimand, table_of(context.estimand.features)
    if table is None:
        return None
    visits, (squares, later, later_squares) = context.moments.C.diagonal(), context.scores.spread
    n, m2, v1, v2 = (column.reshape(table.size, -1) for column in (visits, squares, later, later_squares))
    features = estimand.features
    law = features.mean(features.encode(table.rows()), estimand.policy.acts(table.rows(), (2**31, 1)))
    here = estimand.gamma * (law @ context.solution.theta)[:, None]
    rows, own = np.maximum(n.sum(axis=1, keepdims=True), 1.0), v1 / np.maximum(n, 1.0)
    led = v1.sum(axis=1, keepdims=True) / rows
    spread = np.sqrt(np.maximum(v2.sum(axis=1, keepdims=True) / rows - led**2, 0.0))
    stays, moves = here - own, led - own
    # Half a row in all, as in Jeffreys' prior: with equal odds it stays, or leads where any row of its state leads.
    jumps = np.stack([stays, stays, moves + spread, moves - spread]).reshape(4, -1) * _RATE**0.5
    errors = np.where(visits > 0, context.solution.x * np.vstack([jumps, _borrowed(n, m2, context)]), 0.0).ravel()
    beyond = unseen_error(context) / 2**0.5
    return np.append(errors, [beyond, -beyond])  # of either sign


def _borrowed(n: np.ndarray, m2: np.ndarray, context: EstimatorContext) -> Float[np.ndarray, "2 d"]:
    """The errors of the residuals that a pair's rows would have if they were like those of the log.

    The mean square of n residuals is worth n rows, that of the log K rows, their kurtosis less 1 (Bühlmann's
    credibility, with mean squares of pairs that vary as much as they are large). Where residuals are rare and large,
    few rows without one say little. The missing variance is divided between the signs by the skewness of the log's.
    """
    third, fourth = context.scores.powers
    freedom = max(float(np.maximum(n - 1, 0).sum()), 1.0)  # each pair fits its own mean
    pooled = float(m2.sum()) / freedom
    if not pooled**2 > 0:  # no residual anywhere
        return np.zeros((2, n.size))
    weight = max(float(fourth) / freedom / pooled**2 - 1, 1.0)
    like = np.maximum(m2.sum(axis=1, keepdims=True) / np.maximum(n.sum(axis=1, keepdims=True), 1.0), pooled)
    rows = n * weight / (n + weight)
    lacking = rows * np.maximum(like - m2 / np.maximum(n - 1, 1.0), 0.0)
    skewness = float(third) / freedom / pooled**1.5 / np.sqrt(np.maximum(rows, _TINY))
    upward = (1 + np.clip(skewness * _RATE**0.5, -1, 1)) / 2
    return np.stack([np.sqrt(lacking * upward), -np.sqrt(lacking * (1 - upward))]).reshape(2, -1)


def unseen_error(context: EstimatorContext) -> float:
    """The standard error for pairs without data: half the range of Q, times their share of the path."""
    return unseen_share(context) * float(np.ptp(context.solution.theta[context.moments.C.diagonal() > 0])) / 2
