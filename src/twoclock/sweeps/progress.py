"""How far a sweep is: told to a bar, to the caller and to a file that `twoclock status` reads."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from twoclock import progress
from twoclock.engine.loop import ProgressEvent
from twoclock.storage.sweep_store import Shards
from twoclock.sweeps.plan import Plan, Shard
from twoclock.sweeps.shard_worker import Computed

_SECONDS_BETWEEN_NOTES = 2.0


class Watch:
    """The one place that knows what is done, what is running, what failed and how long the rest will take."""

    def __init__(self, folder: Shards, plan: Plan, tell: Callable[[Watch], None]) -> None:
        self.folder, self.plan, self.tell = folder, plan, tell
        self.running: dict[str, int] = {}
        self.failed: dict[str, str] = {}
        before = [info for name, info in folder.done().items() if name in plan.spec["shards"]]
        self.done = len(before)
        self.diverged = sum(info["diverged"] for info in before)
        self._steps = plan.job.run.steps
        self._lanes = {shard.name: shard.lanes for shard in plan.shards}
        self.total = sum(self._lanes.values()) * self._steps
        self._before = self._walked = sum(info["lanes"] for info in before) * self._steps
        self._live: dict[str, int] = {}
        self._began, self._noted = time.monotonic(), 0.0

    @property
    def walked(self) -> int:
        """Steps of all runs so far, those of unfinished shards too."""
        return self._walked + sum(self._lanes[name] * step for name, step in self.running.items())

    @property
    def seconds_left(self) -> float | None:
        fresh = self.walked - self._before
        return (self.total - self.walked) * (time.monotonic() - self._began) / fresh if fresh else None

    @property
    def all_diverged(self) -> int:
        return self.diverged + sum(self._live.values())

    def look(self, shard: Shard, tick: ProgressEvent | None) -> None:
        """A shard was started, or has come further."""
        self.running[shard.name] = tick.step if tick else 0
        if tick:
            self._live[shard.name] = min(tick.diverged, shard.lanes)  # lanes that only fill up may diverge too
        self.beat(now=tick is None)

    def finished(self, shard: Shard, outcome: Computed | Exception) -> None:
        self.running.pop(shard.name, None)
        self._live.pop(shard.name, None)
        if isinstance(outcome, Exception):
            lines = str(outcome).strip().splitlines() or [type(outcome).__name__]
            self.failed[shard.name] = lines[-1 if "Traceback" in str(outcome) else 0]
        else:
            self.done += 1
            self.diverged += outcome.info["diverged"]
            self._walked += shard.lanes * self._steps
        self.beat(now=True)

    def beat(self, *, now: bool = False, ended: bool = False) -> None:
        """Tell whoever listens; the file at every turn of events, and every other second between them."""
        self.tell(self)
        if now or ended or time.monotonic() - self._noted > _SECONDS_BETWEEN_NOTES:
            self._noted = time.monotonic()
            self.folder.note(
                {
                    "ended": ended,
                    "host": socket.gethostname(),
                    "pid": os.getpid(),
                    "running": {} if ended else self.running,
                    "failed": self.failed,
                    "seconds_left": None if ended else self.seconds_left,
                }
            )


@contextmanager
def watching(folder: Shards, plan: Plan, show: bool | Callable[[Watch], None]) -> Iterator[Watch]:
    """A watch that shows a bar, calls the user's own function, or keeps quiet; its last note is written in any case."""
    with progress.bar() if show is True else nullcontext() as columns:
        tell: Callable[[Watch], None] = show if callable(show) else _bar(columns, plan) if columns else lambda w: None
        watch = Watch(folder, plan, tell)
        try:
            yield watch
        finally:
            watch.beat(ended=True)


def _bar(columns: Any, plan: Plan) -> Callable[[Watch], None]:
    task = columns.add_task("shards", total=plan.job.lanes * plan.job.run.steps, lanes=1, of=plan.job.lanes, diverged=0)

    def tell(watch: Watch) -> None:
        failed = f", {len(watch.failed)} failed" if watch.failed else ""
        count = f"{watch.done}/{len(plan.shards)}{failed}"
        columns.update(task, completed=watch.walked, diverged=watch.all_diverged, count=count)

    return tell
