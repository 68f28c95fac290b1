"""Results side by side: means with intervals, ranks, and which differences are more than chance."""

from twoclock.comparison.compare import table

__all__ = ["table"]
