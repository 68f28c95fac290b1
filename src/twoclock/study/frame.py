"""The frame that experiments plug into: run what is not yet on disk, then draw and judge from records alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from twoclock import plot, record
from twoclock.core import InputError, Method, ProblemSource
from twoclock.engine.drive import Tick
from twoclock.record.identity import Identity, RunSpec, identify
from twoclock.result import Result, load
from twoclock.solve import solve

Records = Mapping[str, Mapping[str, Result]]
Look = Callable[[str, "Case"], Callable[[Tick], None]]


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

    problem: ProblemSource
    methods: Mapping[str, Method]
    steps: int
    seeds: int | Sequence[int]
    marks: Sequence[int] | None = None
    bound: float | None = None
    note: str = ""

    @property
    def lanes(self) -> int:
        """How many trajectories the case runs."""
        return len(self.methods) * (self.seeds if isinstance(self.seeds, int) else len(self.seeds))

    @property
    def work(self) -> int:
        """Seed-steps."""
        return self.steps * self.lanes

    @cached_property
    def identities(self) -> dict[str, Identity]:
        """What the record of each method must be of."""
        spec = RunSpec.checked(self.steps, self.seeds, self.marks, bound=self.bound)
        return identify(self.problem, self.methods, spec)


@dataclass(frozen=True)
class Claim:
    """Something that was claimed, the rule that decides it, what was measured, and the verdict that follows.

    Args:
        name: a short name, unique in its experiment.
        statement: the claim in one line.
        place: where the paper makes it.
        rule: the test that decides it.
        numbers: what was measured, with intervals where there are any.
        verdict: begins with "reproduced", "reproduced only where", "not reproduced" or "not decidable".
        cases: the cases that the numbers come from; all of the experiment's if empty.
    """

    name: str
    statement: str
    place: str
    rule: str
    numbers: Mapping[str, Any]
    verdict: str
    cases: Sequence[str] = ()


@dataclass(frozen=True)
class Picture:
    """A figure on disk: what it shows in a sentence, its files by kind, and the SVG itself."""

    alt: str
    files: Mapping[str, Path]
    svg: bytes


@dataclass(frozen=True)
class Outcome:
    """An experiment that has run: its records, drawn and judged."""

    name: str
    title: str
    folder: Path
    records: Records
    pictures: Mapping[str, Picture]
    claims: Sequence[Claim] = field(default=())
    advice: Sequence[str] = field(default=())
    limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def home(self, case: str, method: str | None = None) -> Path:
        """The folder of a case, or of one method's run in it."""
        return self.folder / _slug(case) / (_slug(method) if method else "")


def run_experiment(
    name: str,
    module: ModuleType,
    out: str | Path,
    *,
    quick: bool = False,
    look: Look | None = None,
    run: bool = True,
    cases: Mapping[str, Case] | None = None,
) -> Outcome:
    """Run the cases of an experiment that are not on disk yet, draw its figures and judge its claims.

    Args:
        name: its folder under ``out``.
        module: has ``TITLE``, ``cases(quick)`` and ``draw(records)``; where there is something to say also ``ALT`` (a
            sentence for each figure), ``claims(records)``, ``advice(records)`` and ``limits(records)``: for each task
            the final error of each method as a multiple of the statistical yardstick's.
        quick: fewer seeds and steps, as the experiment says; every figure is marked as such.
        look: given a case's name and the case, returns what to call with each tick of its run.
        run: if false, a case that is not on disk is an error.
        cases: what ``module.cases(quick)`` gave, for who has called it already.
    """
    folder = record.writable(Path(out) / name)
    records = {}
    for label, case in (module.cases(quick) if cases is None else cases).items():
        home = folder / _slug(label)
        done = _finished(home, case)
        if not run and len(done) < len(case.methods):
            raise InputError(f"`DIR` lacks records of {name}, {label}; run `twoclock reproduce {name}` on it first")
        records[label] = done if len(done) == len(case.methods) else _run(home, case, done, look and look(label, case))
    alts = getattr(module, "ALT", {})
    pictures = {}
    for title, fig in module.draw(records).items():
        if quick:
            plot.stamp(fig, "quick run: fewer seeds and steps")
        drawn = plot.render(fig)
        files = {kind: record.put(folder / f"{title}.{kind}", content) for kind, content in drawn.items()}
        pictures[title] = Picture(alts.get(title, module.TITLE), files, drawn["svg"])

    def said(what: str, nothing: Any) -> Any:
        return getattr(module, what)(records) if hasattr(module, what) else nothing

    return Outcome(
        name, module.TITLE, folder, records, pictures, said("claims", ()), said("advice", ()), said("limits", {})
    )


def missing(name: str, cases: Mapping[str, Case], out: str | Path) -> dict[str, Case]:
    """The cases of an experiment that would have to run."""
    folder = Path(out) / name
    return {label: c for label, c in cases.items() if len(_finished(folder / _slug(label), c)) < len(c.methods)}


def _run(
    folder: Path, case: Case, done: Mapping[str, Result], look: Callable[[Tick], None] | None
) -> dict[str, Result]:
    todo = {method: case.methods[method] for method in case.methods if method not in done}
    checkpoint = folder / "checkpoint"

    def go() -> dict[str, Result]:
        return solve(
            case.problem, todo, case.steps, case.seeds, case.marks, bound=case.bound, checkpoint=checkpoint,
            progress=look or False,
        )  # fmt: skip

    try:
        fresh = go()
    except record.StaleCheckpoint:  # of other settings, or torn: what it would save is less than what it costs to ask
        record.remove(checkpoint)
        fresh = go()
    for method, result in fresh.items():
        replace(result, spec={**result.spec, "identity": case.identities[method].kept()}).save(folder / _slug(method))
    record.remove(checkpoint)
    return {method: {**done, **fresh}[method] for method in case.methods}


def _finished(folder: Path, case: Case) -> dict[str, Result]:
    """The results on disk that are of these very runs."""
    kept = {label: record.spec(folder / _slug(label)).get("identity", {}) for label in case.methods}
    if not any(kept.values()):
        return {}
    same = [label for label in case.methods if case.identities[label].difference(kept[label]) is None]
    return {label: load(folder / _slug(label)) for label in same}


def _slug(label: str) -> str:
    return re.sub(r"[^\w.-]+", "-", label).strip("-")
