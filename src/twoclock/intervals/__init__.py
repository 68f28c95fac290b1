"""Confidence intervals: bootstrap over seeds; random scaling and batch means from one run, with their warnings."""

from twoclock.intervals.bootstrap import (
    Estimate,
    MeanCurve,
    bootstrap_mean,
    by_step_and_seed,
    log_slope,
    ratio_of_means,
    slope_difference,
)

__all__ = ["Estimate", "MeanCurve", "bootstrap_mean", "by_step_and_seed"]
__all__ += ["log_slope", "ratio_of_means", "slope_difference"]
