"""Kernels on a GPU: compiled by NVRTC through cupy, and launched on arrays that they know by their addresses alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import jax
import numpy as np

# As on the CPU: no fused sums, so that compensated ones survive and the bits are those of the program in C.
OPTIONS = ("--fmad=false",)

DeviceArray: TypeAlias = Any  # an array of JAX or cupy on a device; cupy has no types, and may be missing
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
