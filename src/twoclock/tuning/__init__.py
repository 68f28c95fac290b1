"""Tuning: candidates drawn, judged with truth or by residuals, halved; and how sensitive the answer is."""

from twoclock.tuning.tune import Tuned, tune

__all__ = ["Tuned", "tune"]
