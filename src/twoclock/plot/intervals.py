"""The estimates of one run as its samples come in, in the band of their confidence intervals."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twoclock.plot.curves import check_panel, length
from twoclock.plot.style import COLOURS, caption, figure, plain
from twoclock.protocols import InputError
from twoclock.validation import pick

if TYPE_CHECKING:
    import pandas as pd

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
    check_panel(ax, scale)
    of_output = {str(name): part for name, part in frame.groupby("output", sort=False)}
    names = list(of_output)
    if output is not None:
        pick(of_output, output, "metric")
        chosen = [output]
    else:
        chosen = names[: 1 if ax is not None else _MOST_PANELS]
    seed, last = frame["seed"].iloc[0], int(frame["step"].iloc[-1])
    if ax is None:
        cols = math.ceil(math.sqrt(len(chosen)))
        rows = math.ceil(len(chosen) / cols)
        fig, axes = figure(rows, cols, length(size, 0) / cols, length(size, 1) / rows)
        panels = list(axes.flat)
        for empty in panels[len(chosen) :]:
            empty.set_visible(False)
    else:
        panels, root = [ax], ax.get_figure(root=True)
        if root is None:
            raise InputError("`ax` must belong to a figure; make it with `fig.subplots()`")
        fig = root
    band = f"{100 * level:g} % confidence band of this one run (seed {seed})"
    for panel, name in zip(panels, chosen, strict=False):
        _draw(panel, of_output[name], name, band)
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


def _draw(ax: Axes, path: pd.DataFrame, name: str, band: str) -> None:
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
