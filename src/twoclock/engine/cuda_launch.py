"""Kernels on a GPU: compiled by NVRTC through cupy, and launched on arrays that they know by their addresses alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from twoclock.codegen.c_template import Source

# As on the CPU: no fused sums, so that compensated ones survive and the bits are those of the engine "c".
OPTIONS = ("--fmad=false",)

_modules: dict[tuple[str, int], Any] = {}


def compiled(source: Source, device: jax.Device) -> Any:
    """The kernel of a text on a device."""
    import cupy

    key = (source.text, device.id)
    if key not in _modules:
        with cupy.cuda.Device(device.local_hardware_id):
            module = cupy.RawModule(code=source.text, options=OPTIONS, backend="nvrtc")
            _modules[key] = module.get_function("walk")
    return _modules[key]


class DevicePointers:
    """Arrays of the device with their addresses: they live as long as this does.

    Args:
        arrays: of JAX, or of cupy.
    """

    def __init__(self, arrays: Sequence[Any]) -> None:
        import cupy

        self.arrays = arrays
        self.addresses = _there(cupy.cuda.Device().id, *map(_address, arrays))


def _address(array: Any) -> int:
    return array.unsafe_buffer_pointer() if isinstance(array, jax.Array) else array.data.ptr


@lru_cache
def _there(device: int, *addresses: int) -> Any:
    """Numbers on the current device. A walk that goes back and forth between two carries asks for the same ones."""
    import cupy

    return cupy.asarray(np.array([*addresses, 0], np.uint64))


@dataclass(frozen=True)
class Launch:
    """A compiled kernel with all that is the same whenever it is launched."""

    kernel: Any
    tables: DevicePointers
    streams: Any
    shape: tuple[int, int]
    threads: int

    def __call__(self, arrays: DevicePointers, lanes: int, lo: int, hi: int) -> None:
        """Launch it on these arrays for so many lanes, from one step to another."""
        numbers = [np.int64(n) for n in (lo, hi, *self.shape)]
        given = (*numbers, self.tables.addresses, arrays.addresses, self.streams)
        self.kernel((-(-lanes // self.threads),), (self.threads,), given)
