"""Figures. The only part that knows matplotlib; what is drawn comes from records alone."""

from twoclock.plot.against import against
from twoclock.plot.figures import COLOURS, LABELS, MARKERS, caption, figure, render, stamp
from twoclock.plot.lines import compare, curves, ratios, slope
from twoclock.plot.summary import summary
from twoclock.plot.tables import table

__all__ = [
    "COLOURS",
    "LABELS",
    "MARKERS",
    "against",
    "caption",
    "compare",
    "curves",
    "figure",
    "ratios",
    "render",
    "slope",
    "stamp",
    "summary",
    "table",
]
