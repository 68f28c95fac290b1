"""Run experiments, one or several side by side: what is not on disk yet, then draw and judge from records alone.

An experiment compiles, draws and judges on one core, and many of its runs have too few seeds to fill the others, so
several of them run in one process per core.
"""

import multiprocessing
import os
import re
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Queue
from threading import Event

import jax
import numpy as np
from rich.progress import TaskID

from reproduction import experiments
from reproduction.experiment import Claim, Experiment, Progress, Records, Runnable, hook, is_detail, require
from reproduction.verdicts import confirm_claims, leave_open
from twoclock import InputError, Result, cli, load, plot, storage

_LARGE = 1 << 24  # bytes


@dataclass(frozen=True)
class ExperimentStarted:
    """An experiment starts, with its number of seed-steps."""

    name: str
    title: str
    work: int


@dataclass(frozen=True)
class CaseAdvanced:
    """A case has reached a step, with its number of diverged lanes."""

    name: str
    case: str
    step: int
    steps: int
    lanes: int
    diverged: int


Message = ExperimentStarted | CaseAdvanced


@dataclass(frozen=True)
class Picture:
    """A figure on disk: what it plots and what these records show in it, its files by kind, and the SVG itself."""

    alt: str
    files: Mapping[str, Path]
    svg: bytes


@dataclass(frozen=True)
class ExperimentOutcome:
    """An experiment that has run: its records, drawn and judged.

    Attributes:
        titles: what the report calls each case.
        compared: the cases that compare methods; the others tune or warm up.
        relative_errors: for each task the final error of each method over that of the best estimator known.
    """

    name: str
    title: str
    folder: Path
    records: Records
    pictures: Mapping[str, Picture]
    titles: Mapping[str, str]
    compared: Sequence[str]
    claims: Sequence[Claim] = ()
    advice: Sequence[str] = ()
    relative_errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def home(self, case: str, method: str | None = None) -> Path:
        """The folder of a case, or of one method's run in it."""
        return self.folder / _slug(case) / (_slug(method) if method else "")


def run_experiment(
    name: str,
    module: object,
    out: str | Path,
    *,
    quick: bool = False,
    run: bool = True,
    post: Callable[[Message], None] = lambda message: None,
) -> ExperimentOutcome:
    """Run the cases of an experiment that are not on disk yet, draw its figures and judge its claims.

    Args:
        name: its folder under ``out``.
        module: an :class:`Experiment`.
        quick: fewer seeds and steps, as the experiment says; every figure is marked as such.
        run: if false, a case that is not on disk is an error.
        post: called with each message about the progress.
    """
    experiment = require(name, module)
    folder = storage.writable(Path(out) / name)
    cases = experiment.cases(quick)
    records = on_disk(name, cases, out)
    missing = [label for label, case in cases.items() if len(records[label]) < len(case.methods)]
    if missing and not run:
        raise InputError(
            f"`DIR` lacks records of {name}, {missing[0]}; run `python -m reproduction {name}` on it first"
        )
    post(ExperimentStarted(name, experiment.TITLE, sum(cases[label].steps * cases[label].lanes for label in missing)))
    for label in missing:
        case = cases[label]

        def advance(step: int, diverged: int, label: str = label, case: Runnable = case) -> None:
            post(CaseAdvanced(name, label, step, case.steps, case.lanes, diverged))

        advance(0, 0)
        records[label] = _run(folder / _slug(label), case, records[label], advance)
    claims = confirm_claims(lambda some: hook(experiment, "claims", some, []), records)
    claims = [replace(claim, detail=is_detail(name, claim)) for claim in claims]
    if quick:
        claims = [leave_open(claim, _steps(claim, cases)) for claim in claims]
    return ExperimentOutcome(
        name=name,
        title=experiment.TITLE,
        folder=folder,
        records=records,
        pictures=_draw(experiment, records, folder, quick),
        titles={label: case.title or label for label, case in cases.items()},
        compared=[label for label, case in cases.items() if case.role == "compare"],
        claims=claims,
        advice=hook(experiment, "advice", records, []),
        relative_errors=hook(experiment, "relative_errors", records, {}),
    )


def _steps(claim: Claim, cases: Mapping[str, Runnable]) -> int:
    """The steps of the shortest case behind a claim."""
    return min((cases[case].steps for case in claim.cases if case in cases), default=claim.needs)


def _draw(experiment: Experiment, records: Records, folder: Path, quick: bool) -> dict[str, Picture]:
    plotted: Mapping[str, str] = getattr(experiment, "ALT", {})
    shown: Mapping[str, str] = hook(experiment, "captions", records, {})
    pictures = {}
    for name, fig in experiment.draw(records).items():
        if quick:
            plot.stamp(fig, "quick run: fewer seeds and steps")
        drawn = plot.render(fig)
        files = {kind: storage.put(folder / f"{name}.{kind}", content) for kind, content in drawn.items()}
        words = f"{plotted.get(name, experiment.TITLE)} {shown.get(name, '')}".strip()
        pictures[name] = Picture(words, files, drawn["svg"])
    return pictures


def on_disk(name: str, cases: Mapping[str, Runnable], out: str | Path) -> dict[str, dict[str, Result]]:
    """Load the results of an experiment that need not run again: case → method → result."""
    found: dict[str, dict[str, Result]] = {}
    for label, case in cases.items():
        folders = {method: Path(out) / name / _slug(label) / _slug(method) for method in case.methods}
        kept = {method: storage.spec(folder).get("identity", {}) for method, folder in folders.items()}
        found[label] = {
            method: load(folder)
            for method, folder in folders.items()
            if any(kept.values()) and case.identities[method].difference(kept[method]) is None
        }
    return found


def _run(folder: Path, case: Runnable, done: Mapping[str, Result], progress: Progress) -> dict[str, Result]:
    todo = [method for method in case.methods if method not in done]
    checkpoint = folder / "checkpoint"
    try:
        fresh = case.run(todo, checkpoint, progress)
    except storage.StaleCheckpoint:  # of other settings, or torn: what it would save is less than what it costs to ask
        storage.discard(checkpoint)
        fresh = case.run(todo, checkpoint, progress)
    for method, result in fresh.items():
        # A method's memory of every item, say, is more than a record should weigh.
        large = result.end and sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(result.end.carry)) > _LARGE
        spec = {**result.spec, "identity": case.identities[method].as_json()}
        replace(result, spec=spec, end=None if large else result.end).save(folder / _slug(method))
    storage.discard(checkpoint)
    return {method: {**done, **fresh}[method] for method in case.methods}


def _slug(label: str) -> str:
    return re.sub(r"[^\w.-]+", "-", label).strip("-")


class ProgressDisplay:
    """A progress bar for everything and one for each experiment's running case."""

    def __init__(self) -> None:
        self.bars = cli.progress_bar()
        self.total = 0
        self.whole = self.bars.add_task("everything", total=0, lanes=1, of=0, diverged=0, visible=False)
        self.done: dict[tuple[str, str], int] = {}
        self.tasks: dict[str, TaskID] = {}

    def show(self, message: Message) -> None:
        match message:
            case ExperimentStarted(name, title, work):
                self.bars.console.print(f"[bold]{name}[/]: {title}")
                self.total += work
                self.bars.update(self.whole, total=self.total, visible=self.total > 0)
            case CaseAdvanced(name, case, step, steps, lanes, diverged):
                if (name, case) not in self.done:
                    if name in self.tasks:
                        self.bars.remove_task(self.tasks[name])
                    self.tasks[name] = self.bars.add_task(f"{name}, {case}", total=steps, lanes=lanes, diverged=0)
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

        def listen() -> None:
            while (message := messages.get()) is not None:
                display.show(message)

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        try:
            with (
                tempfile.TemporaryDirectory(prefix="twoclock-") as compiled,
                ProcessPoolExecutor(min(len(names), os.cpu_count() or 1), context, _use_cache, (compiled,)) as pool,
            ):
                try:
                    for together in [list(names)] if quick else _in_turn(names):
                        running = {
                            pool.submit(_run_in_process, name, out, quick, messages, stopping): name
                            for name in together
                        }
                        pending = set(running)
                        while pending:
                            finished, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                            if asked_to_stop():
                                stopping.set()
                            done |= {running[future]: future.result() for future in finished}
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
    work = {name: sum(case.steps * case.lanes for case in modules[name].cases(False).values()) for name in names}
    timed = [name for name in names if getattr(modules[name], "TIMED", False)]
    longest_first = sorted((name for name in names if name not in timed), key=lambda name: -work[name])
    return [longest_first, *([name] for name in timed)]


def _use_cache(folder: str) -> None:
    """Share the programs that XLA compiled for one case of this process with its other cases."""
    if jax.config.values["jax_compilation_cache_dir"] is None:  # else the user's own
        # A folder for each process: JAX writes its files in place, and another would read half of one.
        jax.config.update("jax_compilation_cache_dir", f"{folder}/{os.getpid()}")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _run_in_process(
    name: str, out: Path, quick: bool, messages: Queue[Message | None], stopping: Event
) -> ExperimentOutcome:
    if stopping.is_set():
        raise cli.Interrupted("stopped")
    jax.clear_caches()  # of the experiment before: programs count against the pieces of memory that Linux maps

    def post(message: Message) -> None:
        messages.put(message)
        # Ctrl-C at a terminal reaches every process, a signal to the parent alone does not.
        if stopping.is_set() and signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            signal.raise_signal(signal.SIGINT)

    try:
        return run_experiment(name, experiments.discover()[name], out, quick=quick, post=post)
    except (InputError, OSError):
        raise
    except Exception:  # an error of JAX's may hold what cannot be sent between processes, and would then hide itself
        raise RuntimeError(f"the experiment {name} failed:\n{traceback.format_exc()}") from None
