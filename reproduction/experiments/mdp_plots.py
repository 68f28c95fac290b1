"""The pictures of the entropy-regularised MDPs."""

from __future__ import annotations

import numpy as np

from reproduction.experiment import Records
from reproduction.experiments.mdp_settings import BOLD, CRITIC, FAST, RIVAL, WORDS, measured, slopes, words
from twoclock import plot


def draw_gaps(records: Records) -> plot.Figure:
    shown = measured(records)
    families = list(dict.fromkeys(where.split()[0] for where in shown))
    columns = max(sum(where.startswith(family) for where in shown) for family in families)
    fig, axes = plot.figure(len(families), columns, width=5.6 if columns == 1 else 4.0, height=3.6)
    for row, family in zip(axes, families, strict=True):
        for ax, where in zip(row, (w for w in shown if w.startswith(family)), strict=False):
            plot.curves(ax, shown[where], "gap")
            table = shown[where][FAST].summary("gap")
            last = table[table["step"] >= table["step"].max() / 10]
            plot.slope(ax, -1.0, (float(last["step"].iloc[0]), float(last["mean"].iloc[0]) / 4), "1/k")
            ax.set_title(words(where), fontsize="medium")
            ax.set_ylabel("J* − J(π), mean of seeds")
            ax.legend(frameon=False, fontsize="x-small").set_visible(ax is axes[0, 0])
    first = next(iter(shown.values()))
    run, counted = first[FAST].spec, len(first[RIVAL].spec["seeds"])
    plot.caption(
        fig,
        f"{'; '.join(WORDS[family] for family in families)}; restart sampling, {len(run['seeds'])} seeds, "
        f"{run['steps']:,} samples; bands: 95 % bootstrap interval of the mean. Each method tuned on other seeds "
        f"at 10⁶ samples. Model-based: soft value iteration on the frequencies in Fast's samples, {counted} seeds.",
    )
    return fig


def draw_rates(records: Records) -> plot.Figure:
    fig, axes = plot.figure(1, 2, width=5.6, height=4.4)
    left, right = axes[0]
    found, shown = slopes(records, 1.0), measured(records)
    for i, name in enumerate((*CRITIC, BOLD, RIVAL)):
        rows = [found[where][name] for where in found]
        at = np.arange(len(rows)) + 0.15 * (i - 2)
        middle, low, high = np.array(rows).T
        left.errorbar(
            middle, at, xerr=[middle - low, high - middle], fmt=plot.MARKERS[i], color=plot.COLOURS[i], markersize=4,
            linewidth=1.2, label=name,
        )  # fmt: skip
    for slope, label in ((-1.0, "−1"), (-2 / 3, "−2/3")):
        left.axvline(slope, color="0.45", linestyle="--", linewidth=1, zorder=1)
        left.annotate(label, (slope, -0.6), fontsize="x-small", color="0.35", backgroundcolor="w", ha="center")
    left.set_yticks(range(len(found)), [words(where) for where in found])
    left.set(xlabel="slope of log mean gap, last decade", ylim=(len(found) + 0.9, -0.9))
    left.legend(frameon=False, fontsize="x-small", ncols=2, loc="lower center")
    for i, (where, results) in enumerate(shown.items()):
        table = results[FAST].summary("least_probability")
        table = table[table["step"] > 0]
        style = "-" if where.startswith("random") else "--"
        right.plot(table["step"], table["median"], color=plot.COLOURS[i % 3], linestyle=style, linewidth=1.6)
        right.annotate(
            words(where), (table["step"].iloc[-1], table["median"].iloc[-1]), (3, 0),
            textcoords="offset points", fontsize="x-small", color=plot.COLOURS[i % 3], va="center",
        )  # fmt: skip
    right.set(
        xscale="log", yscale="log", xlabel="steps k (one sample each)", ylabel="smallest action probability, Fast"
    )
    right.set_xlim(None, float(table["step"].iloc[-1]) * 60)
    plot.caption(fig, "Left: bars are 95 % bootstrap intervals over the seeds. Right: median of the seeds.")
    return fig
