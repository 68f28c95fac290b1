"""The only loop: lanes walked through the marks, with ticks to look at, checkpoints, and Ctrl-C between blocks."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import jax
import numpy as np

from twoclock.core import PyTree
from twoclock.engine import fit, lanes, xla
from twoclock.engine.contract import Engine, Program
from twoclock.engine.interrupt import Interrupted
from twoclock.engine.lanes import Lanes
from twoclock.engine.rows import Row
from twoclock.engine.step import Carry


@dataclass(frozen=True)
class Tick:
    """A place where the run may be looked at: a mark has a row of metrics, each methods × seeds; a pause has none."""

    step: int
    row: Row | None
    diverged: int
    carry: Callable[[], Carry]


@dataclass(frozen=True)
class Walked:
    """A row for each mark, and the carry of all lanes at the last, NumPy arrays methods × seeds."""

    rows: list[Row]
    carry: Carry


@runtime_checkable
class Keeper(Protocol):
    """Where checkpoints go; ``record.Checkpoints`` is one."""

    def latest(self) -> tuple[int, dict[str, PyTree]] | None:
        """The step and the named arrays to go on from, or None for a fresh start."""

    def save(self, step: int, tree: dict[str, PyTree]) -> None: ...


def drive(
    work: Lanes,
    marks: Sequence[int],
    carry: Carry | None = None,
    step: int = 0,
    *,
    engine: Engine | None = None,
    look: Callable[[Tick], None] = lambda tick: None,
    keeper: Keeper | None = None,
    keep_every: float = 10.0,
    interrupted: Callable[[], bool] = lambda: False,
) -> Walked:
    """Walk all lanes to the last mark, measuring at each.

    Args:
        work: the lanes.
        marks: increasing step numbers at which to record; the last one ends the run.
        carry: where to go on from; None for the start.
        step: the step that the carry is at; earlier marks are passed over.
        engine: XLA if None.
        look: called with every tick: at each mark, and about four times a second between.
        keeper: goes on from its latest checkpoint, and gets a new one every ``keep_every`` seconds and at the end.
        interrupted: asked at every tick; once it says yes, a checkpoint is kept and ``Interrupted`` raised.
    """
    rows: list[Row] = []
    if carry is None:
        carry = xla.start(work)
        fit.check_start(carry.state.theta, carry.state.omega)
    if keeper is not None and (kept := keeper.latest()) is not None:
        step, (carry, rows) = kept[0], _thaw(kept[1], carry)
        del rows[bisect_left(marks, step) :]  # a mark at this very step is measured again
    saved = time.monotonic()
    for tick in _ticks(_compiled(engine or xla.Xla(), work), marks, carry, step):
        if tick.row is not None:
            rows.append(tick.row)
        look(tick)
        stop = interrupted()
        if keeper is not None and (stop or time.monotonic() - saved > keep_every or tick.step == marks[-1]):
            keeper.save(tick.step, _freeze(tick.carry(), rows))
            saved = time.monotonic()
        if stop:
            how = "; the same call with the same checkpoint goes on from there" if keeper else ""
            raise Interrupted(f"stopped at step {tick.step:,} of {marks[-1]:,}{how}")
    return Walked(rows, tick.carry())


def _compiled(engine: Engine, work: Lanes) -> Sequence[Program]:
    """The programs; what an engine cannot take goes the ordinary way."""
    programs = engine.compile(work)
    return xla.Xla().compile(work) if isinstance(programs, str) else programs


def _ticks(
    programs: Sequence[Program], marks: Sequence[int], carry: Carry, step: int, pause: float = 0.25
) -> Iterator[Tick]:
    """A tick at each mark from ``step`` on, and about every ``pause`` seconds between."""
    carries = [program.place(carry) for program in programs]
    stride = programs[0].stride
    with ThreadPoolExecutor(min(len(programs), lanes.threads())) as pool:
        for mark in marks[bisect_left(marks, step) :]:
            while step < mark:
                stop = min(step + stride, mark)
                began = time.perf_counter()
                carries = _advance(pool, programs, carries, step, stop)
                took, step = time.perf_counter() - began, stop
                if took > 2 * pause:
                    stride = max(stride // 2, 1)
                elif took < pause / 2 and stop < mark:
                    stride *= 2
                if step < mark:
                    yield Tick(step, None, _diverged(carries), partial(_join, programs, carries))
            # One group after the other: JAX may hand the factorisations of two programs to the pool they both wait on.
            rows = [program.measure(carry) for program, carry in zip(programs, carries, strict=True)]
            row = {name: _whole(programs, [r[name] for r in rows]) for name in rows[0]}
            yield Tick(step, row, _diverged(carries), partial(_join, programs, carries))


def _advance(
    pool: ThreadPoolExecutor, programs: Sequence[Program], carries: list[Carry], lo: int, hi: int
) -> list[Carry]:
    x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]

    def here(program: Program, carry: Carry) -> Carry:
        with jax.enable_x64(x64):  # a thread would start from the global setting
            return program.advance(carry, lo, hi)

    if len(programs) == 1:
        return [here(programs[0], carries[0])]
    return list(pool.map(here, programs, carries))


def _join(programs: Sequence[Program], carries: list[Carry]) -> Carry:
    return jax.tree.map(lambda *parts: _whole(programs, parts), *carries)


def _whole(programs: Sequence[Program], parts: Sequence[jax.Array | np.ndarray]) -> np.ndarray:
    return lanes.whole([(program.where[0], np.asarray(part)) for program, part in zip(programs, parts, strict=True)])


def _diverged(carries: list[Carry]) -> int:
    return sum(int(np.count_nonzero(~np.asarray(carry.alive))) for carry in carries)


def _freeze(carry: Carry, rows: list[Row]) -> dict[str, PyTree]:
    """A run as named arrays."""
    leaves = {f"{i:04d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(carry))}
    metrics = {name: np.stack([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    return {"carry": leaves, "rows": metrics} if metrics else {"carry": leaves}


def _thaw(tree: dict[str, PyTree], like: Carry) -> tuple[Carry, list[Row]]:
    carry = jax.tree.unflatten(jax.tree.structure(like), [tree["carry"][name] for name in sorted(tree["carry"])])
    metrics = tree.get("rows", {})
    count = len(next(iter(metrics.values()), ()))
    return carry, [{name: values[i] for name, values in metrics.items()} for i in range(count)]
