"""Settings × problems × seeds as one resumable data set: here, on several devices, or on a Ray cluster."""

from twoclock.sweeps.sweep import ShardsFailed, sweep
from twoclock.sweeps.sweep_result import Sweep

__all__ = ["ShardsFailed", "Sweep", "sweep"]
