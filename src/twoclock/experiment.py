"""The frame that experiments plug into: run what is not yet on disk, then draw and judge from records alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from twoclock import plot, record
from twoclock.describe import describe
from twoclock.result import Result, load
from twoclock.run import Tick
from twoclock.solve import solve

Records = Mapping[str, Mapping[str, Result]]


@dataclass(frozen=True)
class Case:
    """One problem and the methods compared on it; settings as data.

    Args:
        problem: a problem, or a function of a key that makes one for each seed.
        methods: label → method. Those that differ only in numbers run as one program.
        steps: how many.
        seeds: how many, or which.
        marks: where to record; log-spaced if None.
        bound: what counts as diverged, beyond not being finite.
        note: a line for the reader.
    """

    problem: Any
    methods: Mapping[str, Any]
    steps: int
    seeds: int | Sequence[int]
    marks: Sequence[int] | None = None
    bound: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """Something that was claimed, the rule that decides it, what was measured, and the verdict that follows."""

    name: str
    statement: str
    place: str
    rule: str
    numbers: Mapping[str, Any]
    verdict: str


@dataclass(frozen=True)
class Outcome:
    """An experiment that has run."""

    name: str
    title: str
    records: Records
    figures: Mapping[str, Path]
    claims: Sequence[Claim] = field(default=())


def run_experiment(
    name: str,
    module: ModuleType,
    out: str | Path,
    *,
    quick: bool = False,
    look: Callable[[str, Case], Callable[[Tick], None]] | None = None,
) -> Outcome:
    """Run the cases of an experiment that are not on disk yet, draw its figures and judge its claims.

    Args:
        name: its folder under ``out``.
        module: has ``TITLE``, ``cases(quick)``, ``draw(records)`` and, where something is claimed, ``claims(records)``.
        quick: fewer seeds and steps, as the experiment says; every figure is marked as such.
        look: given a case's name and the case, returns what to call with each tick of its run.
    """
    folder = record.writable(Path(out) / name)
    cases = module.cases(quick)
    records = {label: _records(folder / _slug(label), label, case, look) for label, case in cases.items()}
    figures = {}
    for title, fig in module.draw(records).items():
        if quick:
            plot.stamp(fig, "quick run: fewer seeds and steps")
        for kind, content in plot.render(fig).items():
            figures[f"{title}.{kind}"] = record.put(folder / f"{title}.{kind}", content)
    claims = module.claims(records) if hasattr(module, "claims") else []
    return Outcome(name, module.TITLE, records, figures, claims)


def _records(folder: Path, label: str, case: Case, look: Any) -> dict[str, Result]:
    homes = {method: folder / _slug(method) for method in case.methods}
    done = {method: result for method, home in homes.items() if (result := _finished(home, case, case.methods[method]))}
    missing = {method: case.methods[method] for method in case.methods if method not in done}
    if missing:
        fresh = solve(
            case.problem, missing, case.steps, case.seeds, case.marks, bound=case.bound,
            checkpoint=folder / "checkpoint", progress=look(label, case) if look else False,
        )  # fmt: skip
        for method, result in fresh.items():
            result.save(homes[method])
        record.remove(folder / "checkpoint")
        done.update(fresh)
    return {method: done[method] for method in case.methods}


def _finished(home: Path, case: Case, method: Any) -> Result | None:
    """The result on disk, if it is of these very settings."""
    if not record.is_complete(home):
        return None
    result = load(home)
    seeds = list(range(case.seeds)) if isinstance(case.seeds, int) else list(case.seeds)
    wanted = {"problem": describe(case.problem), "method": describe(method), "steps": case.steps, "seeds": seeds}
    return result if all(result.spec[key] == value for key, value in wanted.items()) else None


def _slug(label: str) -> str:
    return re.sub(r"[^\w.-]+", "-", label).strip("-")
