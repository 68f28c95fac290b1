"""Figures. The only part that knows matplotlib; what is drawn comes from records alone."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twoclock.plot.against import against
from twoclock.plot.coverage import coverage
from twoclock.plot.curves import compare, curves, ratios, slope
from twoclock.plot.gridworld import LEFT_DOWN_RIGHT_UP, UP_RIGHT_DOWN_LEFT, grid_world
from twoclock.plot.heatmap import table
from twoclock.plot.intervals import intervals
from twoclock.plot.ope import values
from twoclock.plot.report_summary import summary
from twoclock.plot.sensitivity import sensitivity, tuned_scores
from twoclock.plot.style import COLOURS, LABELS, MARKERS, caption, figure, render, stamp
from twoclock.plot.sweeps import best_curves, setting_curves, setting_map, varied, varied_together

__all__ = [
    "COLOURS",
    "LABELS",
    "LEFT_DOWN_RIGHT_UP",
    "MARKERS",
    "UP_RIGHT_DOWN_LEFT",
    "Axes",
    "Figure",
    "against",
    "best_curves",
    "caption",
    "compare",
    "coverage",
    "curves",
    "figure",
    "grid_world",
    "intervals",
    "ratios",
    "render",
    "sensitivity",
    "setting_curves",
    "setting_map",
    "slope",
    "stamp",
    "summary",
    "table",
    "tuned_scores",
    "values",
    "varied",
    "varied_together",
]
