"""HTML and Markdown reports from jinja2 templates with one style sheet and script, and the figure of an evaluation."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import jinja2
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from twoclock.plot.style import COLOURS, caption, figure, plain

_SHARED = Path(__file__).parent / "templates"
_MOST_STATES = 2_000


def render_page(
    template_folder: str | Path,
    name: str,
    *,
    filters: dict[str, Callable[..., str]] | None = None,
    finalize: Callable[[object], object] | None = None,
    **context: object,
) -> str:
    """Render a template; ``{% include "report.css" %}`` and ``{% include "report.js" %}`` work in each.

    Args:
        template_folder: where the template is.
        name: the template's file; values are escaped as HTML if it ends in ".html.j2".
        filters: functions that the template may apply to a value, by name.
        finalize: applied to every value before it is written.
        context: the values for the template; a missing name is an error.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "page.html.j2").write_text("<p>{{ words }}</p>")
    ...     render_page(folder, "page.html.j2", words="1 < 2")
    '<p>1 &lt; 2</p>'
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template_folder, _SHARED]),
        autoescape=name.endswith(".html.j2"),
        finalize=finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters or {})
    return environment.get_template(name).render(**context)


def embed_svg(svg: bytes) -> tuple[str, int]:
    """Return a picture as a data URI, and its natural width in CSS pixels.

    Args:
        svg: the picture.

    >>> embed_svg(b'<svg width="72pt"></svg>')[1]
    96
    """
    points = re.search(rb'<svg[^>]*? width="([\d.]+)pt"', svg)
    width = round(float(points[1]) * 96 / 72) if points else 960
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode(), width


def values(
    table: pd.DataFrame, weights: Mapping[str, np.ndarray], support: Mapping[str, pd.DataFrame], level: float
) -> Figure:
    """Draw an evaluation: a panel each for the estimators, the weights and, for tables, the states.

    Args:
        table: columns policy, estimator, value, low, high, supported.
        weights: by policy, weights of transitions.
        support: by policy, columns visits and target, one row per state.
        level: the coverage of the intervals.

    >>> import pandas as pd
    >>> row = {"policy": "a", "estimator": "lstdq", "value": 1.0, "low": 0.5, "high": 1.5, "supported": True}
    >>> fig = values(pd.DataFrame([row]), {"a": np.ones(10)}, {}, 0.95)
    """
    weights = {policy: sample for policy, sample in weights.items() if len(sample)}
    fig, axes = figure(1, 1 + bool(weights) + bool(support), width=4.6, height=max(3.4, 0.3 * len(table) + 1.2))
    ax = axes[0, 0]
    shown = table[table["value"].notna()].reset_index(drop=True)
    policies = list(dict.fromkeys(shown["policy"]))
    labels = []
    columns = ["policy", "estimator", "value", "low", "high", "supported"]
    for i, (policy, estimator, value, low, high, supported) in enumerate(shown[columns].itertuples(index=False)):
        colour = COLOURS[policies.index(policy) % len(COLOURS)]
        if np.isfinite([low, high]).all():
            ax.plot([low, high], [i, i], color=colour, linewidth=2.2, alpha=1.0 if supported else 0.35)
        ax.plot([value], [i], "o", color=colour, markerfacecolor=colour if supported else "none", markersize=5)
        labels.append(plain(f"{policy}, {estimator}" if len(policies) > 1 else str(estimator)))
    ax.set_yticks(range(len(shown)), labels)
    ax.invert_yaxis()
    ax.set(xlabel="value")

    if weights:
        ax = axes[0, 1]
        for i, (policy, sample) in enumerate(weights.items()):
            ax.hist(sample, 60, histtype="step", color=COLOURS[i % len(COLOURS)], label=plain(policy), linewidth=1.3)
        ax.set(xlabel="weight of a transition, times their number", ylabel="transitions (a sample)", yscale="log")
        ax.set_ylim(bottom=0.5)  # so that a bar of one transition is visible beside tall ones
        if len(weights) > 1:
            ax.legend(frameon=False, fontsize="small")

    if support:  # visits in the log against discounted visits of the target; states at the left have no data
        ax = axes[0, -1]
        for i, (policy, states) in enumerate(support.items()):
            some = states.nlargest(_MOST_STATES, "target")
            visits, target, colour = some["visits"], some["target"].clip(lower=0), COLOURS[i % len(COLOURS)]
            ax.plot(visits, target, "o", color=colour, markersize=3, alpha=0.6, label=plain(policy))
        ax.set_xscale("symlog", linthresh=1)
        ax.set_yscale("symlog", linthresh=1e-3)
        ax.set(xlabel="visits of a state in the log", ylabel="discounted visits of the policy")
        ax.set_xlim(left=-0.2)
    bars = f"{level:.0%} intervals over episodes (or blocks of one stream)"
    caption(fig, f"bars: {bars}; hollow: cannot be estimated from this log")
    return fig
