"""The report of a reproduction: what was claimed, what was measured, and what to use instead."""

from twoclock.study.report.content import Report, gather, headline
from twoclock.study.report.pages import write

__all__ = ["Report", "gather", "headline", "write"]
