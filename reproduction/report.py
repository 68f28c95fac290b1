"""The report on disk: one HTML file that needs nothing else, the same in Markdown, the tables as CSV, and a summary."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from markupsafe import Markup, escape

from reproduction.experiment import Records
from reproduction.report_view import final_numbers, gather
from reproduction.runner import ExperimentOutcome, Picture
from reproduction.verdicts import SIGNS, kind
from twoclock import plot, storage

SUMMARY = "What was claimed and what was measured, one panel an experiment; the line under each title is the verdict."
TEMPLATES = Path(__file__).parent / "templates"
_TONES = {"✓": "#00664b", "◐": "#7a4b00", "✗": "#a3320b"}
_LINE, _BOLD, _COLUMNS = 50, 44, 3  # characters above a panel; panels in a row
Panel = Callable[[plot.Axes, Records], None]


def write(
    outcomes: Sequence[ExperimentOutcome],
    panels: Mapping[str, Panel],
    out: Path,
    provenance: Mapping[str, object],
    *,
    quick: bool,
) -> dict[str, Path]:
    """Write report.html, report.md, the summary picture and the tables; returns their paths by name.

    Args:
        panels: for each experiment that has one, a function ``panel(ax, records)`` that draws what its first
            claim is about.
        provenance: what made the numbers, for the end of the report.
        quick: mark every page as a quick run.
    """
    outcomes = sorted(outcomes, key=lambda o: all(claim.ours for claim in o.claims))  # the paper's come first
    report = gather(outcomes, _summary(outcomes, panels, out, quick=quick), out, provenance, quick=quick)
    written = {}
    for name, finalize in (("report.html", None), ("report.md", markdown)):
        page = plot.render_page(TEMPLATES, f"{name}.j2", filters={"prose": prose}, finalize=finalize, report=report)
        written[name] = storage.put(out / name, page)
    tables = {"claims": claims_table(outcomes), **{o.name: final_numbers(o, out) for o in outcomes}}
    for name, table in tables.items():
        written[f"{name}.csv"] = storage.put(out / "tables" / f"{name}.csv", table.to_csv(index=False))
    return written


def _summary(outcomes: Sequence[ExperimentOutcome], panels: Mapping[str, Panel], out: Path, *, quick: bool) -> Picture:
    """Draw the first claim of each experiment that has a panel: the claim above it, the verdict under the claim."""
    shown = [outcome for outcome in outcomes if outcome.name in panels]
    rows = max(1, math.ceil(len(shown) / _COLUMNS))
    fig, axes = plot.figure(rows, min(_COLUMNS, max(1, len(shown))), width=3.9, height=3.8)
    for ax in axes.flat[len(shown) :]:
        ax.set_visible(False)
    for ax, outcome in zip(axes.flat, shown, strict=False):
        panels[outcome.name](ax, outcome.records)
        first = outcome.claims[0]
        sign = SIGNS[kind(first.verdict)]
        judged = textwrap.fill(f"{sign} {first.verdict}", _BOLD)
        title = textwrap.fill(first.statement, _LINE) + "\n" * (judged.count("\n") + 1)
        ax.set_title(title, fontsize="small", loc="left")
        ax.annotate(
            judged, (0, 1), (0, 4), xycoords="axes fraction", textcoords="offset points", fontsize="small",
            fontweight="bold", va="bottom", in_layout=False, color=_TONES.get(sign, "0.3"),
        )  # fmt: skip
        if ax.get_legend() is not None:
            ax.legend(frameon=False, fontsize="x-small")
    if quick:
        plot.stamp(fig, "quick run: fewer seeds and steps")
    drawn = plot.render(fig)
    files = {form: storage.put(out / f"summary.{form}", content) for form, content in drawn.items()}
    return Picture(SUMMARY, files, drawn["svg"])


def claims_table(outcomes: Iterable[ExperimentOutcome]) -> pd.DataFrame:
    """One row a claim, its numbers as JSON; a number with its interval is a list [value, low, high]."""
    columns = ["experiment", "claim", "statement", "place", "rule", "numbers", "verdict", "cases", "ours"]
    rows = [
        (
            outcome.name, claim.name, claim.statement, claim.place, claim.rule,
            json.dumps(dict(claim.numbers), ensure_ascii=False), claim.verdict,
            " ".join(claim.cases or outcome.records), claim.ours,
        )
        for outcome in outcomes
        for claim in outcome.claims
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def markdown(value: object) -> object:
    """A label or a sentence inside Markdown: it stays on its line and in its cell, and makes no link and no tag.

    >>> markdown("a|b\\n# [x](y) <b> `k<2`")
    'a\\\\|b # \\\\[x\\\\](y) \\\\<b> `k<2`'
    """
    if not isinstance(value, str):
        return value
    parts = " ".join(value.split()).split("`")
    if len(parts) % 2 == 0:  # a backtick without its partner is only itself
        parts[-2:] = [f"{parts[-2]}&#96;{parts[-1]}"]
    escaped = [
        part.replace("|", r"\|") if i % 2 else re.sub(r"([\\\[\]<|])", r"\\\1", part) for i, part in enumerate(parts)
    ]
    return re.sub("^([#>])", r"\\\1", "`".join(escaped))  # at the start of a line it would be a heading, or a quotation


def prose(text: str) -> Markup:
    """A sentence as HTML: what stands in backticks is code; elsewhere c_α has a subscript and k^-2/3 an exponent.

    >>> str(prose("use `a<b>`, c_α and k^-2/3."))
    'use <code>a&lt;b&gt;</code>, c<sub>α</sub> and k<sup>-2/3</sup>.'
    """
    parts = str(escape(text)).split("`")
    for i, part in enumerate(parts):
        plain = re.sub(r"\^([-−]?[\d/½⅔⅖]+)", r"<sup>\1</sup>", part)
        plain = re.sub(r"(?<=\b\w)_(\w)\b", r"<sub>\1</sub>", plain)
        parts[i] = f"<code>{part}</code>" if i % 2 else plain
    return Markup("".join(parts))
