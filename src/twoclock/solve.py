"""``solve``: one call from a problem and a method to the solution and its record."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypedDict, Unpack, overload

import jax
import numpy as np

from twoclock import validation
from twoclock.engine import compatibility, engines, program_digest
from twoclock.engine.engines import EngineName
from twoclock.engine.loop import ProgressEvent, deferred_interrupt, drive, watch
from twoclock.engine.protocol import estimate_each, history_columns
from twoclock.engine.run_batch import Lanes, group_by_program, make_instances, make_placeholder
from twoclock.methods.zap import Auto
from twoclock.protocols import InputError, Method, ProblemSource
from twoclock.result import FinalState, Result
from twoclock.resume import Start, begin
from twoclock.storage import Checkpoints, absolute
from twoclock.storage.run_identity import Identity, Precision, RunSpec, describe, identify, provenance, shared_identity
from twoclock.validation import run_args

Progress = bool | Callable[[ProgressEvent], None]
Seeds = int | Iterable[int]
Marks = Iterable[int] | None


class SolveOptions(TypedDict, total=False):
    """The options of ``solve`` that are the same for one method and for several."""

    precision: Precision
    progress: Progress
    checkpoint: str | Path | None
    bound: float | None
    block: int | None
    checkpoint_every: float
    engine: EngineName


@overload
def solve(
    problem: ProblemSource,
    method: Method | None = None,
    steps: float = ...,
    seeds: Seeds = ...,
    marks: Marks = ...,
    *,
    start: Result | None = None,
    **options: Unpack[SolveOptions],
) -> Result: ...
@overload
def solve(
    problem: ProblemSource,
    method: Mapping[str, Method],
    steps: float = ...,
    seeds: Seeds = ...,
    marks: Marks = ...,
    *,
    start: Mapping[str, Result] | None = None,
    **options: Unpack[SolveOptions],
) -> dict[str, Result]: ...
def solve(
    problem: ProblemSource,
    method: Method | Mapping[str, Method] | None = None,
    steps: float = 100_000,
    seeds: Seeds = 20,
    marks: Marks = None,
    precision: Precision = "float64",
    progress: Progress = False,
    checkpoint: str | Path | None = None,
    *,
    bound: float | None = None,
    block: int | None = None,
    checkpoint_every: float = 10.0,
    engine: EngineName = "auto",
    start: Result | Mapping[str, Result] | None = None,
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
    import pandas as pd

    source = run_args.check_problem(problem)
    spec = RunSpec.checked(steps, seeds, marks, precision, bound)
    run_args.check_pace(block, checkpoint_every, progress)
    walker = engines.resolve(engine)
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
    folder = None if checkpoint is None else absolute(checkpoint)
    origin: Start | None = None
    if start is not None:
        origin, spec = begin({"": start} if one else start, source, labelled, spec, marks)
    results: dict[str, Result] = {}
    with jax.enable_x64(spec.x64), deferred_interrupt() as interrupted:
        compatibility.check_source(source)
        compatibility.check_memory(source, labelled, len(spec.seeds), len(spec.marks))
        ready = make_instances(source, spec.seeds)
        example = ready.example
        for number, labels in enumerate(group_by_program(labelled)):
            alike = {label: labelled[label] for label in labels}
            traced = compatibility.check_fit(example, alike[labels[0]])
            lanes = Lanes.of(replace(ready, traced=traced), list(alike.values()), spec.seeds, spec.bound)
            home = folder if folder is None or one else folder / str(number)
            identities = _Identities(source, alike, spec, lanes)
            began = time.perf_counter()
            with (
                identities.checkpoints(home) as checkpoints,
                watch(progress, spec.steps, len(spec.seeds) * len(alike), labels) as look,
            ):
                walked = drive(
                    lanes,
                    spec.marks,
                    origin.carry(labels, engines.start(lanes)) if origin else None,
                    origin.step if origin else 0,
                    rows=origin.rows(labels) if origin else (),
                    engine=origin.engine(labels[0]) if origin and engine == "auto" else walker,
                    block=block,
                    look=look,
                    checkpoints=checkpoints,
                    save_every=checkpoint_every,
                    interrupted=interrupted,
                )
            took = time.perf_counter() - began + (origin.seconds(labels[0]) if origin else 0.0)
            reason = {} if walked.engine_reason is None else {"engine_reason": walked.engine_reason}
            about = {**spec.as_dict(), "engine": walked.engine, **reason, **provenance(took)}
            for i, (label, one_method) in enumerate(alike.items()):
                carry = jax.tree.map(operator.itemgetter(i), walked.carry)
                theta, omega = jax.tree.map(np.asarray, estimate_each(one_method, carry.state, traced.digest))
                results[label] = Result(
                    theta,
                    omega,
                    pd.DataFrame(history_columns(walked.rows, i, spec.seeds, spec.marks), copy=False),
                    ~np.asarray(carry.alive),
                    np.asarray(carry.last, int),
                    {"problem": describe(problem), "method": describe(one_method), **about},
                    FinalState(tuple(jax.tree.leaves(carry)), partial(identities.after_the_run, label)),
                )
    return results[""] if one else {label: results[label] for label in labelled}


def check_fit(problem: object, method: object, spec: RunSpec) -> None:
    """Complain unless this problem can be run with this method; nothing is computed."""
    source, checked = run_args.check_problem(problem), run_args.check_method(method)
    with jax.enable_x64(spec.x64):
        compatibility.check_source(source)
        compatibility.check_fit(make_placeholder(source).example, checked)


class _Identities:
    """The identities of runs by label, traced when they are first asked for: that takes a tenth of a second.

    By then a function may compute something else than it did in the run, since a number that it reads was changed. The
    identity is then that of no run, and nothing can continue from it.
    """

    def __init__(self, problem: ProblemSource, methods: Mapping[str, Method], spec: RunSpec, lanes: Lanes) -> None:
        self.problem, self.methods, self.spec = problem, methods, spec
        self.traced = lanes.instances.traced
        self.example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), lanes.instances.example)

    @cached_property
    def before_the_run(self) -> dict[str, Identity]:
        return identify(self.problem, self.methods, self.spec)

    def after_the_run(self, label: str) -> dict[str, object]:
        """The identity of one of the runs, as JSON."""
        if "before_the_run" in vars(self):
            return self.before_the_run[label].as_json()
        first = next(iter(self.methods.values()))
        with jax.enable_x64(self.spec.x64), suppress(Exception):
            if program_digest.trace_lane(self.example, first) == self.traced:
                return self.before_the_run[label].as_json()
        found = identify(self.problem, self.methods, self.spec)[label]
        return Identity({**found.parts, "problem": "changed after the run"}).as_json()

    def checkpoints(self, folder: Path | None) -> AbstractContextManager[Checkpoints | None]:
        """Where the runs are saved while they last."""
        if folder is None:
            return nullcontext()
        methods = {label: describe(method) for label, method in self.methods.items()}
        what = {"problem": describe(self.problem), "method": methods}
        return closing(Checkpoints(folder, shared_identity(self.before_the_run), what))
