"""Tuning by successive halving, with a known truth or by residuals."""

from twoclock.tuning.residual import Residual, residual
from twoclock.tuning.tune import tune
from twoclock.tuning.tune_result import Tuned, TunedMethods

__all__ = ["Residual", "Tuned", "TunedMethods", "residual", "tune"]
