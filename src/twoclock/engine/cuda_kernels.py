"""Kernels on a GPU: compiled by NVRTC through cupy, launched on the addresses of arrays; and the kernel of the metrics.

The metrics of all lanes take one launch and one transfer; XLA makes many small kernels of them, and waits for each pass
of a loop. XLA still measures what cannot be generated (a factorisation, say), and takes over if the two differ.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import jax
import numpy as np

from twoclock.codegen import ProgramSource, Unsupported
from twoclock.engine import lane_program
from twoclock.engine.lane_program import MetricsSource
from twoclock.engine.protocol import LaneState, Row, flatten_row, measure_lanes
from twoclock.engine.run_batch import Lanes

# As on the CPU: no fused sums, so that compensated ones survive and the bits are those of the program in C.
OPTIONS = ("--fmad=false",)

DeviceArray: TypeAlias = Any  # an array of JAX or cupy on a device; cupy has no types, and may be missing
# Threads in a block: few, so that few lanes have many processors.
METRICS_THREADS = 32
# Rows for which a kernel whose text is new here is compared with XLA: in the first one all lanes may be alike.
COMPARED = 2
# Where a part of a row begins in memory: at a multiple of this.
_ALIGNED = 16

_compared: Counter[tuple[str, int]] = Counter()
_refused: set[tuple[str, int]] = set()
_kernels: dict[tuple[str, int], Callable[..., None]] = {}


def load_kernel(text: str, device: jax.Device) -> Callable[..., None]:
    """Compile a kernel for a device, once."""
    import cupy

    key = (text, device.id)
    if key not in _kernels:
        with cupy.cuda.Device(device.local_hardware_id):
            module = cupy.RawModule(code=text, options=OPTIONS, backend="nvrtc")
            _kernels[key] = module.get_function("walk")
    return _kernels[key]


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


@dataclass(frozen=True)
class KernelLaunch:
    """A compiled kernel with everything that is the same at each launch.

    Attributes:
        shape: of the grid of lanes, methods × seeds.
        threads: in a block.
    """

    kernel: Callable[..., None]
    tables: DevicePointers
    streams: DeviceArray
    shape: tuple[int, int]
    threads: int

    def __call__(self, arrays: DevicePointers, lanes: int, lo: int, hi: int) -> None:
        """Launch it on these arrays for so many lanes, from step ``lo`` to step ``hi``."""
        numbers = [np.int64(n) for n in (lo, hi, *self.shape)]
        arguments = (*numbers, self.tables.addresses, arrays.addresses, self.streams)
        self.kernel((-(-lanes // self.threads),), (self.threads,), arguments)


class DeviceMetrics:
    """Measures the lanes of one device."""

    def __init__(self, work: Lanes, device: jax.Device) -> None:
        self.work, self.device = work, device
        self._kernel: _MetricsKernel | None = None

    def measure(self, carry: LaneState, launch: Callable[[ProgramSource, int], KernelLaunch]) -> Row:
        """Measure all lanes, each metric methods × seeds.

        Args:
            launch: prepares the launch of a program, with so many threads in a block.
        """
        program = self._source
        if program is None or (kind := (program.source.text, self.device.id)) in _refused:
            return self._by_xla(carry)
        try:
            self._kernel = self._kernel or _MetricsKernel(program, launch(program.source, METRICS_THREADS), self.device)
            row = self._kernel(carry)
            trouble = None
            if _compared[kind] < COMPARED:
                trouble = lane_program.compare(row, self._by_xla(carry), when="")
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
        try:
            program = lane_program.metrics_source(self.work)
        except Unsupported:
            return None
        return program if jax.tree.leaves(program.row) else None

    def _by_xla(self, carry: LaneState) -> Row:
        return measure_lanes(self.work.instances, self.work.methods, carry)


class _MetricsKernel:
    """The kernel that measures, and the memory of the device for its row, one metric after the other."""

    def __init__(self, program: MetricsSource, launch: KernelLaunch, device: jax.Device) -> None:
        import cupy

        self.launch, self.device, self.lanes = launch, device, math.prod(launch.shape)
        self.names, self.parts = list(flatten_row(program.row)), jax.tree.leaves(program.row)
        sizes = [self.lanes * part.size * part.dtype.itemsize for part in self.parts]
        *self.begins, end = itertools.accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes), initial=0)
        self.row = cupy.empty(end, np.uint8)
        self.places = [self.row[begin:] for begin in self.begins]

    def __call__(self, carry: LaneState) -> Row:
        import cupy

        leaves = jax.block_until_ready(jax.tree.leaves(carry))
        with cupy.cuda.Device(self.device.local_hardware_id):
            self.launch(DevicePointers([*leaves, *self.places]), self.lanes, 0, 1)
            here = self.row.get()
        entries: list[np.ndarray] = []
        for begin, part in zip(self.begins, self.parts, strict=True):
            bytes_ = here[begin : begin + self.lanes * part.size * part.dtype.itemsize]
            entries += np.moveaxis(bytes_.view(part.dtype).reshape(*self.launch.shape, part.size), -1, 0)
        return dict(zip(self.names, entries, strict=True))
