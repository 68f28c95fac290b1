"""Two-time-scale stochastic optimisation on JAX."""

from twoclock.methods import Fast, Polyak, Standard
from twoclock.schedules import Constant, Power

__version__ = "0.1.0"
__all__ = ["Constant", "Fast", "Polyak", "Power", "Standard"]
