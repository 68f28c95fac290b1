"""The loop of a run: lanes advance from mark to mark, with progress events, checkpoints, and signals in between."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import jax
import numpy as np

from twoclock.engine import compatibility, run_batch, trace_checks, xla_engine
from twoclock.engine.protocol import Engine, EngineError, LaneState, Program, Row
from twoclock.engine.run_batch import Lanes
from twoclock.engine.select_engine import NAMES, Chosen, choose, fall_back
from twoclock.engine.signals import Interrupted
from twoclock.intervals.bootstrap import TRACKED
from twoclock.protocols import PyTree


@dataclass(frozen=True, repr=False)
class ProgressEvent:
    """A moment at which the run may be looked at: a mark or, between marks, a pause.

    Attributes:
        step: the steps taken so far.
        row: at a mark its metrics, each methods × seeds; None at a pause.
        diverged: how many lanes have diverged.
        carry: makes the carry of all lanes.
        labels: of the methods; "" for one that has none.
        engine: which one runs, and why it is not another.
    """

    step: int
    row: Row | None
    diverged: int
    carry: Callable[[], LaneState]
    engine: str = "xla"
    labels: tuple[str, ...] = ("",)

    @property
    def metrics(self) -> dict[str, float]:
        """The mean over seeds of each metric, as "metric" or "label/metric", ready for a logger; empty at a pause."""
        return {
            f"{label}/{name}" if label else name: float(np.mean(values[i]))
            for i, label in enumerate(self.labels)
            for name, values in (self.row or {}).items()
            if not name.startswith(TRACKED)
        }

    def __repr__(self) -> str:
        means = "".join(f", {name} {value:.4g}" for name, value in self.metrics.items())
        return f"Tick(step {self.step:,}{means}, {self.diverged} diverged)"


@dataclass(frozen=True)
class RunOutput:
    """The outcome of a run.

    Attributes:
        rows: one for each mark.
        carry: of all lanes at the last, NumPy arrays methods × seeds.
        engine: the one that ran.
        engine_reason: why it was not another; None where it is the one asked for.
    """

    rows: list[Row]
    carry: LaneState
    engine: str = "xla"
    engine_reason: str | None = None


@runtime_checkable
class CheckpointStore(Protocol):
    """Where checkpoints of a run are saved; ``storage.Checkpoints`` is one."""

    def latest(self) -> tuple[int, dict[str, PyTree]] | None:
        """The step and the named arrays to continue from, or None for a fresh start."""

    def save(self, step: int, tree: dict[str, PyTree]) -> None: ...


def drive(
    work: Lanes,
    marks: Sequence[int],
    carry: LaneState | None = None,
    step: int = 0,
    *,
    rows: Sequence[Row] = (),
    engine: str | Engine = "auto",
    block: int | None = None,
    look: Callable[[ProgressEvent], None] = lambda event: None,
    checkpoints: CheckpointStore | None = None,
    save_every: float = 10.0,
    interrupted: Callable[[], bool] = lambda: False,
) -> RunOutput:
    """Advance all lanes to the last mark, measuring at each.

    Args:
        work: the lanes.
        marks: increasing step numbers at which to record; the last one ends the run.
        carry: the state to continue from; None for the start.
        step: the step that the carry is at; earlier marks are passed over.
        rows: those of the marks before ``step``.
        engine: a name (see ``select_engine``) or an engine. From a checkpoint a run continues on the engine of that.
        block: draw the noise of at most so many steps at once, on XLA.
        look: called with every event: at each mark, and about four times a second between.
        checkpoints: the run continues from the latest; one is saved every ``save_every`` seconds and at the end.
        interrupted: called after every event; once it is true, a checkpoint is saved and ``Interrupted`` raised.
    """
    traced = work.instances.traced or trace_checks.trace_lanes(work)
    work = replace(work, instances=replace(work.instances, traced=traced))
    with traced.separate_traces():
        rows = list(rows)
        if carry is None:
            carry = xla_engine.start(work)
            compatibility.check_start(carry.state.theta, carry.state.omega)
        if checkpoints is not None and (latest := checkpoints.latest()) is not None:
            step, tree = latest
            leaves, rows = from_arrays(tree)
            carry = jax.tree.unflatten(jax.tree.structure(carry), leaves)
            del rows[bisect_left(marks, step) :]  # a mark at this very step is measured again
            engine = NAMES[int(tree["engine"])] if engine == "auto" else engine
        saved, groups = time.monotonic(), _Groups(work, choose(engine, work, marks[-1], block), block)
        for event in groups.events(marks, carry, step):
            if event.row is not None:
                rows.append(event.row)
            look(event)
            stop = interrupted()
            if checkpoints is not None and (stop or time.monotonic() - saved > save_every or event.step == marks[-1]):
                checkpoints.save(event.step, _to_arrays(event.carry(), rows, groups.chosen.name))
                saved = time.monotonic()
            if stop:
                how = "; the same call with the same checkpoint goes on from there" if checkpoints else ""
                raise Interrupted(f"stopped at step {event.step:,} of {marks[-1]:,}{how}")
        return RunOutput(rows, event.carry(), groups.chosen.name, groups.chosen.reason)


class _Groups:
    """The programs of all groups of lanes; where an engine fails, XLA takes over from the last carry."""

    def __init__(self, work: Lanes, chosen: Chosen, block: int | None) -> None:
        self.work, self.chosen, self.block = work, chosen, block

    def events(self, marks: Sequence[int], carry: LaneState, step: int, pause: float = 0.25) -> Iterator[ProgressEvent]:
        """An event at each mark from ``step`` on, and about every ``pause`` seconds between."""
        carries = [program.place(carry) for program in self.chosen.programs]
        stride = self.chosen.programs[0].stride
        with ThreadPoolExecutor(run_batch.count_threads()) as pool:
            for mark in marks[bisect_left(marks, step) :]:
                while step < mark:
                    stop = min(step + stride, mark)
                    began = time.perf_counter()
                    carries = self._advance(pool, carries, step, stop)
                    took, step = time.perf_counter() - began, stop
                    if took > 2 * pause:
                        stride = max(stride // 2, 1)
                    elif took < pause / 2 and stop < mark:
                        stride *= 2
                    if step < mark:
                        yield self._event(step, None, carries)
                # One after the other: JAX may hand the factorisations of two programs to the pool they both wait on.
                programs = self.chosen.programs
                rows = [program.measure(carry) for program, carry in zip(programs, carries, strict=True)]
                row = {name: _join(programs, *(part[name] for part in rows)) for name in rows[0]}
                yield self._event(step, row, carries)

    def _event(self, step: int, row: Row | None, carries: list[LaneState]) -> ProgressEvent:
        diverged = sum(int(np.count_nonzero(~np.asarray(carry.alive))) for carry in carries)
        return ProgressEvent(
            step, row, diverged, partial(_join_carries, self.chosen.programs, carries), self.chosen.words
        )

    def _advance(self, pool: ThreadPoolExecutor, carries: list[LaneState], lo: int, hi: int) -> list[LaneState]:
        traced = self.work.instances.traced
        context = traced.separate_traces if traced else nullcontext
        try:
            return advance_all(pool, self.chosen.programs, carries, lo, hi, context)
        except EngineError as error:
            carry = _join_carries(self.chosen.programs, carries)
            self.chosen = fall_back(self.work, self.block, self.chosen.name, str(error))
            again = [program.place(carry) for program in self.chosen.programs]
            return advance_all(pool, self.chosen.programs, again, lo, hi, context)


def advance_all(
    pool: ThreadPoolExecutor,
    programs: Sequence[Program],
    carries: list[LaneState],
    lo: int,
    hi: int,
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> list[LaneState]:
    """Advance the lanes of all programs, each on a thread, in the precision and the context of this one."""
    x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]

    def here(program: Program, carry: LaneState) -> LaneState:
        with jax.enable_x64(x64), context():  # a thread would start from the global setting
            return program.advance(carry, lo, hi)

    if len(programs) == 1:
        return [here(programs[0], carries[0])]
    return list(pool.map(here, programs, carries))


def _join_carries(programs: Sequence[Program], carries: list[LaneState]) -> LaneState:
    return jax.tree.map(partial(_join, programs), *jax.device_get(carries))


def _join(programs: Sequence[Program], *parts: np.ndarray) -> np.ndarray:
    """Join the arrays of all groups, methods × seeds."""
    pairs = zip(programs, parts, strict=True)
    return run_batch.concat_groups([(program.where[0], np.asarray(part)) for program, part in pairs])


def _to_arrays(carry: LaneState, rows: list[Row], engine: str) -> dict[str, PyTree]:
    """A run as named arrays, for a checkpoint."""
    leaves = {f"{i:04d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(carry))}
    metrics = {name: np.stack([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    tree = {"carry": leaves, "engine": np.asarray(NAMES.index(engine), np.int32)}
    return {**tree, "rows": metrics} if metrics else tree


def from_arrays(tree: dict[str, PyTree]) -> tuple[list[np.ndarray], list[Row]]:
    """The leaves of the carry in a checkpoint, ``alive`` and ``last`` at the end, and the rows of the marks so far."""
    metrics = tree.get("rows", {})
    count = len(next(iter(metrics.values()), ()))
    rows = [{name: values[i] for name, values in metrics.items()} for i in range(count)]
    return [tree["carry"][name] for name in sorted(tree["carry"])], rows
