"""Run the cases of an experiment that are not on disk yet, then draw and judge from records alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import jax
import numpy as np

from reproduction.experiment import Claim, Experiment, Progress, Records, Runnable, hook, require
from reproduction.verdicts import confirmed
from twoclock import InputError, Result, load, plot, storage

_LARGE = 1 << 24  # bytes


@dataclass(frozen=True)
class ExperimentStarted:
    """An experiment has so many seed-steps to run."""

    name: str
    title: str
    work: int


@dataclass(frozen=True)
class CaseStarted:
    """A case of an experiment runs, with so many lanes."""

    name: str
    case: str
    steps: int
    lanes: int


@dataclass(frozen=True)
class CaseAdvanced:
    """A case has come to a step, with so many of its lanes diverged."""

    name: str
    case: str
    step: int
    diverged: int
    lanes: int


Message = ExperimentStarted | CaseStarted | CaseAdvanced


@dataclass(frozen=True)
class Picture:
    """A figure on disk: what it plots and what these records show in it, its files by kind, and the SVG itself."""

    alt: str
    files: Mapping[str, Path]
    svg: bytes


@dataclass(frozen=True)
class ExperimentOutcome:
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
    run: bool = True,
    post: Callable[[Message], None] = lambda message: None,
) -> ExperimentOutcome:
    """Run the cases of an experiment that are not on disk yet, draw its figures and judge its claims.

    Args:
        name: its folder under ``out``.
        module: an :class:`Experiment`.
        quick: fewer seeds and steps, as the experiment says; every figure is marked as such.
        run: if false, a case that is not on disk is an error.
        post: called with each message about the progress.
    """
    experiment = require(name, module)
    folder = storage.writable(Path(out) / name)
    cases = experiment.cases(quick)
    records = on_disk(name, cases, out)
    missing = [label for label, case in cases.items() if len(records[label]) < len(case.methods)]
    if missing and not run:
        raise InputError(
            f"`DIR` lacks records of {name}, {missing[0]}; run `python -m reproduction {name}` on it first"
        )
    post(ExperimentStarted(name, experiment.TITLE, sum(cases[label].work for label in missing)))
    for label in missing:
        case = cases[label]
        post(CaseStarted(name, label, case.steps, case.lanes))
        advance = partial(_advance, post, name, label, case.lanes)
        records[label] = _run(folder / _slug(label), case, records[label], advance)
    return ExperimentOutcome(
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


def _advance(post: Callable[[Message], None], name: str, case: str, lanes: int, step: int, diverged: int) -> None:
    post(CaseAdvanced(name, case, step, diverged, lanes))


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


def on_disk(name: str, cases: Mapping[str, Runnable], out: str | Path) -> dict[str, dict[str, Result]]:
    """Load the results of an experiment that need not run again: case → method → result."""
    return {label: _finished(Path(out) / name / _slug(label), case) for label, case in cases.items()}


def _run(folder: Path, case: Runnable, done: Mapping[str, Result], progress: Progress) -> dict[str, Result]:
    todo = [method for method in case.methods if method not in done]
    checkpoint = folder / "checkpoint"
    try:
        fresh = case.run(todo, checkpoint, progress)
    except storage.StaleCheckpoint:  # of other settings, or torn: what it would save is less than what it costs to ask
        storage.discard(checkpoint)
        fresh = case.run(todo, checkpoint, progress)
    for method, result in fresh.items():
        # A method's memory of every item, say, is more than a record should weigh.
        large = result.end and sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(result.end.carry)) > _LARGE
        spec = {**result.spec, "identity": case.identities[method].as_json()}
        replace(result, spec=spec, end=None if large else result.end).save(folder / _slug(method))
    storage.discard(checkpoint)
    return {method: {**done, **fresh}[method] for method in case.methods}


def _finished(folder: Path, case: Runnable) -> dict[str, Result]:
    """The results on disk that are of these very runs."""
    kept = {label: storage.spec(folder / _slug(label)).get("identity", {}) for label in case.methods}
    if not any(kept.values()):
        return {}
    same = [label for label in case.methods if case.identities[label].difference(kept[label]) is None]
    return {label: load(folder / _slug(label)) for label in same}


def _slug(label: str) -> str:
    return re.sub(r"[^\w.-]+", "-", label).strip("-")
