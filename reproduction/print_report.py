"""The end of a reproduction: verdicts on the terminal, pages on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from rich.table import Table

from reproduction.formatting import span
from reproduction.report import headline, write
from reproduction.runner import Outcome
from twoclock.cli import OUT, say_figures
from twoclock.storage.run_identity import environment


def publish(
    outcomes: Mapping[str, Outcome], modules: Mapping[str, ModuleType], out: Path, *, quick: bool, command: str
) -> None:
    """Write the report and print its verdicts."""
    panels = {name: module.panel for name, module in modules.items() if hasattr(module, "panel")}
    facts = {"command": command, **_facts(outcomes), **environment()}
    written = write(list(outcomes.values()), panels, out, facts, quick=quick)
    claims = [claim for outcome in outcomes.values() for claim in outcome.claims]
    for title, ours in (("The paper's claims", False), ("Our own claims", True)):
        table = Table("claim", "place", "verdict", title=title, title_justify="left")
        for claim in (claim for claim in claims if claim.ours is ours):
            table.add_row(claim.statement, claim.place, f"[bold]{claim.verdict}[/]")
        if table.row_count:
            OUT.print(table)
    OUT.print(headline(claims, quick=quick))
    if quick:
        OUT.print("These verdicts are of a quick run, too short for some of the claims; the full run decides.")
    say_figures([written["report.html"], written["report.md"]])


def _facts(outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    """Seeds, precision and wall time, from the records."""
    facts = {}
    for outcome in outcomes.values():
        runs = [(case, result.spec) for case, results in outcome.records.items() for result in results.values()]
        # Methods that ran as one program share its wall time.
        wall = sum(seconds for _, seconds in {(case, spec["wall_seconds"]) for case, spec in runs})
        seeds = span([len(spec["seeds"]) for _, spec in runs], "d")
        steps = max(spec["steps"] for _, spec in runs)
        precision = ", ".join(sorted({spec["precision"] for _, spec in runs}))
        made = ", ".join(sorted({f"twoclock {s['versions']['twoclock']}, jax {s['versions']['jax']}" for _, s in runs}))
        facts[outcome.title] = (
            f"{wall:,.0f} s of wall time, up to {steps:,} steps, {seeds} seeds a run, {precision}; {made}"
        )
    return facts
