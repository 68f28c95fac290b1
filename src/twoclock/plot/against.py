"""Curves against something other than steps: items, seconds."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from twoclock.plot.protocols import Summarised
from twoclock.plot.style import COLOURS, LABELS, MARKERS, plain


def against(ax: Axes, results: Mapping[str, Summarised], metric: str, unit: Mapping[str, float], xlabel: str) -> None:
    """A line for each result, log-log, with the 95 % bootstrap band of the mean;
    ``unit`` is what a step of each costs."""
    for i, (label, result) in enumerate(results.items()):
        table = result.summary(metric)
        table = table[table["step"] > 0]
        where, colour = table["step"] * unit[label], COLOURS[i % len(COLOURS)]
        ended = int(table["diverged"].iloc[-1])
        named = f"{label} ({ended}/{table['seeds'].iloc[-1]} diverged)" if ended else label
        ax.plot(
            where, table["mean"], color=colour, linewidth=1.6, label=plain(named),
            marker=MARKERS[i % len(MARKERS)], markersize=3.5, markevery=max(1, len(table) // 8),
        )  # fmt: skip
        ax.fill_between(where, table["low"], table["high"], color=colour, alpha=0.2, linewidth=0)
    ax.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=plain(LABELS.get(metric, metric)))
    ax.legend(frameon=False, fontsize="small")
