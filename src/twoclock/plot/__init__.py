"""Figures, drawn with matplotlib from results, sweeps and tables."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twoclock.plot.curves import binomial, compare, coverage, curves, intervals, ratios, slope
from twoclock.plot.grids import (
    LEFT_DOWN_RIGHT_UP,
    UP_RIGHT_DOWN_LEFT,
    best_curves,
    grid_world,
    sensitivity,
    setting_curves,
    setting_map,
    tuned_scores,
)
from twoclock.plot.report_page import embed_svg, render_page, values
from twoclock.plot.style import COLOURS, LABELS, MARKERS, caption, figure, render, stamp

__all__ = [
    "COLOURS",
    "LABELS",
    "LEFT_DOWN_RIGHT_UP",
    "MARKERS",
    "UP_RIGHT_DOWN_LEFT",
    "Axes",
    "Figure",
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
    "tuned_scores",
    "values",
]
