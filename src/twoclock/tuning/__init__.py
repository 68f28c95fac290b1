"""Tuning: candidates drawn, judged with truth or by residuals, halved; and how sensitive the answer is."""

from twoclock.tuning.residual import Residual, residual
from twoclock.tuning.tune import tune
from twoclock.tuning.tune_result import Tuned, TunedMethods

__all__ = ["Residual", "Tuned", "TunedMethods", "residual", "tune"]
