"""Wrong arguments: the Python interface from its real signatures, and the command line."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from faults.campaign import Trial

NAME = "wrong arguments"

_CALLS = {"python": 8000, "command_line": 2000}
_SECONDS = 300.0  # 10⁹ steps are no fault, and on a busy machine take two minutes
_BYTES = 8 << 30
_NAMES = {"python": "calls of the Python interface", "command_line": "command lines"}


def trials(scale: float) -> Iterator[Trial]:
    for kind, calls in _CALLS.items():
        yield from _calls(kind, max(int(calls * scale), 20))


def _calls(kind: str, many: int, seed: int = 0) -> Iterator[Trial]:
    """The calls one after the other; one that hangs or eats the memory ends its process, and the next takes over."""
    first, died_at = 0, -1
    while first < many:
        command = [sys.executable, "-m", "faults._fuzz_worker", kind, str(seed), str(first), str(many)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
            assert child.stdout is not None
            why = None
            for line in _lines(child):
                if line is None:
                    why = "hangs" if _size(child.pid) < _BYTES else "takes more than 8 GiB"
                    child.kill()
                    break
                message = json.loads(line)
                if "begins" in message:
                    first = message["begins"]
                    continue
                fault = message["fault"]
                yield Trial(_NAMES[kind], None if fault is None else f"{message['what']}: {fault}")
                first = message["call"] + 1
            child.wait()
        if first == died_at:
            raise RuntimeError(f"the process that makes the calls does not start: {' '.join(command)}")
        if first < many:
            died_at = first + 1
            yield Trial(_NAMES[kind], f"call {first}: {why or f'the process died with {child.returncode}'}")
            first += 1


def _lines(child: subprocess.Popen[str]) -> Iterator[str | None]:
    """What the child says; None if it is silent for too long or too large."""
    watch, waited, text = selectors.DefaultSelector(), 0.0, b""
    watch.register(child.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
    while True:
        if not watch.select(timeout=0.5):
            waited += 0.5
            if waited > _SECONDS or _size(child.pid) > _BYTES:
                yield None
                return
            continue
        got = os.read(child.stdout.fileno(), 1 << 16)  # type: ignore[union-attr]
        if not got:
            return
        waited, text = 0.0, text + got
        *whole, text = text.split(b"\n")
        yield from (line.decode() for line in whole)


def _size(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
