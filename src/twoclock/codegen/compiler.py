"""The machine's C compiler: find it, run it beside this process, load what it made.

The compiler is a separate process, so that the caller can continue meanwhile. Its output is stored by ``binary_cache``,
so that the next run of the same program starts at once.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from twoclock.codegen import binary_cache
from twoclock.codegen.ir import CodegenError

# Seconds that a compiler may take for one program; the longest that is generated takes a tenth of it.
TIME_LIMIT = 60.0
# The arguments of a compiled program, see ``templates.c_text``: six numbers, then tables, leaves and streams.
ARGUMENTS: Sequence[type[ctypes.c_int64 | ctypes.c_void_p]] = (*[ctypes.c_int64] * 6, *[ctypes.c_void_p] * 3)

# Exact arithmetic: no fused or reordered sums, so that compensated ones survive and all widths give the same bits.
_EXACT = ("-O2", "-ftree-vectorize", "-fopenmp-simd", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing")
_FREE = ("-fno-math-errno", "-fno-trapping-math", "-w", "-std=gnu11", "-shared", "-fPIC")
# GCC would make branches of what is needed on some paths only and, between lanes side by side, of a choice that follows
# from an earlier one; lanes go through branches one by one. A lane by itself is faster with the second.
_GCC, _GCC_SIDE_BY_SIDE = ("-fno-tree-pre",), ("-fno-thread-jumps",)


class CompilerError(CodegenError):
    """The compiler failed, in one line."""


@dataclass(frozen=True)
class Compiler:
    """A C compiler.

    Attributes:
        command: how it is called.
        version: its first line about itself.
        gcc: whether it is GCC, whatever it is called; clang refuses options that it does not know.
    """

    command: tuple[str, ...]
    version: str
    gcc: bool

    def flags(self, width: int) -> tuple[str, ...]:
        """Return the options for so many lanes side by side."""
        own = (*_GCC, *(_GCC_SIDE_BY_SIDE if width > 1 else ())) if self.gcc else ()
        machine = platform.machine()
        if machine in ("x86_64", "AMD64", "i686"):
            own += ("-march=native", f"-mprefer-vector-width={vector_bits()}")
        elif machine in ("aarch64", "arm64"):
            own += ("-mcpu=native",)
        return (*_EXACT, *_FREE, *own)

    def identity(self, width: int) -> str:
        """Describe everything besides the text that decides the binary."""
        return "\n".join((self.version, *self.command, *self.flags(width), processor()))

    def start(self, source: Path, target: Path, width: int) -> subprocess.Popen[str]:
        """Start to compile; wait for the process with ``finish``."""
        command = [*self.command, *self.flags(width), "-o", str(target), str(source), "-lm"]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )


def finish(process: subprocess.Popen[str], limit: float | None = None) -> None:
    """Wait for a compiler; kill one that takes too long."""
    limit = TIME_LIMIT if limit is None else limit
    try:
        _, stderr = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise CompilerError(f"the C compiler took more than {limit:g} s") from None
    if process.returncode:
        words = next((line for line in stderr.splitlines() if "error" in line), stderr.strip().partition("\n")[0])
        raise CompilerError(f"the C compiler failed: {words or f'exit status {process.returncode}'}"[:300])


def find() -> Compiler | str:
    """Find the compiler that CC names, or the first of cc, gcc and clang; otherwise say why there is none."""
    return _find(os.environ.get("CC", ""), os.environ.get("PATH", ""))


@cache
def _find(asked: str, path: str) -> Compiler | str:
    candidates = [tuple(shlex.split(asked))] if asked.strip() else [("cc",), ("gcc",), ("clang",)]
    for command in candidates:
        if shutil.which(command[0], path=path) is None:
            continue
        try:
            finished = subprocess.run(
                [*command, "--version"], capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if finished.returncode == 0 and finished.stdout.strip():
            gcc = "Free Software Foundation" in finished.stdout
            return Compiler(command, finished.stdout.splitlines()[0].strip(), gcc)
    return f"there is no C compiler ({' '.join(candidates[0]) if asked.strip() else 'cc, gcc or clang'})"


@cache
def processor() -> str:
    """Name the processor and its features, as the system reports them."""
    words = {platform.machine(), platform.processor()}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features", "model name"):
                words.add(value.strip())
    except OSError:
        pass
    return "\n".join(sorted(words))


def vector_bits() -> int:
    """Return the width of the processor's widest vectors in bits; 128 where it is unknown."""
    features = set(processor().split())
    if "avx512f" in features and "avx512dq" in features:
        return 512
    return 256 if "avx2" in features else 128


@dataclass
class Build:
    """A program that is being compiled, or is compiled already.

    Attributes:
        text: the program in C, with one function ``walk``.
        width: lanes side by side in it.
    """

    text: str
    width: int
    compiler: Compiler
    store: binary_cache.BinaryCache
    key: str
    process: subprocess.Popen[str] | None = None
    folder: Path | None = None
    error: str | None = None
    loaded: Callable[..., None] | None = None
    accepted: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Start the compiler, unless the program is in the cache."""
        if self.store.holds(self.key):
            return
        self.folder = Path(tempfile.mkdtemp(prefix="making-", dir=self.store.folder))
        source = self.folder / "program.c"
        source.write_text(self.text)
        try:
            self.process = self.compiler.start(source, source.with_suffix(".so"), self.width)
        except OSError as error:
            self.error = f"the C compiler cannot be started ({error.strerror})"
            self.close()

    def function(self) -> Callable[..., None]:
        """Return the compiled function, see ``ARGUMENTS``; wait for the compiler."""
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

    def is_checked(self) -> bool:
        """Say whether the program has passed a check of its results, now or in an earlier process."""
        return self.accepted or self.store.is_checked(self.key)

    def accept(self) -> None:
        """Record that the program has passed the check."""
        self.accepted = True
        self.store.mark_checked(self.key)

    def reject(self) -> None:
        """Record that the program has failed the check, and delete it."""
        self.error = "the compiled program failed its self-check before"
        self.store.delete(self.key)

    def close(self) -> None:
        """Kill a compiler that is still running, and leave no files behind."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _load(self) -> Callable[..., None]:
        path = self.store.path(self.key)
        if self.process is not None and self.folder is not None:
            try:
                finish(self.process)
                path = self.store.add(self.key, self.folder / "program.so")
            finally:
                self.close()
        walk = ctypes.CDLL(os.fspath(path)).walk
        walk.restype, walk.argtypes = None, list(ARGUMENTS)
        return walk


_builds: dict[str, Build] = {}
_lock = threading.Lock()


@atexit.register
def close_builds() -> None:
    """Kill the compilers that are still running."""
    for build in _builds.values():
        build.close()


def compile_text(text: str, width: int, by: Compiler) -> Build:
    """Take the program of a text from this process or from disk, or start to compile it."""
    key = hashlib.sha256(f"{by.identity(width)}\n{text}".encode()).hexdigest()[:40]
    with _lock:
        build = _builds.get(key)
        if build is None or build.error is not None:
            build = _builds[key] = Build(text, width, by, binary_cache.open_cache(), key)
            build.start()
    return build


def pointers(arrays: Sequence[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
    """Return the addresses of arrays as a C array; the caller must keep the arrays alive."""
    return (ctypes.c_void_p * max(len(arrays), 1))(*(array.ctypes.data for array in arrays))
