"""The engine for NVIDIA GPUs: the same C as for the CPU, a thread per lane, compiled by NVRTC through cupy.

JAX and the kernels share the memory of the device. Several devices share the seeds. Lanes run unchecked, and those that
diverge run again, checked. If the lanes are too few to fill a device, other threads of their blocks compute ahead what
does not depend on the state, with the same bits. The metrics of all lanes take one launch and one transfer;
XLA measures what cannot be generated (a factorisation, say), and takes over if the two differ.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import prng
from twoclock.codegen import CodeTarget, ProgramSource, Unsupported
from twoclock.codegen.self_check import compare
from twoclock.codegen.templates import MANY
from twoclock.engine import lane_program
from twoclock.engine.lane_program import MetricsSource
from twoclock.engine.protocol import EngineError, LaneState, Row, flatten_row, measure_lanes
from twoclock.engine.run_batch import Lanes, partition

# Threads per block: a lane needs many registers, and a few blocks of many threads would leave processors idle.
THREADS = 64
# The steps of the first call; and up to how many lanes a block has so few of them.
FIRST_STRIDE, LANES_IN_A_BLOCK = 1 << 10, {1 << 11: 8, 1 << 14: 32}
# Steps that lanes run unchecked before they store their state, and so the most that are repeated if a lane diverges.
SPAN = 1 << 13
# As on the CPU, sums are not fused, so that compensated sums work and the bits are those of the program in C.
OPTIONS = ("--fmad=false",)
# Threads per block for metrics: few, so that a few lanes use many processors. Rows for which a new kernel is compared
# with XLA: two, since in the first row all lanes may be alike.
METRICS_THREADS, COMPARED = 32, 2
# Each part of a row begins in memory at a multiple of this.
_ALIGNED = 16
DeviceArray: TypeAlias = Any  # an array of JAX or cupy on a device; cupy has no types, and may be missing
_checked: set[tuple[str, int]] = set()
_compared: Counter[tuple[str, int]] = Counter()
_refused: set[tuple[str, int]] = set()


@dataclass(frozen=True)
class CudaEngine:
    """The engine."""

    name: str = "cuda"

    def compile(self, work: Lanes) -> list[CudaProgram] | str:
        if (trouble := unavailable()) is not None:
            return trouble
        devices, every = jax.devices("gpu"), slice(0, work.count)
        try:
            checked = lane_program.checked_source(work, CodeTarget(cuda=True))
        except Unsupported as reason:
            return str(reason)
        unchecked = _unchecked_source(work, len(devices))
        _, parts = partition(work.count, len(work.seeds), len(devices))
        return [
            CudaProgram(work.part(slice(None), part), (every, part), checked, unchecked, devices[i % len(devices)])
            for i, part in enumerate(parts)
        ]


def _unchecked_source(work: Lanes, devices: int = 1, symmetric: bool = True) -> ProgramSource | None:
    lanes = work.count * len(work.seeds) // devices
    with contextlib.suppress(Unsupported):
        if in_a_block := next((few for most, few in LANES_IN_A_BLOCK.items() if lanes < most), 0):
            return lane_program.few_source(work, in_a_block, symmetric)
    with contextlib.suppress(Unsupported):
        return lane_program.unchecked_source(work, symmetric)
    return None


def unavailable() -> str | None:
    """Say why the engine cannot be used here; None if it can."""
    if jax.default_backend() != "gpu":
        return "JAX sees no GPU"
    if importlib.util.find_spec("cupy") is None:
        return "cupy is not installed; `pip install cupy-cuda12x`"
    return None


@cache
def load_kernel(text: str, device: jax.Device) -> Callable[..., None]:
    import cupy

    with cupy.cuda.Device(device.local_hardware_id):
        return cupy.RawModule(code=text, options=OPTIONS, backend="nvrtc").get_function("walk")


class DevicePointers:
    """Arrays of the current device with their addresses; the arrays live as long as this does."""

    def __init__(self, arrays: Sequence[DeviceArray]) -> None:
        import cupy

        self.arrays = arrays
        addresses = (a.unsafe_buffer_pointer() if isinstance(a, jax.Array) else a.data.ptr for a in arrays)
        self.addresses = _to_device(cupy.cuda.Device().id, *addresses)


@lru_cache
def _to_device(device: int, *addresses: int) -> DeviceArray:
    """Copy numbers to the current device. A run that alternates between two carries needs the same ones again."""
    import cupy

    return cupy.asarray(np.array([*addresses, 0], np.uint64))


def pack_tables(*tables: tuple[int, np.ndarray]) -> np.void:
    """Pack small tables, each with its number, as the structure that a kernel takes by value."""
    parts = [(f"t{number}", table.dtype, (table.size,)) for number, table in tables] or [
        ("none", np.dtype(np.int32), (1,))
    ]
    packed = np.zeros(1, np.dtype(parts, align=True))
    for number, table in tables:
        packed[f"t{number}"] = np.ravel(table)
    found: np.void = packed[0]
    return found


@dataclass(frozen=True)
class KernelLaunch:
    """A compiled kernel with the arguments that are the same at each launch."""

    kernel: Callable[..., None]
    tables: DevicePointers
    streams: DeviceArray
    given: np.void  # the tables that are an argument
    shape: tuple[int, int]  # of the grid of lanes, methods × seeds
    block: tuple[int, int]  # lanes in a block, and threads

    def __call__(self, arrays: DevicePointers, lanes: int, lo: int, hi: int) -> None:
        """Launch it on these arrays for the first ``lanes`` lanes, from step ``lo`` to step ``hi``."""
        numbers = [np.int64(n) for n in (lo, hi, *self.shape)]
        arguments = (*numbers, self.tables.addresses, arrays.addresses, self.streams, self.given)
        in_a_block, threads = self.block
        self.kernel((-(-lanes // in_a_block),), (threads,), arguments)


class DeviceMetrics:
    """Measures the lanes of one device."""

    def __init__(self, work: Lanes, device: jax.Device) -> None:
        self.work, self.device = work, device
        self._kernel: _MetricsKernel | None = None

    def measure(self, carry: LaneState, launch: Callable[[ProgramSource, int], KernelLaunch]) -> Row:
        """Measure all lanes, each metric methods × seeds; ``launch(program, threads per block)`` prepares a launch."""
        program = self._source
        if program is None or (kind := (program.source.text, self.device.id)) in _refused:
            return self._by_xla(carry)
        try:
            self._kernel = self._kernel or _MetricsKernel(program, launch(program.source, METRICS_THREADS), self.device)
            row = self._kernel(carry)
            trouble = compare(row, self._by_xla(carry)) if _compared[kind] < COMPARED else None
        except Exception as error:  # cupy's errors have no common parent short of this one
            trouble = f"{type(error).__name__}: {error}"
        if trouble is None:
            _compared[kind] += 1
            return row
        _refused.add(kind)
        warnings.warn(f"engine 'cuda': the kernel of the metrics fails: {trouble:.300}; 'xla' measures", stacklevel=2)
        return self._by_xla(carry)

    @cached_property
    def _source(self) -> MetricsSource | None:
        with contextlib.suppress(Unsupported):
            program = lane_program.metrics_source(self.work)
            return program if jax.tree.leaves(program.row) else None
        return None

    def _by_xla(self, carry: LaneState) -> Row:
        return measure_lanes(self.work.instances, self.work.methods, carry)


def entries_of(
    row: np.ndarray, begins: Sequence[int], parts: Sequence[jax.ShapeDtypeStruct], shape: tuple[int, ...]
) -> list[np.ndarray]:
    """The entries of a row of metrics, each methods × seeds, from the bytes that a kernel wrote.

    Args:
        begins: where each part begins.
        parts: the shape and type of each for one lane; its entries follow each other in every lane.
        shape: of the lanes.
    """
    found: list[np.ndarray] = []
    for begin, part in zip(begins, parts, strict=True):
        bytes_ = row[begin : begin + math.prod(shape) * part.size * part.dtype.itemsize]
        found.extend(np.moveaxis(bytes_.view(part.dtype).reshape(*shape, part.size), -1, 0))  # += would add numbers
    return found


class _MetricsKernel:
    """The kernel that measures, and memory for its row, one metric after the other, on the device and of the host.

    The latter has a fixed place, from which a device writes many times faster than elsewhere.
    """

    def __init__(self, program: MetricsSource, launch: KernelLaunch, device: jax.Device) -> None:
        import cupy
        import cupyx

        self.launch, self.device, self.lanes = launch, device, math.prod(launch.shape)
        self.names, self.parts = list(flatten_row(program.row)), jax.tree.leaves(program.row)
        sizes = [self.lanes * part.size * part.dtype.itemsize for part in self.parts]
        *self.begins, end = itertools.accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes), initial=0)
        self.row, self.here = cupy.empty(end, np.uint8), cupyx.empty_pinned(end, np.uint8)

    def __call__(self, carry: LaneState) -> Row:
        import cupy

        leaves = jax.block_until_ready(jax.tree.leaves(carry))
        with cupy.cuda.Device(self.device.local_hardware_id):
            self.launch(DevicePointers([*leaves, *(self.row[begin:] for begin in self.begins)]), self.lanes, 0, 1)
            self.row.get(out=self.here)
        row = self.here.copy()
        return dict(zip(self.names, entries_of(row, self.begins, self.parts, self.launch.shape), strict=True))


class CudaProgram:
    """The program of the lanes of one device: ``checked`` runs any lane, ``unchecked`` as long as none diverges.

    Of symmetric matrices the latter computes one half; if they are not symmetric to begin with, it is replaced.
    """

    def __init__(
        self,
        work: Lanes,
        where: tuple[slice, slice],
        checked: ProgramSource,
        unchecked: ProgramSource | None,
        device: jax.Device,
    ) -> None:
        self.work, self.where, self.checked, self.unchecked, self.device = work, where, checked, unchecked, device
        self.stride = FIRST_STRIDE
        self.tables = self._to_device(lane_program.tables(work))
        (self.streams,) = self._to_device([prng.stream_words(work.seeds)])
        self.metrics = DeviceMetrics(work, device)
        self._launches: dict[str, KernelLaunch] = {}
        # For each lane the step from which it must run checked, −1 while it is finite; the last entry is for all lanes.
        # The next call reuses it if no lane diverged.
        self._restart: DeviceArray = None

    def place(self, carry: LaneState) -> LaneState:
        placed = jax.tree.map(lambda leaf: jax.device_put(jnp.asarray(leaf[self.where]), self.device), carry)
        source = self.unchecked
        if source is not None and source.twins and not _are_equal(jax.tree.leaves(placed), source.twins):
            self.unchecked = _unchecked_source(self.work, symmetric=False)
        return placed

    def advance(self, carry: LaneState, lo: int, hi: int) -> LaneState:
        try:
            self._compare(self.unchecked or self.checked, carry, lo)
            return self._run(self.unchecked, carry, lo, hi)
        except EngineError:
            raise
        except Exception as error:  # cupy's errors have no common parent short of this one
            lines = str(error).strip().splitlines() or [""]
            words = next((line for line in lines if "error" in line), lines[0])
            raise EngineError(f"{type(error).__name__}: {words}"[:300]) from None

    def measure(self, carry: LaneState) -> Row:
        return self.metrics.measure(carry, self.launch)

    def _compare(self, source: ProgramSource, carry: LaneState, lo: int) -> None:
        """Compare a program whose text is new here with XLA."""
        kind = source.text, self.device.id
        if kind not in _checked:
            run = partial(self._run, None if source is self.checked else self.unchecked)
            difference = lane_program.difference_from_xla(self.work, run, carry, lo)
            if difference is not None:
                raise EngineError(f"the compiled kernel fails its self-check: {difference}")
            _checked.add(kind)

    def _run(self, unchecked: ProgramSource | None, carry: LaneState, lo: int, hi: int) -> LaneState:
        import cupy

        leaves, structure = jax.tree.flatten(carry)
        new, lanes = _copy(leaves), math.prod(self.work.shape)  # the kernel writes over its arrays, so it gets copies
        with cupy.cuda.Device(self.device.local_hardware_id):
            restart, self._restart = self._restart, None
            if restart is None or unchecked is None:
                restart = cupy.full(lanes + 1, lo if unchecked is None else -1, np.int64)
            arrays = DevicePointers([*new, restart])
            if unchecked is not None:
                jax.block_until_ready(new)
                for begin in range(lo, hi, SPAN):
                    self.launch(unchecked, MANY)(arrays, lanes, begin, min(begin + SPAN, hi))
            if unchecked is not None:
                if int(restart[-1]) < 0:
                    # No lane has diverged: return the same array, whose contents JAX may have fetched already.
                    self._restart = restart
                    return replace(jax.tree.unflatten(structure, new), alive=carry.alive)
                self._compare(self.checked, carry, lo)
            jax.block_until_ready(new)
            self.launch(self.checked, THREADS)(arrays, lanes, lo, hi)
            cupy.cuda.get_current_stream().synchronize()
        return jax.tree.unflatten(structure, new)

    def launch(self, source: ProgramSource, threads: int) -> KernelLaunch:
        """Prepare the launch of a kernel; ``threads`` are those of a block, unless the kernel lays them down."""
        import cupy

        if source.text not in self._launches:
            tables = [*self.tables, *self._to_device(source.constants)]
            given = pack_tables(*jax.device_get([(i, tables[i]) for i in source.given]))
            kernel, block = load_kernel(source.text, self.device), source.block or (threads, threads)
            streams = cupy.asarray(self.streams)
            launch = KernelLaunch(kernel, DevicePointers(tables), streams, given, self.work.shape, block)
            self._launches[source.text] = launch
        return self._launches[source.text]

    def _to_device(self, arrays: Iterable[np.ndarray | jax.Array]) -> list[jax.Array]:
        return jax.block_until_ready([jax.device_put(jnp.asarray(array), self.device) for array in arrays])


@partial(jax.jit, static_argnames="twins")
def _are_equal(leaves: list[jax.Array], twins: tuple[tuple[int, int, int], ...]) -> jax.Array:
    """Say whether twins are equal bit by bit in all lanes; each is the number of a leaf and two of its entries."""
    every = jnp.asarray(True)
    for leaf, group in itertools.groupby(twins, key=lambda twin: twin[0]):
        entries = leaves[leaf].reshape(*leaves[leaf].shape[:2], -1)
        bits = jax.lax.bitcast_convert_type(entries, {4: jnp.uint32, 8: jnp.uint64}[entries.dtype.itemsize])
        _, these, those = (np.array(part) for part in zip(*group, strict=True))
        every &= (bits[..., these] == bits[..., those]).all()
    return every


_copy = jax.jit(partial(jax.tree.map, jnp.copy))
