"""The mean cost of a control law while it acts, with its intervals."""

from __future__ import annotations

import numpy as np

from twoclock.intervals.batch_means import BlockMean, intervals
from twoclock.intervals.bootstrap import Estimate
from twoclock.intervals.confidence_sequence import FIRST_LOOK, first_look, stretch
from twoclock.intervals.random_scaling import RecentMean


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
