"""Standard errors and intervals of estimates from a log.

    se² = Σ_clusters ψ² · k/(k − 1)  +  Σ_missing ⅛(xd)²  +  (ℓ (max Q − min Q)/2)²

* ψ is the contribution of a cluster of episodes to the error.
* A pair of a table that was seen n times has the weight x in each row. Its n rows fit their own mean, so n equal rows
have no residual, although the next row may differ. So half a row is added. It leads where any row of its state leads,
or stays; its spread is the mean residual of the state or of the log, whichever is larger. Such a row is a rare event,
so its error is skewed: a pair that never failed in twenty rows may fail once in eight, but not less often than never.
* ℓ is the share of the policy's path that leads to pairs without data in the log.

The interval is value ± t·se. It is widened to the interval with corrected skewness where that is wider: with few
episodes and large but rare rewards, a symmetric interval is wrong on the side of the tail. It is also widened to the
intervals with richer features and with traces, since these comparisons show only up to their noise whether the features
represent the value.

Reference: Hall, *On the removal of skewness by transformation*, 1992; Agresti & Coull, *Approximate is better than
"exact"*, 1998, for observations that are added.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from twoclock.intervals.batch_means import BlockStatistics, in_blocks, score_statistics
from twoclock.logs.estimators import EstimatorContext, Influence, ValueEstimate
from twoclock.logs.features import table_of
from twoclock.logs.unseen_pairs import unseen_share

_TINY = 1e-300
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
    stretch: float = 1.0,
) -> Interval:
    """The interval of a value from the contributions of clusters to its error, which sum to about 0.

    Args:
        value: the estimate.
        influence: one entry per cluster; those of a stream are consecutive blocks, which are joined first.
        level: the coverage.
        stream: whether clusters follow each other in one stream.
        missing: the errors of rows that the log may lack, as ``thin_errors`` gives them.
        stretch: the factor by which an interval that holds at many looks is longer.

    >>> import numpy as np
    >>> band = interval(1.0, np.array([0.1, -0.1, 0.1, -0.1]), 0.95)
    >>> round(band.se, 4), round(band.high, 4)
    (0.2309, 1.735)
    """
    from scipy.special import stdtrit

    blocks = block_statistics(influence, stream=stream)
    clustered, freedom = float(blocks.error[0]), float(blocks.freedom)
    missing = np.zeros(0) if missing is None else missing
    se = float(np.hypot(clustered, np.linalg.norm(missing)))
    if not freedom > 0 or not np.isfinite(se):
        return Interval(se, int(blocks.blocks), -np.inf, np.inf)
    sums = in_blocks(influence)[0] if stream else influence
    off = sums - sums.mean()
    squares, cubes, fourths = ((off**power).sum() for power in (2, 3, 4))
    # Satterthwaite: if few clusters carry the error, the degrees of freedom are those of few clusters.
    freedom = min(freedom, 2 * float(squares**2 / max(fourths - squares**2 / len(off), _TINY)))
    t = stretch * float(stdtrit(max(freedom, 2.0), (1 + level) / 2))
    # The skewness of the estimate is that of its clusters over √k, and of the counts of missing rows, by their shares.
    counts = float((missing**3).sum()) / _RATE**0.5
    skewness = (float(cubes / max(squares**1.5, _TINY)) * clustered**3 + counts) / max(se**3, _TINY)
    # The statistic lies between these quantiles, so the value lies between the estimate minus either.
    low, high = -max(t, _corrected(t, skewness)), -min(-t, _corrected(-t, skewness))
    return Interval(se, int(blocks.blocks), value + low * se, value + high * se)


def block_statistics(influence: Influence, *, stream: bool) -> BlockStatistics:
    """The error of the estimate by clusters; in a stream neighbours are joined to ``batch_means.BLOCKS`` blocks."""
    sums, sizes = in_blocks(influence) if stream else (influence, np.ones(len(influence)))
    return score_statistics(sums[:, None], -np.eye(1), sizes / sizes.sum(), np.eye(1))


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
    assert one.influence is not None
    band = interval(one.value, one.influence, level, stream=stream, missing=one.thin, stretch=stretch)
    for gap, moved in one.shifts:
        other = interval(
            one.value + gap, one.influence + moved, level, stream=stream, missing=one.thin, stretch=stretch
        )
        band = band._replace(low=min(band.low, other.low), high=max(band.high, other.high))
    return band


def difference(one: ValueEstimate, other: ValueEstimate) -> ValueEstimate:
    """The difference of two estimates on the same log; errors that both share cancel."""
    assert one.influence is not None
    assert other.influence is not None
    thin, shifts = other.thin if one.thin is None else one.thin, one.shifts
    if one.thin is not None and other.thin is not None:
        thin = one.thin - other.thin
    if shifts and other.shifts:
        pairs = zip(shifts, other.shifts, strict=True)
        shifts = tuple((gap - less, moved - minus) for (gap, moved), (less, minus) in pairs)
    return ValueEstimate(one.value - other.value, one.influence - other.influence, thin=thin, shifts=shifts)


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
    spread = np.maximum(v2.sum(axis=1, keepdims=True) / rows - led**2, 0.0)
    # Each pair fits its own mean, which takes a degree of freedom.
    everywhere = float(squares.sum()) / max(float(np.maximum(visits - 1, 0).sum()), 1.0)
    noise = np.maximum(m2.sum(axis=1, keepdims=True) / rows, everywhere)
    stays, moves = here - own, led - own
    lacking = noise - _RATE * 2 * (stays**2 + moves**2 + spread)
    spread = np.sqrt(spread + np.maximum(lacking, 0.0) / (2 * _RATE))
    # Half a row in all, as in Jeffreys' prior: with equal odds it stays, or leads where any row of its state leads.
    jumps = np.stack([stays, stays, moves + spread, moves - spread]).reshape(4, -1)
    errors = np.where(visits > 0, context.solution.x * jumps, 0.0).ravel() * _RATE**0.5
    beyond = unseen_error(context) / 2**0.5
    return np.append(errors, [beyond, -beyond])  # of either sign


def unseen_error(context: EstimatorContext) -> float:
    """The standard error for pairs without data: half the range of Q, times their share of the path."""
    return unseen_share(context) * float(np.ptp(context.solution.theta[context.moments.C.diagonal() > 0])) / 2
