"""Worker processes, started afresh (never forked), watched, and killed if they hang."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from ctypes import Array, c_double
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.reduction import ForkingPickler

from twoclock.executor import Channel, Outcomes, RemoteTraceback, S, T, TaskBatch, TaskTimeout, V, WorkerLost
from twoclock.executor.ray_cluster import ONE_THREAD
from twoclock.protocols import InputError
from twoclock.storage.paths import first_line

_POLL = 0.05
_SECONDS_TO_STOP = 60.0


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
