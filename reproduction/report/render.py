"""The report on disk: one HTML file that needs nothing else, the same in Markdown, and the tables as CSV."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from reproduction.experiment import Records
from reproduction.report.summary_figure import summary
from reproduction.report.tables import claims_table, final_numbers
from reproduction.report.view import SIGNS, gather
from reproduction.runner import Outcome, Picture
from reproduction.verdicts import kind
from twoclock import plot, storage
from twoclock.plot.report_page import render_page

SUMMARY = "What was claimed and what was measured, one panel an experiment; the line under each title is the verdict."
TEMPLATES = Path(__file__).parent / "templates"
Panel = Callable[[plot.Axes, Records], None]


def write(
    outcomes: Sequence[Outcome],
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
    written = {
        f"report.{form}": storage.put(
            out / f"report.{form}",
            render_page(
                TEMPLATES,
                f"report.{form}.j2",
                filters={"prose": prose},
                finalize=markdown if form == "md" else None,
                report=report,
            ),
        )
        for form in ("html", "md")
    }
    tables = {"claims": claims_table(outcomes), **{o.name: final_numbers(o, out) for o in outcomes}}
    for name, table in tables.items():
        written[f"{name}.csv"] = storage.put(out / "tables" / f"{name}.csv", table.to_csv(index=False))
    return written


def _summary(outcomes: Sequence[Outcome], panels: Mapping[str, Panel], out: Path, *, quick: bool) -> Picture:
    """The picture of the first claim of each experiment that has a panel."""
    shown = []
    for outcome in outcomes:
        if outcome.name in panels:
            first, draw = outcome.claims[0], panels[outcome.name]
            verdict = f"{SIGNS[kind(first.verdict)]} {first.verdict}"
            shown.append((first.statement, verdict, partial(_draw_panel, draw, outcome.records)))
    fig = summary(shown)
    if quick:
        plot.stamp(fig, "quick run: fewer seeds and steps")
    drawn = plot.render(fig)
    files = {form: storage.put(out / f"summary.{form}", content) for form, content in drawn.items()}
    return Picture(SUMMARY, files, drawn["svg"])


def _draw_panel(draw: Panel, records: Records, ax: plot.Axes) -> None:
    draw(ax, records)


def markdown(value: object) -> Any:
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
    words, code = [], False
    for part in str(escape(text)).split("`"):
        plain = re.sub(r"\^([-−]?[\d/½⅔⅖]+)", r"<sup>\1</sup>", part)
        plain = re.sub(r"(?<=\b\w)_(\w)\b", r"<sub>\1</sub>", plain)
        words.append(f"<code>{part}</code>" if code else plain)
        code = not code
    return Markup("".join(words))
