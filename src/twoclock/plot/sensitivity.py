"""How much a score depends on each setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from twoclock.plot.style import COLOURS, LABELS, caption, figure

if TYPE_CHECKING:
    import pandas as pd

_RANGE = 1e4  # shown above the best score


def sensitivity(
    ranking: pd.DataFrame, curve: pd.DataFrame, metric: str, spec: dict[str, Any], edge: Mapping[str, str]
) -> Figure:
    """A panel for each setting: its neighbours with the others at their best, and all settings tried at the horizon.

    Where the chosen value lies at an edge of the box, that side is shaded and said to be; where the box was widened, a
    dotted line shows the limit that was given.

    Args:
        ranking, curve, metric, spec, edge: those of a ``Tuned``; ``curve`` is its ``sensitivity``.
    """
    names, best = list(spec["space"]), spec["best"]
    fig, axes = figure(1, len(names), width=4.2, height=3.6)
    tried = ranking[(ranking["steps"] == spec["steps"]) | (ranking["diverged"] > 0)]
    scores = np.concatenate([tried["score"], curve["score"]])
    upwards = spec.get("scale", "log")
    if upwards == "log":
        scores = scores[(scores > 0) & (scores <= _RANGE * np.abs(scores).min())]
        floor, top = 0.5 * scores.min(), 4 * scores.max()
    else:  # what was earned, with a minus
        scores = np.concatenate([scores, curve["low"], curve["high"]])
        scores = scores[np.isfinite(scores)]
        margin = 0.1 * np.ptp(scores) or 1.0
        floor, top = scores.min() - margin, scores.max() + 2 * margin
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
            np.full(len(lost), top / 1.5 if upwards == "log" else top - margin / 2),
            "x",
            color=COLOURS[6],
            markersize=5,
            label="diverged, or worse than shown",
        )
        ax.set(
            xscale="log", yscale=upwards, xlim=spec["space"][name], ylim=(floor, top), xlabel=name.replace(",", ", ")
        )
        _mark_edge(ax, spec["space"][name], spec["given"][name], edge.get(name))
        ax.xaxis.set_minor_formatter(NullFormatter())  # a short range would get labels on top of each other
    axes[0, 0].set_ylabel(LABELS.get(metric, metric))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(
        handles, labels, loc="outside upper center", ncols=4 if len(names) > 1 else 2, frameon=False, fontsize="small"
    )
    last = ranking.iloc[0]
    caption(
        fig,
        f"mean over {int(last['seeds'])} seeds after {int(last['steps']):,} steps; bars: 95 % bootstrap interval; "
        f"{len(ranking)} settings tried with {spec['spent']:,} seed-steps",
    )
    return fig


def _mark_edge(ax: Axes, box: tuple[float, float], given: tuple[float, float], edge: str | None) -> None:
    """Limits that were passed, dotted; and the tenth of the box, on the log scale, in which the choice is."""
    for limit in set(given) - set(box):
        ax.axvline(limit, color="0.4", linestyle=":", linewidth=1)
    if edge is not None:
        tenth = (box[1] / box[0]) ** 0.1
        band = (box[0], box[0] * tenth) if edge == "low" else (box[1] / tenth, box[1])
        ax.axvspan(*band, color=COLOURS[1], alpha=0.25, linewidth=0)
        ax.set_title("at the edge of its box", fontsize="small", color=COLOURS[1])


def tuned_scores(ranking: pd.DataFrame, metric: str, spec: dict[str, Any]) -> Figure:
    """The score of each method with its interval, the best at the top.

    Args:
        ranking, metric, spec: those of a ``TunedMethods``.
    """
    fig, axes = figure(1, 1, width=6.0, height=1.2 + 0.4 * len(ranking))
    ax, places = axes[0, 0], np.arange(len(ranking))[::-1]
    score, low, high = (ranking[column].to_numpy() for column in ("score", "low", "high"))
    ax.errorbar(score, places, xerr=[score - low, high - score], fmt="o", color=COLOURS[0], capsize=3)
    if np.all(low > 0):
        ax.set_xscale("log")
    ax.set_yticks(places, ranking["label"])
    ax.set(xlabel=LABELS.get(metric, metric), ylim=(-0.6, len(ranking) - 0.4))
    first = ranking.iloc[0]
    caption(
        fig,
        f"mean over {int(first['seeds'])} seeds that no tuning had seen, {spec['steps']:,} steps; "
        f"bars: 95 % bootstrap interval; {spec['budget']:,} seed-steps to tune each",
    )
    return fig
