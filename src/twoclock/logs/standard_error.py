"""Standard errors and intervals of estimates from a log.

    se² = Σ_clusters ψ² · k/(k − 1)  +  Σ_pairs (x σ₀)²  +  (Σ_unseen ℓ max|Q|)²

* ψ is what a cluster of episodes adds to the error.
* A pair of a table that was seen n times has the weight x in each row. Its n rows fit their own mean, so n rows that
  are alike have no residual, which does not mean that the next one will be like them. Half a row more stands for it,
  which leads where any row of its state does, or stays; or one row more with a residual as large as they are on average
  in the state and in the log, whichever is larger (σ₀).
* ℓ is the share of the policy's path that leads to pairs that the log has no data for.

The interval is value ± t·se, and reaches as far as the same with its skewness corrected where that is further. With few
episodes and rewards that are large but rare, the ends of a symmetric interval are wrong on the side of the tail. It
also reaches as far as the interval with richer features does: whether the features hold the value is known to the noise
of that comparison and no better.

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

_TINY = 1e-300


class Interval(NamedTuple):
    """A standard error with the clusters it comes from, and the ends of the interval."""

    se: float
    clusters: int
    low: float
    high: float


def interval(
    value: float, influence: Influence, level: float, *, stream: bool = False, added: float = 0.0, stretch: float = 1.0
) -> Interval:
    """The interval of a value by what clusters add to its error, which sums to about 0.

    Args:
        value: the estimate.
        influence: one entry per cluster; those of a stream are consecutive blocks, which are joined first.
        level: the coverage.
        stream: whether clusters follow each other in one stream.
        added: a standard error that clusters do not show.
        stretch: how many times longer the interval is, for one that holds at many looks.

    >>> import numpy as np
    >>> band = interval(1.0, np.array([0.1, -0.1, 0.1, -0.1]), 0.95)
    >>> round(band.se, 4), round(band.high, 4)
    (0.2309, 1.735)
    """
    from scipy.special import stdtrit

    blocks = block_statistics(influence, stream=stream)
    clustered, freedom = float(blocks.error[0]), float(blocks.freedom)
    se = float(np.hypot(clustered, added))
    if not freedom > 0 or not np.isfinite(se):
        return Interval(se, int(blocks.blocks), -np.inf, np.inf)
    sums = in_blocks(influence)[0] if stream else influence
    off = sums - sums.mean()
    squares, cubes, fourths = ((off**power).sum() for power in (2, 3, 4))
    # Satterthwaite: where few clusters carry the error, it is known as well as from few.
    freedom = min(freedom, 2 * float(squares**2 / max(fourths - squares**2 / len(off), _TINY)))
    t = stretch * float(stdtrit(max(freedom, 2.0), (1 + level) / 2))
    # The skewness of the estimate is that of its clusters over √k, at most 1 where one cluster is all of it.
    skewness = float(cubes / max(squares**1.5, _TINY)) * (clustered / max(se, _TINY)) ** 3
    # The statistic lies between these quantiles, so the value between the estimate less either.
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
    """The interval of an estimate, or of what it is more than another on the same log."""
    if minus is not None:
        one = difference(one, minus)
    assert one.influence is not None
    added = 0.0 if one.thin is None else float(np.sqrt(one.thin @ one.thin))
    band = interval(one.value, one.influence, level, stream=stream, added=added, stretch=stretch)
    if one.shift is None:
        return band
    gap, moved = one.shift
    richer = interval(one.value + gap, one.influence + moved, level, stream=stream, added=added, stretch=stretch)
    return band._replace(low=min(band.low, richer.low), high=max(band.high, richer.high))


def difference(one: ValueEstimate, other: ValueEstimate) -> ValueEstimate:
    """What one estimate is more than another on the same log; errors that both share cancel."""
    assert one.influence is not None
    assert other.influence is not None
    thin, shift = other.thin if one.thin is None else one.thin, one.shift
    if one.thin is not None and other.thin is not None:
        thin = one.thin - other.thin
    if shift is not None and other.shift is not None:
        shift = shift[0] - other.shift[0], shift[1] - other.shift[1]
    return ValueEstimate(one.value - other.value, one.influence - other.influence, thin=thin, shift=shift)


def thin_errors(context: EstimatorContext) -> Float[np.ndarray, " p"] | None:
    """x σ₀ of each pair of a table, and as the last entry the error of pairs without data; None for other features."""
    estimand, table = context.estimand, table_of(context.estimand.features)
    if table is None:
        return None
    visits, (squares, later, later_squares) = context.moments.C.diagonal(), context.scores.spread
    n, m2, v1, v2, Q = (
        column.reshape(table.size, -1) for column in (visits, squares, later, later_squares, context.solution.theta)
    )
    here = estimand.gamma * (estimand.policy.acts(table.rows(), (2**31, 1)).law * Q).sum(axis=1, keepdims=True)
    rows, own = np.maximum(n.sum(axis=1, keepdims=True), 1.0), v1 / np.maximum(n, 1.0)
    led = [column.sum(axis=1, keepdims=True) / rows for column in (v1, v2)]
    # The next state of half a row more, as in Jeffreys' prior: that of any row of the state, or itself, at evens.
    elsewhere = (led[1] - 2 * own * led[0] + own**2 + (here - own) ** 2) / 4
    # Each pair fits its own mean, which takes a degree of freedom.
    everywhere = float(squares.sum()) / max(float(np.maximum(visits - 1, 0).sum()), 1.0)
    noise = np.maximum(m2.sum(axis=1, keepdims=True) / rows, everywhere)
    errors = np.where(visits > 0, context.solution.x * np.sqrt(np.maximum(elsewhere, noise)).ravel(), 0.0)
    return np.append(errors, unseen_share(context) * float(np.abs(context.solution.theta).max()))


def unseen_share(context: EstimatorContext) -> float:
    """The share of the policy's discounted path that leads to what the log has no data for.

    For a table it is E[γ^τ], τ the first time that the policy does what was never seen. For other features it is the
    part of the policy's features beyond the span of the log's, relative to the start's.
    """
    A, _, phi0 = context.moments.total()
    left = phi0 - A.T @ context.solution.x
    if table_of(context.estimand.features) is not None:
        unseen = context.moments.C.diagonal() == 0
        # A state that the table lacks has no feature at all, and is missing from the start's mass.
        share = float(left[unseen].sum() + max(0.0, 1.0 - phi0.sum()))
    else:
        share = float(np.linalg.norm(left) / max(float(np.linalg.norm(phi0)), _TINY))
    return 0.0 if abs(share) < 1e-9 else min(share, 1.0)
