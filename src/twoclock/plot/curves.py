"""Metrics against steps, or against what steps cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twoclock.plot.style import COLOURS, LABELS, MARKERS, caption, check_panel, figure, plain, size_of
from twoclock.protocols import InputError
from twoclock.validation import short_repr

if TYPE_CHECKING:
    import pandas as pd

_STATISTICS = {"mean": "mean", "median": "median", "iqm": "interquartile mean"}
_STEPS = "steps k (one sample each)"


class Summarised(Protocol):
    """A run that can be summed up over its seeds, such as a ``Result``."""

    @property
    def spec(self) -> dict[str, Any]: ...

    def summary(self, metric: str) -> pd.DataFrame:
        """One row per step: mean, median, iqm, low, high, seeds, diverged."""


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
        raise InputError(f"`statistic` must be one of {', '.join(_STATISTICS)}, got {short_repr(statistic)}")
    _draw_results(ax, results, metric, statistic, colours or {}, dict.fromkeys(results, 1.0), _STEPS)


def against(ax: Axes, results: Mapping[str, Summarised], metric: str, unit: Mapping[str, float], xlabel: str) -> None:
    """A line for each result, log-log, with the 95 % bootstrap band of the mean; ``unit`` is what a step costs."""
    _draw_results(ax, results, metric, "mean", {}, unit, xlabel)


def ratios(
    ax: Axes,
    pairs: Mapping[str, tuple[Summarised, Summarised]],
    metric: str,
    rule: float | None = None,
    ylabel: str | None = None,
) -> None:
    """For each pair of results the mean of the first over that of the second, and a line at what is asked of it."""
    for i, (label, pair) in enumerate(pairs.items()):
        ours, theirs = (_summarise(result, metric) for result in pair)
        ratio = ours["mean"].to_numpy() / theirs["mean"].to_numpy()
        _draw_line(ax, i, ours["step"], ratio, label, COLOURS[i % len(COLOURS)])
    if rule is not None:
        ax.axhline(rule, color="0.45", linestyle="--", linewidth=1, zorder=1)
    _finish(ax, _STEPS, ylabel or f"ratio of {metric}")


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
    fig = check_panel(ax, scale)
    if fig is None or ax is None:
        fig, ((panel,),) = figure(1, 1, *size_of(size))
    else:
        panel = ax
    curves(panel, results, metric, statistic)
    if scale == "linear":
        panel.set(xscale="linear", yscale="linear")
    one = next(iter(results.values())).spec
    panel.set_title(plain(title or one["problem"]["name"]), fontsize="medium")
    if ax is None:
        seeds = len(one["seeds"])
        band = "; band: 95 % bootstrap interval of the mean over seeds" if statistic == "mean" and seeds > 1 else ""
        caption(fig, f"{_STATISTICS[statistic]} over {seeds} seeds, {one['steps']:,} steps, {one['precision']}{band}")
    return fig


def _draw_results(
    ax: Axes,
    results: Mapping[str, Summarised],
    metric: str,
    statistic: str,
    colours: Mapping[str, str],
    unit: Mapping[str, float],
    xlabel: str,
) -> None:
    scale = "log"
    for i, (label, result) in enumerate(results.items()):
        table, colour = _summarise(result, metric), colours.get(label, COLOURS[i % len(COLOURS)])
        if (table[statistic] < 0).any():
            scale = "linear"
        cost, diverged = table["step"] * unit[label], int(table["diverged"].iloc[-1])
        lost = f" ({diverged}/{table['seeds'].iloc[-1]} diverged)" if diverged else ""
        _draw_line(ax, i, cost, table[statistic], label + lost, colour)
        finite = np.isfinite(table["low"]) & np.isfinite(table["high"])
        if statistic == "mean" and finite.any():
            ax.fill_between(cost, table["low"], table["high"], where=finite, color=colour, alpha=0.2, linewidth=0)
    _finish(ax, xlabel, LABELS.get(metric, metric), scale)


def _summarise(result: Summarised, metric: str) -> pd.DataFrame:
    table = result.summary(metric)
    return table[table["step"] > 0]  # step 0 has no place on a log axis


def _draw_line(
    ax: Axes, i: int, x: pd.Series[float], y: pd.Series[float] | np.ndarray, label: str, colour: str
) -> None:
    ax.plot(
        x, y, color=colour, linewidth=1.6, label=plain(label), marker=MARKERS[i % len(MARKERS)], markersize=3.5,
        markevery=max(1, len(x) // 8),
    )  # fmt: skip


def _finish(ax: Axes, xlabel: str, ylabel: str, scale: str = "log") -> None:
    ax.set(xscale="log", yscale=scale, xlabel=xlabel, ylabel=plain(ylabel))
    ax.legend(frameon=False, fontsize="small")
