"""The engine for CPUs: C made of one lane's step, compiled by the machine's own compiler, lanes abreast in vectors.

The compiler is a process of its own and works while the first row is measured. What it made is kept on disk, so that
the next run of the same program starts at once.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.codegen.c_template import Source, Target
from twoclock.codegen.ir import Unsupported
from twoclock.engine import binary_cache, compiler, metrics, run_batch, source_cache
from twoclock.engine.compiler import Compiler, CompilerError
from twoclock.engine.protocol import EngineError, LaneState, Row
from twoclock.engine.run_batch import Lanes
from twoclock.engine.self_check import Reference

# Lane-steps that a program is asked for at first: some milliseconds.
FIRST_STRIDE = 1 << 18


@dataclass(frozen=True)
class C:
    """The engine.

    Args:
        width: lanes side by side; chosen from the machine and the number of lanes if None.
    """

    width: int | None = None
    name: str = "c"

    def compile(self, work: Lanes) -> list[Walk] | str:
        found = compiler.find()
        if isinstance(found, str):
            return found
        try:
            source = source_cache.source(work, _target(work, self.width))
        except Unsupported as reason:
            return str(reason)
        return [Walk(work, source, build(source, found))]

    def knows(self, work: Lanes) -> bool:
        """Whether the program of these lanes is loaded in this process already."""
        return source_cache.known(work, _target(work, self.width))


class Walk:
    """The program of all lanes; groups of them are shared out over threads."""

    def __init__(self, work: Lanes, source: Source, build: Build) -> None:
        self.where = slice(0, work.count), slice(0, len(work.seeds))
        self.work, self.source, self.build = work, source, build
        self.stride = max(FIRST_STRIDE // (work.count * len(work.seeds)), 16)
        self.tables = [np.ascontiguousarray(table) for table in (*source_cache.tables(work), *source.constants)]
        self.streams = np.ascontiguousarray(source_cache.streams(work))
        width, (count, seeds) = source.target.width, work.shape
        self.groups = count * -(-seeds // width) if not source.target.mixed else -(-count * seeds // width)
        self._walk: Callable[..., None] | None = None

    def place(self, carry: LaneState) -> LaneState:
        return jax.tree.map(lambda leaf: np.array(leaf, order="C"), carry)

    def advance(self, carry: LaneState, lo: int, hi: int) -> LaneState:
        if self._walk is None:
            self._walk = self._ready(carry, lo)
        return self._run(self._walk, carry, lo, hi)

    def measure(self, carry: LaneState) -> Row:
        return metrics.measure(self.work.instances, self.work.methods, carry)

    def _ready(self, carry: LaneState, lo: int) -> Callable[..., None]:
        """The compiled program, once it has shown that it computes what XLA computes."""
        try:
            walk = self.build.function()
        except (CompilerError, OSError) as error:
            raise EngineError(str(error)) from None
        if not self.build.checked():
            differs = Reference(self.work).difference(lambda *span: self._run(walk, *span), carry, lo)
            if differs is not None:
                self.build.reject()
                raise EngineError(f"the compiled program fails its self-check: {differs}")
            self.build.accept()
        return walk

    def _run(self, walk: Callable[..., None], carry: LaneState, lo: int, hi: int) -> LaneState:
        leaves, structure = jax.tree.flatten(jax.tree.map(np.array, carry))
        span, shape = (ctypes.c_int64(lo), ctypes.c_int64(hi)), tuple(map(ctypes.c_int64, self.work.shape))
        rest = (*shape, pointers(self.tables), pointers(leaves), ctypes.c_void_p(self.streams.ctypes.data))
        workers = min(run_batch.count_threads(), self.groups)
        # Rather more shares than threads, so that one that is held up does not hold up all.
        shares = min(4 * workers, self.groups) if workers > 1 else 1
        cuts = [self.groups * i // shares for i in range(shares + 1)]

        def some(first: int, last: int) -> None:
            walk(*span, ctypes.c_int64(first), ctypes.c_int64(last), *rest)

        if workers == 1:
            some(0, self.groups)
        else:
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(some, cuts[:-1], cuts[1:]))
        return jax.tree.unflatten(structure, leaves)


@dataclass
class Build:
    """A program being compiled, or compiled already."""

    source: Source
    compiler: Compiler
    store: binary_cache.Cache
    key: str
    process: Popen[str] | None = None
    folder: Path | None = None
    error: str | None = None
    loaded: Callable[..., None] | None = None
    accepted: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        if self.store.holds(self.key):
            return
        self.folder = Path(tempfile.mkdtemp(prefix="making-", dir=self.store.folder))
        text = self.folder / "program.c"
        text.write_text(self.source.text)
        try:
            self.process = self.compiler.start(text, text.with_suffix(".so"), self.source.target.width)
        except OSError as error:
            self.error = f"the C compiler cannot be started ({error.strerror})"
            self.close()

    def function(self) -> Callable[..., None]:
        """The compiled function; waits for the compiler."""
        with self.lock:
            if self.error is not None:
                raise CompilerError(self.error)
            if self.loaded is None:
                try:
                    self.loaded = self._load()
                except (CompilerError, OSError, AttributeError) as error:
                    self.error = str(error)
                    raise CompilerError(self.error) from None
            return self.loaded

    def checked(self) -> bool:
        return self.accepted or self.store.checked(self.key)

    def accept(self) -> None:
        self.accepted = True
        self.store.mark_checked(self.key)

    def reject(self) -> None:
        self.error = "the compiled program failed its self-check before"
        self.store.forget(self.key)

    def close(self) -> None:
        """End a compiler that nobody waits for any more, and leave nothing behind."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _load(self) -> Callable[..., None]:
        path = self.store.path(self.key)
        if self.process is not None and self.folder is not None:
            try:
                compiler.finish(self.process)
                path = self.store.keep(self.key, self.folder / "program.so")
            finally:
                self.close()
        walk = ctypes.CDLL(os.fspath(path)).walk
        walk.restype = None
        return walk


_builds: dict[str, Build] = {}
_lock = threading.Lock()


@atexit.register
def _close() -> None:
    for build in _builds.values():
        build.close()


def build(source: Source, by: Compiler) -> Build:
    """The program of a text: loaded in this process, kept on disk, or begun to be compiled."""
    key = hashlib.sha256(f"{by.identity(source.target.width)}\n{source.text}".encode()).hexdigest()[:40]
    with _lock:
        build = _builds.get(key)
        if build is None or build.error is not None:
            build = _builds[key] = Build(source, by, binary_cache.users(), key)
            build.start()
    return build


def _target(work: Lanes, width: int | None) -> Target:
    """As many lanes side by side as fill two vectors, fewer where there are fewer or where threads would stand idle."""
    count, seeds = work.shape
    if width is None:
        vector = compiler.vector_bits() // (8 * jnp.result_type(float).itemsize)
        width = 2 * vector
        while width > 1 and (
            width // 2 >= count * seeds or (width > vector and count * seeds < width * run_batch.count_threads())
        ):
            width //= 2
    filled = seeds / (width * -(-seeds // width))
    return Target(width, mixed=width > 1 and count > 1 and filled < 0.75)


def pointers(arrays: list[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(len(arrays), 1))(*(array.ctypes.data for array in arrays))
