"""Run experiments, one or several side by side: what is not on disk yet, then draw and judge from records alone.

An experiment compiles, draws and judges on one core, and many of its runs have too few seeds to fill the others, so
several of them run in one process per core.
"""

import contextlib
import gc
import multiprocessing
import os
import re
import signal
import tempfile
import threading
import tomllib
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Queue
from threading import Event

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

from reproduction import experiments
from reproduction.experiment import Claim, Experiment, Progress, Records, Runnable, hook, is_detail, require
from reproduction.verdicts import confirm_claims, leave_open
from twoclock import InputError, NotArrivedWarning, Result, cli, load, plot, storage

_LARGE = 1 << 26  # bytes


@dataclass(frozen=True)
class ExperimentStarted:
    """An experiment starts, with the seed-steps to run and how many of its cases are there already."""

    name: str
    title: str
    work: int
    kept: int
    cases: int


@dataclass(frozen=True)
class CaseAdvanced:
    """A case has reached a step."""

    name: str
    title: str
    step: int
    lanes: int


@dataclass(frozen=True)
class ExperimentJudged:
    """An experiment has run, and its figures and claims are made."""

    name: str


Message = ExperimentStarted | CaseAdvanced | ExperimentJudged


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
        judged: for each figure the claims that it is about, by name, with what a reader calls them.
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
    judged: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

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
    work = sum(cases[label].steps * cases[label].lanes for label in missing)
    post(ExperimentStarted(name, experiment.TITLE, work, len(cases) - len(missing), len(cases)))
    for label in missing:
        case = cases[label]

        def advance(step: int, diverged: int, label: str = label, case: Runnable = case) -> None:
            post(CaseAdvanced(name, case.title or label, step, case.lanes))

        advance(0, 0)
        records[label] = _run(folder / _slug(label), case, records[label], advance)
        _forget_programs()
    claims = confirm_claims(lambda some: hook(experiment, "claims", some, []), records)
    claims = [replace(claim, detail=is_detail(name, claim.name)) for claim in claims]
    if quick:
        claims = [leave_open(claim, _steps(claim, cases)) for claim in claims]
    outcome = ExperimentOutcome(
        name=name,
        title=experiment.TITLE,
        folder=folder,
        records=records,
        pictures=_draw(experiment, records, folder, quick and bool(cases)),  # closed forms are the same
        titles={label: case.title or label for label, case in cases.items()},
        compared=[label for label, case in cases.items() if case.role == "compare"],
        claims=claims,
        advice=hook(experiment, "advice", records, []),
        relative_errors=hook(experiment, "relative_errors", records, {}),
        judged=getattr(experiment, "JUDGED", {}),
    )
    post(ExperimentJudged(name))
    return outcome


def _steps(claim: Claim, cases: Mapping[str, Runnable]) -> int:
    """The steps of the shortest case behind a claim."""
    return min((cases[case].steps for case in claim.cases if case in cases), default=claim.needs)


def _draw(experiment: Experiment, records: Records, folder: Path, quick: bool) -> dict[str, Picture]:
    plotted: Mapping[str, str] = getattr(experiment, "ALT", {})
    shown: Mapping[str, str] = hook(experiment, "captions", records, {})
    figures: Mapping[str, plot.Figure] = hook(experiment, "draw", records, {})
    pictures = {}
    for name, fig in figures.items():
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
    """One bar for everything: what runs, how far it is, and the time left by the experiments' measured costs."""

    def __init__(self, names: Sequence[str], quick: bool) -> None:
        columns = (
            TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True)), BarColumn(24),
            TaskProgressColumn(), TimeRemainingColumn(), TextColumn("left"),
        )  # fmt: skip
        self.bars = RichProgress(*columns, console=Console(stderr=True), expand=True, speed_estimate_period=120)
        self.costs = measured_costs(names, quick)
        self.task = self.bars.add_task("starting", total=sum(self.costs.values()))
        self.work: dict[str, int] = {}
        self.done: dict[str, dict[str, int]] = {}
        self.running: dict[str, str] = {}
        self.kept = self.cases = 0

    def show(self, message: Message) -> None:
        match message:
            case ExperimentStarted(name, title, work, kept, cases):
                if not self.bars.console.is_terminal:
                    self.bars.console.print(f"{name}: {title}", highlight=False, soft_wrap=True)
                if kept and not self.kept:
                    self.bars.console.print("Going on: what is there already is not run again.", soft_wrap=True)
                self.work[name], self.done[name], self.running[name] = work, {}, name
                self.kept, self.cases = self.kept + kept, self.cases + cases
            case CaseAdvanced(name, title, step, lanes):
                self.running[name] = f"{name}, {title}"
                # Methods of different kinds take the same steps one after the other.
                self.done[name][title] = max(self.done[name].get(title, 0), step * lanes)
            case ExperimentJudged(name):
                self.running.pop(name, None)
                self.done[name] = {"": self.work[name]}
        share = {name: sum(done.values()) / (self.work[name] or 1) for name, done in self.done.items()}
        ended = share.keys() - self.running.keys()
        # To judge and to draw takes its time, too, when the last step is done.
        made = sum(self.costs[name] * (1.0 if name in ended else 0.95 * share[name]) for name in share)
        words = "; ".join(self.running.values()) or "writing the report"
        self.bars.update(self.task, completed=made, description=words)


def measured_costs(names: Sequence[str], quick: bool) -> dict[str, float]:
    """Processor seconds of each experiment, as they were measured; a second where they were not."""
    found = tomllib.loads((Path(__file__).parent / "costs.toml").read_text(encoding="utf-8"))
    return {name: float(found["quick" if quick else "full"].get(name, 1.0)) for name in names}


def run_side_by_side(
    names: Sequence[str], out: Path, quick: bool, display: ProgressDisplay
) -> tuple[dict[str, ExperimentOutcome], dict[str, str]]:
    """Run the experiments in as many processes as there are cores; returns the outcomes, and the failures' tracebacks.

    One that fails does not stop the others. Ctrl-C reaches them all, and each stops cleanly.
    """
    context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would lose
    done: dict[str, ExperimentOutcome] = {}
    failed: dict[str, str] = {}
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
                    for together in _in_turn(names, quick):
                        running = {
                            pool.submit(_run_in_process, name, out, quick, messages, stopping): name
                            for name in together
                        }
                        pending = set(running)
                        while pending:
                            finished, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                            if asked_to_stop():
                                stopping.set()
                            for future in finished:
                                try:
                                    done[running[future]] = future.result()
                                except ExperimentError as error:
                                    failed[running[future]] = str(error)
                except KeyboardInterrupt as stop:
                    raise cli.Interrupted(str(stop) or "stopped") from None
                finally:
                    stopping.set()  # the pool may have handed out one more than there are processes
                    pool.shutdown(cancel_futures=True)
        finally:
            messages.put(None)
            listener.join()
    return {name: done[name] for name in names if name in done}, failed


def _forget_programs(most: int = 30_000) -> None:
    """Free JAX's programs if the process has more than ``most`` mappings of memory; Linux allows it 65,530."""
    with contextlib.suppress(OSError):  # only Linux lists them
        if len(Path("/proc/self/maps").read_bytes().splitlines()) > most:
            jax.clear_caches()
            gc.collect()


class ExperimentError(Exception):
    """An experiment failed; the message is the traceback, which comes from another process."""


def _in_turn(names: Sequence[str], quick: bool) -> list[list[str]]:
    """The longest first, so that the cores finish together; in a full run those that compare seconds run alone."""
    costs, modules = measured_costs(names, quick), experiments.discover()
    timed = [] if quick else [name for name in names if getattr(modules.get(name), "TIMED", False)]
    # The paper's own rows come first of all, so that a run that is stopped has them.
    ours = {name for name in names if name not in ("exact", "paper")}
    longest_first = sorted(set(names) - set(timed), key=lambda name: (name in ours, -costs[name]))
    return [longest_first, *([name] for name in timed)]


def _use_cache(folder: str) -> None:
    """Share the programs that XLA compiled for one case of this process with its other cases."""
    warnings.simplefilter("ignore", NotArrivedWarning)  # the records say which seeds have not, and claims count them
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
    _forget_programs(0)

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
        raise ExperimentError(traceback.format_exc()) from None
