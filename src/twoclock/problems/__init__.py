"""Ready-made problems, one file each."""

from twoclock.problems.custom import custom
from twoclock.problems.quadratic import quadratic
from twoclock.problems.rates import rates

__all__ = ["custom", "quadratic", "rates"]
