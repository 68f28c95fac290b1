"""The engine for NVIDIA GPUs: the same C as for the CPU, a lane a thread, compiled by NVRTC through cupy.

Nothing is copied between JAX and the kernel: both look at the same memory of the device. Several devices share the
seeds. Lanes are walked on trust, and those that diverge once more with care. For lanes that are too
few to fill a device, all that does not wait for the state is done ahead, each step of each lane a thread: the bits are
the same.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.codegen.build import SplitProgram
from twoclock.codegen.c_template import Source, Target
from twoclock.codegen.cuda_template import FEW, MANY
from twoclock.codegen.ir import Unsupported
from twoclock.engine import source_cache
from twoclock.engine.cuda_launch import DevicePointers, Launch, compiled
from twoclock.engine.cuda_metrics import Marks
from twoclock.engine.protocol import EngineError, LaneState, Row
from twoclock.engine.run_batch import Lanes, partition
from twoclock.engine.self_check import Reference

# Threads in a block: a lane needs many registers, and few blocks of many threads would leave processors idle.
THREADS = 64
FIRST_STRIDE = 1 << 10
# Lanes that keep a device busy by themselves.
MANY_LANES = 1 << 14
# Memory for what is done ahead, which is best in the cache; the steps that are worth a launch, and the most for them.
AHEAD_BYTES, AHEAD_STEPS, MOST_AHEAD_BYTES = 1 << 23, 64, 1 << 28
# Steps that lanes are walked on trust before they store what they have come to: so many are walked again with care.
SPAN = 1 << 13

_checked: set[tuple[str, int]] = set()


@dataclass(frozen=True)
class Cuda:
    """The engine."""

    name: str = "cuda"

    def compile(self, work: Lanes) -> list[Kernel] | str:
        trouble = unavailable()
        if trouble is not None:
            return trouble
        devices = jax.devices("gpu")
        try:
            sources = source_cache.source(work, Target(cuda=True)), _trusting(work, len(devices))
        except Unsupported as reason:
            return str(reason)
        _, parts = partition(work.count, len(work.seeds), len(devices))
        every = slice(0, work.count)
        return [
            Kernel(work.part(slice(None), part), (every, part), *sources, devices[i % len(devices)])
            for i, part in enumerate(parts)
        ]


def _trusting(work: Lanes, devices: int = 1, symmetric: bool = True) -> Source | SplitProgram | None:
    if work.count * len(work.seeds) < MANY_LANES * devices:
        with contextlib.suppress(Unsupported):
            return source_cache.in_two(work, symmetric)
    with contextlib.suppress(Unsupported):
        return source_cache.trusting(work, symmetric)
    return None


def unavailable() -> str | None:
    """Why the engine cannot be used here; None if it can."""
    if jax.default_backend() != "gpu":
        return "JAX sees no GPU"
    if importlib.util.find_spec("cupy") is None:
        return "cupy is not installed; try the extra twoclock[cuda]"
    return None


class Kernel:
    """The program of the lanes of one device.

    Args:
        careful: walks any lane.
        trusting: walks lanes as long as they do not diverge; None if there is none. Of symmetric matrices it walks
            one half; where they are not symmetric to begin with, another takes its place.
    """

    def __init__(
        self,
        work: Lanes,
        where: tuple[slice, slice],
        careful: Source,
        trusting: Source | SplitProgram | None,
        device: Any,
    ) -> None:
        self.work, self.where, self.careful, self.trusting, self.device = work, where, careful, trusting, device
        self.stride = FIRST_STRIDE
        self.tables = self._here(source_cache.tables(work))
        (self.streams,) = self._here([source_cache.streams(work)])
        self.marks = Marks(work, device)
        self._passed: Source | SplitProgram | None = None
        self._launches: dict[str, Launch] = {}
        self._halves: PipelinedKernels | None = None
        # For each lane the step from which it is to be walked with care, −1 as long as it holds; the last tells of all.
        # Here between two walks, if there was none.
        self._care: Any = None

    def place(self, carry: LaneState) -> LaneState:
        placed = jax.tree.map(lambda leaf: jax.device_put(jnp.asarray(leaf[self.where]), self.device), carry)
        rest = self.trusting.rest if isinstance(self.trusting, SplitProgram) else self.trusting
        if rest is not None and rest.twins and not _equal(jax.tree.leaves(placed), rest.twins):
            self.trusting, self._halves = _trusting(self.work, symmetric=False), None
        return placed

    def advance(self, carry: LaneState, lo: int, hi: int) -> LaneState:
        try:
            self._check(self.trusting or self.careful, carry, lo)
            return self._run(self.trusting, carry, lo, hi)
        except EngineError:
            raise
        except Exception as error:  # cupy's errors have no common parent short of this one
            lines = str(error).strip().splitlines() or [""]
            words = next((line for line in lines if "error" in line), lines[0])
            raise EngineError(f"{type(error).__name__}: {words}"[:300]) from None

    def measure(self, carry: LaneState) -> Row:
        return self.marks.measure(carry, self.launch)

    def _check(self, source: Source | SplitProgram, carry: LaneState, lo: int) -> None:
        """Compare a program whose text is new here with XLA."""
        if source is self._passed:
            return
        texts = (
            (source.ahead.text + source.rest.text if isinstance(source, SplitProgram) else source.text),
            self.device.id,
        )
        if texts not in _checked:
            trusting = None if source is self.careful else self.trusting
            differs = Reference(self.work).difference(lambda *span: self._run(trusting, *span), carry, lo)
            if differs is not None:
                raise EngineError(f"the compiled kernel fails its self-check: {differs}")
            _checked.add(texts)
        self._passed = source

    def _run(self, trusting: Source | SplitProgram | None, carry: LaneState, lo: int, hi: int) -> LaneState:
        import cupy

        leaves, structure = jax.tree.flatten(carry)
        new, lanes = _fresh(leaves), math.prod(self.work.shape)  # the kernel writes over its arrays, so it gets copies
        with cupy.cuda.Device(self.device.local_hardware_id):
            care, self._care = self._care, None
            if care is None or trusting is None:
                care = cupy.full(lanes + 1, lo if trusting is None else -1, np.int64)
            arrays = DevicePointers([*new, care])
            if isinstance(trusting, SplitProgram):
                self._halves = self._halves or PipelinedKernels(self, trusting)
                self._halves.walk(arrays, lo, hi)
            elif trusting is not None:
                jax.block_until_ready(new)
                for begin in range(lo, hi, SPAN):
                    self._launch(trusting, MANY)(arrays, lanes, begin, min(begin + SPAN, hi))
            if trusting is not None:
                if int(care[-1]) < 0:
                    # None has diverged since: the same array, of which JAX knows already what is in it.
                    self._care = care
                    return replace(jax.tree.unflatten(structure, new), alive=carry.alive)
                self._check(self.careful, carry, lo)
            jax.block_until_ready(new)
            self._launch(self.careful, THREADS)(arrays, lanes, lo, hi)
            cupy.cuda.get_current_stream().synchronize()
        return jax.tree.unflatten(structure, new)

    def _launch(self, source: Source, threads: int) -> Launch:
        if source.text not in self._launches:
            self._launches[source.text] = self.launch(source, threads)
        return self._launches[source.text]

    def launch(self, source: Source, threads: int, handed: Iterable[Any] = ()) -> Launch:
        """What launches a kernel: it reads the tables of the lanes, and what else it is handed."""
        import cupy

        tables = DevicePointers([*self.tables, *self._here(source.constants), *handed])
        streams = cupy.asarray(self.streams)
        return Launch(compiled(source, self.device), tables, streams, self.work.shape, threads)

    def _here(self, arrays: Iterable[np.ndarray | jax.Array]) -> list[jax.Array]:
        return jax.block_until_ready([jax.device_put(jnp.asarray(array), self.device) for array in arrays])


class PipelinedKernels:
    """The two halves of a step, all that does not wait for the state and the rest, and what goes between them.

    There are two such memories: while the rest of the steps reads one of them, the other is written.
    """

    def __init__(self, kernel: Kernel, source: SplitProgram) -> None:
        import cupy

        self.lanes = math.prod(kernel.work.shape)
        size = self.lanes * sum(part.size * part.dtype.itemsize for part in source.handed)
        self.most = max(AHEAD_BYTES // size, min(AHEAD_STEPS, MOST_AHEAD_BYTES // size), 1)
        shapes = [((self.most, self.lanes, part.size), part.dtype) for part in source.handed]
        self.memories = [DevicePointers([cupy.empty(*shape) for shape in shapes]) for _ in range(2)]
        self.ahead = kernel.launch(source.ahead, THREADS)
        self.rest = [kernel.launch(source.rest, FEW, memory.arrays) for memory in self.memories]
        self.aside = cupy.cuda.Stream(non_blocking=True)
        self.read = [cupy.cuda.Event(disable_timing=True) for _ in self.memories]

    def walk(self, arrays: DevicePointers, lo: int, hi: int) -> None:
        """The first half of as many steps as there is memory for, then the second, and again."""
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
def _equal(leaves: list[jax.Array], twins: tuple[tuple[int, int, int], ...]) -> jax.Array:
    """Whether twins are equal, to the bit: each the number of a leaf and two of its entries, for all lanes."""
    every = jnp.asarray(True)
    for leaf, group in itertools.groupby(twins, key=lambda twin: twin[0]):
        entries = leaves[leaf].reshape(*leaves[leaf].shape[:2], -1)
        bits = jax.lax.bitcast_convert_type(entries, {4: jnp.uint32, 8: jnp.uint64}[entries.dtype.itemsize])
        _, these, those = (np.array(part) for part in zip(*group, strict=True))
        every &= (bits[..., these] == bits[..., those]).all()
    return every


@jax.jit
def _fresh(leaves: list[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(leaf) for leaf in leaves]
