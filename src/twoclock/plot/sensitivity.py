"""How much a score depends on each setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from twoclock.plot.figures import COLOURS, LABELS, caption, figure

if TYPE_CHECKING:
    import pandas as pd

_RANGE = 1e4  # shown above the best score


def sensitivity(ranking: pd.DataFrame, curve: pd.DataFrame, metric: str, spec: dict[str, Any]) -> Figure:
    """A panel for each setting: its neighbours with the others at their best, and all settings tried at the horizon.

    Args:
        ranking, curve, metric, spec: those of a ``Tuned``; ``curve`` is its ``sensitivity``.
    """
    names, best = list(spec["space"]), spec["best"]
    fig, axes = figure(1, len(names), width=4.2, height=3.6)
    tried = ranking[(ranking["steps"] == spec["steps"]) | (ranking["diverged"] > 0)]
    scores = np.concatenate([tried["score"], curve["score"]])
    scores = scores[(scores > 0) & (scores <= _RANGE * np.abs(scores).min())]
    floor, top = 0.5 * scores.min(), 4 * scores.max()
    for ax, name in zip(axes[0], names, strict=True):
        moved = curve[curve["setting"] == name]
        fine, line = (t[(t["diverged"] == 0) & (t["score"] <= top)] for t in (tried, moved))
        ax.plot(fine[name], np.maximum(fine["score"], floor), "o", color="0.7", markersize=4, label="other settings")
        score, low, high = (np.clip(line[column], floor, top) for column in ("score", "low", "high"))
        ax.errorbar(
            line["value"], score, [score - low, high - score], color=COLOURS[0], linewidth=1.6, marker="o",
            markersize=4, capsize=2, label="this one alone moved",
        )  # fmt: skip
        ax.plot(best[name], score[line["value"] == best[name]], "*", color=COLOURS[1], markersize=13, label="chosen")
        lost = np.concatenate(
            [tried.loc[~tried.index.isin(fine.index), name], moved.loc[~moved.index.isin(line.index), "value"]]
        )
        ax.plot(
            lost,
            np.full(len(lost), top / 1.5),
            "x",
            color=COLOURS[6],
            markersize=5,
            label="diverged, or worse than shown",
        )
        ax.set(xscale="log", yscale="log", xlim=spec["space"][name], ylim=(floor, top), xlabel=name.replace(",", ", "))
        ax.xaxis.set_minor_formatter(NullFormatter())  # a short range would get labels on top of each other
    axes[0, 0].set_ylabel(LABELS.get(metric, metric))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize="small")
    last = ranking.iloc[0]
    caption(
        fig,
        f"mean over {int(last['seeds'])} seeds after {int(last['steps']):,} steps; bars: 95 % bootstrap interval; "
        f"{len(ranking)} settings tried with {spec['spent']:,} seed-steps",
    )
    return fig
