"""From the influence of each cluster of data to an interval.

Clusters are episodes; in one long stream they are blocks of rows, as many as ``inference.blocks`` says and no more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from twoclock.intervals.batch_means import BlockStatistics, in_blocks, tell

Influence = Float[np.ndarray, " k"]


class Interval(NamedTuple):
    """A standard error with the clusters it comes from, and the interval half-width's quantile."""

    se: float
    clusters: int
    low: float
    high: float


def interval(value: float, influence: Influence, level: float, *, stream: bool = False) -> Interval:
    """value ± t·se with se² = Σ_cluster influence²·k/(k − 1), t of k − 1 degrees of freedom.

    Args:
        influence: what each cluster adds to the estimate's error; they sum to about 0.
        stream: clusters are consecutive blocks of one stream, which are joined first.

    >>> import numpy as np
    >>> found = interval(1.0, np.array([0.1, -0.1, 0.1, -0.1]), 0.95)
    >>> round(found.se, 4), round(found.high, 4)
    (0.2309, 1.735)
    """
    from scipy.special import stdtrit  # slow to load

    told = told_by(influence, stream=stream)
    se, k = float(told.error[0]), int(told.blocks)
    if k < 2:
        return Interval(float("inf"), k, -float("inf"), float("inf"))
    half = float(stdtrit(float(told.freedom), (1 + level) / 2)) * se
    return Interval(se, k, value - half, value + half)


def told_by(influence: Influence, *, stream: bool) -> BlockStatistics:
    """What the clusters say of the estimate; neighbours in a stream are joined to the blocks that it is cut into."""
    sums, sizes = in_blocks(influence) if stream else (influence, np.ones(len(influence)))
    return tell(sums[:, None], -np.eye(1), sizes / sizes.sum(), np.eye(1))


def multinomial_weights(groups: int, resamples: int, seed: int = 0) -> Float[np.ndarray, "b g"]:
    """How often each group is drawn in each resample."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(groups, np.full(groups, 1 / groups), size=resamples).astype(float)
