"""A reproduction at a glance."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twoclock.plot.figures import figure

_TONES = {"✓": "#00664b", "◐": "#7a4b00", "✗": "#a3320b"}


def summary(panels: Sequence[tuple[str, str, Callable[[Axes], None]]], cols: int = 3) -> Figure:
    """A panel for each (claim, verdict, draw): the claim above it, the verdict under the claim."""
    rows = max(1, math.ceil(len(panels) / cols))
    fig, axes = figure(rows, min(cols, max(1, len(panels))), width=4.4, height=3.9)
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    for ax, (claim, verdict, draw) in zip(axes.flat, panels, strict=False):
        draw(ax)
        ax.set_title(textwrap.fill(claim, 52) + "\n", fontsize="small", loc="left")
        ax.annotate(
            textwrap.shorten(verdict, 52, placeholder=" …"), (0, 1), (0, 4), xycoords="axes fraction",
            textcoords="offset points", fontsize="small", fontweight="bold", va="bottom", in_layout=False,
            color=_TONES.get(verdict[0], "0.3"),
        )  # fmt: skip
    return fig
