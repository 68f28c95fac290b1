"""Tuning: candidates drawn, judged with truth or by residuals, halved; and how sensitive the answer is."""

from twoclock.tuning.tune import tune
from twoclock.tuning.tuned import Tuned, TunedMethods

__all__ = ["Tuned", "TunedMethods", "tune"]
