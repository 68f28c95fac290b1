"""A rule to stop a run when its intervals are short enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from twoclock.intervals.confidence_sequence import first_look
from twoclock.intervals.interval_table import interval
from twoclock.validation import number

if TYPE_CHECKING:
    import pandas as pd

# A note on one interval in a hundred is chance; with notes on more than this share a run does not stop.
_NOTED = 0.05


@dataclasses.dataclass(frozen=True)
class Width:
    """Stop when every output of every seed is known to ± this width: ``tc.solve(…, until=tc.Width(0.01))``.

    At each mark from the first look on, the run checks its anytime intervals. It stops when none is longer than this on
    either side. The intervals hold at all marks at once, and so also at the last one; intervals for one look would be
    too short there. Seeds that diverged are left out, and while more than one interval in twenty has a note the run
    continues.

    Args:
        width: the largest half-length, in the unit of the outputs.
        level: the coverage of the intervals.
        first: the number of samples at the first look; if None, the first mark with 1,000 or more.

    >>> import twoclock as tc
    >>> method = tc.methods.BatchMeans(tc.methods.Lstd(), intervals=lambda theta, omega: {"first": theta[0]})
    >>> problem = tc.problems.boyan("td", "markov")
    >>> result = tc.solve(problem, method, steps=1e6, seeds=1, until=tc.Width(1.0))
    >>> result.spec["steps"] < 1_000_000, result.spec["until"]["reached"]
    (True, True)
    """

    width: float
    level: float = 0.95
    first: int | None = None

    def __post_init__(self) -> None:
        level = number("level", self.level, 0, 1, above=True, below=True, remedy="try 0.95")
        object.__setattr__(self, "width", number("width", self.width, 0, above=True, remedy="try tc.Width(0.01)"))
        object.__setattr__(self, "level", level)
        if self.first is not None:
            object.__setattr__(self, "first", first_look(self.first, ()))

    def reached(self, history: pd.DataFrame, diverged: Mapping[int, int]) -> bool:
        """Whether the intervals at the last mark of a history are short enough; no before the first look.

        Args:
            history: the history of a run so far.
            diverged: the seeds that have diverged, each with its last finite step.
        """
        marks = history["step"].unique()
        anytime = True if self.first is None else self.first
        if marks[-1] < first_look(anytime, [*marks, np.iinfo(np.int64).max]):
            return False
        table = interval(history, diverged, self.level, "blocks", anytime=anytime)
        alive = table[~table["seed"].isin(list(diverged))]
        short = (alive["high"] - alive["low"]) / 2 <= self.width
        return not alive.empty and bool(short.all() and (alive["note"] != "").mean() <= _NOTED)
