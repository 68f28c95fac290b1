"""The figure that shows a reproduction at a glance."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence

from twoclock.plot import Axes, Figure, figure

_TONES = {"✓": "#00664b", "◐": "#7a4b00", "✗": "#a3320b"}
_LINE, _BOLD = 50, 44  # characters above a panel


def summary(panels: Sequence[tuple[str, str, Callable[[Axes], None]]], cols: int = 3) -> Figure:
    """A panel for each (claim, verdict, draw): the claim above it, the verdict under the claim."""
    rows = max(1, math.ceil(len(panels) / cols))
    fig, axes = figure(rows, min(cols, max(1, len(panels))), width=3.9, height=3.8)
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    for ax, (claim, verdict, draw) in zip(axes.flat, panels, strict=False):
        draw(ax)
        judged = textwrap.fill(verdict, _BOLD)
        ax.set_title(textwrap.fill(claim, _LINE) + "\n" * (judged.count("\n") + 1), fontsize="small", loc="left")
        ax.annotate(
            judged, (0, 1), (0, 4), xycoords="axes fraction", textcoords="offset points", fontsize="small",
            fontweight="bold", va="bottom", in_layout=False, color=_TONES.get(verdict[0], "0.3"),
        )  # fmt: skip
        if ax.get_legend() is not None:
            ax.legend(frameon=False, fontsize="x-small")
    return fig
