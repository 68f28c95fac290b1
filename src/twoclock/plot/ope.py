"""Figure of an off-policy evaluation: estimators with intervals, weights, support of each state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from twoclock.plot.style import COLOURS, caption, figure, plain

_MOST_STATES = 2_000


def values(
    table: pd.DataFrame, weights: Mapping[str, np.ndarray], support: Mapping[str, pd.DataFrame], level: float
) -> Figure:
    """Draw a panel each for the estimators, the weights and, for tables, the states.

    Args:
        table: columns policy, estimator, value, low, high, told.
        weights: by policy, weights of transitions.
        support: by policy, columns visits and target, one row per state.
        level: of the intervals.
    """
    fig, axes = figure(1, 2 + bool(support), width=4.6, height=max(3.4, 0.3 * len(table) + 1.2))
    ax = axes[0, 0]
    shown = table[table["value"].notna()].reset_index(drop=True)
    policies = list(dict.fromkeys(shown["policy"]))
    labels = []
    columns = ["policy", "estimator", "value", "low", "high", "told"]
    for i, (policy, estimator, value, low, high, told) in enumerate(shown[columns].itertuples(index=False)):
        colour = COLOURS[policies.index(policy) % len(COLOURS)]
        if np.isfinite([low, high]).all():
            ax.plot([low, high], [i, i], color=colour, linewidth=2.2, alpha=1.0 if told else 0.35)
        ax.plot([value], [i], "o", color=colour, markerfacecolor=colour if told else "none", markersize=5)
        labels.append(plain(f"{policy}, {estimator}" if len(policies) > 1 else str(estimator)))
    ax.set_yticks(range(len(shown)), labels)
    ax.invert_yaxis()
    ax.set(xlabel="value")

    ax = axes[0, 1]
    for i, (policy, sample) in enumerate(weights.items()):
        if len(sample):
            ax.hist(sample, 60, histtype="step", color=COLOURS[i % len(COLOURS)], label=plain(policy), linewidth=1.3)
    ax.set(xlabel="weight of a transition, times their number", ylabel="transitions (a sample)", yscale="log")
    ax.set_ylim(bottom=0.5)  # one transition is seen, and a bar of a hundred stands as high as it should
    if len(weights) > 1:
        ax.legend(frameon=False, fontsize="small")

    if support:  # visits in the log against discounted visits of the target; states at the left have no data
        ax = axes[0, 2]
        for i, (policy, states) in enumerate(support.items()):
            some = states.nlargest(_MOST_STATES, "target")
            visits, target, colour = some["visits"], some["target"].clip(lower=0), COLOURS[i % len(COLOURS)]
            ax.plot(visits, target, "o", color=colour, markersize=3, alpha=0.6, label=plain(policy))
        ax.set_xscale("symlog", linthresh=1)
        ax.set_yscale("symlog", linthresh=1e-3)
        ax.set(xlabel="visits of a state in the log", ylabel="discounted visits of the policy")
        ax.set_xlim(left=-0.2)
    bars = f"{level:.0%} intervals over episodes (or blocks of one stream)"
    caption(fig, f"bars: {bars}; hollow: cannot be told from this log")
    return fig
