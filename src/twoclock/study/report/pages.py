"""The report on disk: one HTML file that needs nothing else, the same in Markdown, and the tables as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

from twoclock import plot, record
from twoclock.study.frame import Outcome, Picture
from twoclock.study.report.content import gather, is_ours, kind_of
from twoclock.study.report.tables import claims_table, final_numbers

SUMMARY = "What was claimed and what was measured, one panel an experiment; the line under each title is the verdict."


def write(
    outcomes: Sequence[Outcome], panels: Mapping[str, Any], out: Path, provenance: Mapping[str, Any], *, quick: bool
) -> dict[str, Path]:
    """Write report.html, report.md, the summary picture and the tables; returns their paths by name.

    Args:
        panels: for each experiment that has one, a function ``panel(ax, records)`` that draws what its first
            claim is about.
        provenance: what made the numbers, for the last page.
        quick: mark every page as a quick run.
    """
    outcomes = sorted(outcomes, key=lambda o: all(is_ours(claim) for claim in o.claims))  # the paper's come first
    shown = [(o.claims[0], partial(panels[o.name], records=o.records)) for o in outcomes if o.name in panels]
    fig = plot.summary([(c.statement, f"{kind_of(c.verdict)[1]} {c.verdict}", draw) for c, draw in shown])
    if quick:
        plot.stamp(fig, "quick run: fewer seeds and steps")
    drawn = plot.render(fig)
    files = {kind: record.put(out / f"summary.{kind}", content) for kind, content in drawn.items()}
    report = gather(outcomes, Picture(SUMMARY, files, drawn["svg"]), out, provenance, quick=quick)
    room = jinja2.Environment(
        loader=jinja2.PackageLoader("twoclock.study.report", "templates"),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    written = {
        f"report.{kind}": record.put(
            out / f"report.{kind}", room.get_template(f"report.{kind}.j2").render(report=report)
        )
        for kind in ("html", "md")
    }
    tables = {"claims": claims_table(outcomes), **{o.name: final_numbers(o, out) for o in outcomes}}
    for name, table in tables.items():
        written[f"{name}.csv"] = record.put(out / "tables" / f"{name}.csv", table.to_csv(index=False))
    return written
