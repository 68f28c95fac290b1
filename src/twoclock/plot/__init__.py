"""Figures. The only part that knows matplotlib; what is drawn comes from records alone."""

from twoclock.plot.figures import COLOURS, LABELS, MARKERS, caption, figure, render, stamp
from twoclock.plot.lines import compare, curves, ratios, slope
from twoclock.plot.summary import summary
from twoclock.plot.sweeps import best_curves, setting_curves, setting_map, varied, varied_together
from twoclock.plot.tables import table

__all__ = [
    "COLOURS",
    "LABELS",
    "MARKERS",
    "best_curves",
    "caption",
    "compare",
    "curves",
    "figure",
    "ratios",
    "render",
    "setting_curves",
    "setting_map",
    "slope",
    "stamp",
    "summary",
    "table",
    "varied",
    "varied_together",
]
