"""The engine for CPUs: C generated from one lane's step, with lanes side by side in vectors.

The machine's compiler runs while the first row is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import prng
from twoclock.codegen import CodeTarget, CompilerError, Unsupported, compiler
from twoclock.codegen.compiler import Build, pointers
from twoclock.engine import lane_program, run_batch
from twoclock.engine.lane_program import UsualSource
from twoclock.engine.protocol import EngineError, LaneState, Row, due_steps, measure_lanes, refine_lanes
from twoclock.engine.rare_branches import spans
from twoclock.engine.run_batch import Lanes

# Lane-steps of the first call of a program: some milliseconds.
FIRST_STRIDE = 1 << 18

# Lane-steps that take longer than a thread takes to start.
_WORTH_A_THREAD = 1 << 13

TOO_SHORT = "the run is too short to be worth compiling for"
# Seconds that a compiler takes per line of a program, with full optimisation and with little. Both give the same bits;
# with little optimisation a program takes up to a quarter longer to run. XLA takes this long for its own program.
_PER_LINE, _QUICKLY_PER_LINE, _ON_XLA = 1.4e-3, 2.5e-4, 0.4
# The share of a run's time that full optimisation may take, and the most seconds.
_SHARE, _PATIENCE = 0.2, 4.0


@dataclass(frozen=True)
class CEngine:
    """The engine."""

    width: int | None = None  # lanes side by side; chosen from the machine and the number of lanes if None
    worth: float = math.inf  # seconds that the run takes on XLA, which compiling it must not exceed
    name: str = "c"

    def compile(self, work: Lanes) -> list[CProgram] | str:
        found = compiler.find()
        if isinstance(found, str):
            return found
        try:
            usual = lane_program.usual_source(work, choose_target(work, self.width))
        except Unsupported as reason:
            return str(reason)
        lines = usual.source.text.count("\n")
        if lines * _QUICKLY_PER_LINE > self.worth + _ON_XLA:
            return TOO_SHORT
        quickly = lines * _PER_LINE > min(max(_SHARE * self.worth, 1.0), _PATIENCE)
        build = compiler.compile_text(usual.source.text, usual.source.target.width, found, quickly=quickly)
        return build.error or [CProgram(work, usual, build)]


class CProgram:
    """The compiled program of all lanes; threads share the groups of lanes.

    NumPy or XLA takes the steps with rare branches, and NumPy refines the state.
    """

    def __init__(self, work: Lanes, usual: UsualSource, build: Build) -> None:
        source, self.rare, self.by_numpy = usual.source, usual.rare, usual.by_numpy
        self.where = slice(0, work.count), slice(0, len(work.seeds))
        self.work, self.build = work, build
        self.stride = max(FIRST_STRIDE // (work.count * len(work.seeds)), 16)
        self.tables = [np.ascontiguousarray(table) for table in (*lane_program.tables(work), *source.constants)]
        self.streams = np.ascontiguousarray(prng.stream_words(work.seeds))
        width, (count, seeds) = source.target.width, work.shape
        self.groups = count * -(-seeds // width) if not source.target.mixed else -(-count * seeds // width)
        self._walk: Callable[..., None] | None = None

    def place(self, carry: LaneState) -> LaneState:
        return jax.tree.map(lambda leaf: np.array(leaf, order="C"), carry)

    def advance(self, carry: LaneState, lo: int, hi: int) -> LaneState:
        if self._walk is None:
            self._walk = self._load(carry, lo)
        return self._take(self._walk, carry, lo, hi)

    def measure(self, carry: LaneState) -> Row:
        return measure_lanes(self.work.instances, self.work.methods, carry)

    def _load(self, carry: LaneState, lo: int) -> Callable[..., None]:
        """Compare a new program with NumPy or XLA, whose steps are taken while the C compiler works."""
        if not self.build.is_checked():
            difference = lane_program.difference_from_xla(
                self.work,
                lambda *span: self._take(self._wait(), *span),
                carry,
                lo,
                all_lanes=bool(self.rare) and self.by_numpy is None,
                by_numpy=self.by_numpy,
            )
            if difference is not None:
                self.build.reject()
                raise EngineError(f"the compiled program fails its self-check: {difference}")
            self.build.accept()
        return self._wait()

    def _wait(self) -> Callable[..., None]:
        try:
            return self.build.function()
        except (CompilerError, OSError) as error:
            raise EngineError(str(error)) from None

    def _take(self, walk: Callable[..., None], carry: LaneState, lo: int, hi: int) -> LaneState:
        rare, due = self.rare.between(lo, hi), due_steps(self.work.methods, carry.state, lo, hi)
        for first, last in spans(lo, hi, rare, due):
            if first in rare:
                carry = lane_program.step_apart(self.work, self.streams, carry, first, self.by_numpy)
            else:
                carry = self._run(walk, carry, first, last)
                if last - 1 in due:
                    carry = refine_lanes(self.work.methods, carry, last - 1, self.work.bound)
        return carry

    def _run(self, walk: Callable[..., None], carry: LaneState, lo: int, hi: int) -> LaneState:
        leaves, structure = jax.tree.flatten(jax.tree.map(np.array, carry))
        rest = (*self.work.shape, pointers(self.tables), pointers(leaves), self.streams.ctypes.data)
        lane_steps = (hi - lo) * self.work.count * len(self.work.seeds)
        workers = min(run_batch.count_threads(), self.groups, 1 + lane_steps // _WORTH_A_THREAD)
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
    """Choose how many lanes run side by side: as many as fill two vectors, fewer if threads would be idle otherwise."""
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
