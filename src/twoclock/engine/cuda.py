"""The engine for NVIDIA GPUs: the same C as for the CPU, a lane a thread, compiled by NVRTC through cupy.

Nothing is copied between JAX and the kernel: both look at the same memory of the device, through DLPack. Several
devices share the seeds. Lanes that are too few to fill a device have their noise drawn ahead, each step of each seed a
thread: a step then waits for less, and the bits are the same.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.engine import rows, traced
from twoclock.engine.codegen.frame import Source, Target
from twoclock.engine.codegen.ir import Unsupported
from twoclock.engine.contract import EngineError
from twoclock.engine.lanes import Lanes, cut
from twoclock.engine.rows import Row
from twoclock.engine.selfcheck import Reference
from twoclock.engine.step import Carry
from twoclock.engine.traced import Ahead

# Threads in a block: a lane needs many registers, and few blocks of many threads would leave processors idle.
THREADS = 64
FIRST_STRIDE = 1 << 10
# Lanes that keep a device busy by themselves, and the memory for noise drawn ahead: less than its cache holds.
MANY_LANES = 1 << 12
NOISE_BYTES = 1 << 24
# As on the CPU: no fused sums, so that compensated ones survive and the bits are those of the engine "c".
OPTIONS = ("--fmad=false",)

Walk = Callable[[list[jax.Array], int, int], None]
"""Writes the arrays of a carry over with what they are some steps later."""

_modules: dict[tuple[str, int], Any] = {}
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
            source = _source(work, len(devices))
        except Unsupported as reason:
            return str(reason)
        _, parts = cut(work.count, len(work.seeds), len(devices))
        every = slice(0, work.count)
        return [
            Kernel(work.part(slice(None), part), (every, part), source, devices[i % len(devices)])
            for i, part in enumerate(parts)
        ]


def _source(work: Lanes, devices: int) -> Source | Ahead:
    if work.count * len(work.seeds) < MANY_LANES * devices:
        with contextlib.suppress(Unsupported):
            return traced.ahead(work)
    return traced.source(work, Target(cuda=True))


def unavailable() -> str | None:
    """Why the engine cannot be used here; None if it can."""
    if jax.default_backend() != "gpu":
        return "JAX sees no GPU"
    if importlib.util.find_spec("cupy") is None:
        return "cupy is not installed; try the extra twoclock[cuda]"
    return None


class Kernel:
    """The program of the lanes of one device."""

    def __init__(self, work: Lanes, where: tuple[slice, slice], source: Source | Ahead, device: Any) -> None:
        self.work, self.where, self.source, self.device = work, where, source, device
        self.stride = FIRST_STRIDE
        # Held here as the kernel sees them: it looks at their memory long after it was handed the address.
        self.tables = self._here(traced.tables(work))
        self.streams = jax.device_put(traced.streams(work), device)
        self._walk: Walk | None = None

    def place(self, carry: Carry) -> Carry:
        return jax.tree.map(lambda leaf: jax.device_put(jnp.asarray(leaf[self.where]), self.device), carry)

    def advance(self, carry: Carry, lo: int, hi: int) -> Carry:
        try:
            if self._walk is None:
                self._walk = self._ready(carry, lo)
            return self._run(self._walk, carry, lo, hi)
        except EngineError:
            raise
        except Exception as error:  # cupy's errors have no common parent short of this one
            lines = str(error).strip().splitlines() or [""]
            words = next((line for line in lines if "error" in line), lines[0])
            raise EngineError(f"{type(error).__name__}: {words}"[:300]) from None

    def measure(self, carry: Carry) -> Row:
        return rows.measure(self.work.instances, self.work.methods, carry)

    def _ready(self, carry: Carry, lo: int) -> Walk:
        """What walks, compiled; checked where its text is new here."""
        source = self.source
        if isinstance(source, Ahead):
            text = source.noise.text + source.steps.text
            walk = partial(self._ahead, source, self._compiled(source.noise), self._compiled(source.steps))
        else:
            text = source.text
            walk = partial(self._at_once, self._compiled(source), [*self.tables, *self._here(source.constants)])
        if (text, self.device.id) not in _checked:
            differs = Reference(self.work).difference(lambda *span: self._run(walk, *span), carry, lo)
            if differs is not None:
                raise EngineError(f"the compiled kernel fails its self-check: {differs}")
            _checked.add((text, self.device.id))
        return walk

    def _at_once(self, kernel: Any, tables: list[jax.Array], leaves: list[jax.Array], lo: int, hi: int) -> None:
        self._launcher(kernel, tables, leaves)(math.prod(self.work.shape), lo, hi)

    def _ahead(self, source: Ahead, noise: Any, steps: Any, leaves: list[jax.Array], lo: int, hi: int) -> None:
        """Noise for as many steps as there is memory for, then the steps, and again."""
        count, seeds = self.work.shape
        size = seeds * sum(leaf.size * leaf.dtype.itemsize for leaf in source.drawn)
        most = min(max(NOISE_BYTES // size, 1), hi - lo)
        shapes = [
            ((most, seeds, *leaf.shape), np.uint8 if leaf.dtype.kind == "b" else leaf.dtype) for leaf in source.drawn
        ]
        drawn = jax.block_until_ready([jnp.empty(*shape, device=self.device) for shape in shapes])
        problem = self.tables[: len(jax.tree.leaves(self.work.instances.batched))]
        draw = self._launcher(noise, [*problem, *self._here(source.noise.constants)], drawn)
        walk = self._launcher(steps, [*self.tables, *drawn, *self._here(source.steps.constants)], leaves)
        for begin in range(lo, hi, most):
            end = min(begin + most, hi)
            draw((end - begin) * seeds, begin, end)
            walk(count * seeds, begin, end)

    def _compiled(self, source: Source) -> Any:
        import cupy

        key = (source.text, self.device.id)
        if key not in _modules:
            with cupy.cuda.Device(self.device.local_hardware_id):
                module = cupy.RawModule(code=source.text, options=OPTIONS, backend="nvrtc")
                _modules[key] = module.get_function("walk")
        return _modules[key]

    def _launcher(
        self, kernel: Any, tables: list[jax.Array], leaves: list[jax.Array]
    ) -> Callable[[int, int, int], None]:
        """What launches a kernel on these arrays for so many lanes, from one step to another."""
        import cupy

        arrays = [[cupy.from_dlpack(array) for array in part] for part in (tables, leaves)]
        pointers = [cupy.asarray(np.array([a.data.ptr for a in part] or [0], np.uint64)) for part in arrays]
        streams = cupy.from_dlpack(self.streams)

        def launch(lanes: int, lo: int, hi: int) -> None:
            numbers = [np.int64(n) for n in (lo, hi, *self.work.shape)]
            kernel((-(-lanes // THREADS),), (THREADS,), (*numbers, *pointers, streams))

        return launch

    def _run(self, walk: Walk, carry: Carry, lo: int, hi: int) -> Carry:
        import cupy

        leaves, structure = jax.tree.flatten(carry)
        # Truth values travel as bytes. The kernel writes over its arrays, so it gets copies.
        new = jax.block_until_ready([_fresh(_bytes(leaf)) for leaf in leaves])
        with cupy.cuda.Device(self.device.local_hardware_id):
            walk(new, lo, hi)
            cupy.cuda.get_current_stream().synchronize()
        done = [leaf.view(jnp.bool_) if old.dtype == bool else leaf for leaf, old in zip(new, leaves, strict=True)]
        return jax.tree.unflatten(structure, done)

    def _here(self, arrays: Iterable[np.ndarray | jax.Array]) -> list[jax.Array]:
        return [_bytes(jax.device_put(jnp.asarray(array), self.device)) for array in arrays]


def _bytes(array: jax.Array) -> jax.Array:
    """Truth values as bytes."""
    return array.view(jnp.uint8) if array.dtype == bool else array


_fresh = jax.jit(jnp.copy)
