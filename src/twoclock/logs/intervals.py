"""From the influence of each cluster of data to an interval.

Clusters are episodes. In one long stream they are at most 32 blocks of rows; a block must exceed the mixing time only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

BLOCKS = 32

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
    from scipy.stats import t  # slow to load

    blocks = joined_blocks(influence) if stream else influence
    k = len(blocks)
    if k < 2:
        return Interval(float("inf"), k, -float("inf"), float("inf"))
    centred = blocks - blocks.mean()
    se = float(np.sqrt(centred @ centred * k / (k - 1)))
    half = float(t.ppf((1 + level) / 2, k - 1)) * se
    return Interval(se, k, value - half, value + half)


def joined_blocks(scores: Influence, most: int = BLOCKS) -> Float[np.ndarray, " blocks"]:
    """Neighbouring blocks joined to at most so many of one length.

    A bounded number of blocks lets their length grow as fast as the stream, so that no chain is too slow in the end;
    that the variance is then known from few of them is what Student's t accounts for.
    """
    size = -(-len(scores) // most)
    return np.add.reduceat(scores, np.arange(0, len(scores), size)) if len(scores) else scores


def lag_one(blocks: Float[np.ndarray, " blocks"]) -> float:
    """The correlation of each block with the next: where it is large, blocks are shorter than the memory."""
    x = blocks - blocks.mean()
    return float(x[1:] @ x[:-1] / max(x @ x, 1e-300))


def multinomial_weights(groups: int, resamples: int, seed: int = 0) -> Float[np.ndarray, "b g"]:
    """How often each group is drawn in each resample."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(groups, np.full(groups, 1 / groups), size=resamples).astype(float)
