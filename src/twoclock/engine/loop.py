"""The loop of a run: lanes advance from mark to mark, with progress events, checkpoints, and signals in between."""

from __future__ import annotations

import _thread
import random
import signal
import sys
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from twoclock.engine import compatibility, program_digest, run_batch
from twoclock.engine.engines import NAMES, choose, start, with_xla
from twoclock.engine.protocol import Engine, EngineError, LaneState, Program, Row
from twoclock.engine.run_batch import Lanes
from twoclock.intervals.bootstrap import TRACKED
from twoclock.protocols import InputError, PyTree
from twoclock.validation import readable_callback_errors

_USUAL: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
if hasattr(signal, "SIGHUP"):  # Windows has none
    _USUAL[signal.SIGHUP] = signal.SIG_DFL

_last: int = signal.SIGINT
_PAUSE = 0.25  # about how many seconds lie between two events
_DAMAGED = "what was saved is damaged: its arrays are not those of this run; start again without it"


@dataclass(frozen=True, repr=False)
class ProgressEvent:
    """The progress of a run, at a mark or between two marks.

    ``solve`` passes one to its argument ``progress``.

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
    """The rows of a run, one per mark; the last carry, NumPy arrays methods × seeds; which engine ran, and why."""

    rows: list[Row]
    carry: LaneState
    engine: str = "xla"
    engine_reason: str | None = None


@runtime_checkable
class CheckpointStore(Protocol):
    """Where checkpoints of a run are saved; ``storage.Checkpoints`` is one."""

    def latest(self) -> tuple[int, dict[str, PyTree]] | None: ...
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
    until: Callable[[Sequence[Row], Callable[[], LaneState]], bool] | None = None,
    learns: bool = False,
) -> RunOutput:
    """Advance all lanes to the last mark, measuring at each.

    Args:
        marks: increasing step numbers at which to record; the last one ends the run.
        carry, step: the state to continue from and the step that it is at; earlier marks are skipped.
        rows: those of the marks before ``step``.
        engine: a name (see ``engines``) or an engine. A run continues from a checkpoint on the checkpoint's engine.
        block: the most steps whose noise is drawn at once, on XLA.
        look: called with every event: at each mark, and about four times a second between.
        checkpoints: the run continues from the latest; one is saved every ``save_every`` seconds and at the end.
        interrupted: called after every event; once it returns True, a checkpoint is saved and ``Interrupted`` raised.
        until: called at each mark with the rows so far and a function that makes the carry; once it is true, the run
            ends there as if it were the last mark.
        learns: whether the choice of an engine also counts the runs before.
    """
    traced = work.instances.traced or program_digest.trace_lanes(work)
    work = replace(work, instances=replace(work.instances, traced=traced))
    threads = ThreadPoolExecutor(run_batch.count_threads())
    with traced.separate_traces(), readable_callback_errors(), threads as pool:
        rows = list(rows)
        latest = None if checkpoints is None else checkpoints.latest()
        if latest is not None and engine == "auto":
            engine = NAMES[int(latest[1]["engine"])]
        # The C compiler works while XLA compiles the start.
        chosen = choose(engine, work, marks[-1], block, learns)
        if carry is None:
            carry = start(work)
            compatibility.check_start(carry.state.theta, carry.state.omega)
        if latest is not None:
            step, tree = latest
            leaves, rows = from_arrays(tree)
            carry = take_up(carry, leaves)
            del rows[bisect_left(marks, step) :]  # a mark at this very step is measured again
        saved = time.monotonic()
        parts = [program.place(carry) for program in chosen.programs]
        carry = None  # one of many numbers is used up
        stride = chosen.programs[0].stride

        def pause(row: Row | None = None, ends: bool = False) -> None:
            nonlocal saved
            now = partial(_join_carries, chosen.programs, parts)
            diverged = sum(int(np.count_nonzero(~np.asarray(part.alive))) for part in parts)
            look(ProgressEvent(step, row, diverged, now, chosen.words))
            stop = interrupted()
            if checkpoints is not None and (stop or ends or time.monotonic() - saved > save_every):
                checkpoints.save(step, _to_arrays(now(), rows, chosen.name))
                saved = time.monotonic()
            if stop:
                how = "; the same call with the same checkpoint resumes there" if checkpoints else ""
                raise Interrupted(f"stopped at step {step:,} of {marks[-1]:,}{how}")

        def advance(stop: int) -> list[LaneState]:
            nonlocal chosen, parts
            try:
                return advance_all(pool, chosen.programs, parts, step, stop, traced.separate_traces)
            except EngineError as error:  # XLA takes over from the last carry
                carry = _join_carries(chosen.programs, parts)
                chosen = with_xla(work, block, str(error), chosen.name)
                parts = [program.place(carry) for program in chosen.programs]
                return advance(stop)

        first = step
        for mark in marks[bisect_left(marks, step) :]:
            while step < mark:
                stop, began = next_stop(marks, step, stride), time.perf_counter()
                parts = advance(stop)
                took, step = time.perf_counter() - began, stop
                if took > 2 * _PAUSE:
                    stride = max(stride // 2, 1)
                elif took < _PAUSE / 2 and stop < mark:
                    stride *= 2
                if step < mark:
                    pause()
            # One after the other: JAX may give the factorisations of two programs to the thread pool on which both
            # wait.
            found = [program.measure(part) for program, part in zip(chosen.programs, parts, strict=True)]
            if len(found) > 1:
                found = [{name: _join(chosen.programs, *(row[name] for row in found)) for name in found[0]}]
            rows += found
            if first == step < marks[-1]:
                # No step, only the compilation: from here on a user's function may change what F reads.
                parts = advance(step)
            enough = until is not None and until(rows, partial(_join_carries, chosen.programs, parts))
            pause(rows[-1], ends=enough or mark == marks[-1])
            if enough:
                break
        return RunOutput(rows, _join_carries(chosen.programs, parts), chosen.name, chosen.reason)


def next_stop(marks: Sequence[int], step: int, most: int) -> int:
    """The next step at which the loop stops: a mark, to measure, or after ``most`` steps."""
    return min(step + most, marks[bisect_right(marks, step)])


def advance_all(
    pool: ThreadPoolExecutor,
    programs: Sequence[Program],
    carries: list[LaneState],
    lo: int,
    hi: int,
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> list[LaneState]:
    """Advance the lanes of all programs, each on a thread, with the precision and the context of this thread."""
    x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]

    def here(program: Program, carry: LaneState) -> LaneState:
        with jax.enable_x64(x64), context():  # a new thread has the global setting
            return program.advance(carry, lo, hi)

    return list((map if len(programs) == 1 else pool.map)(here, programs, carries))


def _join_carries(programs: Sequence[Program], carries: list[LaneState]) -> LaneState:
    return jax.tree.map(partial(_join, programs), *jax.device_get(carries))


def _join(programs: Sequence[Program], *parts: np.ndarray) -> np.ndarray:
    """Join the arrays of all groups, methods × seeds."""
    if len(parts) == 1 and jax.default_backend() != "cpu":  # the array has been copied from the device
        return np.asarray(parts[0])
    by_methods: dict[int, list[np.ndarray]] = {}
    for program, part in zip(programs, parts, strict=True):
        by_methods.setdefault(program.where[0].start, []).append(np.asarray(part))
    return np.concatenate([row[0] if len(row) == 1 else np.concatenate(row, axis=1) for row in by_methods.values()])


def take_up(like: LaneState, leaves: Sequence[np.ndarray]) -> LaneState:
    """The carry of saved leaves, in the structure of a fresh one."""
    fresh, structure = jax.tree.flatten(like)
    if [(leaf.shape, leaf.dtype) for leaf in leaves] != [(leaf.shape, leaf.dtype) for leaf in fresh]:
        raise InputError(_DAMAGED)
    return jax.tree.unflatten(structure, leaves)


def _to_arrays(carry: LaneState, rows: list[Row], engine: str) -> dict[str, PyTree]:
    """A run as named arrays, for a checkpoint."""
    leaves = {f"{i:04d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(carry))}
    metrics = {name: np.stack([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    tree = {"carry": leaves, "engine": np.asarray(NAMES.index(engine), np.int32)}
    return {**tree, "rows": metrics} if metrics else tree


def from_arrays(tree: dict[str, PyTree]) -> tuple[list[np.ndarray], list[Row]]:
    """The leaves of the carry in a checkpoint, ``alive`` and ``last`` at the end, and the rows of the marks so far."""
    metrics = tree.get("rows", {})
    counts = {np.shape(values)[:1] for values in metrics.values()}
    if len(counts) > 1 or () in counts or not {"carry", "engine"} <= {*tree}:
        raise InputError(_DAMAGED)
    count = len(next(iter(metrics.values()), ()))
    rows = [{name: values[i] for name, values in metrics.items()} for i in range(count)]
    return [tree["carry"][name] for name in sorted(tree["carry"])], rows


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the message says where it stopped and how to resume."""


def last_signal() -> int:
    """The number of the signal that stopped the last run, for an exit status."""
    return _last


def _send_again(ignored: sys.UnraisableHookArgs) -> None:
    """Raise Ctrl-C once more where Python ignores it, as inside JAX's function for the garbage collector."""
    if isinstance(ignored.exc_value, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is _USUAL[signal.SIGINT]:
        with suppress(RuntimeError):  # the interpreter ends
            _thread.start_new_thread(_thread.interrupt_main, ())  # in this thread it would be ignored once more
    else:
        _report(ignored)


_report, sys.unraisablehook = sys.unraisablehook, _send_again


@contextmanager
def deferred_interrupt(compiles: bool = False) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether a signal came. A second signal stops at once, as usual.

    Python raises KeyboardInterrupt anywhere, also in the middle of a compilation or while a checkpoint is written. A
    run records the signal instead, also one from a scheduler or a closed terminal, and stops at the next event. Python
    sees no signal while XLA compiles. So a run that ``compiles`` first leaves all but Ctrl-C to the system until the
    function is first called: SIGTERM ends the process at once, and nothing has been computed that could be saved.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # this thread gets no signals
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        global _last
        came, _last = True, number
        put_back()

    def record(numbers: Iterable[int]) -> None:
        for number in numbers:  # another handler, and a signal that is ignored as under nohup, are left unchanged
            if not came and signal.getsignal(number) is _USUAL[number]:
                signal.signal(number, note)

    def put_back() -> None:
        for number in _USUAL:
            if signal.getsignal(number) is note:  # one that was installed during the run stays
                signal.signal(number, _USUAL[number])

    def has_come() -> bool:
        record(_USUAL)
        return came

    record([signal.SIGINT] if compiles else _USUAL)
    try:
        yield has_come
    finally:
        put_back()


@contextmanager
def watch(
    progress: bool | Callable[[ProgressEvent], None], steps: int, lanes: int, labels: Sequence[str] = ("",)
) -> Iterator[Callable[[ProgressEvent], None]]:
    """Return what to call with each event: nothing, the user's own function, or a bar on the terminal."""
    if callable(progress):
        yield lambda tick: progress(replace(tick, labels=tuple(labels)))
    elif not progress:
        yield lambda tick: None
    else:
        with progress_bar() as columns:
            task = columns.add_task("steps", total=steps, lanes=lanes, diverged=0)
            yield lambda tick: columns.update(
                task, completed=tick.step, diverged=tick.diverged, description=f"steps on {tick.engine.split(',')[0]}"
            )


@contextmanager
def tally(progress: bool, label: str) -> Iterator[Callable[[int, int], None]]:
    """Return what to call with the work done and the total work: nothing, or a bar on the terminal."""
    if not progress:
        yield lambda done, total: None
        return
    with progress_bar() as columns:
        task = columns.add_task(label, total=None, lanes=1, of=0, diverged=0)
        yield lambda done, total: columns.update(task, completed=done, total=total)


def progress_bar() -> Any:
    """A rich progress bar; its tasks count steps, with fields ``lanes``, ``diverged``, maybe ``of``, ``count``."""
    state = random.getstate()
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    random.setstate(state)  # rich draws random numbers when it is imported

    class Count(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(task.fields.get("count") or f"{task.completed:,.0f}/{task.total or 0:,.0f}", style="green")

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = (task.finished_speed or task.speed or 0) * task.fields["lanes"]
            power = min(max(int(np.log10(max(speed, 1)) // 3), 0), 4)
            return Text(f"{speed / 1000**power:.3g}{' kMGT'[power].strip()} seed-steps/s", style="cyan")

    class Diverged(ProgressColumn):
        def render(self, task: Task) -> Text:
            count, lanes = task.fields["diverged"], task.fields.get("of", task.fields["lanes"])
            return Text(f"{count}/{lanes} diverged" if lanes else "", style="red" if count else "dim")

    columns = TextColumn("{task.description}"), BarColumn(), Count(), Rate(), TimeRemainingColumn(), Diverged()
    return Progress(*columns, console=Console(stderr=True))
