"""What the report says, as data; how it looks is in the templates."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twoclock.study.frame import Claim, Outcome, Picture
from twoclock.study.report.tables import final_numbers

# A verdict's kind decides its colour and its sign, so that neither alone has to be seen.
KINDS = {"reproduced only where": ("partly", "◐"), "reproduced": ("yes", "✓"), "not reproduced": ("no", "✗")}


@dataclass(frozen=True)
class Row:
    """A claim as it is printed, with links to the runs behind it."""

    experiment: str
    claim: Claim
    kind: str
    sign: str
    numbers: list[tuple[str, str]]
    runs: list[tuple[str, str]]
    ours: bool


@dataclass(frozen=True)
class Section:
    """One experiment: its figures, its claims, and its numbers at the last step."""

    name: str
    title: str
    folder: str
    pictures: list[tuple[str, str, str]]
    rows: list[Row]
    columns: list[str]
    table: list[list[str]]
    links: list[str]


@dataclass(frozen=True)
class Report:
    """All of it: ``verdicts`` counts the paper's claims by kind; ``limits`` has a row for each task and method."""

    quick: bool
    summary: str
    sections: list[Section]
    verdicts: Mapping[str, int]
    advice: list[str]
    limits: list[tuple[str, str, str]]
    provenance: list[tuple[str, str]]

    @property
    def rows(self) -> list[Row]:
        return [row for section in self.sections for row in section.rows]


def gather(
    outcomes: Sequence[Outcome], summary: Picture, root: Path, provenance: Mapping[str, Any], *, quick: bool
) -> Report:
    """Everything that the pages show, with links relative to ``root``."""
    sections = [_section(outcome, root) for outcome in outcomes]
    rows = [row for section in sections for row in section.rows if not row.ours]
    limits = [
        (task, method, f"{ratio:.3g}")
        for outcome in outcomes
        for task, methods in outcome.limits.items()
        for method, ratio in methods.items()
    ]
    return Report(
        quick=quick,
        summary=_inline(summary),
        sections=sections,
        verdicts={kind: sum(row.kind == kind for row in rows) for kind in ("yes", "partly", "no", "open")},
        advice=[sentence for outcome in outcomes for sentence in outcome.advice],
        limits=limits,
        provenance=[(name, _text(value)) for name, value in provenance.items()],
    )


def kind_of(verdict: str) -> tuple[str, str]:
    """The kind and the sign of a verdict."""
    return next((found for start, found in KINDS.items() if verdict.startswith(start)), ("open", "?"))


def is_ours(claim: Claim) -> bool:
    """Whether the claim is not the paper's."""
    return claim.place.startswith(("ours", "not in the paper"))


def _section(outcome: Outcome, root: Path) -> Section:
    table = final_numbers(outcome, root)
    return Section(
        name=outcome.name,
        title=outcome.title,
        folder=_link(outcome.folder, root),
        pictures=[(title, picture.alt, _inline(picture)) for title, picture in outcome.pictures.items()],
        rows=[_row(claim, outcome, root) for claim in outcome.claims],
        columns=[str(column) for column in table.columns[:-1]],
        table=[[_text(value) for value in row[:-1]] for row in table.itertuples(index=False)],
        links=[str(link) for link in table["folder"]],
    )


def _row(claim: Claim, outcome: Outcome, root: Path) -> Row:
    kind, sign = kind_of(claim.verdict)
    return Row(
        experiment=outcome.name,
        claim=claim,
        kind=kind,
        sign=sign,
        numbers=[(name, _text(value)) for name, value in claim.numbers.items()],
        runs=[(case, _link(outcome.home(case), root)) for case in claim.cases or outcome.records],
        ours=is_ours(claim),
    )


def _inline(picture: Picture) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(picture.svg).decode()


def _link(path: Path, root: Path) -> str:
    return Path(os.path.relpath(path, root)).as_posix() + "/"


def _text(value: Any) -> str:
    """Numbers to four figures, intervals in brackets."""
    if isinstance(value, bool) or not isinstance(value, (int, float, list, tuple, dict)):
        return str(value)
    if isinstance(value, dict):
        inside = {key: _text(item) for key, item in value.items()}
        if set(inside) == {"slope", "interval"}:
            return f"{inside['slope']} {inside['interval']}"
        return ", ".join(item if key == "interval" else f"{key} {item}" for key, item in inside.items())
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(item) for item in value)}]"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
