"""How often intervals cover, against what they promise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from twoclock.plot.style import COLOURS, MARKERS, caption, figure, plain
from twoclock.protocols import InputError
from twoclock.validation import shown

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("step", "level", "coverage", "runs")


def coverage(frame: pd.DataFrame, title: str | None = None) -> Figure:
    """Coverage against samples: a line for each nominal level with its 95 % binomial error, the level dashed.

    Args:
        frame: one row a step and level: ``step``, ``level``, ``coverage`` (the share of intervals that covered) and
            ``runs`` (how many independent runs it is of: outputs of one run are not independent of each other); with a
            column ``label``, a panel for each.
        title: above the figure.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"step": [1000, 10000], "level": 0.95, "coverage": [0.91, 0.946], "runs": 1000})
    >>> fig = coverage(frame)  # tc.plot.coverage
    """
    check_coverage(frame)
    by_label = (
        {str(label): part for label, part in frame.groupby("label", sort=False)} if "label" in frame else {"": frame}
    )
    cols = min(3, len(by_label))
    rows = math.ceil(len(by_label) / cols)
    fig, axes = figure(rows, cols, width=4.6 if cols > 1 else 5.8, height=3.9)
    for ax in list(axes.flat)[len(by_label) :]:
        ax.set_visible(False)
    levels = sorted(frame["level"].unique())
    for ax, (label, of_label) in zip(axes.flat, by_label.items(), strict=False):
        for i, level in enumerate(levels):
            line = of_label[of_label["level"] == level].sort_values("step")
            low, high = binomial(line["coverage"].to_numpy(float), line["runs"].to_numpy(float))
            share, colour = line["coverage"].to_numpy(float), COLOURS[i % len(COLOURS)]
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


def check_coverage(frame: pd.DataFrame) -> None:
    columns = list(getattr(frame, "columns", ()))
    if missing := [name for name in _COLUMNS if name not in columns]:
        raise InputError(f"`frame` must have the columns {', '.join(_COLUMNS)}; it lacks {', '.join(missing)}")
    rules = {"step": (0, math.inf), "level": (0, 1), "coverage": (0, 1), "runs": (1, math.inf)}
    for name, (low, high) in rules.items():
        values = frame[name].to_numpy(float)
        if not len(values) or not np.all((values >= low) & (values <= high) & np.isfinite(values)):
            raise InputError(
                f"`frame` must have `{name}` in [{low}, {high}], in one row or more, got {shown(values.tolist())}"
            )
