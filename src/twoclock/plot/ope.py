"""The value of policies on a log: estimators with their intervals, the weights, the support of each state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twoclock.plot.style import COLOURS, caption, figure, plain

_MOST_STATES = 2_000


def values(
    table: pd.DataFrame, weights: Mapping[str, np.ndarray], support: Mapping[str, pd.DataFrame], level: float
) -> Figure:
    """One panel each for the estimators, the weights and, for tables, the states.

    Args:
        table: columns policy, estimator, value, low, high, told.
        weights: by policy, weights of transitions.
        support: by policy, columns visits and target, one row a state.
        level: of the intervals.
    """
    panels = 2 + bool(support)
    fig, axes = figure(1, panels, width=4.6, height=max(3.4, 0.3 * len(table) + 1.2))
    _estimators(axes[0, 0], table)
    _weights(axes[0, 1], weights)
    if support:
        _support(axes[0, 2], support)
    caption(
        fig,
        f"bars: {level:.0%} intervals over episodes (or blocks of one stream); hollow: cannot be told from this log",
    )
    return fig


def _estimators(ax: Axes, table: pd.DataFrame) -> None:
    shown = table[table["value"].notna()].reset_index(drop=True)
    policies = list(dict.fromkeys(shown["policy"]))
    for i, (policy, value, low, high, told) in enumerate(
        shown[["policy", "value", "low", "high", "told"]].itertuples(index=False)
    ):
        colour = COLOURS[policies.index(policy) % len(COLOURS)]
        if np.isfinite([low, high]).all():
            ax.plot([low, high], [i, i], color=colour, linewidth=2.2, alpha=1.0 if told else 0.35)
        ax.plot([value], [i], "o", color=colour, markerfacecolor=colour if told else "none", markersize=5)
    several = len(policies) > 1
    labels = [
        plain(f"{p}, {e}" if several else str(e)) for p, e in zip(shown["policy"], shown["estimator"], strict=True)
    ]
    ax.set_yticks(range(len(shown)), labels)
    ax.invert_yaxis()
    ax.set(xlabel="value")


def _weights(ax: Axes, weights: Mapping[str, np.ndarray]) -> None:
    for i, (policy, some) in enumerate(weights.items()):
        if len(some):
            ax.hist(some, bins=60, histtype="step", color=COLOURS[i % len(COLOURS)], label=plain(policy), linewidth=1.3)
    ax.set(xlabel="weight of a transition, times their number", ylabel="transitions (a sample)", yscale="log")
    ax.set_ylim(bottom=0.5)  # one transition is seen, and a bar of a hundred stands as high as it should
    if len(weights) > 1:
        ax.legend(frameon=False, fontsize="small")


def _support(ax: Axes, support: Mapping[str, pd.DataFrame]) -> None:
    """Visits in the log against discounted visits of the target; what is at the left has no data."""
    for i, (policy, states) in enumerate(support.items()):
        some = states.nlargest(_MOST_STATES, "target")
        colour = COLOURS[i % len(COLOURS)]
        ax.plot(
            some["visits"],
            some["target"].clip(lower=0),
            "o",
            color=colour,
            markersize=3,
            alpha=0.6,
            label=plain(policy),
        )
    ax.set_xscale("symlog", linthresh=1)
    ax.set_yscale("symlog", linthresh=1e-3)
    ax.set(xlabel="visits of a state in the log", ylabel="discounted visits of the policy")
    ax.set_xlim(left=-0.2)
