"""The machine's C compiler: where it is, what it is asked for, and what the processor can do."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Seconds that a compiler may take for one program; the longest that is generated takes a tenth of it.
TIME_LIMIT = 60.0

# Exact arithmetic: no fused or reordered sums, so that compensated ones survive and all widths give the same bits.
_EXACT = ("-O2", "-ftree-vectorize", "-fopenmp-simd", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing")
_FREE = ("-fno-math-errno", "-fno-trapping-math", "-w", "-std=gnu11", "-shared", "-fPIC")
# GCC would make branches of what is needed on some ways only and, between lanes side by side, of a choice that follows
# from an earlier one; lanes go through branches one by one. A lane by itself is faster with the second.
_GCC, _GCC_ABREAST = ("-fno-tree-pre",), ("-fno-thread-jumps",)


class CompilerError(RuntimeError):
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
        """What it is asked for when so many lanes go side by side."""
        own = (*_GCC, *(_GCC_ABREAST if width > 1 else ())) if self.gcc else ()
        return (*_EXACT, *_FREE, *own, *_machine_flags(platform.machine()))

    def identity(self, width: int) -> str:
        """All that has a part in what it makes of a text."""
        return "\n".join((self.version, *self.command, *self.flags(width), processor()))

    def start(self, source: Path, target: Path, width: int) -> subprocess.Popen[str]:
        """Begin to compile; the process is waited for with ``finish``."""
        command = [*self.command, *self.flags(width), "-o", str(target), str(source), "-lm"]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )


def finish(process: subprocess.Popen[str], limit: float | None = None) -> None:
    """Wait for a compiler; one that takes too long is ended."""
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
    """The compiler that CC names, or the first of cc, gcc and clang; otherwise why there is none."""
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
            return Compiler(
                command, finished.stdout.splitlines()[0].strip(), "Free Software Foundation" in finished.stdout
            )
    return f"there is no C compiler ({' '.join(candidates[0]) if asked.strip() else 'cc, gcc or clang'})"


@cache
def processor() -> str:
    """The processor and its features, as the system tells them."""
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
    """How many bits the processor's widest vectors hold; 128 where nothing is known."""
    features = set(processor().split())
    if "avx512f" in features and "avx512dq" in features:
        return 512
    return 256 if "avx2" in features else 128


def _machine_flags(machine: str) -> tuple[str, ...]:
    if machine in ("x86_64", "AMD64", "i686"):
        return ("-march=native", f"-mprefer-vector-width={vector_bits()}")
    return ("-mcpu=native",) if machine in ("aarch64", "arm64") else ()
