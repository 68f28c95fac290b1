"""Confidence intervals: the band around the estimates of one run, and how often intervals cover."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twoclock.plot.style import COLOURS, MARKERS, caption, check_panel, figure, plain, size_of
from twoclock.protocols import InputError
from twoclock.validation import lookup, short_repr

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = {"step": (0, math.inf), "level": (0, 1), "coverage": (0, 1), "runs": (1, math.inf)}  # and their ranges
_MOST_PANELS = 6
_SETTLED = 0.02  # of the steps: earlier bands are too wide to set the range of the panel


def intervals(
    frame: pd.DataFrame,
    title: str,
    level: float,
    output: str | None = None,
    *,
    ax: Axes | None = None,
    scale: Literal["log", "linear"] = "log",
    size: tuple[float, float] = (6.4, 4.6),
) -> Figure:
    """A panel for each of the first outputs, or for the one that is named.

    Args:
        frame: of one seed: step, seed, output, estimate, low, high, note.
        title: what was run.
        level: of the intervals.
        output: which alone to draw.
        ax: an axes to draw one output in, in place of a new figure; its own figure comes back, and gets no caption.
        scale: of the steps: "log" or "linear".
        size: width and height of a new figure, in inches.
    """
    fig = check_panel(ax, scale)
    of_output = {str(name): part for name, part in frame.groupby("output", sort=False)}
    names = list(of_output)
    chosen = names[: 1 if ax is not None else _MOST_PANELS]
    if output is not None:
        lookup(of_output, output, "metric")
        chosen = [output]
    seed, last = frame["seed"].iloc[0], int(frame["step"].iloc[-1])
    panels = [ax] if ax is not None else []
    if fig is None:
        cols = math.ceil(math.sqrt(len(chosen)))
        rows = math.ceil(len(chosen) / cols)
        width, height = size_of(size)
        fig, axes = figure(rows, cols, width / cols, height / rows)
        panels = list(axes.flat)
        for empty in panels[len(chosen) :]:
            empty.set_visible(False)
    band = f"{100 * level:g} % confidence band of this one run (seed {seed})"
    for panel, name in zip(panels, chosen, strict=False):
        _draw_band(panel, of_output[name], name, band)
        panel.set_xscale(scale)
    if ax is None:
        fig.legend(
            *panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False, fontsize="small"
        )
        fig.suptitle(plain(title), fontsize="medium", x=0.02, ha="left")
        rest = f"; {len(chosen)} of {len(names)} outputs" if len(chosen) < len(names) else ""
        caption(fig, f"mean of the iterates of seed {seed}, {last:,} steps{rest}; no spread over seeds is shown")
    else:
        ax.legend(frameon=False, fontsize="x-small")
    return fig


def _draw_band(ax: Axes, path: pd.DataFrame, name: str, band: str) -> None:
    step, estimate, low, high = (path[column].to_numpy(float) for column in ("step", "estimate", "low", "high"))
    note = path["note"].iloc[-1]
    ax.plot(step, estimate, color=COLOURS[0], linewidth=1.6, label="estimate")
    ax.fill_between(step, low, high, color=COLOURS[4], alpha=0.35, linewidth=0.8, edgecolor=COLOURS[4], label=band)
    late = (step >= _SETTLED * step[-1]) & np.isfinite(low)
    if late.any():
        bottom, top = low[late].min(), high[late].max()
        margin = 0.05 * (top - bottom) or 0.05 * abs(top) or 1.0
        ax.set_ylim(bottom - margin, top + margin)
    ax.set(xlabel="steps k (one sample each)", ylabel=plain(name))
    if note:
        ax.set_title(textwrap.fill(f"not to be trusted: {note}", 50), fontsize="x-small", color=COLOURS[1], loc="left")


def coverage(frame: pd.DataFrame, title: str | None = None) -> Figure:
    """Coverage against samples: a line for each nominal level with its 95 % binomial error, the level dashed.

    Args:
        frame: one row per step and level: ``step``, ``level``, ``coverage`` (the share of intervals that covered) and
            ``runs`` (how many independent runs it is of: outputs of one run are not independent of each other); with a
            column ``label``, a panel for each.
        title: above the figure.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"step": [1000, 10000], "level": 0.95, "coverage": [0.91, 0.946], "runs": 1000})
    >>> fig = coverage(frame)  # tc.plot.coverage
    """
    columns = list(getattr(frame, "columns", ()))
    if missing := [name for name in _COLUMNS if name not in columns]:
        raise InputError(f"`frame` must have the columns {', '.join(_COLUMNS)}; it lacks {', '.join(missing)}")
    for name, (start, end) in _COLUMNS.items():
        values = frame[name].to_numpy(float)
        if not len(values) or not np.all((values >= start) & (values <= end) & np.isfinite(values)):
            raise InputError(
                f"`frame` must have `{name}` in [{start}, {end}], in one row or more, got {short_repr(values.tolist())}"
            )
    by_label = {"": frame}
    if "label" in frame:
        by_label = {str(label): part for label, part in frame.groupby("label", sort=False)}
    cols = min(3, len(by_label))
    rows = math.ceil(len(by_label) / cols)
    fig, axes = figure(rows, cols, width=4.6 if cols > 1 else 5.8, height=3.9)
    for ax in list(axes.flat)[len(by_label) :]:
        ax.set_visible(False)
    levels = sorted(frame["level"].unique())
    for ax, (label, of_label) in zip(axes.flat, by_label.items(), strict=False):
        for i, level in enumerate(levels):
            line = of_label[of_label["level"] == level].sort_values("step")
            share, colour = line["coverage"].to_numpy(float), COLOURS[i % len(COLOURS)]
            low, high = binomial(share, line["runs"].to_numpy(float))
            # Side by side: bars of several levels at one step would hide each other.
            aside = 1.04 ** (i - (len(levels) - 1) / 2)
            ax.errorbar(
                line["step"] * aside, share, [share - low, high - share], color=colour, linewidth=1.4, capsize=2,
                marker=MARKERS[i % len(MARKERS)], markersize=4, label=f"{100 * level:g} %",
            )  # fmt: skip
            ax.axhline(level, color=colour, linestyle="--", linewidth=0.9, alpha=0.8, zorder=1)
        ax.set(xscale="log", xlabel="samples", ylabel="share of intervals that cover", title=plain(label))
        # The points stand beside their step, so that only steps are written on the axis.
        steps = sorted(of_label["step"].unique())
        ax.set_xticks(steps, [f"{step:,}" for step in steps])
        ax.set_xticks([], minor=True)
        ax.set_xlim(steps[0] / 1.5, steps[-1] * 1.5)
        bottom = min(frame["coverage"].min(), frame["level"].min())
        ax.set_ylim(max(0.0, bottom - 0.08), 1.01)
    axes[0, 0].legend(frameon=False, fontsize="small", title="nominal", title_fontsize="small", loc="lower right")
    if title is not None:
        fig.suptitle(plain(title), fontsize="medium")
    least, most = int(frame["runs"].min()), int(frame["runs"].max())
    runs = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    caption(fig, f"{runs} independent runs; bars: 95 % binomial error (Wilson); dashed: what is promised")
    return fig


def binomial(share: np.ndarray, runs: np.ndarray, z: float = 1.959964) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval of a share of so many runs, which stays inside [0, 1] and about the share."""
    middle = (share + z**2 / (2 * runs)) / (1 + z**2 / runs)
    half = z / (1 + z**2 / runs) * np.sqrt(share * (1 - share) / runs + z**2 / (4 * runs**2))
    return np.minimum(middle - half, share), np.maximum(middle + half, share)
