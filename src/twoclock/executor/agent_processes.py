"""Seeds in processes of their own, one a core: started afresh (never forked), watched, and ended if they hang."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from twoclock import validation
from twoclock.agents.env_adapters import is_env
from twoclock.agents.env_checks import EnvironmentFault
from twoclock.agents.seed_runner import Job, Outcome, Stopped, walk
from twoclock.engine.run_batch import count_threads
from twoclock.executor.ray_cluster import ONE_THREAD, first_line
from twoclock.protocols import InputError

Task = tuple[Job, int]
# Told of each seed: its number, the step that it is at, and whether it has diverged.
Look = Callable[[int, int, bool], None]

_POLL = 0.05
_SECONDS_TO_STOP = 60.0


class RemoteError(Exception):
    """What went wrong in another process, as it was written there."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def here(tasks: Sequence[Task], look: Look, interrupted: Callable[[], bool]) -> list[Outcome]:
    """One seed after the other in this process."""
    return [walk(*task, lambda lane: look(lane.seed, lane.step, lane.diverged), interrupted) for task in tasks]


def check_processes(processes: object, limit: object) -> None:
    """Complain of a number of processes, or a limit in seconds, that is none."""
    if processes is not None:
        validation.whole("processes", processes, 1, 4096)
    if limit is not None:
        validation.number("limit", limit, 0, above=True, remedy="leave it out for none")


def walkers(
    job: Job, seeds: int, asked: int | None, limit: float | None
) -> AbstractContextManager[Callable[[Sequence[Task], Look, Callable[[], bool]], list[Outcome]]]:
    """What walks so many seeds at once: a pool, or this process where one will do or it cannot be otherwise.

    Args:
        job: one like those to come.
        seeds: how many there may be at once.
        asked: how many processes; None for one a core.
        limit: seconds that an environment may take for a step, for which there must be a pool.
    """
    many = min(asked or count_threads(), seeds)
    if many == 1 and limit is None:
        return nullcontext(here)
    reason = "it is an environment already" if is_env(job.env) else _why_not(job)
    if reason is None:
        return Pool(many, limit)
    if asked is None and limit is None:
        return nullcontext(here)
    raise InputError(
        f"`{'processes' if limit is None else 'limit'}` needs an environment and an agent that can be made in another "
        f"process ({reason}); give `env` as an id or a function that is defined in a file"
    )


def _why_not(job: Job) -> str | None:
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


class Pool:
    """Workers that are there for any number of rounds.

    Args:
        count: how many.
        limit: seconds that an environment may take for a step; None for any.
    """

    def __init__(self, count: int, limit: float | None) -> None:
        self.count, self.limit = count, limit
        self._workers: list[_Worker] = []

    def __enter__(self) -> Pool:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise SystemExit(1)  # a worker that loads a main program without a guard: whoever started it says so
        context = multiprocessing.get_context("spawn")
        before = {name: os.environ.get(name) for name in ONE_THREAD}
        os.environ.update(ONE_THREAD)
        try:
            self._workers += [_Worker(context) for _ in range(self.count)]
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

    def __call__(self, tasks: Sequence[Task], look: Look, interrupted: Callable[[], bool]) -> list[Outcome]:
        """What each task came to. After a fault, or once interrupted, the others keep what they have, and stop."""
        found: dict[int, Outcome] = {}
        waiting, fault, stopping, at = list(reversed(list(enumerate(tasks)))), None, 0.0, 0
        for worker in self._workers:
            worker.give(waiting)
        while busy := [worker for worker in self._workers if worker.task is not None]:
            for worker in busy:
                while worker.task is not None and worker.pipe.poll():
                    what, told = worker.heard()
                    if what == "at":
                        look(*told)
                        continue
                    if what == "done":
                        found[worker.number] = told
                    elif what == "stopped":
                        at = max(at, told)
                    else:
                        fault = fault or told
                    worker.task = None
                    if not stopping and fault is None:
                        worker.give(waiting)
                if self.limit is not None and worker.hangs(self.limit):
                    fault = fault or worker.ended_for(self.limit)
            if not stopping and (fault is not None or interrupted()):
                stopping = time.monotonic()
                for worker in busy:
                    worker.stop()
            if stopping and time.monotonic() - stopping > _SECONDS_TO_STOP:
                break
            wait([worker.pipe for worker in busy if not worker.pipe.closed], _POLL)
        if fault is not None:
            raise fault
        if stopping:
            raise Stopped(at)
        return [found[number] for number in range(len(tasks))]


class _Worker:
    """A process that walks one seed after the other."""

    def __init__(self, context: Any) -> None:
        self.pipe, there = context.Pipe()
        self.beat = context.RawArray("d", 2)  # since when it waits for the environment (0: it does not), and its step
        self.process = context.Process(target=_serve, args=(there, self.beat))
        self.task: Task | None = None
        self.number, self._ready = -1, False
        self.process.start()
        there.close()

    def give(self, waiting: list[tuple[int, Task]]) -> None:
        if waiting:
            self.number, self.task = waiting.pop()
            self.beat[:] = 0.0, 0.0
            self._send(self.task)

    def stop(self) -> None:
        if self.task is not None:
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
            return "fault", self._gone()
        if what == "fault":
            message, seed, step, trace, ours = told
            error = EnvironmentFault(message, seed, step) if ours else InputError(message)
            error.__cause__ = RemoteError(trace) if trace else None
            return what, error
        return what, told

    def _gone(self) -> InputError:
        if not self._ready and self.process.exitcode == 1:
            return InputError(
                "the worker processes cannot start, as they load the main program again: put the call under "
                "`if __name__ == '__main__':` in a file, or pass processes=1"
            )
        return self._fault(f"its process ended with status {self.process.exitcode}")

    def hangs(self, limit: float) -> bool:
        since = float(self.beat[0])
        return self.task is not None and since > 0 and time.monotonic() - since > limit

    def ended_for(self, limit: float) -> EnvironmentFault:
        """Nothing else stops a step that never returns."""
        fault = self._fault(f"the environment took more than limit={limit:g} seconds and was ended")
        self.process.kill()
        self.process.join()
        self.task = None
        return fault

    def _fault(self, how: str) -> EnvironmentFault:
        assert self.task is not None
        job, seed = self.task
        return EnvironmentFault(how).at(seed, int(self.beat[1]), job.kept_up_to_now(seed))


def _serve(pipe: Connection, beat: Any) -> None:
    """Runs in the worker: Ctrl-C is for the parent, who says when to stop. If that has gone, so does this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def busy(step: int, waits: bool) -> None:
        beat[1] = step
        beat[0] = time.monotonic() if waits else 0.0

    try:
        while True:
            try:
                task = pipe.recv()
            except (AttributeError, ImportError) as error:  # a name that is not where it was
                pipe.send(("fault", (f"the worker processes lack what the run needs: {error}", None, 0, "", False)))
                continue
            if task != "stop":  # which may come after the last seed was done
                job, seed = task
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
