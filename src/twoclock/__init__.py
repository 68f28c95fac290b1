"""Two-time-scale stochastic optimisation on JAX: two noisy operators in, a solution and its record out."""

from twoclock import methods, problems
from twoclock.core import InputError
from twoclock.methods import Fast, Polyak, Standard
from twoclock.result import Result, load
from twoclock.schedules import Constant, Power
from twoclock.solve import solve

__version__ = "0.1.0"
__all__ = [
    "Constant",
    "Fast",
    "InputError",
    "Polyak",
    "Power",
    "Result",
    "Standard",
    "load",
    "methods",
    "problems",
    "solve",
]
