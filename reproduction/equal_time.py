"""Methods compared after the same time instead of the same number of samples."""

from __future__ import annotations

import numpy as np

from reproduction.verdicts import Standing, geometric_mean, log_values
from twoclock.intervals import Estimate, by_step_and_seed
from twoclock.result import Result


def seconds_a_step(result: Result) -> float:
    """For all seeds together; of a run that was timed alone and compiled nothing."""
    return float(result.spec["wall_seconds"]) / int(result.spec["steps"])


def at_equal_seconds(result: Result, base: Result, metric: str) -> Estimate:
    """One method over another on the same seeds when the shorter run ends: the geometric mean of the ratios.

    Between marks the logarithm of the metric is taken as linear in that of time. The interval is a 95 % bootstrap
    interval over the shared seeds; that the seconds themselves vary from run to run is not in it.
    """
    end = min(float(r.spec["wall_seconds"]) for r in (result, base))
    return geometric_mean(_logs_at(result, metric, end) - _logs_at(base, metric, end))


def standing(ratio: Estimate) -> Standing:
    """What a ratio of errors says, by its interval."""
    return "better" if ratio.high < 1 else "worse" if ratio.low > 1 else "a tie"


def _logs_at(result: Result, metric: str, seconds: float) -> np.ndarray:
    """The logarithm of the metric after so many seconds, seed by seed."""
    steps, _, values = by_step_and_seed(result.history, metric)
    times = np.log(steps[steps > 0] * seconds_a_step(result))
    return np.array([np.interp(np.log(seconds), times, column) for column in log_values(values[steps > 0]).T])
