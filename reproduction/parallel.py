"""Several experiments at a time, one process per core, and the display of their progress.

An experiment compiles, draws and judges on one core, and many of its runs have too few seeds to fill the others.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from queue import Queue
from threading import Event

import jax
from rich.progress import TaskID

from reproduction import experiments
from reproduction.runner import CaseAdvanced, CaseStarted, ExperimentOutcome, ExperimentStarted, Message, run_experiment
from twoclock import InputError, cli


class ProgressDisplay:
    """A progress bar for everything and one for each experiment's running case."""

    def __init__(self) -> None:
        self.bars = cli.progress_bar()
        self.total = 0
        self.whole = self.bars.add_task("everything", total=0, lanes=1, of=0, diverged=0, visible=False)
        self.done: dict[tuple[str, str], int] = {}
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> ProgressDisplay:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def show(self, message: Message) -> None:
        match message:
            case ExperimentStarted(name, title, work):
                self.bars.console.print(f"[bold]{name}[/]: {title}")
                self.total += work
                self.bars.update(self.whole, total=self.total, visible=self.total > 0)
            case CaseStarted(name, case, steps, lanes):
                if name in self.tasks:
                    self.bars.remove_task(self.tasks[name])
                self.tasks[name] = self.bars.add_task(f"{name}, {case}", total=steps, lanes=lanes, diverged=0)
            case CaseAdvanced(name, case, step, diverged, lanes):
                self.bars.update(self.tasks[name], completed=step, diverged=diverged)
                # Methods of different kinds take the same steps one after the other.
                self.done[name, case] = max(self.done.get((name, case), 0), step * lanes)
                self.bars.update(self.whole, completed=sum(self.done.values()))


def run_side_by_side(
    names: Sequence[str], out: Path, quick: bool, display: ProgressDisplay
) -> dict[str, ExperimentOutcome]:
    """Run the experiments in as many processes as there are cores. Ctrl-C reaches them all, and each stops cleanly."""
    context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would lose
    done: dict[str, ExperimentOutcome] = {}
    with cli.deferred_interrupt() as asked_to_stop, context.Manager() as manager:
        messages, stopping = manager.Queue(), manager.Event()
        listener = threading.Thread(target=_listen, args=(messages, display), daemon=True)
        listener.start()
        try:
            with (
                tempfile.TemporaryDirectory(prefix="twoclock-") as compiled,
                ProcessPoolExecutor(min(len(names), os.cpu_count() or 1), context, _use_cache, (compiled,)) as pool,
            ):
                try:
                    for together in [list(names)] if quick else _in_turn(names):
                        running = {pool.submit(_run, name, out, quick, messages, stopping): name for name in together}
                        done |= _collect(running, asked_to_stop, stopping)
                except KeyboardInterrupt as stop:
                    raise cli.Interrupted(str(stop) or "stopped") from None
                finally:
                    stopping.set()  # the pool may have handed out one more than there are processes
                    pool.shutdown(cancel_futures=True)
        finally:
            messages.put(None)
            listener.join()
    return {name: done[name] for name in names}


def _in_turn(names: Sequence[str]) -> list[list[str]]:
    """The longest first, so that the cores finish together; after them, one by one, those that compare seconds."""
    modules = experiments.discover()
    work = {name: sum(case.work for case in modules[name].cases(False).values()) for name in names}
    timed = [name for name in names if getattr(modules[name], "TIMED", False)]
    longest_first = sorted((name for name in names if name not in timed), key=lambda name: -work[name])
    return [longest_first, *([name] for name in timed)]


def _collect(
    running: dict[Future[ExperimentOutcome], str], asked_to_stop: Callable[[], bool], stopping: Event
) -> dict[str, ExperimentOutcome]:
    """Gather the outcomes as they come; pass a request to stop on to the processes."""
    done: dict[str, ExperimentOutcome] = {}
    pending = set(running)
    while pending:
        finished, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
        if asked_to_stop():
            stopping.set()
        done |= {running[future]: future.result() for future in finished}
    return done


def _listen(messages: Queue[Message | None], display: ProgressDisplay) -> None:
    while (message := messages.get()) is not None:
        display.show(message)


def _use_cache(folder: str) -> None:
    """Share the programs that XLA compiled for one case of this process with its other cases."""
    if jax.config.values["jax_compilation_cache_dir"] is None:  # else the user's own
        # A folder for each process: JAX writes its files in place, and another would read half of one.
        jax.config.update("jax_compilation_cache_dir", f"{folder}/{os.getpid()}")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _run(name: str, out: Path, quick: bool, messages: Queue[Message | None], stopping: Event) -> ExperimentOutcome:
    """Run one experiment in a process of its own."""
    if stopping.is_set():
        raise cli.Interrupted("stopped")
    jax.clear_caches()  # of the experiment before: programs count against the pieces of memory that Linux maps

    def post(message: Message) -> None:
        messages.put(message)
        # Ctrl-C at a terminal reaches every process by itself, a signal to the parent alone does not.
        if stopping.is_set() and signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            signal.raise_signal(signal.SIGINT)

    try:
        return run_experiment(name, experiments.discover()[name], out, quick=quick, post=post)
    except (InputError, OSError):
        raise
    except Exception:  # an error of JAX's may hold what cannot be sent between processes, and would then hide itself
        raise RuntimeError(f"the experiment {name} failed:\n{traceback.format_exc()}") from None
