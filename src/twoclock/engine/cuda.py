"""The engine for NVIDIA GPUs: the same C as for the CPU, a lane a thread, compiled by NVRTC through cupy.

Nothing is copied between JAX and the kernel: both look at the same memory of the device, through DLPack. Several
devices share the seeds.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.engine import rows, traced
from twoclock.engine.codegen.ir import Unsupported
from twoclock.engine.codegen.program import Source, Target
from twoclock.engine.contract import EngineError
from twoclock.engine.lanes import Lanes, cut
from twoclock.engine.rows import Row
from twoclock.engine.selfcheck import Reference
from twoclock.engine.step import Carry

# Threads in a block: a lane needs many registers, and few blocks of many threads would leave processors idle.
THREADS = 64
FIRST_STRIDE = 1 << 10
# As on the CPU: no fused sums, so that compensated ones survive and the bits are those of the engine "c".
OPTIONS = ("--fmad=false",)

_modules: dict[tuple[str, int], Any] = {}


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
            source = traced.source(work, Target(cuda=True))
        except Unsupported as reason:
            return str(reason)
        _, parts = cut(work.count, len(work.seeds), len(devices))
        every = slice(0, work.count)
        return [
            Kernel(work.part(slice(None), part), (every, part), source, devices[i % len(devices)])
            for i, part in enumerate(parts)
        ]


def unavailable() -> str | None:
    """Why the engine cannot be used here; None if it can."""
    if jax.default_backend() != "gpu":
        return "JAX sees no GPU"
    if importlib.util.find_spec("cupy") is None:
        return "cupy is not installed; try the extra twoclock[cuda]"
    return None


class Kernel:
    """The program of the lanes of one device."""

    def __init__(self, work: Lanes, where: tuple[slice, slice], source: Source, device: Any) -> None:
        self.work, self.where, self.source, self.device = work, where, source, device
        self.stride = FIRST_STRIDE
        # Held here as the kernel sees them: it looks at their memory long after it was handed the address.
        self.tables = [_bytes(jax.device_put(jnp.asarray(table), device)) for table in traced.tables(work, source)]
        self.streams = jax.device_put(traced.streams(work), device)
        self._kernel: Any = None

    def place(self, carry: Carry) -> Carry:
        return jax.tree.map(lambda leaf: jax.device_put(jnp.asarray(leaf[self.where]), self.device), carry)

    def advance(self, carry: Carry, lo: int, hi: int) -> Carry:
        try:
            if self._kernel is None:
                self._kernel = self._ready(carry, lo)
            return self._run(self._kernel, carry, lo, hi)
        except EngineError:
            raise
        except Exception as error:  # cupy's errors have no common parent short of this one
            lines = str(error).strip().splitlines() or [""]
            words = next((line for line in lines if "error" in line), lines[0])
            raise EngineError(f"{type(error).__name__}: {words}"[:300]) from None

    def measure(self, carry: Carry) -> Row:
        return rows.measure(self.work.instances, self.work.methods, carry)

    def _ready(self, carry: Carry, lo: int) -> Any:
        import cupy

        key = (self.source.text, self.device.id)
        known = _modules.get(key)
        if known is not None:
            return known
        with cupy.cuda.Device(self.device.local_hardware_id):
            module = cupy.RawModule(code=self.source.text, options=OPTIONS, backend="nvrtc")
            kernel = module.get_function("walk")
        differs = Reference(self.work).difference(lambda *span: self._run(kernel, *span), carry, lo)
        if differs is not None:
            raise EngineError(f"the compiled kernel fails its self-check: {differs}")
        _modules[key] = kernel
        return kernel

    def _run(self, kernel: Any, carry: Carry, lo: int, hi: int) -> Carry:
        import cupy

        leaves, structure = jax.tree.flatten(carry)
        # Truth values travel as bytes. The kernel writes over its arrays, so it gets copies.
        new = jax.block_until_ready([_fresh(_bytes(leaf)) for leaf in leaves])
        with cupy.cuda.Device(self.device.local_hardware_id):
            arrays = [cupy.from_dlpack(leaf) for leaf in new]
            pointers = [
                cupy.asarray(np.array([a.data.ptr for a in part] or [0], np.uint64))
                for part in ([cupy.from_dlpack(table) for table in self.tables], arrays)
            ]
            count, seeds = self.work.shape
            numbers = [np.int64(n) for n in (lo, hi, count, seeds)]
            blocks = -(-count * seeds // THREADS)
            kernel((blocks,), (THREADS,), (*numbers, *pointers, cupy.from_dlpack(self.streams)))
            cupy.cuda.get_current_stream().synchronize()
        done = [leaf.view(jnp.bool_) if old.dtype == bool else leaf for leaf, old in zip(new, leaves, strict=True)]
        return jax.tree.unflatten(structure, done)


def _bytes(array: jax.Array) -> jax.Array:
    """Truth values as bytes."""
    return array.view(jnp.uint8) if array.dtype == bool else array


_fresh = jax.jit(jnp.copy)
