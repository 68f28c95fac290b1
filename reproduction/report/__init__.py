"""The report of a reproduction: what was claimed, what was measured, and what to use instead."""

from reproduction.report.render import write
from reproduction.report.view import Report, gather, headline

__all__ = ["Report", "gather", "headline", "write"]
