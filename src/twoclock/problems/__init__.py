"""Ready-made problems, one file each."""

from twoclock.problems.custom import custom
from twoclock.problems.quadratic import quadratic

__all__ = ["custom", "quadratic"]
