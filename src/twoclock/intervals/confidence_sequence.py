"""Asymptotic confidence sequences: intervals that hold at all looks at once; and the running mean of a cost with one.

    half-length(n) = σ̂ √( 2(nρ²+1)/(nρ)² · ln(√(nρ²+1)/α) ),        ρ² = (−2 ln α + ln(1 − 2 ln α)) / N

σ̂² is the long-run variance, n the samples so far, 1 − α the level. Compared with an interval for one n alone, it is
1.55 times as long at the first look n = N (for 95 %), 1.82 times at 100 N and 2.1 times at 10⁴ N. Before N nothing is
promised. σ̂ must come from blocks, since random scaling does not estimate it. From 16 to 32 blocks σ̂ is known to about
a tenth. Student's t accounts for that here as in the interval for one n, so the sequence is that interval, stretched.

Reference: Waudby-Smith, Arbour, Sinha, Kennedy & Ramdas, *Time-uniform central limit theory and asymptotic confidence
sequences*, 2024 (arXiv 2103.06476), Theorem 2.2 and Appendix B.2.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from twoclock.intervals.batch_means import BlockMean, intervals
from twoclock.intervals.bootstrap import Estimate
from twoclock.intervals.random_scaling import RecentMean
from twoclock.protocols import InputError
from twoclock.validation import as_whole, number, short_repr

# By default marks before this many samples are no looks: the mean must be nearly normal from the first one on.
FIRST_LOOK = 1000


def stretch(samples: ArrayLike, first: float, level: float = 0.95) -> Float[np.ndarray, "*looks"]:
    """How many times longer an interval must be to hold at all looks from ``first`` samples on.

    Args:
        samples: n, one number or several.
        first: N, the samples at the first look.
        level: the coverage, at all looks together.

    >>> stretch([1_000, 100_000, 1_000_000], first=1_000).round(2).tolist()
    [1.55, 1.82, 1.97]
    """
    from scipy.special import ndtri

    level = number("level", level, 0, 1, above=True, below=True, remedy="try 0.95")
    log_alpha = np.log1p(-level)
    t = (-2 * log_alpha + np.log1p(-2 * log_alpha)) * np.asarray(samples, float) / first
    return np.asarray(np.sqrt(2 * (t + 1) / t * (np.log1p(t) / 2 - log_alpha)) / ndtri((1 + level) / 2))


def first_look(anytime: object, samples: Iterable[float]) -> int:
    """The number of samples at the first look.

    Args:
        anytime: the user's argument: True for the first mark with 1,000 samples or more, or the number itself.
        samples: the number of samples at each mark of the run, in order.
    """
    if not isinstance(anytime, (bool, np.bool_)):
        first = as_whole(anytime)
        if first is None or first < 2:
            raise InputError(
                "`anytime` must be True, False or the number of samples at the first look, 2 or more, "
                f"got {short_repr(anytime)}"
            )
        return first
    found = next((int(n) for n in samples if n >= FIRST_LOOK), None)
    if found is None:
        raise InputError(
            f"`anytime` begins at the first mark with {FIRST_LOOK:,} samples or more, and there is none yet; take more "
            "steps, or say when you first look, `anytime=100`"
        )
    return found


class RunningCost:
    """The mean of nonnegative costs: over the later half, and over all samples for intervals that hold at any time.

    Args:
        saved: the ``numbers`` of an earlier one, to continue it.

    >>> costs = RunningCost()
    >>> for value in range(200):
    ...     costs.add(value)
    >>> costs.estimate(0.95, False).low >= 0
    True
    """

    def __init__(self, saved: dict[str, list[float]] | None = None) -> None:
        self.recent = RecentMean() if saved is None else RecentMean(saved["recent"])
        self.total = BlockMean() if saved is None else BlockMean(saved["all"])

    @property
    def numbers(self) -> dict[str, list[float]]:
        """The numbers to save."""
        return {"recent": self.recent.numbers, "all": self.total.numbers}

    def add(self, cost: float) -> None:
        self.recent.add(cost)
        self.total.add(cost)

    def estimate(self, level: float, anytime: bool | int) -> Estimate:
        """The mean and its interval, cut at zero; the arguments are those of `Regulator.cost`."""
        if anytime is False:
            value, low, high = self.recent.estimate(level)
        else:
            value, first = self.total.estimate, first_look(anytime, [FIRST_LOOK])
            once = intervals(np.full(1, value), self.total.statistics(), level)
            longer = float(stretch(self.total.count, first, level)) if self.total.count >= first else np.nan
            half = float(once.high[0] - value) * longer
            low, high = value - half, value + half
        return Estimate(value, float(np.maximum(low, 0.0)), high)
