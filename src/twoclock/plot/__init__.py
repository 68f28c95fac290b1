"""Figures. The only part that knows matplotlib; what is drawn comes from records alone."""

from twoclock.plot.figures import COLOURS, LABELS, MARKERS, caption, figure, render, stamp
from twoclock.plot.grids import LEFT_DOWN_RIGHT_UP, UP_RIGHT_DOWN_LEFT, grid_world
from twoclock.plot.lines import compare, curves, ratios, slope
from twoclock.plot.sensitivity import sensitivity
from twoclock.plot.summary import summary
from twoclock.plot.tables import table

__all__ = [
    "COLOURS",
    "LABELS",
    "LEFT_DOWN_RIGHT_UP",
    "MARKERS",
    "UP_RIGHT_DOWN_LEFT",
    "caption",
    "compare",
    "curves",
    "figure",
    "grid_world",
    "ratios",
    "render",
    "sensitivity",
    "slope",
    "stamp",
    "summary",
    "table",
]
