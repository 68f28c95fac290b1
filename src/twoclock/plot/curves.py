"""Metrics against steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twoclock.plot.protocols import Summarised
from twoclock.plot.style import COLOURS, LABELS, MARKERS, caption, figure, plain
from twoclock.protocols import InputError
from twoclock.validation import shown

_STATISTICS = {"mean": "mean", "median": "median", "iqm": "interquartile mean"}


def curves(
    ax: Axes,
    results: Mapping[str, Summarised],
    metric: str,
    statistic: str = "mean",
    colours: Mapping[str, str] | None = None,
) -> None:
    """A line for each result, log-log, with the 95 % bootstrap band of the mean and the count of diverged seeds.

    Rewards and the like, which may be negative, have a plain axis.
    """
    if not isinstance(statistic, str) or statistic not in _STATISTICS:
        raise InputError(f"`statistic` must be one of {', '.join(_STATISTICS)}, got {shown(statistic)}")
    upwards = "log"
    for i, (label, result) in enumerate(results.items()):
        table = result.summary(metric)
        table = table[table["step"] > 0]
        if (table[statistic] < 0).any():
            upwards = "linear"
        colour = (colours or {}).get(label, COLOURS[i % len(COLOURS)])
        ended = int(table["diverged"].iloc[-1])
        named = f"{label} ({ended}/{table['seeds'].iloc[-1]} diverged)" if ended else label
        ax.plot(
            table["step"], table[statistic], color=colour, linewidth=1.6, label=plain(named),
            marker=MARKERS[i % len(MARKERS)], markersize=3.5, markevery=max(1, len(table) // 8),
        )  # fmt: skip
        if statistic == "mean" and np.isfinite(table["low"]).any():
            finite = np.isfinite(table["low"]) & np.isfinite(table["high"])
            ax.fill_between(
                table["step"], table["low"], table["high"], where=finite, color=colour, alpha=0.2, linewidth=0
            )
    ax.set(xscale="log", yscale=upwards, xlabel="steps k (one sample each)", ylabel=plain(LABELS.get(metric, metric)))
    ax.legend(frameon=False, fontsize="small")


def ratios(
    ax: Axes,
    pairs: Mapping[str, tuple[Summarised, Summarised]],
    metric: str,
    rule: float | None = None,
    ylabel: str | None = None,
) -> None:
    """For each pair of results the mean of the first over that of the second, and a line at what is asked of it."""
    for i, (label, (ours, theirs)) in enumerate(pairs.items()):
        a, b = (r.summary(metric).query("step > 0") for r in (ours, theirs))
        ax.plot(
            a["step"], a["mean"].to_numpy() / b["mean"].to_numpy(), color=COLOURS[i % len(COLOURS)], linewidth=1.6,
            label=plain(label), marker=MARKERS[i % len(MARKERS)], markersize=3.5, markevery=max(1, len(a) // 8),
        )  # fmt: skip
    if rule is not None:
        ax.axhline(rule, color="0.45", linestyle="--", linewidth=1, zorder=1)
    ax.set(xscale="log", yscale="log", xlabel="steps k (one sample each)", ylabel=ylabel or f"ratio of {metric}")
    ax.legend(frameon=False, fontsize="small")


def slope(ax: Axes, exponent: float, anchor: tuple[float, float], label: str) -> None:
    """A dashed reference line ∝ k^exponent from the anchor (k, value) to the right edge, labelled at its end."""
    right = max(ax.get_xlim()[1], anchor[0] * 10)
    k = np.geomspace(anchor[0], right, 50)
    ax.plot(k, anchor[1] * (k / anchor[0]) ** exponent, color="0.45", linestyle="--", linewidth=1, zorder=1)
    middle = k[25], anchor[1] * (k[25] / anchor[0]) ** exponent
    ax.annotate(
        label, middle, (-4, -4), textcoords="offset points", fontsize="x-small", color="0.35", ha="right", va="top"
    )


def compare(
    results: Mapping[str, Summarised],
    metric: str,
    statistic: str = "mean",
    title: str | None = None,
    *,
    ax: Axes | None = None,
    scale: Literal["log", "linear"] = "log",
    size: tuple[float, float] = (6.4, 4.6),
) -> Figure:
    """One panel with a line for each result, its settings underneath.

    Args:
        results: what to compare, by label.
        metric: which of the recorded metrics.
        statistic: "mean", "median" or "iqm", over seeds.
        title: above the panel; the problem's name if None.
        ax: an axes to draw in, in place of a new figure; its own figure comes back, and gets no caption.
        scale: "log", or "linear" for plain axes.
        size: width and height of a new figure, in inches.
    """
    if not isinstance(results, Mapping) or not results or not all(hasattr(r, "summary") for r in results.values()):
        raise InputError("`results` must map labels to results, one or more; try `{'Fast': result, …}`")
    check_panel(ax, scale)
    panel = figure(width=length(size, 0), height=length(size, 1))[1][0, 0] if ax is None else ax
    fig = panel.get_figure(root=True)
    if fig is None:
        raise InputError("`ax` must belong to a figure; make it with `fig.subplots()`")
    curves(panel, results, metric, statistic)
    if scale == "linear":
        panel.set(xscale="linear", yscale="linear")
    one = next(iter(results.values())).spec
    panel.set_title(plain(title or one["problem"]["name"]), fontsize="medium")
    if ax is None:
        seeds = len(one["seeds"])
        band = "; band: 95 % bootstrap interval of the mean over seeds" if statistic == "mean" and seeds > 1 else ""
        how = f"{_STATISTICS[statistic]} over {seeds} seeds, {one['steps']:,} steps, {one['precision']}{band}"
        caption(fig, how)
    return fig


def check_panel(ax: Axes | None, scale: Literal["log", "linear"]) -> None:
    if scale not in ("log", "linear"):
        raise InputError(f"`scale` must be 'log' or 'linear', got {scale!r}")
    if not (ax is None or hasattr(ax, "get_figure")):
        raise InputError(f"`ax` must be a Matplotlib axes, got {shown(ax)}; leave it out for a figure of its own")


def length(size: tuple[float, float], i: int) -> float:
    """Width or height, if it is one."""
    try:
        sides = tuple(float(side) for side in size)
    except (TypeError, ValueError):
        sides = ()
    if len(sides) != 2 or not all(0 < side <= 100 for side in sides):
        raise InputError(
            f"`size` must be a width and a height in inches, up to 100, such as (6.4, 4.6), got {size!r:.60}"
        )
    return sides[i]
