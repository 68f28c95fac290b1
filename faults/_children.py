"""Other processes: started, struck, and read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

_MOST = 8 << 30


def limit_memory() -> None:
    """Limit the memory of this process and its children: one that grows fast would end all others.

    The library sees the limit and refuses what needs more, so that a trial ends alike on machines of any size.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST if hard == resource.RLIM_INFINITY else min(_MOST, hard), hard))


def twoclock(*args: str | Path, module: str = "twoclock", **options: object) -> subprocess.CompletedProcess[str]:
    """The command line to its end, or that of another module."""
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, args)], capture_output=True, text=True, check=False, timeout=600,
        errors="replace", **options,  # type: ignore[call-overload]
    )  # fmt: skip


def python(code: str, *args: str | Path, timeout: float = 600.0, **options: object) -> subprocess.CompletedProcess[str]:
    """A program of a few lines to its end; what it has started ends with it."""
    command = [sys.executable, "-c", code, *map(str, args)]
    # It may import the campaigns wherever it runs.
    roots = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    options = {"env": {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots))}, **options}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
        **options,  # type: ignore[call-overload]
    ) as child:  # fmt: skip
        try:
            output, wrong = child.communicate(timeout=timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, child.returncode, output, wrong)


@contextlib.contextmanager
def started(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A process in a new process group, which ends with the block."""
    with subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as child:  # fmt: skip
        try:
            yield child
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


def wait_for(ready: Callable[[], bool], child: subprocess.Popen[str], seconds: float = 120.0) -> bool:
    """Whether it came true before the child ended or the time was over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and child.poll() is None:
        if ready():
            return True
        time.sleep(0.01)
    return ready()


def digests(folder: Path, pattern: str = "**/*.parquet") -> dict[str, str]:
    """Each file of a folder by what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob(pattern)
    }


def complaint(child: subprocess.CompletedProcess[str], statuses: tuple[int, ...] = (0, 1, 2)) -> str | None:
    """What is wrong with how a command ended: a traceback, or not one line."""
    if "Traceback" in child.stderr:
        return "a traceback: " + child.stderr.strip().splitlines()[-1][:150]
    if child.returncode not in statuses:
        return f"exit status {child.returncode}: {child.stderr.strip()[-150:]!r}"
    lines = [line for line in child.stderr.splitlines() if line.startswith(("twoclock:", "reproduction:"))]
    return f"{len(lines)} lines written" if child.returncode in (1, 2) and len(lines) != 1 else None


def way_on(output: str, args: Sequence[str | Path]) -> list[str]:
    """The command that a message ends in; where it names none, the same again."""
    _, named, command = output.rpartition("resume: twoclock ")
    return shlex.split(command) if named else [str(word) for word in args]
