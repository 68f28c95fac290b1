"""Progress of a sweep: a bar, a call of the user's function, and a file for `status`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from twoclock import storage
from twoclock.engine.loop import ProgressEvent, progress_bar
from twoclock.storage.atomic_file import Document
from twoclock.storage.sweep_store import Shards
from twoclock.sweeps.plan import Shard, SweepPlan

_SECONDS_BETWEEN_NOTES = 2.0
_SECONDS_OF_SILENCE = 60.0
_NOTE: dict[str, type | tuple[type, ...]] = {
    "ended": bool, "host": str, "pid": int, "running": dict, "failed": dict, "time": float,
    "seconds_left": (float, int, type(None)),
}  # fmt: skip


class Watch:
    """Counts the shards that are done, running or failed, and estimates the time left."""

    def __init__(self, folder: Shards, plan: SweepPlan, tell: Callable[[Watch], None]) -> None:
        self.folder, self.plan, self.tell = folder, plan, tell
        self.running: dict[str, int] = {}
        self.failed: dict[str, str] = {}
        before = [info for name, info in folder.done().items() if name in plan.spec["shards"]]
        self.done = len(before)
        self.diverged = sum(info["diverged"] for info in before)
        self._steps = plan.job.run.steps
        self._lanes: Mapping[str, int] = plan.spec["shards"]
        self.total = sum(self._lanes.values()) * self._steps
        self._before = self._steps_done = sum(info["lanes"] for info in before) * self._steps
        self.diverging: dict[str, int] = {}
        self._began, self._noted = time.monotonic(), 0.0

    @property
    def steps_done(self) -> int:
        """Steps of all runs so far, including unfinished shards."""
        return self._steps_done + sum(self._lanes[name] * step for name, step in self.running.items())

    @property
    def seconds_left(self) -> float | None:
        fresh = self.steps_done - self._before
        return (self.total - self.steps_done) * (time.monotonic() - self._began) / fresh if fresh else None

    def look(self, shard: Shard, tick: ProgressEvent | None) -> None:
        """Record that a shard was started, or has progressed."""
        self.running[shard.name] = tick.step if tick else 0
        if tick:
            self.diverging[shard.name] = min(tick.diverged, shard.lanes)  # padding lanes may diverge too
        self.beat(now=tick is None)

    def finish(self, shard: Shard, outcome: Document | Exception) -> None:
        """Count a shard that is finished, by its record, or has failed."""
        self.running.pop(shard.name, None)
        self.diverging.pop(shard.name, None)
        if isinstance(outcome, Exception):
            lines = str(outcome).strip().splitlines() or [type(outcome).__name__]
            self.failed[shard.name] = lines[-1 if "Traceback" in str(outcome) else 0]
        else:
            self.done += 1
            self.diverged += outcome["diverged"]
            self._steps_done += shard.lanes * self._steps
        self.beat(now=True)

    def beat(self, *, now: bool = False, ended: bool = False) -> None:
        """Update the bar; write the file if something happened, and every other second."""
        self.tell(self)
        if now or ended or time.monotonic() - self._noted > _SECONDS_BETWEEN_NOTES:
            self._noted = time.monotonic()
            note = {
                "ended": ended,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "running": {} if ended else self.running,
                "failed": self.failed,
                "seconds_left": None if ended else self.seconds_left,
                "time": time.time(),
            }
            storage.put_note(self.folder.folder, "progress", note)


@contextmanager
def watching(folder: Shards, plan: SweepPlan, show: bool | Callable[[Watch], None]) -> Iterator[Watch]:
    """A watch that shows a bar, calls the user's function, or is silent; its last note is written in any case."""
    with progress_bar() if show is True else nullcontext() as bar:
        task = bar and bar.add_task("shards", total=None, lanes=1, of=sum(plan.spec["shards"].values()), diverged=0)

        def update_bar(watch: Watch) -> None:
            if bar is not None and task is not None:
                count = f"{watch.done}/{len(plan.shards)}" + f", {len(watch.failed)} failed" * bool(watch.failed)
                diverged = watch.diverged + sum(watch.diverging.values())
                bar.update(task, completed=watch.steps_done, total=watch.total, diverged=diverged, count=count)

        watch = Watch(folder, plan, show if callable(show) else update_bar)
        try:
            yield watch
        finally:
            watch.beat(ended=True)


@dataclass(frozen=True)
class Status:
    """Shards done, running and failed; runs that diverged; and the seconds left while it runs."""

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
    stored = Shards(folder)
    shards = stored.spec["shards"]
    done = {name: info for name, info in stored.done().items() if name in shards}
    now, alive = stored.progress(), False
    whole = all(name in now and isinstance(now[name], kind) for name, kind in _NOTE.items())
    if not whole or not 0 < now["pid"] < 2**31:
        now = {}  # it is damaged
    elif not now["ended"] and now["host"] != socket.gethostname():
        alive = time.time() - now["time"] < _SECONDS_OF_SILENCE
    elif not now["ended"]:
        try:
            os.kill(now["pid"], 0)
            alive = True
        except OSError as error:
            alive = isinstance(error, PermissionError)  # a process of another user
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
