"""``solve``: from a problem and a method to the solution and its record."""

from __future__ import annotations

import operator
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypedDict, Unpack, overload

import jax
import numpy as np

from twoclock import prng, validation
from twoclock.engine import compatibility, engines, program_digest
from twoclock.engine.engines import EngineName
from twoclock.engine.loop import ProgressEvent, deferred_interrupt, drive, take_up, watch
from twoclock.engine.protocol import LaneState, Row, estimate_each
from twoclock.engine.run_batch import Lanes, group_by_program, make_instances, make_placeholder
from twoclock.engine.tracing import hash_arrays
from twoclock.intervals.confidence_sequence import first_look
from twoclock.intervals.stopping import Width
from twoclock.methods.auto import Auto, NotArrivedWarning
from twoclock.protocols import InputError, Method, Problem, ProblemSource
from twoclock.result import FinalState, RecordedRows, Result
from twoclock.storage import Checkpoints, absolute
from twoclock.storage.atomic_file import Document
from twoclock.storage.run_identity import (
    Identity,
    Precision,
    RunSpec,
    describe,
    explain_mismatch,
    identify,
    provenance,
    shared_identity,
)
from twoclock.validation import run_args, short_repr

Progress = bool | Callable[[ProgressEvent], None]
Seeds = int | Iterable[int]
Marks = Iterable[int] | None


class SolveOptions(TypedDict, total=False):
    """The options that ``solve`` shares for one method and for several."""

    precision: Precision
    progress: Progress
    checkpoint: str | Path | None
    bound: float | None
    block: int | None
    checkpoint_every: float
    engine: EngineName
    until: Width | None


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
    until: Width | None = None,
) -> Result | dict[str, Result]:
    """Solve a problem for many seeds at once, with the default method or a given one.

    Args:
        problem: a problem, or a function of a key that makes one, so that each seed has its own instance.
        method: a method, or a mapping of labels to methods. For a mapping the result is a mapping too, and methods that
            differ only in numbers run as one program. None is ``tc.Auto()``, which needs no step size;
            ``result.chosen`` says what ran.
        steps: the number of steps; each takes one sample.
        seeds: a count, or the integers themselves. Step k of seed s depends on (s, k) alone.
        marks: the steps at which to record; by default the start, the end and ten per decade.
        precision: "float64"; "float32" with compensated sums; or "bfloat16", which computes F and G in bfloat16 and
            all else as "float32" does, for networks on accelerators.
        progress: True for a bar, or a function that is called with every tick of the run.
        checkpoint: a folder. A killed run resumes from there; the result is bit-for-bit identical.
        bound: count a seed as diverged when an entry of θ or ω leaves [−bound, bound].
        block: the most steps whose noise is drawn at once; it affects only the speed.
        checkpoint_every: seconds between checkpoints.
        engine: "xla" works everywhere. "c" and "cuda" compile a program of the step, with the machine's C compiler or
            for an NVIDIA GPU, and are several times faster. "auto" takes what probably finishes first, or the value of
            the variable TWOCLOCK_ENGINE. If an engine cannot run a problem, XLA does: ``spec["engine"]`` is the engine
            that ran, ``spec["engine_reason"]`` says why.
        start: a result of the same call with fewer steps (for several methods the mapping of them), to continue,
            bit-for-bit identical to one long run. ``steps`` is the new total, and the history begins with that of the
            result. The engine stays the same; another one agrees up to rounding.
        until: ``tc.Width(0.01)`` stops at the first mark where all outputs are known to ± 0.01 by intervals that are
            valid at any stopping time, and after ``steps`` at the latest. It needs a single method,
            ``tc.methods.BatchMeans(method)``. ``spec["steps"]`` is the last step and ``spec["until"]`` the reason. The
            same call with these steps, on the same engine, is bit-for-bit identical, and ``start=result`` continues it.

    >>> import twoclock as tc
    >>> result = tc.solve(tc.problems.quadratic(dim=3), steps=1000, seeds=5)
    >>> result.summary("error").columns.tolist()
    ['step', 'mean', 'median', 'iqm', 'low', 'high', 'seeds', 'diverged']
    """
    spec = RunSpec.checked(steps, seeds, marks, precision, bound)
    source = spec.in_precision(run_args.check_problem(problem))
    run_args.check_pace(block, checkpoint_every, progress)
    walker = engines.resolve(engine)
    method = Auto() if method is None else method
    one = not isinstance(method, Mapping)
    given = method if isinstance(method, Mapping) else {"": method}
    validation.check_labels("method", given)
    labelled = {label: run_args.check_method(entry) for label, entry in given.items()}
    if not labelled:
        raise InputError("`method` must name at least one method, got an empty mapping")
    if checkpoint is not None:
        validation.check_path("checkpoint", checkpoint)
    folder = None if checkpoint is None else absolute(checkpoint)
    _check_until(until, one)
    origin: dict[str, Result] = {}
    if start is not None:
        origin, spec = _check_start({"": start} if one else start, source, labelled, spec, marks)
    results: dict[str, Result] = {}
    with jax.enable_x64(spec.x64), deferred_interrupt(compiles=True) as interrupted:
        compatibility.check_source(source)
        compatibility.check_memory(source, labelled, len(spec.seeds), len(spec.marks))
        ready = make_instances(source, spec.seeds)
        for number, labels in enumerate(group_by_program(labelled)):
            alike = {label: labelled[label] for label in labels}
            traced = compatibility.check_fit(ready.example, alike[labels[0]])
            if until is not None:
                _check_blocks(ready.example, alike[labels[0]])
                first_look(until.first or True, spec.marks)
            lanes = Lanes.of(replace(ready, traced=traced), list(alike.values()), spec.seeds, spec.bound)
            home = folder if folder is None or one else folder / str(number)
            identities = _Identities(source, alike, spec, lanes)
            before: Document = origin[labels[0]].spec if origin else {"steps": 0}
            began = time.perf_counter()
            with (
                identities.checkpoints(home) as checkpoints,
                watch(progress, spec.steps, len(spec.seeds) * len(alike), labels) as look,
            ):
                output = drive(
                    lanes,
                    spec.marks,
                    _carry([origin[label] for label in labels], engines.start(lanes)) if origin else None,
                    before["steps"],
                    rows=_rows([origin[label] for label in labels]) if origin else (),
                    engine=before.get("engine", "xla") if origin and engine == "auto" else walker,
                    block=block,
                    look=look,
                    checkpoints=checkpoints,
                    save_every=checkpoint_every,
                    interrupted=interrupted,
                    learns=True,
                    until=None if until is None else partial(_reached, until, spec),
                )
            ended = replace(spec, steps=spec.marks[len(output.rows) - 1], marks=spec.marks[: len(output.rows)])
            identities.ended = ended
            took = time.perf_counter() - began + before.get("wall_seconds", 0.0)
            ran = {"engine": output.engine, "engine_reason": output.engine_reason}
            about = {**ended.as_dict(), **ran, **provenance(took)}
            if until is not None:
                reached = _reached(until, ended, output.rows, lambda: output.carry)  # noqa: B023 - called at once
                about["until"] = {**vars(until), "steps": spec.steps, "reached": reached}
            for i, (label, one_method) in enumerate(alike.items()):
                carry = jax.tree.map(operator.itemgetter(i), output.carry)
                # Copied, since an array of JAX must not be written to.
                theta, omega = jax.tree.map(np.array, estimate_each(one_method, carry.state, traced.digest))
                results[label] = Result(
                    theta,
                    omega,
                    RecordedRows(output.rows, i, ended.seeds, ended.marks),  # type: ignore[arg-type]
                    ~np.asarray(carry.alive),
                    np.asarray(carry.last, int),
                    {"problem": describe(problem), "method": describe(one_method), **about},
                    FinalState(tuple(jax.tree.leaves(carry)), partial(identities.after_the_run, label)),
                )
    for label, result in results.items():
        if isinstance(labelled[label], Auto) and not result.arrived.all():
            warnings.warn(result.chosen, NotArrivedWarning, stacklevel=2)
    return results[""] if one else {label: results[label] for label in labelled}


def _check_until(until: object, one: bool) -> None:
    if until is not None and not isinstance(until, Width):
        raise InputError(f"`until` must be a rule such as tc.Width(0.01), got {short_repr(until)}")
    if until is not None and not one:
        raise InputError("`until` is for one method, since each would stop elsewhere; solve with them one by one")


def _check_blocks(problem: Problem, method: Method) -> None:
    """Refuse a method without the intervals that ``until`` waits for."""
    theta, omega, _ = jax.eval_shape(problem.init, prng.key_shape())
    if "block-estimate" not in jax.eval_shape(lambda *start: method.track(method.init(*start)), theta, omega):
        raise InputError(
            f"`until` needs intervals that are valid at any stopping time, and {type(method).__name__} has none; run "
            "`tc.methods.BatchMeans(method)` on linear problems"
        )


def _reached(until: Width, spec: RunSpec, rows: Sequence[Row], carry: Callable[[], LaneState]) -> bool:
    """Whether the run may stop at the mark of the last row."""
    alive, last = (np.asarray(part)[0].tolist() for part in (carry().alive, carry().last))
    ended = zip(spec.seeds, alive, last, strict=False)
    diverged = {seed: step for seed, well, step in ended if not well}
    return until.reached(RecordedRows(rows, 0, spec.seeds, spec.marks)(), diverged)


def _check_start(
    start: object, problem: ProblemSource, methods: Mapping[str, Method], spec: RunSpec, marks: object
) -> tuple[dict[str, Result], RunSpec]:
    """The result to continue, and the options of the whole run with all marks; another run is refused."""
    if not isinstance(start, Mapping) or set(start) != set(methods):
        labels = ", ".join(map(repr, methods))
        raise InputError(f"`start` must be a mapping with a result for each of {labels:.200}, got {short_repr(start)}")
    results = {label: start[label] for label in methods}
    names = {label: f"start[{label!r}]" if label else "start" for label in methods}
    for label, result in results.items():
        where = names[label]
        if not isinstance(result, Result):
            raise InputError(f"`{where}` must be a result of `solve`, got {short_repr(result)}")
        if result.end is None:
            raise InputError(f"`{where}` has no state to continue from (one of a sweep has none); run it with `solve`")
        first = results[next(iter(methods))].spec
        seeds, known = result.spec["seeds"], result.spec["marks"]
        if (result.spec["steps"], known) != (first["steps"], first["marks"]):
            raise InputError(
                f"`start` must hold results with the same steps and marks, {label!r} has others; continue one by one"
            )
        as_written = np.repeat(seeds, len(known)), np.tile(known, len(seeds))
        if not all(map(np.array_equal, as_written, (result.history[name] for name in ("seed", "step")))):
            raise InputError(f"`{where}` must have its history as `solve` wrote it; its rows have changed")
    step, known = first["steps"], tuple(first["marks"])
    if spec.steps < step:
        raise InputError(
            f"`steps` must be the new total, at least the {step:,} where `start` stopped, got {spec.steps:,}"
        )
    missing = [] if marks is None else [mark for mark in spec.marks if mark <= step and mark not in known]
    if missing:
        raise InputError(
            f"`marks` up to {step:,} must be those of `start`, which has none at {missing[0]:,}; leave them out"
        )
    before = replace(spec, steps=step, marks=known)
    here = identify(problem, methods, before)
    for label, result in results.items():
        differs = here[label].difference(result.end.identity())
        if differs is not None:
            of_here = {**here[label].parts, "problem": describe(problem), "method": describe(methods[label])}
            there = {**result.end.identity(), **result.spec}
            reason, remedy = explain_mismatch(differs, there.get(differs), of_here.get(differs))
            raise InputError(f"`{names[label]}` is of another run: {reason}; {remedy} to continue it")
    return results, replace(spec, marks=(*known, *(mark for mark in spec.marks if mark > step)))


def _carry(results: list[Result], like: LaneState) -> LaneState:
    """The final states of the methods of one program, methods × seeds."""
    leaves = zip(*(result.end.carry for result in results if result.end is not None), strict=True)
    return take_up(like, [np.stack(leaf) for leaf in leaves])


def _rows(results: list[Result]) -> list[Row]:
    """The rows of the marks before the last step; that of the last step is measured again."""
    shape = [len(results[0].spec[name]) for name in ("seeds", "marks")]
    names = [name for name in results[0].history.columns if name not in ("seed", "step")]
    values = {n: np.stack([result.history[n].to_numpy().reshape(shape) for result in results]) for n in names}
    return [{n: v[:, :, i] for n, v in values.items()} for i in range(shape[1] - 1)]


def check_fit(problem: object, method: object, spec: RunSpec) -> None:
    """Check that this problem can be run with this method; nothing is computed."""
    source, checked = spec.in_precision(run_args.check_problem(problem)), run_args.check_method(method)
    with jax.enable_x64(spec.x64):
        compatibility.check_source(source)
        compatibility.check_fit(make_placeholder(source).example, checked)


class _Identities:
    """The identities of runs by label, traced at their first use, since that takes a tenth of a second.

    If a number that a function reads has changed by then, there is no identity, and nothing can continue the run.
    """

    def __init__(self, problem: ProblemSource, methods: Mapping[str, Method], spec: RunSpec, lanes: Lanes) -> None:
        self.problem, self.methods, self.spec = problem, methods, spec
        self.ended = spec  # the run so far
        self.example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), lanes.instances.example)
        self.began = lanes.instances.traced, self._numbers()

    def _numbers(self) -> bytes | str:
        """What may change in place outside the trace of a lane: NumPy arrays, and the code of a factory."""
        if not isinstance(self.problem, Problem):
            return program_digest.digest_run(self.problem, {}, x64=self.spec.x64)[0]
        leaves = jax.tree.leaves((self.problem, list(self.methods.values())))
        return hash_arrays([leaf for leaf in leaves if isinstance(leaf, np.ndarray)]).digest()

    @cached_property
    def before_the_run(self) -> dict[str, Identity]:
        return identify(self.problem, self.methods, self.spec)

    def after_the_run(self, label: str) -> dict[str, object]:
        """The identity of one of the runs, as JSON."""
        if "before_the_run" in vars(self):
            return self._as_ended(label)
        first = next(iter(self.methods.values()))
        with jax.enable_x64(self.spec.x64), suppress(Exception):
            if (program_digest.trace_lane(self.example, first), self._numbers()) == self.began:
                return self._as_ended(label)
        return Identity({**self.spec.as_dict(), "problem": "changed after the run, or not to be identified"}).as_json()

    def _as_ended(self, label: str) -> dict[str, object]:
        return Identity({**self.before_the_run[label].parts, **self.ended.as_dict()}).as_json()

    def checkpoints(self, folder: Path | None) -> AbstractContextManager[Checkpoints | None]:
        """The store of the checkpoints of the runs."""
        if folder is None:
            return nullcontext()
        methods = {label: describe(method) for label, method in self.methods.items()}
        what = {"problem": describe(self.problem), "method": methods}
        return closing(Checkpoints(folder, shared_identity(self.before_the_run), what))
