"""Seeds in processes of their own, one a core: started afresh (never forked), watched, and ended if they hang."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from twoclock.agents.running.faults import EnvironmentFault
from twoclock.agents.running.lane import Job, Outcome, Stopped, walk
from twoclock.cluster import ONE_THREAD, first_line
from twoclock.core import InputError

# Told of each seed: its number, the step that it is at, and whether it has diverged.
Look = Callable[[int, int, bool], None]

_POLL = 0.05
_SECONDS_TO_STOP = 60.0


class RemoteError(Exception):
    """What went wrong in another process, as it was written there."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def why_not(job: Job) -> str | None:
    """Why a job cannot go to another process; None where it can."""
    main = sys.modules.get("__main__")
    for given in (job.env, job.x0, *job.settings.values()):
        if getattr(given, "__module__", "") == "__main__" and not hasattr(main, "__file__"):
            return f"{getattr(given, '__qualname__', given)} is defined in a session and in no file"
    try:
        ForkingPickler.dumps(job)
    except Exception as error:  # pickling raises many kinds
        return first_line(error)
    return None


def in_processes(
    job: Job, seeds: Sequence[int], count: int, limit: float | None, look: Look, interrupted: Callable[[], bool]
) -> dict[int, Outcome]:
    """What each seed came to. After a fault, or once it is interrupted, the others keep what they have, and stop."""
    found: dict[int, Outcome] = {}
    waiting, fault, stopping, at = list(reversed(seeds)), None, 0.0, 0
    with _started(min(count, len(seeds)), job) as workers:
        for worker in workers:
            worker.give(waiting)
        while any(worker.seed is not None for worker in workers):
            for ready in wait([w.pipe for w in workers if w.seed is not None], _POLL):
                worker = next(w for w in workers if w.pipe is ready)
                what, told = worker.heard()
                if what == "at":
                    look(*told)
                    continue
                if what == "done":
                    assert worker.seed is not None
                    found[worker.seed] = told
                elif what == "stopped":
                    at = max(at, told)
                else:
                    fault = fault or told
                worker.seed = None
                if not stopping:
                    worker.give(waiting)
            hung = [w for w in workers if limit is not None and w.hangs(limit)]
            for worker in hung:
                fault = fault or worker.hung(limit or 0.0)
            if not stopping and (fault is not None or interrupted()):
                stopping = time.monotonic()
                for worker in workers:
                    worker.stop()
            if stopping and time.monotonic() - stopping > _SECONDS_TO_STOP:
                break
    if fault is not None:
        raise fault
    if stopping:
        raise Stopped(at)
    return found


class _Worker:
    """A process that walks one seed after the other."""

    def __init__(self, context: Any, job: Job) -> None:
        self.pipe, there = context.Pipe()
        self.beat = context.RawArray("d", 2)  # since when it waits for the environment (0: it does not), and its step
        self.process = context.Process(target=_serve, args=(there, self.beat), daemon=True)
        self.seed: int | None = None
        self.job, self._ready = job, False
        self.process.start()
        there.close()

    def give(self, waiting: list[int]) -> None:
        if waiting:
            self.seed = waiting.pop()
            self._send(self.seed)

    def stop(self) -> None:
        if self.seed is not None:
            self._send("stop")

    def _send(self, what: object) -> None:
        with suppress(OSError):  # it has ended, which is heard next
            self.pipe.send(what)

    def heard(self) -> tuple[str, Any]:
        try:
            what, told = self.pipe.recv()
            self._ready = True
        except (EOFError, OSError):
            self.process.join(_SECONDS_TO_STOP)
            return "fault", self._ended()
        if what == "fault":
            message, seed, step, trace, ours = told
            error = EnvironmentFault(message, seed, step) if ours else InputError(message)
            error.__cause__ = RemoteError(trace) if trace else None
            return what, error
        return what, told

    def _ended(self) -> InputError:
        if not self._ready and self.process.exitcode == 1:
            return InputError(
                "the worker processes cannot start, as they load the main program again: put the call under "
                "`if __name__ == '__main__':` in a file, or pass processes=1"
            )
        how = f"its process ended with status {self.process.exitcode}"
        return EnvironmentFault(how).at(self.seed, int(self.beat[1]), self.job.kept_up_to_now(self.seed))

    def hangs(self, limit: float) -> bool:
        since = float(self.beat[0])
        return self.seed is not None and since > 0 and time.monotonic() - since > limit

    def hung(self, limit: float) -> EnvironmentFault:
        """It is ended: nothing else stops a step that never returns."""
        seed, step = self.seed, int(self.beat[1])
        self.process.kill()
        self.process.join()
        self.seed = None
        return EnvironmentFault(f"the environment took more than limit={limit:g} seconds and was ended").at(
            seed, step, self.job.kept_up_to_now(seed)
        )


@contextmanager
def _started(count: int, job: Job) -> Iterator[list[_Worker]]:
    context = multiprocessing.get_context("spawn")
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)  # a worker that loads a main program without a guard: whoever started it says so
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    workers: list[_Worker] = []
    try:
        os.environ.update(ONE_THREAD)
        workers += [_Worker(context, job) for _ in range(count)]
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    try:
        for worker in workers:
            worker._send(job)
        yield workers
    finally:
        for worker in workers:
            worker.pipe.close()
            worker.process.kill()
        for worker in workers:
            worker.process.join()


def _serve(pipe: Connection, beat: Any) -> None:
    """Runs in the worker: Ctrl-C is for the parent, who says when to stop. If that has gone, so does this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def busy(step: int, waits: bool) -> None:
        beat[1] = step
        beat[0] = time.monotonic() if waits else 0.0

    try:
        try:
            job = pipe.recv()
        except AttributeError as error:  # a name that is not where it was
            pipe.send(("fault", (f"the worker processes lack what the run needs: {error}", None, 0, "", False)))
            return
        while True:
            seed = pipe.recv()
            if seed == "stop":  # it came after the last seed was done
                continue
            pipe.send(_outcome(job, seed, pipe, busy))
    except (EOFError, OSError):
        return


def _outcome(job: Job, seed: int, pipe: Connection, beat: Callable[[int, bool], None]) -> tuple[str, Any]:
    try:
        return "done", walk(
            job, seed, lambda lane: pipe.send(("at", (seed, lane.step, lane.diverged))), pipe.poll, beat
        )
    except Stopped as stopped:
        return "stopped", stopped.args[0]
    except EnvironmentFault as error:
        return "fault", (str(error), error.seed, error.step, _trace(error), True)
    except InputError as error:
        return "fault", (str(error), seed, 0, "", False)
    except Exception as error:
        return "fault", (f"seed {seed}: {type(error).__name__}: {error}", seed, 0, traceback.format_exc(), False)


def _trace(error: BaseException) -> str:
    cause = error.__cause__
    return "".join(traceback.format_exception(cause)) if cause is not None else ""
