"""Figures, drawn with matplotlib from results, sweeps and tables."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twoclock.plot.curves import against, compare, curves, ratios, slope
from twoclock.plot.grids import LEFT_DOWN_RIGHT_UP, UP_RIGHT_DOWN_LEFT, grid_world, table
from twoclock.plot.intervals import binomial, coverage, intervals
from twoclock.plot.ope import values
from twoclock.plot.report_page import embed_svg, render_page
from twoclock.plot.sensitivity import (
    best_curves,
    sensitivity,
    setting_curves,
    setting_map,
    tuned_scores,
    varied,
    varied_together,
)
from twoclock.plot.style import COLOURS, LABELS, MARKERS, caption, figure, render, stamp

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
    "binomial",
    "caption",
    "compare",
    "coverage",
    "curves",
    "embed_svg",
    "figure",
    "grid_world",
    "intervals",
    "ratios",
    "render",
    "render_page",
    "sensitivity",
    "setting_curves",
    "setting_map",
    "slope",
    "stamp",
    "table",
    "tuned_scores",
    "values",
    "varied",
    "varied_together",
]
