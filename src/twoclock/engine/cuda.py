"""The engine for NVIDIA GPUs: the same C as for the CPU, a lane a thread, compiled by NVRTC through cupy.

Nothing is copied between JAX and the kernel: both look at the same memory of the device, through DLPack. Several
devices share the seeds. Lanes are walked on trust, and those that diverge once more with care. For lanes that are too
few to fill a device, all that does not wait for the state is done ahead, each step of each lane a thread: the bits are
the same.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.engine import rows, traced
from twoclock.engine.codegen.frame import Source, Target
from twoclock.engine.codegen.ir import Unsupported
from twoclock.engine.codegen.kernel import FEW, MANY
from twoclock.engine.codegen.program import InTwo
from twoclock.engine.contract import EngineError
from twoclock.engine.lanes import Lanes, cut
from twoclock.engine.rows import Row
from twoclock.engine.selfcheck import Reference
from twoclock.engine.step import Carry

# Threads in a block: a lane needs many registers, and few blocks of many threads would leave processors idle.
THREADS = 64
FIRST_STRIDE = 1 << 10
# Lanes that keep a device busy by themselves.
MANY_LANES = 1 << 14
# Memory for what is done ahead, which is best in the cache; the steps that are worth a launch, and the most for them.
AHEAD_BYTES, AHEAD_STEPS, MOST_AHEAD_BYTES = 1 << 22, 64, 1 << 28
# Steps that lanes are walked on trust before they store what they have come to: so many are walked again with care.
SPAN = 1 << 13
# As on the CPU: no fused sums, so that compensated ones survive and the bits are those of the engine "c".
OPTIONS = ("--fmad=false",)

Launch = Callable[[int, int, int], None]
"""Launches a kernel on its arrays for so many lanes, from one step to another."""

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
            sources = traced.source(work, Target(cuda=True)), _trusting(work, len(devices))
        except Unsupported as reason:
            return str(reason)
        _, parts = cut(work.count, len(work.seeds), len(devices))
        every = slice(0, work.count)
        return [
            Kernel(work.part(slice(None), part), (every, part), *sources, devices[i % len(devices)])
            for i, part in enumerate(parts)
        ]


def _trusting(work: Lanes, devices: int) -> Source | InTwo | None:
    if work.count * len(work.seeds) < MANY_LANES * devices:
        with contextlib.suppress(Unsupported):
            return traced.in_two(work)
    with contextlib.suppress(Unsupported):
        return traced.trusting(work)
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
        trusting: walks lanes as long as they do not diverge; None if there is none.
    """

    def __init__(
        self, work: Lanes, where: tuple[slice, slice], careful: Source, trusting: Source | InTwo | None, device: Any
    ) -> None:
        self.work, self.where, self.careful, self.trusting, self.device = work, where, careful, trusting, device
        self.stride = FIRST_STRIDE
        # Held here as the kernel sees them: it looks at their memory long after it was handed the address.
        self.tables = self._here(traced.tables(work))
        self.streams = jax.device_put(traced.streams(work), device)

    def place(self, carry: Carry) -> Carry:
        return jax.tree.map(lambda leaf: jax.device_put(jnp.asarray(leaf[self.where]), self.device), carry)

    def advance(self, carry: Carry, lo: int, hi: int) -> Carry:
        try:
            self._check(self.trusting or self.careful, carry, lo)
            return self._run(self.trusting, carry, lo, hi)
        except EngineError:
            raise
        except Exception as error:  # cupy's errors have no common parent short of this one
            lines = str(error).strip().splitlines() or [""]
            words = next((line for line in lines if "error" in line), lines[0])
            raise EngineError(f"{type(error).__name__}: {words}"[:300]) from None

    def measure(self, carry: Carry) -> Row:
        return rows.measure(self.work.instances, self.work.methods, carry)

    def _check(self, source: Source | InTwo, carry: Carry, lo: int) -> None:
        """Compare a program whose text is new here with XLA."""
        texts = (source.ahead.text + source.rest.text if isinstance(source, InTwo) else source.text), self.device.id
        if texts not in _checked:
            trusting = None if source is self.careful else self.trusting
            differs = Reference(self.work).difference(lambda *span: self._run(trusting, *span), carry, lo)
            if differs is not None:
                raise EngineError(f"the compiled kernel fails its self-check: {differs}")
            _checked.add(texts)

    def _run(self, trusting: Source | InTwo | None, carry: Carry, lo: int, hi: int) -> Carry:
        import cupy

        leaves, structure = jax.tree.flatten(carry)
        # Truth values travel as bytes. The kernel writes over its arrays, so it gets copies.
        new = jax.block_until_ready([_fresh(_bytes(leaf)) for leaf in leaves])
        with cupy.cuda.Device(self.device.local_hardware_id):
            # The step from which a lane is to be walked with care; none as long as it holds.
            start = cupy.full(math.prod(self.work.shape), lo if trusting is None else -1, np.int64)
            arrays = [*map(cupy.from_dlpack, new), start]
            if isinstance(trusting, InTwo):
                self._walk_in_two(trusting, arrays, lo, hi)
            elif trusting is not None:
                walk = self._launcher(trusting, arrays, threads=MANY)
                for begin in range(lo, hi, SPAN):
                    walk(start.size, begin, min(begin + SPAN, hi))
            if trusting is None or bool((start >= 0).any()):
                if trusting is not None:
                    self._check(self.careful, carry, lo)
                self._launcher(self.careful, arrays)(start.size, lo, hi)
            cupy.cuda.get_current_stream().synchronize()
        done = [leaf.view(jnp.bool_) if old.dtype == bool else leaf for leaf, old in zip(new, leaves, strict=True)]
        return jax.tree.unflatten(structure, done)

    def _walk_in_two(self, source: InTwo, arrays: list[Any], lo: int, hi: int) -> None:
        """All that does not wait for the state, for as many steps as there is memory for, then the rest, and again.

        There are two such memories: while the rest of the steps reads one of them, the other is written.
        """
        import cupy

        lanes = math.prod(self.work.shape)
        size = lanes * sum(part.size * part.dtype.itemsize for part in source.handed)
        most = min(max(AHEAD_BYTES // size, min(AHEAD_STEPS, MOST_AHEAD_BYTES // size), 1), hi - lo)
        memories = [[cupy.empty((most, lanes, part.size), part.dtype) for part in source.handed] for _ in range(2)]
        ahead = [self._launcher(source.ahead, memory) for memory in memories]
        rest = [self._launcher(source.rest, arrays, memory, threads=FEW) for memory in memories]
        here, aside = cupy.cuda.get_current_stream(), cupy.cuda.Stream(non_blocking=True)
        here.synchronize()
        read = [cupy.cuda.Event(disable_timing=True) for _ in memories]
        for turn, begin in enumerate(range(lo, hi, most)):
            end, now = min(begin + most, hi), turn % 2
            if turn > 1:
                aside.wait_event(read[now])
            with aside:
                ahead[now]((end - begin) * lanes, begin, end)
                written = aside.record()
            here.wait_event(written)
            rest[now](lanes, begin, end)
            read[now].record(here)
        aside.synchronize()

    def _compiled(self, source: Source) -> Any:
        import cupy

        key = (source.text, self.device.id)
        if key not in _modules:
            with cupy.cuda.Device(self.device.local_hardware_id):
                module = cupy.RawModule(code=source.text, options=OPTIONS, backend="nvrtc")
                _modules[key] = module.get_function("walk")
        return _modules[key]

    def _launcher(
        self, source: Source, leaves: list[Any], handed: Sequence[Any] = (), threads: int = THREADS
    ) -> Launch:
        """What launches a kernel on these arrays of the device."""
        import cupy

        kernel = self._compiled(source)
        constants = self._here(source.constants)
        tables = [*map(cupy.from_dlpack, [*self.tables, *constants]), *handed]
        pointers = [cupy.asarray(np.array([a.data.ptr for a in part] or [0], np.uint64)) for part in (tables, leaves)]
        streams = cupy.from_dlpack(self.streams)

        def launch(lanes: int, lo: int, hi: int) -> None:
            numbers = [np.int64(n) for n in (lo, hi, *self.work.shape)]
            kernel((-(-lanes // threads),), (threads,), (*numbers, *pointers, streams))

        # They are kept as long as what launches: the kernel knows them by their addresses alone.
        launch.arrays = (tables, leaves)  # type: ignore[attr-defined]
        return launch

    def _here(self, arrays: Iterable[np.ndarray | jax.Array]) -> list[jax.Array]:
        return [_bytes(jax.device_put(jnp.asarray(array), self.device)) for array in arrays]


def _bytes(array: jax.Array) -> jax.Array:
    """Truth values as bytes."""
    return array.view(jnp.uint8) if array.dtype == bool else array


_fresh = jax.jit(jnp.copy)
