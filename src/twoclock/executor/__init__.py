"""Executors: one way to run tasks in this process, in threads, in worker processes or on Ray.

``executor.map(TaskBatch(function, shared, tasks))`` calls ``function(shared, task, channel)`` for each task and yields
the number of the task with its value, or with the exception that it raised. Closing the iterator cancels what is left.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeAlias, TypeVar

S = TypeVar("S")
T = TypeVar("T")
V = TypeVar("V")

# The number of each task with its value or exception.
Outcomes: TypeAlias = Generator[tuple[int, V | Exception], None, None]


@dataclass(frozen=True)
class Channel:
    """The link of a running task to its executor.

    Attributes:
        report: sends a message to the reader of the outcomes.
        stop: whether the task should end soon.
        beat: says which step the task is at, and whether it now waits for foreign code that may hang.
    """

    report: Callable[[object], None] = lambda message: None
    stop: Callable[[], bool] = lambda: False
    beat: Callable[[int, bool], None] = lambda step, waits: None


@dataclass(frozen=True)
class TaskBatch(Generic[S, T, V]):
    """Tasks, and what is done with them.

    Attributes:
        function: called with ``shared``, a task and its ``Channel``.
        shared: what all tasks need.
        tasks: one call each.
        report: receives the number of a task and its message; None when it starts, or is known to be running.
        stop: asked often; once it is true no task is started, and those that run are told to stop.
    """

    function: Callable[[S, T, Channel], V]
    shared: S
    tasks: Sequence[T]
    report: Callable[[int, object], None] = lambda number, message: None
    stop: Callable[[], bool] = lambda: False

    def outcome(self, task: T, channel: Channel) -> V | Exception:
        """Run one task in this process."""
        try:
            return self.function(self.shared, task, channel)
        except Exception as error:
            return error


class Executor(Protocol):
    """Runs tasks."""

    def map(self, batch: TaskBatch[S, T, V]) -> Outcomes[V]:
        """Run all tasks, and yield each outcome as it comes, with the number of its task."""


class WorkerLost(Exception):
    """A worker ended before its task did.

    Attributes:
        step: the last step that the task reported by ``Channel.beat``.
    """

    def __init__(self, how: str, step: int = 0) -> None:
        super().__init__(how)
        self.step = step


class TaskTimeout(WorkerLost):
    """A task waited longer than ``seconds``, and was ended with its worker."""

    def __init__(self, seconds: float, step: int = 0) -> None:
        super().__init__(f"it took more than {seconds:g} seconds and was ended", step)
        self.seconds = seconds


class RemoteTraceback(Exception):
    """A traceback from another process, as text; the cause of an exception that was raised there."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class ThisProcess:
    """Runs one task after the other in this process."""

    def map(self, batch: TaskBatch[S, T, V]) -> Outcomes[V]:
        for number, task in enumerate(batch.tasks):
            if batch.stop():
                return
            batch.report(number, None)
            yield number, batch.outcome(task, Channel(partial(batch.report, number), batch.stop))


class Threads:
    """Runs tasks in threads, one per core, and yields in the order of the tasks."""

    def map(self, batch: TaskBatch[S, T, V]) -> Outcomes[V]:
        if min(cores(), len(batch.tasks)) <= 1:
            yield from ThisProcess().map(batch)
            return
        ahead = cores() + 1  # outcomes that may wait for the one before them
        with ThreadPoolExecutor(cores()) as pool:
            running = deque(pool.submit(batch.outcome, task, Channel()) for task in batch.tasks[:ahead])
            try:
                for number in range(len(batch.tasks)):
                    outcome = running.popleft().result()
                    following = batch.tasks[number + ahead : number + ahead + 1]
                    running.extend(pool.submit(batch.outcome, task, Channel()) for task in following)
                    yield number, outcome
                    if batch.stop():
                        return
            finally:
                for future in running:
                    future.cancel()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
