"""Where a problem and a method meet: one call from the two operators to the solution and its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import overload

import jax
import numpy as np

from twoclock import validation
from twoclock.engine import compatibility, metrics, select_engine, trace_checks, xla_engine
from twoclock.engine.compatibility import check_memory
from twoclock.engine.loop import ProgressEvent, RunOutput, drive
from twoclock.engine.run_batch import Lanes, group_by_program, make_instances, make_placeholder
from twoclock.engine.select_engine import EngineName
from twoclock.engine.signals import deferred_interrupt
from twoclock.engine.tracing import TracedProgram
from twoclock.methods.auto import Auto
from twoclock.progress import watch
from twoclock.protocols import InputError, Method, Problem, ProblemSource
from twoclock.result import FinalState, Result
from twoclock.resume import Start, begin
from twoclock.storage import Checkpoints, absolute
from twoclock.storage.run_identity import Identity, Precision, Provenance, RunSpec, describe, identify, shared_identity
from twoclock.validation import run_args

Progress = bool | Callable[[ProgressEvent], None]


@overload
def solve(
    problem: ProblemSource,
    method: Method | None = None,
    steps: int | float = 100_000,
    seeds: int | Iterable[int] = 20,
    marks: Iterable[int] | None = None,
    precision: Precision = "float64",
    progress: Progress = False,
    checkpoint: str | Path | None = None,
    *,
    bound: float | None = None,
    block: int | None = None,
    checkpoint_every: float = 10.0,
    engine: EngineName = "auto",
    start: Result | None = None,
) -> Result: ...
@overload
def solve(
    problem: ProblemSource,
    method: Mapping[str, Method],
    steps: int | float = 100_000,
    seeds: int | Iterable[int] = 20,
    marks: Iterable[int] | None = None,
    precision: Precision = "float64",
    progress: Progress = False,
    checkpoint: str | Path | None = None,
    *,
    bound: float | None = None,
    block: int | None = None,
    checkpoint_every: float = 10.0,
    engine: EngineName = "auto",
    start: Mapping[str, Result] | None = None,
) -> dict[str, Result]: ...
def solve(
    problem: object,
    method: object = None,
    steps: object = 100_000,
    seeds: object = 20,
    marks: object = None,
    precision: object = "float64",
    progress: Progress = False,
    checkpoint: str | Path | None = None,
    *,
    bound: float | None = None,
    block: int | None = None,
    checkpoint_every: float = 10.0,
    engine: object = "auto",
    start: object = None,
) -> Result | dict[str, Result]:
    """Solve a problem for many seeds at once, by itself or with a method.

    Args:
        problem: a problem, or a function of a key that makes one, so that each seed has its own instance.
        method: a method, or a mapping of labels to methods. Those that differ only in numbers run as one program, and
            a mapping of results comes back. None is ``tc.Auto()``: no step size to choose, and ``result.chosen`` says
            what ran.
        steps: how many; one step takes one sample.
        seeds: a count, or the integers themselves. Step k of seed s depends on (s, k) alone.
        marks: the steps at which to record; by default the start, the end and ten a decade.
        precision: "float64", or "float32" with compensated sums.
        progress: True for a bar, or a function that is called with every tick of the run.
        checkpoint: a folder. A run that was killed goes on from what it finds there, to the identical result.
        bound: count a seed as diverged when an entry of θ or ω leaves [−bound, bound].
        block: draw the noise of at most so many steps at once; changes the speed and nothing else.
        checkpoint_every: seconds between checkpoints.
        engine: "xla" always works; "c" and "cuda" make a program of the step and compile it, with the machine's C
            compiler or for an NVIDIA GPU, and are several times faster. "auto" takes what is likely done first, or what
            the variable TWOCLOCK_ENGINE says. What an engine cannot take goes to XLA; ``spec["engine"]`` tells which
            one ran and ``spec["engine_reason"]`` why it was not another.
        start: a result of the same call with fewer steps (for several methods the mapping of them), to go on from: the
            bits are those of one long run, ``steps`` is the new total, and the history begins with that of the result.
            It goes on with the engine that it ran on; another, if you name one, agrees up to rounding.

    >>> import twoclock as tc
    >>> result = tc.solve(tc.problems.quadratic(dim=3), steps=1000, seeds=5)
    >>> result.summary("error").columns.tolist()
    ['step', 'mean', 'median', 'iqm', 'low', 'high', 'seeds', 'diverged']
    """
    source = run_args.check_problem(problem)
    spec = RunSpec.checked(steps, seeds, marks, precision, bound)
    run_args.check_pace(block, checkpoint_every, progress)
    walker = select_engine.resolve(engine)
    method = Auto() if method is None else method
    one = not isinstance(method, Mapping)
    given = method if isinstance(method, Mapping) else {"": method}
    for label in given:
        if not isinstance(label, str):
            raise InputError(f"`method` must map text labels to methods, got the label {validation.short_repr(label)}")
    labelled = {label: run_args.check_method(entry) for label, entry in given.items()}
    if not labelled:
        raise InputError("`method` must name at least one method, got an empty mapping")
    if checkpoint is not None:
        validation.check_path("checkpoint", checkpoint)
    origin: Start | None = None
    if start is not None:
        origin, spec = begin({"": start} if one else start, source, labelled, spec, marks)
    folder = None if checkpoint is None else absolute(checkpoint)
    results: dict[str, Result] = {}
    with jax.enable_x64(spec.x64), deferred_interrupt() as interrupted:
        compatibility.check_source(source)
        check_memory(source, labelled, len(spec.seeds), len(spec.marks))
        ready = make_instances(source, spec.seeds)
        example = ready.example
        for number, labels in enumerate(group_by_program(labelled)):
            alike = {label: labelled[label] for label in labels}
            traced = compatibility.check_fit(example, alike[labels[0]])
            lanes = Lanes.of(replace(ready, traced=traced), list(alike.values()), spec.seeds, spec.bound)
            home = folder if folder is None or one else folder / str(number)
            identities = _identities(source, example, alike, spec, traced, at_once=home is not None)
            began = time.perf_counter()
            with (
                _keeper(home, source, alike, identities) as keeper,
                watch(progress, spec.steps, len(spec.seeds) * len(alike), labels) as look,
            ):
                walked = drive(
                    lanes,
                    spec.marks,
                    origin.carry(labels, xla_engine.start(lanes)) if origin else None,
                    origin.step if origin else 0,
                    rows=origin.rows(labels) if origin else (),
                    engine=origin.engine(labels[0]) if origin and engine == "auto" else walker,
                    block=block,
                    look=look,
                    keeper=keeper,
                    keep_every=checkpoint_every,
                    interrupted=interrupted,
                )
            took = time.perf_counter() - began + (origin.seconds(labels[0]) if origin else 0.0)
            made = Provenance.here(took)
            for i, (label, of_label) in enumerate(alike.items()):
                what = {"problem": describe(problem), "method": describe(of_label)}
                record = {**what, **spec.as_dict(), **_engine(walked), **made.as_dict()}
                results[label] = _result(
                    of_label, traced.digest, i, walked, spec, record, partial(_kept, identities, label)
                )
    return results[""] if one else {label: results[label] for label in labelled}


def check_fit(problem: object, method: object, spec: RunSpec) -> None:
    """Complain unless this problem can be run with this method; nothing is computed."""
    source, checked = run_args.check_problem(problem), run_args.check_method(method)
    with jax.enable_x64(spec.x64):
        compatibility.check_source(source)
        compatibility.check_fit(make_placeholder(source).example, checked)


def _identities(
    problem: ProblemSource,
    example: Problem,
    methods: Mapping[str, Method],
    spec: RunSpec,
    traced: TracedProgram,
    *,
    at_once: bool,
) -> Callable[[], dict[str, Identity]]:
    """What makes the identities of runs, when they are first asked for; to trace them takes a tenth of a second.

    By then a function may compute something else than it did in the run, since a number that it reads was changed. The
    identity is then that of no run, and nothing goes on from there.

    Args:
        at_once: make them now, before the run, to look for its checkpoint.
    """
    if at_once:
        made = identify(problem, methods, spec)
        return lambda: made
    first = next(iter(methods.values()))
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), example)

    known: dict[str, Identity] = {}

    def identities() -> dict[str, Identity]:
        if known:
            return known
        found = identify(problem, methods, spec)
        with jax.enable_x64(spec.x64), suppress(Exception):
            if not trace_checks.has_changed(shapes, first, traced):
                known.update(found)
                return known
        return {label: Identity({**one.parts, "problem": "changed after the run"}) for label, one in found.items()}

    return identities


def _kept(identities: Callable[[], dict[str, Identity]], label: str) -> dict[str, object]:
    return identities()[label].as_json()


def _keeper(
    folder: Path | None,
    problem: ProblemSource,
    methods: Mapping[str, Method],
    identities: Callable[[], dict[str, Identity]],
) -> AbstractContextManager[Checkpoints | None]:
    if folder is None:
        return nullcontext()
    what = {"problem": describe(problem), "method": {label: describe(method) for label, method in methods.items()}}
    return closing(Checkpoints(folder, shared_identity(identities()), what))


def _engine(walked: RunOutput) -> dict[str, object]:
    reason = {} if walked.engine_reason is None else {"engine_reason": walked.engine_reason}
    return {"engine": walked.engine, **reason}


def _result(
    method: Method,
    program: str,
    i: int,
    walked: RunOutput,
    spec: RunSpec,
    record: dict[str, object],
    identity: Callable[[], dict[str, object]],
) -> Result:
    import pandas as pd

    carry = jax.tree.map(lambda leaf: leaf[i], walked.carry)
    theta, omega = jax.tree.map(np.asarray, metrics.estimate_each(method, carry.state, program))
    history = pd.DataFrame(metrics.columns(walked.rows, i, spec.seeds, spec.marks), copy=False)
    end = FinalState(tuple(jax.tree.leaves(carry)), identity)
    return Result(theta, omega, history, ~np.asarray(carry.alive), np.asarray(carry.last, int), record, end)
