"""From the influence of each cluster of data to an interval.

Clusters are episodes. In one long stream they are blocks of rows, joined until neighbours no longer go together; a
block must exceed the mixing time only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

FEW_BLOCKS = 10

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
    (0.2309, 1.7348)
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


def joined_blocks(scores: Influence, most: int = 400) -> Float[np.ndarray, " blocks"]:
    """Neighbouring blocks joined until their sums are hardly correlated; at least ``FEW_BLOCKS`` stay.

    The size is ten times the integrated autocorrelation time of the blocks' scores, by Geyer's initial positive
    sequence.
    """
    n = len(scores)
    size = max(1, int(np.ceil(10 * (correlation_time(scores) - 1))), n // most)
    size = min(size, max(n // FEW_BLOCKS, 1))
    count = n // size
    return np.add.reduceat(scores, np.arange(count) * size) if count else scores


def correlation_time(scores: Influence) -> float:
    """1 + 2Σρ_l, summed over pairs of lags as long as they are positive; 1 where there is no memory."""
    x = scores - scores.mean()
    n = len(x)
    power = np.abs(np.fft.rfft(x, 2 * n)) ** 2
    gamma = np.fft.irfft(power)[:n] / n
    if n < 4 or gamma[0] <= 0:
        return 1.0
    rho = gamma / gamma[0]
    pairs = rho[1 : n // 2 * 2 - 1 : 2] + rho[2 : n // 2 * 2 : 2]
    noise = 2 / np.sqrt(n)  # of a pair of lags without correlation, about √2/√n
    stop = np.argmax(pairs < noise) if (pairs < noise).any() else len(pairs)
    return float(max(1.0, 1 + 2 * pairs[:stop].sum()))


def multinomial_weights(groups: int, resamples: int, seed: int = 0) -> Float[np.ndarray, "b g"]:
    """How often each group is drawn in each resample."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(groups, np.full(groups, 1 / groups), size=resamples).astype(float)
