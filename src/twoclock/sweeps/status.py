"""Where a sweep stands, read from its folder by anyone, while it runs or after."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twoclock.storage.sweep_store import Shards

_SECONDS_OF_SILENCE = 60.0


@dataclass(frozen=True)
class Status:
    """What is done, running and failed, in shards; the runs that diverged; and the seconds left, if it is going on."""

    shards: int
    done: int
    running: int
    failed: dict[str, str]
    runs: int
    runs_done: int
    diverged: int
    alive: bool
    seconds_left: float | None


def status(folder: str | Path) -> Status:
    """Read the state of the sweep in a folder."""
    kept = Shards(folder)
    shards = kept.spec["shards"]
    done = {name: info for name, info in kept.done().items() if name in shards}
    now = _note(kept.noted())
    alive = _is_alive(now)
    left = now.get("seconds_left") if alive else None
    return Status(
        shards=len(shards),
        done=len(done),
        running=len([name for name in now.get("running", {}) if name not in done]) if alive else 0,
        failed={name: why for name, why in now.get("failed", {}).items() if name not in done},
        runs=sum(shards.values()),
        runs_done=sum(info["lanes"] for info in done.values()),
        diverged=sum(info["diverged"] for info in done.values()),
        alive=alive,
        seconds_left=None if left is None else max(left - (time.time() - now["time"]), 0.0),
    )


def _note(given: dict[str, Any]) -> dict[str, Any]:
    """The last note of the sweep's process; one that is damaged says nothing."""
    kinds: dict[str, Any] = {
        "ended": bool, "host": str, "pid": int, "running": dict, "failed": dict, "time": float,
        "seconds_left": (float, int, type(None)),
    }  # fmt: skip
    fits = all(name in given and isinstance(given[name], kind) for name, kind in kinds.items())
    return given if fits and 0 < given["pid"] < 2**31 else {}


def _is_alive(now: dict[str, Any]) -> bool:
    """Whether the process that wrote this still works on it; of another machine, whether it wrote of late."""
    if not now or now["ended"]:
        return False
    if now["host"] != socket.gethostname():
        return time.time() - now["time"] < _SECONDS_OF_SILENCE
    try:
        os.kill(now["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
