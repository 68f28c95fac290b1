"""Error bars from one run: the numbers that a run keeps for them, their law, and when not to trust them."""

from twoclock.stats import (
    Estimate,
    MeanCurve,
    bootstrap_mean,
    by_step_and_seed,
    log_slope,
    ratio_of_means,
    slope_difference,
)

__all__ = [
    "Estimate",
    "MeanCurve",
    "bootstrap_mean",
    "by_step_and_seed",
    "log_slope",
    "ratio_of_means",
    "slope_difference",
]
