"""From C to a loaded function: the machine's compiler, and a cache of compiled programs on disk.

The compiler is a separate process, so that the caller can continue meanwhile. A program that another user could have
written is never loaded: the cache folder must belong to this user and be closed to all others, and no one else may
rename it or a folder above it. A file is loaded only if its digest is the one beside it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np

from twoclock.codegen.ir import CodegenError

# Seconds that a compiler may take for one program (the longest needs a tenth), and to report its version.
TIME_LIMIT, VERSION_TIME_LIMIT = 60.0, 10.0
# Size of all programs in the cache together; the least recently used are deleted first.
MAX_BYTES = 256 << 20
# The arguments of a compiled program, see ``templates.c_text``: six numbers, then tables, leaves and streams.
ARGUMENTS: Sequence[type[ctypes.c_int64 | ctypes.c_void_p]] = (*[ctypes.c_int64] * 6, *[ctypes.c_void_p] * 3)

# Seconds after which the leftover files of a killed process are deleted.
_ABANDONED = 600.0
# Exact arithmetic: no fused or reordered sums. Compensated sums stay correct, and all widths give identical results.
_EXACT = ("-fno-fast-math", "-ftree-vectorize", "-fopenmp-simd", "-ffp-contract=off", "-fwrapv")
_FREE = ("-fno-strict-aliasing", "-fno-math-errno", "-fno-trapping-math", "-w", "-std=gnu11")
# No start files: those of -ffast-math change the arithmetic of the whole process.
_LINKED = ("-shared", "-fPIC", "-nostartfiles")
# GCC would make branches of what only some paths need and, between lanes side by side, of a choice that follows from an
# earlier one; with branches, lanes run one by one. A single lane is faster with the second. With little optimisation
# lanes are side by side only where the ranges of integers are known: four times as fast for Zap's step. There registers
# are allocated for whole functions, not loop by loop, which saves a fifth of the time to compile and costs none to run.
_GCC, _GCC_SIDE_BY_SIDE = ("-fno-tree-pre",), ("-fno-thread-jumps",)


class CompilerError(CodegenError):
    """The compiler failed, in one line."""


@dataclass(frozen=True)
class Compiler:
    """A C compiler."""

    command: tuple[str, ...]
    version: str  # the first line of its version
    gcc: bool  # GCC under any name; clang refuses options that it does not know

    def flags(self, width: int, quickly: bool = False) -> tuple[str, ...]:
        """The options; ``quickly`` takes a quarter of the time for a long program. The results are bit-for-bit
        identical."""
        own = (*_GCC, *(_GCC_SIDE_BY_SIDE if width > 1 else ())) if self.gcc else ()
        own += ("-ftree-vrp", "-fira-region=one") if self.gcc and quickly else ()
        machine = platform.machine()
        if machine in ("x86_64", "AMD64", "i686"):
            own += ("-march=native", f"-mprefer-vector-width={vector_bits()}")
        elif machine in ("aarch64", "arm64"):
            own += ("-mcpu=native",)
        return ("-O1" if quickly else "-O2", *_EXACT, *_FREE, *_LINKED, *own)

    def start(self, source: Path, flags: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start to compile a file to a .so file beside it; wait for the process with ``finish``."""
        target = source.with_suffix(".so")
        with source.with_suffix(".errors").open("wb") as errors:
            return _start([*self.command, *flags, "-o", str(target), str(source), "-lm"], errors)


def _start(command: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a command in a new session, so that its child processes can be killed with it and hold no pipe open."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
    process.wait()


def finish(process: subprocess.Popen[bytes], source: Path) -> None:
    """Wait for the compiler of a file; kill one that takes too long."""
    try:
        status = process.wait(TIME_LIMIT)
    except subprocess.TimeoutExpired:
        _kill(process)
        raise CompilerError(f"the C compiler took more than {TIME_LIMIT:g} s") from None
    if status:
        lines = source.with_suffix(".errors").read_text(errors="replace").strip().splitlines()
        words = next((line for line in lines if "error" in line), (lines or [f"exit status {status}"])[0])
        raise CompilerError(f"the C compiler failed: {words}"[:300])


def find() -> Compiler | str:
    """Find the compiler that CC names, or the first of cc, gcc and clang; otherwise say why there is none."""
    return _find(os.environ.get("CC", "").strip(), os.environ.get("PATH", ""))


@cache
def _find(asked: str, path: str) -> Compiler | str:
    try:
        candidates = [tuple(shlex.split(asked))] if asked else [("cc",), ("gcc",), ("clang",)]
    except ValueError as error:
        return f"the compiler that CC names cannot be read ({error})"
    for command in candidates:
        if shutil.which(command[0], path=path) is None:
            continue
        with contextlib.suppress(OSError), tempfile.TemporaryFile() as output:
            process = _start([*command, "--version"], output)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(VERSION_TIME_LIMIT)
            _kill(process)
            output.seek(0)
            version = output.read().decode(errors="replace").strip()
            if process.returncode == 0 and version:
                return Compiler(command, version.splitlines()[0].strip(), "Free Software Foundation" in version)
    return f"there is no C compiler ({asked or 'cc, gcc or clang'})"


@cache
def processor() -> str:
    words = {platform.machine(), platform.processor()}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features", "model name"):
                words.add(value.strip())
    return "\n".join(sorted(words))


def vector_bits() -> int:
    """Return the width of the processor's widest vectors in bits; 128 where it is unknown."""
    features = set(processor().split())
    if "avx512f" in features and "avx512dq" in features:
        return 512
    return 256 if "avx2" in features else 128


@dataclass(frozen=True)
class BinaryCache:
    """A folder of programs: the user's cache folder, or a temporary one and the reason why that cannot be trusted."""

    folder: Path
    trouble: str | None = None
    suffix: str = ".so"

    def path(self, key: str) -> Path:
        return self.folder / f"{key}{self.suffix}"

    def holds(self, key: str) -> bool:
        """Say whether the program is there and undamaged; delete a damaged one."""
        path = self.path(key)
        try:
            whole = self._note(key).read_text().split()[0] == hashlib.sha256(path.read_bytes()).hexdigest()
        except (OSError, IndexError):
            return False
        if not whole:
            self.delete(key)
            return False
        with contextlib.suppress(OSError):
            os.utime(path)
        return True

    def add(self, key: str, program: Path) -> None:
        """Move a new program into the cache, and delete old ones if the cache is full."""
        digest = hashlib.sha256(program.read_bytes()).hexdigest()
        program.chmod(0o700)
        os.replace(program, self.path(key))
        os.replace(self._write(digest.encode()), self._note(key))
        with contextlib.suppress(OSError):
            found = [(p.stat(), p) for p in self.folder.glob(f"*{self.suffix}") if self._note(p.stem).exists()]
            total = sum(of.st_size for of, _ in found)
            for of, path in sorted(found, key=lambda pair: pair[0].st_mtime):
                if total > MAX_BYTES and path != self.path(key):
                    self.delete(path.stem)
                    total -= of.st_size

    def add_bytes(self, key: str, program: bytes) -> None:
        self.add(key, self._write(program))

    def delete(self, key: str) -> None:
        for path in (self._note(key), self.path(key)):
            with contextlib.suppress(OSError):
                path.unlink()

    def is_checked(self, key: str) -> bool:
        """Say whether the program passed its check when it was first used."""
        with contextlib.suppress(OSError):
            return self._note(key).read_text().split()[1:] == ["checked"]
        return False

    def mark_checked(self, key: str) -> None:
        with contextlib.suppress(OSError, IndexError):
            words = f"{self._note(key).read_text().split()[0]} checked"
            os.replace(self._write(words.encode()), self._note(key))

    def make_folder(self) -> Path:
        """Make a folder to compile in; delete those that a killed process has left behind."""
        for old in self.folder.glob("making-*"):
            with contextlib.suppress(OSError):
                if time.time() - old.stat().st_mtime > _ABANDONED:
                    for file in old.glob("program.*"):
                        file.unlink()
                    old.rmdir()
        return Path(tempfile.mkdtemp(prefix="making-", dir=self.folder))

    def _note(self, key: str) -> Path:
        return self.folder / f"{key}.sha256"

    def _write(self, content: bytes) -> Path:
        """Write a new file, to be moved to its name once it is whole."""
        handle, name = tempfile.mkstemp(dir=self.folder)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        return Path(name)


def open_cache() -> BinaryCache:
    """Open the user's cache, or a temporary one if it cannot be made, belongs to someone else or is open to others."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(os.environ.get("TWOCLOCK_CACHE") or os.path.join(base, "twoclock")) / "programs"
    try:
        for part in (folder.parent, folder):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.parent.resolve() / folder.name
        trouble = _why_untrusted(folder)
    except (OSError, RuntimeError) as error:
        trouble = f"{folder} cannot be made ({getattr(error, 'strerror', error)})"
    return BinaryCache(folder) if trouble is None else BinaryCache(Path(_temporary_folder().name), trouble)


def _why_untrusted(folder: Path) -> str | None:
    found, user = folder.lstat(), os.geteuid() if hasattr(os, "geteuid") else 0
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is no folder"
    if found.st_mode & 0o077:
        return f"{folder} is open to others; close it with chmod 700"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} cannot be written to"
    # A user who may write to a parent folder could replace this folder while a program is compiled.
    for part in (folder, *folder.parents):
        found = part.stat()
        if found.st_uid not in (user, 0 if part != folder else user):
            return f"{part} belongs to someone else"
        if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
            return f"{part} is open to others; close it with chmod go-w"
    return None


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Make one folder for this process; it is deleted when the process ends."""
    return tempfile.TemporaryDirectory(prefix="twoclock-")


class Build:
    """A program with one function ``walk``, compiled or being compiled; ``key`` is its key in the cache."""

    def __init__(self, text: str, flags: Sequence[str], by: Compiler, key: str) -> None:
        self.key, self.lock, self.accepted = key, threading.Lock(), False
        self.error: str | None = None  # why there is none
        self.loaded: Callable[..., None] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.source: Path | None = None
        try:
            self.store = open_cache()
            if not self.store.holds(key):
                self.source = self.store.make_folder() / "program.c"
                self.source.write_text(text)
                self.process = by.start(self.source, flags)
        except OSError as error:
            self.error = f"the C compiler cannot start ({error.strerror})"
            self.close()

    def function(self) -> Callable[..., None]:
        """Return the compiled function, see ``ARGUMENTS``; wait for the compiler."""
        with self.lock:
            if self.error is not None:
                raise CompilerError(self.error)
            if self.loaded is None:
                try:
                    if self.process is not None and self.source is not None:
                        finish(self.process, self.source)
                        self.store.add(self.key, self.source.with_suffix(".so"))
                    walk = ctypes.CDLL(os.fspath(self.store.path(self.key))).walk
                except (CompilerError, OSError, AttributeError) as error:
                    self.error = str(error)
                    raise CompilerError(self.error) from None
                finally:
                    self.close()
                walk.restype, walk.argtypes = None, list(ARGUMENTS)
                self.loaded = walk
            return self.loaded

    def is_checked(self) -> bool:
        """Say whether the program has passed a check of its results, now or in an earlier process."""
        return self.accepted or self.store.is_checked(self.key)

    def accept(self) -> None:
        self.accepted = True
        self.store.mark_checked(self.key)

    def reject(self) -> None:
        """Record that the program has failed the check, and delete it."""
        self.error = "the compiled program failed its self-check before"
        self.store.delete(self.key)

    def close(self) -> None:
        """Kill a compiler that is still running, and leave no files behind."""
        if self.process is not None and self.process.poll() is None:
            _kill(self.process)
        if self.source is not None:
            shutil.rmtree(self.source.parent, ignore_errors=True)


_builds: dict[str, Build] = {}
_lock = threading.Lock()


@atexit.register
def close_builds() -> None:
    for build in _builds.values():
        build.close()


def compile_text(text: str, width: int, by: Compiler, *, quickly: bool = False) -> Build:
    """Find the compiled program of a text in this process or on disk, or start to compile it."""
    flags = by.flags(width, quickly)
    decides = (by.version, *by.command, *flags, processor(), text)
    key = hashlib.sha256("\n".join(decides).encode()).hexdigest()[:40]
    with _lock:
        if key not in _builds or _builds[key].error is not None:
            _builds[key] = Build(text, flags, by, key)
        return _builds[key]


def pointers(arrays: Sequence[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
    """Return the addresses of arrays as a C array; the caller must keep the arrays alive."""
    return (ctypes.c_void_p * max(len(arrays), 1))(*(array.ctypes.data for array in arrays))
