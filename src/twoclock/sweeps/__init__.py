"""Settings × problems × seeds as one resumable data set: here, on several devices, or on a Ray cluster."""

from twoclock.sweeps.outcome import Sweep
from twoclock.sweeps.sweep import ShardsFailed, sweep

__all__ = ["ShardsFailed", "Sweep", "sweep"]
