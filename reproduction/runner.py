"""The frame that experiments plug into: run what is not yet on disk, then draw and judge from records alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax
import numpy as np

from reproduction.experiment import Case, Claim, Experiment, Records, hook, require
from reproduction.split_half import confirmed
from twoclock import plot, storage
from twoclock.engine.loop import ProgressEvent
from twoclock.protocols import InputError
from twoclock.result import FinalState, Result, load

_LARGE = 1 << 24  # bytes
# Given a case's name and the case, returns what to call with each tick of its run.
CaseProgress = Callable[[str, Case], Callable[[ProgressEvent], None]]


@dataclass(frozen=True)
class Picture:
    """A figure on disk: what it plots and what these records show in it, its files by kind, and the SVG itself."""

    alt: str
    files: Mapping[str, Path]
    svg: bytes


@dataclass(frozen=True)
class Outcome:
    """An experiment that has run: its records, drawn and judged.

    Attributes:
        titles: what the report calls each case.
        compared: the cases that compare methods; the others tune or warm up.
        relative_errors: for each task the final error of each method over that of the best estimator known.
    """

    name: str
    title: str
    folder: Path
    records: Records
    pictures: Mapping[str, Picture]
    titles: Mapping[str, str]
    compared: Sequence[str]
    claims: Sequence[Claim] = ()
    advice: Sequence[str] = ()
    relative_errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def home(self, case: str, method: str | None = None) -> Path:
        """The folder of a case, or of one method's run in it."""
        return self.folder / _slug(case) / (_slug(method) if method else "")


def run_experiment(
    name: str,
    module: object,
    out: str | Path,
    *,
    quick: bool = False,
    progress: CaseProgress | None = None,
    run: bool = True,
    cases: Mapping[str, Case] | None = None,
    done: Records | None = None,
) -> Outcome:
    """Run the cases of an experiment that are not on disk yet, draw its figures and judge its claims.

    Args:
        name: its folder under ``out``.
        module: an :class:`Experiment`.
        quick: fewer seeds and steps, as the experiment says; every figure is marked as such.
        progress: given a case's name and the case, returns what to call with each tick of its run.
        run: if false, a case that is not on disk is an error.
        cases: ``module.cases(quick)``, if the caller has it already.
        done: what :func:`on_disk` found for these cases, if the caller has it already.
    """
    experiment = require(name, module)
    folder = storage.writable(Path(out) / name)
    cases = experiment.cases(quick) if cases is None else cases
    records = dict(on_disk(name, cases, out) if done is None else done)
    for label, case in cases.items():
        if len(records[label]) < len(case.methods):
            if not run:
                raise InputError(f"`DIR` lacks records of {name}, {label}; run `twoclock reproduce {name}` on it first")
            records[label] = _run(folder / _slug(label), case, records[label], progress and progress(label, case))
    return Outcome(
        name=name,
        title=experiment.TITLE,
        folder=folder,
        records=records,
        pictures=_draw(experiment, records, folder, quick),
        titles={label: case.title or label for label, case in cases.items()},
        compared=[label for label, case in cases.items() if case.role == "compare"],
        claims=confirmed(lambda some: hook(experiment, "claims", some, []), records),
        advice=hook(experiment, "advice", records, []),
        relative_errors=hook(experiment, "relative_errors", records, {}),
    )


def _draw(experiment: Experiment, records: Records, folder: Path, quick: bool) -> dict[str, Picture]:
    plotted: Mapping[str, str] = getattr(experiment, "ALT", {})
    shown: Mapping[str, str] = hook(experiment, "captions", records, {})
    pictures = {}
    for name, fig in experiment.draw(records).items():
        if quick:
            plot.stamp(fig, "quick run: fewer seeds and steps")
        drawn = plot.render(fig)
        files = {kind: storage.put(folder / f"{name}.{kind}", content) for kind, content in drawn.items()}
        words = f"{plotted.get(name, experiment.TITLE)} {shown.get(name, '')}".strip()
        pictures[name] = Picture(words, files, drawn["svg"])
    return pictures


def on_disk(name: str, cases: Mapping[str, Case], out: str | Path) -> dict[str, dict[str, Result]]:
    """The results of an experiment that need not run again: case → method → result."""
    return {label: _finished(Path(out) / name / _slug(label), case) for label, case in cases.items()}


def work_left(cases: Mapping[str, Case], done: Records) -> int:
    """The seed-steps of the cases that are not finished."""
    return sum(case.work for label, case in cases.items() if len(done[label]) < len(case.methods))


def _run(
    folder: Path, case: Case, done: Mapping[str, Result], progress: Callable[[ProgressEvent], None] | None
) -> dict[str, Result]:
    todo = {method: case.methods[method] for method in case.methods if method not in done}
    checkpoint = folder / "checkpoint"

    try:
        fresh = case.run(todo, checkpoint, progress)
    except storage.StaleCheckpoint:  # of other settings, or torn: what it would save is less than what it costs to ask
        storage.discard(checkpoint)
        fresh = case.run(todo, checkpoint, progress)
    for method, result in fresh.items():
        spec = {**result.spec, "identity": case.identities[method].as_json()}
        replace(result, spec=spec, end=_small(result.end)).save(folder / _slug(method))
    storage.discard(checkpoint)
    return {method: {**done, **fresh}[method] for method in case.methods}


def _small(end: FinalState | None) -> FinalState | None:
    """Where a run stopped, unless that is more than a record should weigh: a method's memory of every item, say."""
    if end is None or sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(end.carry)) > _LARGE:
        return None
    return end


def _finished(folder: Path, case: Case) -> dict[str, Result]:
    """The results on disk that are of these very runs."""
    kept = {label: storage.spec(folder / _slug(label)).get("identity", {}) for label in case.methods}
    if not any(kept.values()):
        return {}
    same = [label for label in case.methods if case.identities[label].difference(kept[label]) is None]
    return {label: load(folder / _slug(label)) for label in same}


def _slug(label: str) -> str:
    return re.sub(r"[^\w.-]+", "-", label).strip("-")
