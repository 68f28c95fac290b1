"""What the report says, as data; how it looks is in the templates."""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from reproduction.comparisons import join_words, number
from reproduction.experiment import Claim
from reproduction.runner import ExperimentOutcome, Picture
from reproduction.verdicts import SIGNS, Kind, kind
from twoclock import plot
from twoclock.intervals import bootstrap_mean

# The most methods of one case that the page lists; a longer list is in the CSV file alone.
_LISTED = 16
# What a table shows of a run: the first of these metrics that it has.
_METRICS = ("error", "gap", "gradient")


class RuleChange(NamedTuple):
    """A change of a rule: the day it was made, what is judged by it, how it was judged before, and how now."""

    date: str
    what: str
    was: str
    now: str


def rule_changes() -> list[RuleChange]:
    """Read the changes of the rules, the newest first."""
    text = (Path(__file__).parent / "rule_changes.toml").read_text(encoding="utf-8")
    return [RuleChange(**change) for change in tomllib.loads(text)["change"]]


@dataclass(frozen=True)
class ClaimRow:
    """A claim as it is printed, with links to the runs behind it."""

    anchor: str
    claim: Claim
    kind: Kind
    numbers: list[tuple[str, str]]
    runs: list[tuple[str, str]]

    @property
    def sign(self) -> str:
        return SIGNS[self.kind]


@dataclass(frozen=True)
class Image:
    """A picture inside the page, ``width`` CSS pixels wide at its natural size."""

    name: str
    words: str
    data: str
    width: int


@dataclass(frozen=True)
class Section:
    """One experiment: its figures, its claims, its advice, and its numbers at the last step."""

    name: str
    title: str
    folder: str
    images: list[Image]
    rows: list[ClaimRow]
    advice: Sequence[str]
    columns: list[str]
    table: list[list[str]]
    links: list[str]


@dataclass(frozen=True)
class ReportView:
    """All of it: ``counts`` has the paper's claims by kind; ``relative_errors`` a row for each task and method."""

    quick: bool
    headline: str
    summary: Image
    sections: list[Section]
    relative_errors: list[tuple[str, str, str]]
    provenance: list[tuple[str, str]]
    rules_changed: Sequence[RuleChange]

    @property
    def papers(self) -> list[ClaimRow]:
        """The paper's claims."""
        return [row for section in self.sections for row in section.rows if not row.claim.ours]

    @property
    def ours(self) -> list[ClaimRow]:
        """Those of this project."""
        return [row for section in self.sections for row in section.rows if row.claim.ours]

    @property
    def counts(self) -> dict[Kind, int]:
        found = Counter(row.kind for row in self.papers)
        return {each: found[each] for each in SIGNS}


def gather(
    outcomes: Sequence[ExperimentOutcome],
    summary: Picture,
    root: Path,
    provenance: Mapping[str, object],
    *,
    quick: bool,
) -> ReportView:
    """Everything that the pages show, with links relative to ``root``."""
    return ReportView(
        quick=quick,
        headline=headline([claim for outcome in outcomes for claim in outcome.claims], quick=quick),
        summary=_image("summary", summary),
        sections=[_section(outcome, root) for outcome in outcomes],
        relative_errors=[
            (task, method, f"{ratio:.3g}")
            for outcome in outcomes
            for task, methods in outcome.relative_errors.items()
            for method, ratio in methods.items()
        ],
        provenance=[(name, number(value)) for name, value in provenance.items()],
        rules_changed=rule_changes(),
    )


def headline(claims: Iterable[Claim], *, quick: bool = False) -> str:
    """What was found, in one sentence.

    >>> verdicts = ("reproduced", "not reproduced")
    >>> headline([Claim("name", "statement", "Section 1", "rule", {}, verdict) for verdict in verdicts])
    "Of the paper's 2 claims, 1 is reproduced and 1 fails."
    """
    papers = [claim for claim in claims if not claim.ours]
    speed = [claim for claim in papers if claim.speed]
    if not papers:
        return "No claim of the paper was tested."
    claimed = f"{len(papers)} claim{'s' if len(papers) > 1 else ''}"
    found = f"{'In this quick run, of' if quick else 'Of'} the paper's {claimed}, {_shares(papers)}"
    if speed:
        found += f"; of the {len(speed)} that Fast is faster than methods without averaged operators, {_shares(speed)}"
    return f"{found}."


def _shares(claims: Iterable[Claim]) -> str:
    counts = Counter(kind(claim.verdict) for claim in claims)
    yes, partly, no, vacuous, undecided, unsaid = (counts[each] for each in SIGNS)
    parts = [
        f"{yes} {'is' if yes == 1 else 'are'} reproduced" if yes else "none is reproduced",
        f"{partly} hold{'s' if partly == 1 else ''} only in part" if partly else "",
        f"{no} fail{'s' if no == 1 else ''}" if no else "",
        f"{vacuous} {'is' if vacuous == 1 else 'are'} vacuous" if vacuous else "",
        f"{undecided} {'is' if undecided == 1 else 'are'} not decided" if undecided else "",
        f"{unsaid} cannot be decided" if unsaid else "",
    ]
    return join_words([part for part in parts if part])


def _section(outcome: ExperimentOutcome, root: Path) -> Section:
    table = final_numbers(outcome, root)
    sizes = table.groupby("case")["method"].transform("size")
    table = table[table["case"].isin(list(outcome.compared)) & (sizes <= _LISTED)]
    table = table.assign(case=table["case"].map(dict(outcome.titles)), metric=table["metric"].replace(plot.LABELS))
    return Section(
        name=outcome.name,
        title=outcome.title,
        folder=_link(outcome.folder, root),
        images=[_image(name, picture) for name, picture in outcome.pictures.items()],
        rows=[
            ClaimRow(
                anchor=f"{outcome.name}-{i}",
                claim=claim,
                kind=kind(claim.verdict),
                numbers=[(name, number(value)) for name, value in claim.numbers.items()],
                runs=[(outcome.titles[c], _link(outcome.home(c), root)) for c in claim.cases or outcome.compared],
            )
            for i, claim in enumerate(outcome.claims, 1)
        ],
        advice=outcome.advice,
        columns=[str(column) for column in table.columns[:-1]],
        table=[[number(value) for value in row[:-1]] for row in table.itertuples(index=False)],
        links=[str(link) for link in table["folder"]],
    )


def _image(name: str, picture: Picture) -> Image:
    return Image(name, picture.alt, *plot.embed_svg(picture.svg))


def _link(path: Path, root: Path) -> str:
    return Path(os.path.relpath(path, root)).as_posix() + "/"


def final_numbers(outcome: ExperimentOutcome, root: Path) -> pd.DataFrame:
    """Each method's progress at the last step of each case: mean, its 95 % bootstrap interval, and the run's folder."""
    rows = []
    for case, results in outcome.records.items():
        for method, result in results.items():
            last = result.history[result.history["step"] == result.history["step"].max()]
            metric = next((name for name in _METRICS if name in last.columns), None)
            values = last[metric].to_numpy(float) if metric else np.array([np.nan])
            low, high = bootstrap_mean(values[None, :])
            rows.append(
                {
                    "case": case,
                    "method": method,
                    "metric": metric or "",
                    "mean": float(values.mean()),
                    "low": float(low[0]),
                    "high": float(high[0]),
                    "steps": int(result.spec["steps"]),
                    "seeds": len(result.spec["seeds"]),
                    "diverged": int(result.diverged.sum()),
                    "folder": _link(outcome.home(case, method), root),
                }
            )
    return pd.DataFrame(rows)
