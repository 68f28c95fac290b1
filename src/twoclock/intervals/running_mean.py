"""The mean of a stream of numbers with its interval, as the numbers come; plain Python, a microsecond each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from twoclock.intervals.random_scaling import critical_value
from twoclock.stats import Estimate

# Of fewer numbers an interval says nothing.
_FEWEST = 100


class RunningMean:
    """Random scaling of a plain mean (``random_scaling`` has the formulas), for numbers that may depend on each other.

    Args:
        sums: those of an earlier one, to go on from: n, the mean, B and S.
    """

    def __init__(self, sums: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)) -> None:
        self.sums = sums

    def add(self, value: float) -> None:
        n, mean, B, S = self.sums
        n += 1
        C = (n - 1) * n * (2 * n - 1) / 6
        D = (value - mean) / n
        self.sums = n, mean + D, B - D * C, S + D * (D * C - 2 * B)

    def estimate(self, level: float = 0.95) -> Estimate:
        """The mean and its interval, which is NaN while the numbers are few."""
        n, mean, _, S = self.sums
        c = critical_value(level)
        half = c * math.sqrt(max(S, 0.0) / n**3) if n >= _FEWEST else math.nan
        return Estimate(mean, mean - half, mean + half)


class RecentMean:
    """The mean of the later part of a stream, half of it or more, so that what was learnt meanwhile shows in it.

    Two means are kept; at every power of two the older one ends and a new one begins.

    Args:
        kept: of an earlier one, to go on from: its count and the sums of its means.
    """

    def __init__(self, kept: Sequence[float] = (0.0, 0.0, 0.0, 0.0, 0.0)) -> None:
        self.count = int(kept[0])
        self.means = [RunningMean(tuple(kept[i : i + 4])) for i in range(1, len(kept), 4)]

    @property
    def kept(self) -> list[float]:
        return [float(self.count), *(number for mean in self.means for number in mean.sums)]

    def add(self, value: float) -> None:
        if self.count > _FEWEST and self.count & (self.count - 1) == 0:
            self.means = [self.means[-1], RunningMean()]
        self.count += 1
        for mean in self.means:
            mean.add(value)

    def estimate(self, level: float = 0.95) -> Estimate:
        return self.means[0].estimate(level)
