"""A figure, its style, and its files."""

from __future__ import annotations

import io
import math
import os
import sys
import tempfile
import warnings
import webbrowser
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from twoclock.protocols import InputError
from twoclock.validation import short_repr

#: Okabe & Ito: distinguishable with any common colour vision, and in grey when printed.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")
#: One marker per line of a panel, to distinguish lines without colour.
MARKERS = "osD^vPX*"

_NO_GLYPH = "Glyph .* missing"

#: The axis labels of metrics.
LABELS = {
    "error": "‖θ − θ*‖²",
    "gap": "|h(θ) − h*|",
    "gradient": "‖∇h(θ)‖²",
    "tracking": "‖ω − ω*(θ)‖²",
    "f_sq": "‖f‖²",
    "g_sq": "‖g‖²",
}


class ShownFigure(Figure):
    """A matplotlib figure without pyplot; a notebook shows it as a cell's last line."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_NO_GLYPH)
            self.savefig(buffer, format="png")
        return buffer.getvalue()

    def show(self, warn: bool = True) -> None:
        """Show the figure in a notebook; elsewhere save it, print the path, and open it if there is a screen."""
        if "IPython" in sys.modules:
            from IPython import get_ipython
            from IPython.display import display

            if hasattr(get_ipython(), "kernel"):
                display(self)
                return
        handle, name = tempfile.mkstemp(prefix="twoclock-", suffix=".png")
        with os.fdopen(handle, "wb") as file:
            file.write(self._repr_png_())
        sys.stdout.write(f"figure saved to {name}\n")
        if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform in ("darwin", "win32"):
            webbrowser.open(Path(name).as_uri())


def figure(rows: int = 1, cols: int = 1, width: float = 5.2, height: float = 3.8) -> tuple[Figure, np.ndarray]:
    """A figure and its axes, rows × cols; width and height are those of one panel, in inches.

    Args:
        rows, cols: the number of panels.
        width, height: of one panel, in inches.

    >>> fig, axes = figure(cols=2)
    >>> axes.shape
    (1, 2)
    """
    fig = ShownFigure(figsize=(width * cols, height * rows), layout="constrained", dpi=150)
    FigureCanvasAgg(fig)
    axes = fig.subplots(rows, cols, squeeze=False)
    for ax in axes.flat:
        ax.grid(visible=True, which="major", linewidth=0.5, alpha=0.35)
        ax.spines[["top", "right"]].set_visible(False)
    return fig, axes


def plain(label: str) -> str:
    """Escape a user's label, so that a `$` starts no formula and a leading underscore does not hide it in the
    legend."""
    text = str(label).replace("$", r"\$")
    return f"\u200b{text}" if text.startswith("_") else text


def caption(fig: Figure, text: str) -> None:
    """Write the settings under the figure.

    Args:
        fig: the figure.
        text: the settings.

    >>> fig, axes = figure()
    >>> caption(fig, "20 seeds")
    """
    fig.supxlabel(text, fontsize="x-small", color="0.3", ha="center", wrap=True)


def stamp(fig: Figure, text: str) -> None:
    """Write a caveat above the figure, in a separate strip.

    Args:
        fig: the figure.
        text: the caveat.

    >>> fig, axes = figure()
    >>> stamp(fig, "quick run")
    """
    strip = 0.22 / fig.get_figheight()
    engine = fig.get_layout_engine()
    if engine is not None:
        engine.set(rect=(0, 0, 1, 1 - strip))  # type: ignore[call-arg]
    fig.text(0.005, 0.995, text, ha="left", va="top", fontsize="x-small", color="#D55E00")


def render(fig: Figure) -> dict[str, bytes]:
    """The figure as PNG and as SVG. The SVG has no date and no random names: the same figure is the same file.

    Args:
        fig: the figure.

    >>> fig, axes = figure()
    >>> sorted(render(fig))
    ['png', 'svg']
    """
    png, svg = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "twoclock"}):
        warnings.filterwarnings("ignore", message=_NO_GLYPH)  # a label with letters that the font lacks
        if (layout := fig.get_layout_engine()) is not None:
            layout.execute(fig)  # once for both
            fig.set_layout_engine(None)
        fig.savefig(png, format="png")
        fig.savefig(svg, format="svg", metadata={"Date": None})
    return {"png": png.getvalue(), "svg": svg.getvalue()}


def panels_for(
    count: int, ax: Axes | None, scale: Literal["log", "linear"], size: tuple[float, float]
) -> tuple[Figure, list[Axes]]:
    """The user's axes and its figure, or ``count`` panels of a new figure of that width and height in inches."""
    if scale not in ("log", "linear"):
        raise InputError(f"`scale` must be 'log' or 'linear', got {short_repr(scale)}")
    if ax is not None:
        if not hasattr(ax, "get_figure"):
            raise InputError(f"`ax` must be a Matplotlib axes, got {short_repr(ax)}; leave it out for a new figure")
        if (fig := ax.get_figure(root=True)) is None:
            raise InputError("`ax` must belong to a figure; make it with `fig.subplots()`")
        return fig, [ax]
    try:
        width, height = (float(side) for side in size)
    except (TypeError, ValueError):
        width = height = 0.0
    if not (0 < width <= 100 and 0 < height <= 100):
        raise InputError(
            f"`size` must be a width and a height in inches, up to 100, such as (6.4, 4.6), got {short_repr(size)}"
        )
    cols = math.ceil(math.sqrt(count))
    rows = math.ceil(count / cols)
    fig, axes = figure(rows, cols, width / cols, height / rows)
    for empty in axes.flat[count:]:
        empty.set_visible(False)
    return fig, list(axes.flat[:count])
