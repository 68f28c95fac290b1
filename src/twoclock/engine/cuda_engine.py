"""The engine for NVIDIA GPUs: the same C as for the CPU, a thread per lane, compiled by NVRTC through cupy.

JAX and the kernels share the memory of the device, without copies. Several devices share the seeds. Lanes run
unchecked, and those that diverge run again, checked. If the lanes are too few to fill a device, everything that does
not depend on the state is done ahead, with a thread per step and lane: the bits are the same.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.codegen import CodeTarget, ProgramSource, SplitProgram, Unsupported
from twoclock.codegen.templates import FEW, MANY
from twoclock.engine import lane_program
from twoclock.engine.cuda_kernels import DeviceArray, DeviceMetrics, DevicePointers, KernelLaunch, load_kernel
from twoclock.engine.protocol import EngineError, LaneState, Row
from twoclock.engine.run_batch import Lanes, partition

# Threads in a block: a lane needs many registers, and few blocks of many threads would leave processors idle.
THREADS = 64
FIRST_STRIDE = 1 << 10
# Lanes that keep a device busy by themselves.
MANY_LANES = 1 << 14
# Memory for what is done ahead, which is best in the cache; the steps that are worth a launch, and the most for them.
AHEAD_BYTES, AHEAD_STEPS, MOST_AHEAD_BYTES = 1 << 23, 64, 1 << 28
# Steps that lanes run unchecked before they store their state: so many are repeated if a lane diverges.
SPAN = 1 << 13

_checked: set[tuple[str, int]] = set()


@dataclass(frozen=True)
class CudaEngine:
    """The engine."""

    name: str = "cuda"

    def compile(self, work: Lanes) -> list[CudaProgram] | str:
        trouble = unavailable()
        if trouble is not None:
            return trouble
        devices = jax.devices("gpu")
        try:
            checked = lane_program.checked_source(work, CodeTarget(cuda=True))
        except Unsupported as reason:
            return str(reason)
        unchecked = _unchecked_source(work, len(devices))
        _, parts = partition(work.count, len(work.seeds), len(devices))
        every = slice(0, work.count)
        return [
            CudaProgram(work.part(slice(None), part), (every, part), checked, unchecked, devices[i % len(devices)])
            for i, part in enumerate(parts)
        ]


def _unchecked_source(work: Lanes, devices: int = 1, symmetric: bool = True) -> ProgramSource | SplitProgram | None:
    if work.count * len(work.seeds) < MANY_LANES * devices:
        with contextlib.suppress(Unsupported):
            return lane_program.split_source(work, symmetric)
    with contextlib.suppress(Unsupported):
        return lane_program.unchecked_source(work, symmetric)
    return None


def unavailable() -> str | None:
    """Say why the engine cannot be used here; None if it can."""
    if jax.default_backend() != "gpu":
        return "JAX sees no GPU"
    if importlib.util.find_spec("cupy") is None:
        return "cupy is not installed; try the extra twoclock[cuda]"
    return None


class CudaProgram:
    """The program of the lanes of one device.

    Args:
        checked: runs any lane.
        unchecked: runs lanes as long as they do not diverge; None if there is none. Of symmetric matrices it computes
            one half; if they are not symmetric to begin with, it is replaced.
    """

    def __init__(
        self,
        work: Lanes,
        where: tuple[slice, slice],
        checked: ProgramSource,
        unchecked: ProgramSource | SplitProgram | None,
        device: jax.Device,
    ) -> None:
        self.work, self.where, self.checked, self.unchecked, self.device = work, where, checked, unchecked, device
        self.stride = FIRST_STRIDE
        self.tables = self._to_device(lane_program.tables(work))
        (self.streams,) = self._to_device([lane_program.seed_streams(work)])
        self.metrics = DeviceMetrics(work, device)
        self._compared: ProgramSource | SplitProgram | None = None
        self._launches: dict[str, KernelLaunch] = {}
        self._pipeline: PipelinedKernels | None = None
        # For each lane the step from which it must run checked, −1 as long as it is finite; the last entry is for all.
        # It is kept between two calls in which no lane diverged.
        self._restart: DeviceArray = None

    def place(self, carry: LaneState) -> LaneState:
        placed = jax.tree.map(lambda leaf: jax.device_put(jnp.asarray(leaf[self.where]), self.device), carry)
        rest = self.unchecked.rest if isinstance(self.unchecked, SplitProgram) else self.unchecked
        if rest is not None and rest.twins and not _are_equal(jax.tree.leaves(placed), rest.twins):
            self.unchecked, self._pipeline = _unchecked_source(self.work, symmetric=False), None
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

    def _compare(self, source: ProgramSource | SplitProgram, carry: LaneState, lo: int) -> None:
        """Compare a program whose text is new here with XLA."""
        if source is self._compared:
            return
        text = source.ahead.text + source.rest.text if isinstance(source, SplitProgram) else source.text
        if (text, self.device.id) not in _checked:
            unchecked = None if source is self.checked else self.unchecked
            difference = lane_program.difference_from_xla(
                self.work, lambda *span: self._run(unchecked, *span), carry, lo
            )
            if difference is not None:
                raise EngineError(f"the compiled kernel fails its self-check: {difference}")
            _checked.add((text, self.device.id))
        self._compared = source

    def _run(self, unchecked: ProgramSource | SplitProgram | None, carry: LaneState, lo: int, hi: int) -> LaneState:
        import cupy

        leaves, structure = jax.tree.flatten(carry)
        new, lanes = _copy(leaves), math.prod(self.work.shape)  # the kernel writes over its arrays, so it gets copies
        with cupy.cuda.Device(self.device.local_hardware_id):
            restart, self._restart = self._restart, None
            if restart is None or unchecked is None:
                restart = cupy.full(lanes + 1, lo if unchecked is None else -1, np.int64)
            arrays = DevicePointers([*new, restart])
            if isinstance(unchecked, SplitProgram):
                self._pipeline = self._pipeline or PipelinedKernels(self, unchecked)
                self._pipeline.run(arrays, lo, hi)
            elif unchecked is not None:
                jax.block_until_ready(new)
                for begin in range(lo, hi, SPAN):
                    self._launch(unchecked, MANY)(arrays, lanes, begin, min(begin + SPAN, hi))
            if unchecked is not None:
                if int(restart[-1]) < 0:
                    # No lane has diverged: return the same array, whose contents JAX may have fetched already.
                    self._restart = restart
                    return replace(jax.tree.unflatten(structure, new), alive=carry.alive)
                self._compare(self.checked, carry, lo)
            jax.block_until_ready(new)
            self._launch(self.checked, THREADS)(arrays, lanes, lo, hi)
            cupy.cuda.get_current_stream().synchronize()
        return jax.tree.unflatten(structure, new)

    def _launch(self, source: ProgramSource, threads: int) -> KernelLaunch:
        if source.text not in self._launches:
            self._launches[source.text] = self.launch(source, threads)
        return self._launches[source.text]

    def launch(self, source: ProgramSource, threads: int, handed: Iterable[DeviceArray] = ()) -> KernelLaunch:
        """Prepare the launch of a kernel that reads the tables of the lanes, and what else it is handed."""
        import cupy

        tables = DevicePointers([*self.tables, *self._to_device(source.constants), *handed])
        kernel = load_kernel(source.text, self.device)
        return KernelLaunch(kernel, tables, cupy.asarray(self.streams), self.work.shape, threads)

    def _to_device(self, arrays: Iterable[np.ndarray | jax.Array]) -> list[jax.Array]:
        return jax.block_until_ready([jax.device_put(jnp.asarray(array), self.device) for array in arrays])


class PipelinedKernels:
    """The two parts of a step, and the memories between them.

    There are two such memories: while the rest of the steps reads one, the other is written.
    """

    def __init__(self, program: CudaProgram, source: SplitProgram) -> None:
        import cupy

        self.lanes = math.prod(program.work.shape)
        size = self.lanes * sum(part.size * part.dtype.itemsize for part in source.handed)
        self.most = max(AHEAD_BYTES // size, min(AHEAD_STEPS, MOST_AHEAD_BYTES // size), 1)
        shapes = [((self.most, self.lanes, part.size), part.dtype) for part in source.handed]
        self.memories = [DevicePointers([cupy.empty(*shape) for shape in shapes]) for _ in range(2)]
        self.ahead = program.launch(source.ahead, THREADS)
        self.rest = [program.launch(source.rest, FEW, memory.arrays) for memory in self.memories]
        self.aside = cupy.cuda.Stream(non_blocking=True)
        self.read = [cupy.cuda.Event(disable_timing=True) for _ in self.memories]

    def run(self, arrays: DevicePointers, lo: int, hi: int) -> None:
        """Alternate: the first part of as many steps as there is memory for, then the second."""
        import cupy

        here, aside, read = cupy.cuda.get_current_stream(), self.aside, self.read
        here.synchronize()
        for turn, begin in enumerate(range(lo, hi, self.most)):
            end, now = min(begin + self.most, hi), turn % 2
            if turn > 1:
                aside.wait_event(read[now])
            with aside:
                self.ahead(self.memories[now], (end - begin) * self.lanes, begin, end)
                written = aside.record()
            if begin == lo:
                jax.block_until_ready(arrays.arrays)
            here.wait_event(written)
            self.rest[now](arrays, self.lanes, begin, end)
            read[now].record(here)
        aside.synchronize()


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
