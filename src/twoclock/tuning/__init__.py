"""Tuning: candidates drawn, judged with truth or by residuals, halved; and how sensitive the answer is."""

from twoclock.tuning.tune import tune
from twoclock.tuning.tuned import Tuned, TunedMethods
from twoclock.tuning.verdict import Residual, residual

__all__ = ["Residual", "Tuned", "TunedMethods", "residual", "tune"]
