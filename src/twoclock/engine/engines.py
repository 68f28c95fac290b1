"""The engine that always works, XLA, and the choice of an engine for a run.

XLA draws the noise of a block of steps at fixed multiples of the block size, and one program with a dynamic trip count
advances inside it: marks, pauses and resuming cannot change a bit. The choice depends on the size of a run and on the
machine. For calls of ``solve`` it also depends on how long the same program has run in this process: one that is called
again and again is compiled once it would have paid. Parts of a sweep run on the same engine whatever ran before them.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from twoclock import prng, validation
from twoclock.engine import lane_program, large_lane
from twoclock.engine.c_engine import TOO_SHORT, CEngine
from twoclock.engine.cuda_engine import CudaEngine
from twoclock.engine.protocol import (
    Engine,
    LaneState,
    Program,
    Row,
    due_steps,
    is_table,
    lane_noise,
    lane_start,
    measure_lanes,
    refine_lanes,
    step_on,
)
from twoclock.engine.run_batch import Instances, Lanes, partition
from twoclock.engine.stored_programs import StoredFunction
from twoclock.protocols import Method, Problem, PyTree, Scalar

EngineName = Literal["auto", "c", "cuda", "xla"]
NAMES = get_args(EngineName)
VARIABLE = "TWOCLOCK_ENGINE"

# Cost of a step on XLA, in seconds: per group of lanes, per lane, and per number in a lane's state. On five problems
# with 1 to 512 seeds the median of measured over estimated processor time is .93; all but one lie between .25 and 2.4.
# Last, the seconds from which a run is worth its own program of C, which is compiled in the time that XLA takes to
# compile its own.
_CPU_COST = (1e-6, 5e-8, 3e-9)
_GPU_COST = (4e-5, 1e-9, 0.0)
WORTH_COMPILING = 0.25

_spent: dict[Hashable, float] = {}  # on XLA in this process, in seconds, by kind of program
_MAX_KINDS = 256

# Numbers in the noise of one block and group: enough to hide the dispatch, and on the CPU few enough for the cache.
CPU_BLOCK_NUMBERS = 1 << 18
ACCELERATOR_BLOCK_NUMBERS = 1 << 24
LONGEST_BLOCK = 4096


@dataclass(frozen=True)
class Chosen:
    """The programs of an engine, and why it is not another; None if it is the one that was asked for."""

    name: str
    programs: Sequence[Program]
    reason: str | None = None

    @property
    def words(self) -> str:
        return self.name if self.reason is None else f"{self.name}, because {self.reason}"


def choose(asked: str | Engine, work: Lanes, steps: int, block: int | None = None, learns: bool = False) -> Chosen:
    """Choose an engine for these lanes, and for the steps of the whole run, and compile them.

    ``asked`` is a name or an engine; "auto" leaves it to ``TWOCLOCK_ENGINE`` and to the size of the run. If it
    ``learns``, the runs before count too.
    """
    warn = isinstance(asked, str) and (asked := resolve(asked)) != "auto"
    if asked == "auto":
        on_gpu = jax.default_backend() == "gpu"
        worth = predict_seconds(work, steps, on_gpu)
        if learns:
            worth = _add_to_spent(work, worth)
        if worth < WORTH_COMPILING:
            return with_xla(work, block, TOO_SHORT)
        asked = "cuda" if on_gpu else "c"
    else:
        worth = math.inf
    engines: dict[str, Engine] = {"c": CEngine(worth=worth), "cuda": CudaEngine(), "xla": Xla(block)}
    engine = engines[asked] if isinstance(asked, str) else asked
    programs = engine.compile(work)
    if isinstance(programs, str):
        return with_xla(work, block, programs, engine.name if warn else None)
    return Chosen(engine.name, programs)


def _add_to_spent(work: Lanes, seconds: float) -> float:
    """Add the seconds of a run to those that its program has taken on XLA in this process, and return the sum."""
    kind = lane_program.kind_of(work)
    try:
        seconds += _spent.pop(kind, 0.0)
    except TypeError:  # a kind that cannot be a key
        return seconds
    if len(_spent) >= _MAX_KINDS:
        del _spent[next(iter(_spent))]
    _spent[kind] = seconds
    return seconds


def with_xla(work: Lanes, block: int | None, reason: str, failed: str | None = None) -> Chosen:
    """Take XLA for a reason; warn if it replaces an engine that was asked for or that failed."""
    if failed is not None:
        warnings.warn(f"engine {failed!r}: {reason}; the run continues with 'xla'", stacklevel=2)
    return Chosen("xla", Xla(block).compile(work), reason)


def resolve(asked: object) -> str:
    """Check the name of an engine; "auto" is what the environment says."""
    names = {name: name for name in NAMES}
    name = validation.lookup(names, asked, "engine")
    return validation.lookup(names, os.environ.get(VARIABLE) or "auto", VARIABLE) if name == "auto" else name


def predict_seconds(work: Lanes, steps: int, on_gpu: bool) -> float:
    """Estimate the seconds that XLA would take for the steps."""
    per_group, per_lane, per_number = _GPU_COST if on_gpu else _CPU_COST
    count, seeds = work.shape
    methods, parts = partition(count, seeds, len(jax.devices()) if on_gpu else None)
    state = start_shapes(work).state
    # A step touches only a few rows of a table.
    numbers = sum(leaf.size for leaf in jax.tree.leaves(state, is_leaf=is_table) if not is_table(leaf))
    return steps * (len(methods) * len(parts) * per_group + count * seeds * per_lane + numbers * per_number)


@dataclass(frozen=True)
class Xla:
    """The engine; it draws the noise of at most ``block`` steps at once, chosen from its size if None."""

    block: int | None = None
    name: str = "xla"

    def compile(self, lanes: Lanes) -> list[Group]:
        """The lanes in groups of one shape that take turns on the devices."""
        devices = jax.devices()
        methods, seeds = partition(
            lanes.count, len(lanes.seeds), None if jax.default_backend() == "cpu" else len(devices)
        )
        homes: list[Sharding | None] = [None] if len(devices) == 1 else [SingleDeviceSharding(d) for d in devices]
        # Sliced once per part of the seeds: groups of the same seeds share one copy of their problems.
        of_seeds = [lanes.part(slice(None), part) if len(seeds) > 1 else lanes for part in seeds]
        every = [(rows, part, some) for rows in methods for part, some in zip(seeds, of_seeds, strict=True)]
        return [
            Group(some.part(rows, slice(None)), (rows, part), homes[i % len(homes)], self.block)
            for i, (rows, part, some) in enumerate(every)
        ]


class Group:
    """The compiled program of one group of lanes, on a device; None for the only one there is."""

    def __init__(self, lanes: Lanes, where: tuple[slice, slice], device: Sharding | None, block: int | None) -> None:
        self.lanes, self.where, self.device = lanes, where, device
        self.instances, self.methods = self._here(lanes.instances), self._here(lanes.methods)
        self.bound = None if lanes.bound is None else np.float64(lanes.bound)
        self.streams = self._here(prng.stream_words(lanes.seeds))
        noise = jax.eval_shape(partial(_draw_noise, size=1, capacity=1), self.instances, self.streams, np.int32(0))
        count = sum(leaf.size for leaf in jax.tree.leaves(noise))
        # The program is compiled for blocks of this capacity, which may be partly filled.
        numbers = CPU_BLOCK_NUMBERS if jax.default_backend() == "cpu" else ACCELERATOR_BLOCK_NUMBERS
        at_most = max(min(LONGEST_BLOCK, numbers // max(count, 1)), 1)
        self.capacity = 1 << at_most.bit_length() - 1  # a power of two
        self.stride = min(block or self.capacity, self.capacity)
        self._drawn: tuple[int, PyTree] = (-1, None)
        self._large: bool | None = None
        self._kept: tuple[float, int, LaneState] | None = None  # of a large lane: when, step, state

    def _here(self, tree: PyTree) -> PyTree:
        return tree if self.device is None else jax.device_put(tree, self.device)

    def place(self, carry: LaneState) -> LaneState:
        if carry.alive.shape == (1, 1):  # it may be large, and is not copied
            return self._here(jax.tree.map(jnp.asarray, carry))
        return self._here(jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[self.where]), carry))

    def advance(self, carry: LaneState, lo: int, hi: int) -> LaneState:
        if self._large is None:
            self._large = large_lane.serves(self.methods, carry, self.bound)
        if self._large and carry.alive.item():
            return self._advance_large(carry, lo, hi)
        due = due_steps(self.methods, carry.state, lo, hi)
        while True:
            stop = min(hi, self._end_of_block(lo), *(k + 1 for k in due[:1]))
            noise, span = self._block(lo, stop)
            carry = _advance(self.instances, self.methods, carry, noise, span, self.bound)
            lo = stop
            if due and lo == due[0] + 1:
                carry = self._here(refine_lanes(self.methods, carry, due.pop(0), self.bound))
            if lo >= hi:
                return jax.block_until_ready(carry)

    def _advance_large(self, carry: LaneState, lo: int, hi: int) -> LaneState:
        """The same for a single lane with many numbers."""
        if lo > 0 and (self._kept is None or time.monotonic() - self._kept[0] > large_lane.KEEP_SECONDS):
            self._kept = time.monotonic(), lo, jax.tree.map(np.array, carry)
        while True:
            stop = min(hi, self._end_of_block(lo))
            noise, span = self._block(lo, stop)
            carry, finite = large_lane.advance(self.instances, self.methods, carry, noise, span)
            if finite < stop:
                _, begin, kept = self._kept or (0.0, 0, start(self.lanes))
                carry, self._large = self.place(kept), False
                if begin < finite:
                    carry = self._advance_large(carry, begin, finite)
                return self.advance(carry, finite, hi)
            lo = stop
            if lo >= hi:
                return jax.block_until_ready(carry)

    def _end_of_block(self, step: int) -> int:
        return step - step % self.stride + self.stride

    def _block(self, lo: int, hi: int) -> tuple[PyTree, np.ndarray]:
        """The noise of the block that these steps are in, and their span."""
        first = lo - lo % self.stride
        if self._drawn[0] != first:
            sizes = {"size": self.stride, "capacity": self.capacity}
            self._drawn = first, _noise(self.instances, self.streams, np.int32(first), **sizes)
        return self._drawn[1], np.asarray([first, lo - first, hi - first], np.int32)

    def measure(self, carry: LaneState) -> Row:
        return measure_lanes(self.instances, self.methods, carry)


def start(lanes: Lanes) -> LaneState:
    """The carry of all lanes before the first step, each leaf with leading axes methods × seeds."""
    return _start(lanes.instances, lanes.methods, np.asarray(lanes.seeds, np.uint32), count=lanes.count)


def _start_lanes(instances: Instances, methods: Method, seeds: np.ndarray, *, count: int) -> LaneState:
    by_seed = jax.vmap(instances.exact(lane_start), in_axes=(instances.seed_axis, None, 0))
    return jax.vmap(by_seed, in_axes=(None, 0, None), axis_size=count)(instances.batched, methods, seeds)


_start = StoredFunction(_start_lanes, static_argnames="count")


def start_shapes(lanes: Lanes) -> LaneState:
    """The shapes of that carry; the trace serves its compilation too."""
    seeds = np.asarray(lanes.seeds, np.uint32)
    shapes: LaneState = jax.eval_shape(partial(_start.jitted, count=lanes.count), lanes.instances, lanes.methods, seeds)
    return shapes


def _draw_noise(instances: Instances, words: jax.Array, first: Scalar, *, size: int, capacity: int) -> PyTree:
    """The noise of ``size`` steps from step ``first`` on, steps × seeds, padded to the capacity of a block."""
    by_seed = jax.vmap(instances.exact(lane_noise), in_axes=(instances.seed_axis, 0, None))
    by_step = jax.vmap(by_seed, in_axes=(None, None, 0))
    noise = by_step(instances.batched, prng.stream_of(words), first + jnp.arange(size, dtype=jnp.int32))
    # Rows that no step reads; a key of JAX cannot be padded with zeros.
    spare = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], (capacity - size, *leaf.shape[1:])), noise)
    return jax.tree.map(lambda leaf, rest: jnp.concatenate([leaf, rest]), noise, spare)


_noise = StoredFunction(_draw_noise, static_argnames=("size", "capacity"))


def _advance_lanes(
    instances: Instances, methods: Method, carry: LaneState, noise: PyTree, span: jax.Array, bound: Scalar | None
) -> LaneState:
    """For a span (first, lo, hi) steps first+lo … first+hi−1, on a block of noise that begins at step ``first``."""
    first, lo, hi = span

    def lane(
        problem: Problem, method: Method, state: PyTree, rest: tuple[PyTree, ...], u: PyTree, k: Scalar
    ) -> tuple[PyTree, tuple[PyTree, ...]]:
        new = step_on(problem, method, u, LaneState(state, *rest), k, bound, refined=False)
        return new.state, (new.env, new.alive, new.last)

    # Inside the loop the seeds are the last axis of the state, so that its arithmetic runs along them. Tables are not
    # transposed: a step touches only a few rows, and transposing costs all of them.
    axes = jax.tree.map(lambda leaf: 0 if is_table(leaf) else -1, carry.state, is_leaf=is_table)
    by_seed = jax.vmap(instances.exact(lane), in_axes=(instances.seed_axis, None, axes, 0, 0, None), out_axes=(axes, 0))
    by_method = jax.vmap(by_seed, in_axes=(None, 0, 0, 0, None, None))

    def body(i: Scalar, at: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        u = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False), noise)
        return by_method(instances.batched, methods, *at, u, first + i)

    def turned(state: PyTree, source: int, target: int) -> PyTree:
        return jax.tree.map(
            lambda leaf: leaf if is_table(leaf) else jnp.moveaxis(leaf, source, target), state, is_leaf=is_table
        )

    begin = turned(carry.state, 1, -1), (carry.env, carry.alive, carry.last)
    state, rest = jax.lax.fori_loop(lo, hi, body, begin)
    return LaneState(turned(state, -1, 1), *rest)


_advance = StoredFunction(_advance_lanes)
