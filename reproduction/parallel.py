"""Several experiments at a time, one process a core.

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

from reproduction.experiment import Case
from reproduction.progress_bar import Overview
from reproduction.runner import Outcome, on_disk, run_experiment, work_left
from twoclock import registry
from twoclock.engine.loop import ProgressEvent
from twoclock.engine.signals import Interrupted, deferred_interrupt
from twoclock.protocols import InputError

# What a process reports to the terminal: a method of the overview and its arguments; None at the end.
Message = tuple[str, tuple[str | int, ...]]


def run_side_by_side(names: Sequence[str], out: Path, quick: bool, overview: Overview) -> dict[str, Outcome]:
    """Run the experiments in as many processes as there are cores. Ctrl-C reaches them all, and each stops cleanly."""
    context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would lose
    done: dict[str, Outcome] = {}
    with deferred_interrupt() as asked_to_stop, context.Manager() as manager:
        messages, stopping = manager.Queue(), manager.Event()
        listener = threading.Thread(target=_listen, args=(messages, overview), daemon=True)
        listener.start()
        try:
            with (
                tempfile.TemporaryDirectory(prefix="twoclock-") as compiled,
                ProcessPoolExecutor(min(len(names), os.cpu_count() or 1), context, _keep_compiled, (compiled,)) as pool,
            ):
                try:
                    for together in [list(names)] if quick else _in_turn(names):
                        running = {pool.submit(_run, name, out, quick, messages, stopping): name for name in together}
                        done |= _collect(running, asked_to_stop, stopping)
                except KeyboardInterrupt as stop:
                    raise Interrupted(str(stop) or "stopped") from None
                finally:
                    stopping.set()  # the pool may have handed out one more than there are processes
                    pool.shutdown(cancel_futures=True)
        finally:
            messages.put(None)
            listener.join()
    return {name: done[name] for name in names}


def _in_turn(names: Sequence[str]) -> list[list[str]]:
    """The longest first, so that the cores finish together; after them, one by one, those that compare seconds."""
    modules = registry.experiments()
    work = {name: sum(case.work for case in modules[name].cases(False).values()) for name in names}
    timed = [name for name in names if getattr(modules[name], "TIMED", False)]
    longest_first = sorted((name for name in names if name not in timed), key=lambda name: -work[name])
    return [longest_first, *([name] for name in timed)]


def _collect(
    running: dict[Future[Outcome], str], asked_to_stop: Callable[[], bool], stopping: Event
) -> dict[str, Outcome]:
    """The outcomes, as they come; a request to stop is passed on to the processes."""
    done: dict[str, Outcome] = {}
    pending = set(running)
    while pending:
        finished, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
        if asked_to_stop():
            stopping.set()
        done |= {running[future]: future.result() for future in finished}
    return done


def _listen(messages: Queue[Message | None], overview: Overview) -> None:
    for method, args in iter(messages.get, None):
        getattr(overview, method)(*args)


def _keep_compiled(folder: str) -> None:
    """Programs that XLA compiled for one case of this process are there for all others."""
    if jax.config.values["jax_compilation_cache_dir"] is None:  # else the user's own
        # A folder for each process: JAX writes its files in place, and another would read half of one.
        jax.config.update("jax_compilation_cache_dir", f"{folder}/{os.getpid()}")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _run(name: str, out: Path, quick: bool, messages: Queue[Message | None], stopping: Event) -> Outcome:
    """In a process of its own."""
    if stopping.is_set():
        raise Interrupted("stopped")
    jax.clear_caches()  # of the experiment before: programs count against the pieces of memory that Linux maps
    module = registry.experiments()[name]
    cases = module.cases(quick)
    done = on_disk(name, cases, out)
    messages.put(("begin", (name, module.TITLE, work_left(cases, done))))

    def progress(label: str, case: Case) -> Callable[[ProgressEvent], None]:
        messages.put(("start", (name, label, case.steps, case.lanes)))

        def on_tick(tick: ProgressEvent) -> None:
            messages.put(("tick", (name, label, tick.step, tick.diverged, case.lanes)))
            # Ctrl-C at a terminal reaches every process by itself, a signal to the parent alone does not.
            if stopping.is_set() and signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
                signal.raise_signal(signal.SIGINT)

        return on_tick

    try:
        return run_experiment(name, module, out, quick=quick, progress=progress, cases=cases, done=done)
    except (InputError, OSError):
        raise
    except Exception:  # an error of JAX's may hold what cannot be sent between processes, and would then hide itself
        raise RuntimeError(f"the experiment {name} failed:\n{traceback.format_exc()}") from None
