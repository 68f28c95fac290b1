"""Short experiments, several at a time.

A quick reproduction spends its time compiling and drawing, which one process does on one core; so each core gets a
process. Long runs keep all cores busy by themselves and do better one after the other.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from twoclock import catalogue
from twoclock.cli.overview import Overview
from twoclock.engine.interrupt import Interrupted, deferred_interrupt
from twoclock.study.frame import Outcome, missing, run_experiment


def run_side_by_side(names: Sequence[str], out: Path, quick: bool, overview: Overview) -> dict[str, Outcome]:
    """Run the experiments in as many processes as there are cores. Ctrl-C reaches them all, and each stops cleanly."""
    context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would lose
    with deferred_interrupt(), context.Manager() as manager:
        told, stopping = manager.Queue(), manager.Event()
        listener = threading.Thread(target=_listen, args=(told, overview), daemon=True)
        listener.start()
        try:
            with ProcessPoolExecutor(min(len(names), os.cpu_count() or 1), mp_context=context) as pool:
                flying = {pool.submit(_run, name, out, quick, told, stopping): name for name in names}
                try:
                    done = {flying[future]: future.result() for future in as_completed(flying)}
                except KeyboardInterrupt as stop:
                    raise Interrupted(str(stop) or "stopped") from None
                finally:
                    stopping.set()  # the pool may have handed out one more than there are processes
                    pool.shutdown(cancel_futures=True)
        finally:
            told.put(None)
            listener.join()
    return {name: done[name] for name in names}


def _listen(told: Any, overview: Overview) -> None:
    for method, *args in iter(told.get, None):
        getattr(overview, method)(*args)


def _run(name: str, out: Path, quick: bool, told: Any, stopping: Any) -> Outcome:
    """In a process of its own."""
    if stopping.is_set():
        raise Interrupted("stopped")
    module = catalogue.experiments()[name]
    cases = module.cases(quick)
    told.put(("begin", name, module.TITLE, sum(case.work for case in missing(name, cases, out).values())))

    def look(label: str, case: Any) -> Callable[[Any], None]:
        told.put(("start", name, label, case.steps, case.lanes))
        return lambda tick: told.put(("tick", name, label, tick.step, tick.diverged, case.lanes))

    return run_experiment(name, module, out, quick=quick, look=look, cases=cases)
