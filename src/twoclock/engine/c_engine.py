"""The engine for CPUs: C generated from one lane's step, with lanes side by side in vectors.

The machine's compiler runs while the first row is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.codegen import CodeTarget, CompilerError, ProgramSource, Unsupported, compiler
from twoclock.codegen.compiler import Build, pointers
from twoclock.engine import lane_program, run_batch
from twoclock.engine.protocol import EngineError, LaneState, Row, measure_lanes
from twoclock.engine.run_batch import Lanes

# Lane-steps of the first call of a program: some milliseconds.
FIRST_STRIDE = 1 << 18


@dataclass(frozen=True)
class CEngine:
    """The engine."""

    width: int | None = None  # lanes side by side; chosen from the machine and the number of lanes if None
    name: str = "c"

    def compile(self, work: Lanes) -> list[CProgram] | str:
        found = compiler.find()
        if isinstance(found, str):
            return found
        try:
            source = lane_program.checked_source(work, choose_target(work, self.width))
        except Unsupported as reason:
            return str(reason)
        build = compiler.compile_text(source.text, source.target.width, found)
        return build.error or [CProgram(work, source, build)]


class CProgram:
    """The program of all lanes; threads share the groups of lanes."""

    def __init__(self, work: Lanes, source: ProgramSource, build: Build) -> None:
        self.where = slice(0, work.count), slice(0, len(work.seeds))
        self.work, self.build = work, build
        self.stride = max(FIRST_STRIDE // (work.count * len(work.seeds)), 16)
        self.tables = [np.ascontiguousarray(table) for table in (*lane_program.tables(work), *source.constants)]
        self.streams = np.ascontiguousarray(lane_program.seed_streams(work))
        width, (count, seeds) = source.target.width, work.shape
        self.groups = count * -(-seeds // width) if not source.target.mixed else -(-count * seeds // width)
        self._walk: Callable[..., None] | None = None

    def place(self, carry: LaneState) -> LaneState:
        return jax.tree.map(lambda leaf: np.array(leaf, order="C"), carry)

    def advance(self, carry: LaneState, lo: int, hi: int) -> LaneState:
        if self._walk is None:
            self._walk = self._load(carry, lo)
        return self._run(self._walk, carry, lo, hi)

    def measure(self, carry: LaneState) -> Row:
        return measure_lanes(self.work.instances, self.work.methods, carry)

    def _load(self, carry: LaneState, lo: int) -> Callable[..., None]:
        """Wait for the compiled program, and compare a new one with XLA."""
        try:
            walk = self.build.function()
        except (CompilerError, OSError) as error:
            raise EngineError(str(error)) from None
        if not self.build.is_checked():
            difference = lane_program.difference_from_xla(self.work, lambda *span: self._run(walk, *span), carry, lo)
            if difference is not None:
                self.build.reject()
                raise EngineError(f"the compiled program fails its self-check: {difference}")
            self.build.accept()
        return walk

    def _run(self, walk: Callable[..., None], carry: LaneState, lo: int, hi: int) -> LaneState:
        leaves, structure = jax.tree.flatten(jax.tree.map(np.array, carry))
        rest = (*self.work.shape, pointers(self.tables), pointers(leaves), self.streams.ctypes.data)
        workers = min(run_batch.count_threads(), self.groups)
        # More shares than threads, so that a delayed one does not delay all.
        shares = min(4 * workers, self.groups) if workers > 1 else 1
        cuts = [self.groups * i // shares for i in range(shares + 1)]
        if workers == 1:
            walk(lo, hi, 0, self.groups, *rest)
        else:
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(lambda first, last: walk(lo, hi, first, last, *rest), cuts[:-1], cuts[1:]))
        return jax.tree.unflatten(structure, leaves)


def choose_target(work: Lanes, width: int | None) -> CodeTarget:
    """Choose as many lanes side by side as fill two vectors, fewer if there are fewer or threads would be idle."""
    count, seeds = work.shape
    if width is None:
        vector = compiler.vector_bits() // (8 * jnp.result_type(float).itemsize)
        width = 2 * vector
        while width > 1 and (
            width // 2 >= count * seeds or (width > vector and count * seeds < width * run_batch.count_threads())
        ):
            width //= 2
    filled = seeds / (width * -(-seeds // width))
    return CodeTarget(width, mixed=width > 1 and count > 1 and filled < 0.75)
