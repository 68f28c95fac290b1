"""Figures. The only file that knows matplotlib; what is drawn comes from records alone."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from twoclock.core import InputError
from twoclock.result import Result

# Okabe & Ito: distinguishable with any common colour vision, and in grey when printed.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")
MARKERS = "osD^vPX*"

LABELS = {
    "error": "‖θ − θ*‖²",
    "gap": "|h(θ) − h*|",
    "gradient": "‖∇h(θ)‖²",
    "tracking": "‖ω − ω*(θ)‖²",
    "f_sq": "‖f‖²",
    "g_sq": "‖g‖²",
}
_STATISTICS = {"mean": "mean", "median": "median", "iqm": "interquartile mean"}


def figure(rows: int = 1, cols: int = 1, width: float = 5.2, height: float = 3.8) -> tuple[Figure, np.ndarray]:
    """A figure and its axes, rows × cols; width and height are those of one panel, in inches."""
    fig = Figure(figsize=(width * cols, height * rows), layout="constrained", dpi=150)
    FigureCanvasAgg(fig)
    axes = fig.subplots(rows, cols, squeeze=False)
    for ax in axes.flat:
        ax.grid(visible=True, which="major", linewidth=0.5, alpha=0.35)
        ax.spines[["top", "right"]].set_visible(False)
    return fig, axes


def curves(
    ax: Axes,
    results: Mapping[str, Result],
    metric: str,
    statistic: str = "mean",
    colours: Mapping[str, str] | None = None,
) -> None:
    """A line for each result, log-log, with the 95 % bootstrap band of the mean and the count of diverged seeds."""
    if statistic not in _STATISTICS:
        raise InputError(f"`statistic` must be one of {', '.join(_STATISTICS)}, got {statistic!r}")
    for i, (label, result) in enumerate(results.items()):
        table = result.summary(metric)
        table = table[table["step"] > 0]
        colour = (colours or {}).get(label, COLOURS[i % len(COLOURS)])
        ended = int(table["diverged"].iloc[-1])
        named = f"{label} ({ended}/{table['seeds'].iloc[-1]} diverged)" if ended else label
        ax.plot(
            table["step"], table[statistic], color=colour, linewidth=1.6, label=named,
            marker=MARKERS[i % len(MARKERS)], markersize=3.5, markevery=max(1, len(table) // 8),
        )  # fmt: skip
        if statistic == "mean" and np.isfinite(table["low"]).any():
            finite = np.isfinite(table["low"]) & np.isfinite(table["high"])
            ax.fill_between(
                table["step"], table["low"], table["high"], where=finite, color=colour, alpha=0.2, linewidth=0
            )
    ax.set(xscale="log", yscale="log", xlabel="steps k (one sample each)", ylabel=LABELS.get(metric, metric))
    ax.legend(frameon=False, fontsize="small")


def ratios(
    ax: Axes,
    pairs: Mapping[str, tuple[Result, Result]],
    metric: str,
    rule: float | None = None,
    ylabel: str | None = None,
) -> None:
    """For each pair of results the mean of the first over that of the second, and a line at what is asked of it."""
    for i, (label, (ours, theirs)) in enumerate(pairs.items()):
        a, b = (r.summary(metric).query("step > 0") for r in (ours, theirs))
        ax.plot(
            a["step"], a["mean"].to_numpy() / b["mean"].to_numpy(), color=COLOURS[i % len(COLOURS)], linewidth=1.6,
            label=label, marker=MARKERS[i % len(MARKERS)], markersize=3.5, markevery=max(1, len(a) // 8),
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


def caption(fig: Figure, text: str) -> None:
    """The settings, under the figure."""
    fig.supxlabel(text, fontsize="x-small", color="0.3", ha="center", wrap=True)


def compare(results: Mapping[str, Result], metric: str, statistic: str = "mean", title: str | None = None) -> Figure:
    """One panel with a line for each result, its settings underneath."""
    if not results:
        raise InputError("`results` must hold at least one result")
    fig, axes = figure(width=6.4, height=4.6)
    curves(axes[0, 0], results, metric, statistic)
    one = next(iter(results.values())).spec
    axes[0, 0].set_title(title or one["problem"]["name"], fontsize="medium")
    band = "; band: 95 % bootstrap interval of the mean" if statistic == "mean" and len(one["seeds"]) > 1 else ""
    caption(
        fig,
        f"{_STATISTICS[statistic]} over {len(one['seeds'])} seeds, {one['steps']:,} steps, {one['precision']}{band}",
    )
    return fig


def stamp(fig: Figure, text: str) -> None:
    """A mark across the corner that says what the figure is not."""
    fig.text(0.005, 0.995, text, ha="left", va="top", fontsize="x-small", color="#D55E00")


def render(fig: Figure) -> dict[str, bytes]:
    """The figure as PNG and as SVG. The SVG carries no date, so that the same figure is the same file."""
    kinds: dict[str, dict[str, Any]] = {"png": {}, "svg": {"metadata": {"Date": None}}}
    out = {}
    for kind, options in kinds.items():
        buffer = io.BytesIO()
        fig.savefig(buffer, format=kind, **options)
        out[kind] = buffer.getvalue()
    return out


def table(ax: Axes, values: np.ndarray, columns: Sequence[str], rows: Sequence[str], xlabel: str, ylabel: str) -> None:
    """Shares in [0, 1] as a shaded table, the number in each cell."""
    ax.grid(visible=False)
    ax.imshow(values, cmap="Greys", vmin=0, vmax=1.4, aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        ax.text(j, i, f"{value:.2g}", ha="center", va="center", fontsize="x-small", color="w" if value > 0.7 else "k")
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.set_xticks(range(len(columns)), columns, fontsize="x-small", rotation=30)
    ax.set_yticks(range(len(rows)), rows, fontsize="x-small")
