"""Trials in a separate process: one that hangs, dies or exhausts the memory fails, and another process continues."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_BYTES = 9 << 30  # the limit of `limit_memory`, and files that are mapped


def stream(name: str, many: int, seed: int, seconds: float = 300.0) -> Iterator[tuple[str, str | None]]:
    """The trials of a campaign one after the other; ``seconds`` is how long one may be silent."""
    first, died_at, what = 0, -1, name
    while first < many:
        command = [sys.executable, "-m", "faults._worker", name, str(seed), str(first), str(many)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
            assert child.stdout is not None
            why = None
            for line in _lines(child, seconds):
                if line is None:
                    why = "hangs" if _size(child.pid) < _BYTES else "takes more than 9 GiB"
                    child.kill()
                    break
                message = json.loads(line)
                if "begins" in message:
                    first = message["begins"]
                    continue
                what, trouble = message["what"], message["trouble"]
                yield what, None if trouble is None else f"trial {message['trial']}: {trouble}"
                first = message["trial"] + 1
            child.wait()
        if first == died_at:
            raise RuntimeError(f"the process that makes the trials does not start: {' '.join(command)}")
        if first < many:
            died_at = first + 1
            yield what, f"trial {first}: {why or f'the process died with {child.returncode}'}"
            first += 1


def _lines(child: subprocess.Popen[str], seconds: float) -> Iterator[str | None]:
    """What the child says; None if it is silent for too long or too large."""
    watch, waited, text = selectors.DefaultSelector(), 0.0, b""
    watch.register(child.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
    while True:
        if not watch.select(timeout=0.5):
            waited += 0.5
            if waited > seconds or _size(child.pid) > _BYTES:
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
