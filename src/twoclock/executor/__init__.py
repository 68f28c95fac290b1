"""Executors: one way to run tasks in this process, in threads, in worker processes or on Ray.

``executor.map(TaskBatch(function, shared, tasks))`` calls ``function(shared, task, channel)`` for each task and yields
the number of the task with its value, or with the exception that it raised. Closing the iterator cancels what is left.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ctypes import Array, c_double
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.reduction import ForkingPickler
from typing import Generic, Protocol, TypeAlias, TypeVar

from twoclock.protocols import InputError
from twoclock.storage.atomic_file import first_line
from twoclock.validation import choice, short_repr

S = TypeVar("S")
T = TypeVar("T")
V = TypeVar("V")

_POLL = 0.05
_SECONDS_TO_STOP = 60.0
# One thread each: Ray gives a task one core, and what JAX or BLAS would take beyond it belongs to its neighbours.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NPROC": "1"}
# The number of each task with its value or exception.
Outcomes: TypeAlias = Generator[tuple[int, V | Exception], None, None]


@dataclass(frozen=True)
class Channel:
    """The link of a running task to its executor."""

    report: Callable[[object], None] = lambda message: None  # sends a message to the reader of the outcomes
    stop: Callable[[], bool] = lambda: False  # whether the task should end soon
    # Says which step the task is at, and whether it now waits for foreign code that may hang.
    beat: Callable[[int, bool], None] = lambda step, waits: None


@dataclass(frozen=True)
class TaskBatch(Generic[S, T, V]):
    """Tasks, and what is done with them."""

    function: Callable[[S, T, Channel], V]
    shared: S  # what all tasks need
    tasks: Sequence[T]  # one call each
    # Receives the number of a task and its message; None when it starts, or is known to be running.
    report: Callable[[int, object], None] = lambda number, message: None
    # Asked often; once it is true no task is started, and those that run are asked to stop.
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


def check_place(on: object, address: object) -> str:
    """Check that it is "local", or "ray" with or without the address of a cluster."""
    where = choice("on", on, ("local", "ray"))
    if address is not None and (not isinstance(address, str) or where != "ray"):
        raise InputError(f'`address` must be "host:port" of a Ray cluster, with on="ray", got {short_repr(address)}')
    return where


def why_not_portable(*things: object) -> str | None:
    """Why these cannot be sent to another process; None if they can."""
    in_session = not hasattr(sys.modules.get("__main__"), "__file__")
    for thing in things:
        if in_session and getattr(thing, "__module__", "") == "__main__":
            return f"{getattr(thing, '__qualname__', thing)} is defined in a session and in no file"
    try:
        ForkingPickler.dumps(things)
    except Exception as error:  # pickling raises many kinds
        return first_line(error)
    return None


class Processes:
    """Worker processes that serve any number of calls of ``map`` between entering and leaving it.

    Args:
        count: how many.
        timeout: seconds that a task may wait for foreign code, see ``Channel.beat``; None for any.
    """

    def __init__(self, count: int, timeout: float | None = None) -> None:
        self.count, self.timeout = count, math.inf if timeout is None else timeout
        self._workers: list[_Worker] = []

    def __enter__(self) -> Processes:
        before = {name: os.environ.get(name) for name in ONE_THREAD}
        os.environ.update(ONE_THREAD)
        try:
            context = multiprocessing.get_context("spawn")
            self._workers += [_Worker(context) for _ in range(self.count)]
        except RuntimeError:
            if multiprocessing.parent_process() is None:
                raise
            raise SystemExit(1) from None  # a worker that loads a main program without a guard; its parent says so
        except OSError as error:
            self.__exit__()
            raise InputError(f"`processes` cannot be started ({error.strerror}); take fewer of them, or 1") from None
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.pipe.close()
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()

    def map(self, batch: TaskBatch[S, T, V]) -> Outcomes[V]:
        waiting = list(reversed(range(len(batch.tasks))))
        stopped: float | None = None

        def give(worker: _Worker) -> None:
            if waiting and stopped is None and not batch.stop():
                number = waiting.pop()
                worker.number, worker.beat[:] = number, [0.0, 0.0]
                worker.send((batch.function, batch.shared, batch.tasks[number]))
                batch.report(number, None)

        for worker in self._workers:
            give(worker)
        while busy := [worker for worker in self._workers if worker.number is not None]:
            for worker in busy:
                while worker.number is not None and worker.pipe.poll():
                    number, (finished, content) = worker.number, worker.receive()
                    if not finished:
                        batch.report(number, content)
                        continue
                    worker.number = None
                    yield number, content  # type: ignore[misc]
                    give(worker)
                if worker.number is not None and 0 < worker.beat[0] < time.monotonic() - self.timeout:
                    worker.process.kill()  # nothing else stops a call that never returns
                    worker.process.join()
                    yield worker.number, TaskTimeout(self.timeout, int(worker.beat[1]))
                    worker.number = None
            if stopped is None and batch.stop():
                stopped = time.monotonic()
                for worker in busy:
                    worker.send(None)
            if stopped is not None and time.monotonic() - stopped > _SECONDS_TO_STOP:
                return
            wait([worker.pipe for worker in busy], _POLL)


class _Worker:
    """A process, and the number of the task that it runs, None while it is idle."""

    def __init__(self, context: SpawnContext) -> None:
        self.pipe, there = context.Pipe()
        self.beat: Array[c_double] = context.RawArray("d", 2)  # since when it waits (0: it does not), and its step
        self.process = context.Process(target=_serve, args=(there, self.beat))
        self.number: int | None = None
        self._answered = False
        self.process.start()
        there.close()

    def send(self, what: object) -> None:
        with suppress(OSError):  # it has ended, which ``receive`` notices next
            self.pipe.send(what)

    def receive(self) -> tuple[bool, object]:
        """Whether the task has finished, and its outcome or message."""
        try:
            kind, content = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(_SECONDS_TO_STOP)
            if not self._answered and self.process.exitcode == 1:
                return True, InputError(
                    "the worker processes cannot start, as they load the main program again: put the call under "
                    "`if __name__ == '__main__':` in a file, or pass processes=1"
                )
            return True, WorkerLost(f"its process ended with status {self.process.exitcode}", int(self.beat[1]))
        self._answered = True
        if kind == "failed":
            error, trace = content
            error.__cause__ = RemoteTraceback(trace) if trace else None
            return True, error
        return kind == "done", content


def _serve(pipe: Connection, beat: Array[c_double]) -> None:
    """Run tasks in the worker until the parent has gone. Ctrl-C is for the parent, which says when to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def note(step: int, waits: bool) -> None:
        beat[1] = step
        beat[0] = time.monotonic() if waits else 0.0

    channel = Channel(lambda message: pipe.send(("report", message)), pipe.poll, note)
    with suppress(EOFError, OSError):
        while True:
            try:
                work = pipe.recv()
            except (AttributeError, ImportError) as error:  # a name that is not where it was
                pipe.send(("failed", (InputError(f"the worker processes lack what the run needs: {error}"), "")))
                continue
            if work is None:  # the request to stop came after the last task
                continue
            function, shared, task = work
            try:
                pipe.send(("done", function(shared, task, channel)))
            except Exception as error:
                pipe.send(("failed", _portable(error)))


def _portable(error: Exception) -> tuple[Exception, str]:
    """An exception that can be sent, and the traceback to show with it; of an input error that of its cause alone."""
    raised = error.__cause__ if isinstance(error, InputError) else error
    trace = "" if raised is None else "".join(traceback.format_exception(raised))
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # an exception of the user's own need not survive it
        return RuntimeError(f"{type(error).__name__}: {error}"), trace
    return error, trace
