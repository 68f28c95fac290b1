"""Sweeps: problems × methods × seeds as one data set that can be resumed, on this machine or on a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

import jax
import numpy as np

from twoclock import storage, validation
from twoclock.engine.engines import EngineName
from twoclock.engine.loop import Interrupted, ProgressEvent, deferred_interrupt, drive
from twoclock.engine.protocol import diverged_by, history_columns
from twoclock.engine.run_batch import Instances, Lanes, make_instances, pad_to
from twoclock.executor import Channel, Executor, TaskBatch, ThisProcess, check_place
from twoclock.executor.ray_cluster import on_ray
from twoclock.protocols import InputError, Method, ProblemSource
from twoclock.storage.atomic_file import Document
from twoclock.storage.run_identity import RunSpec
from twoclock.storage.sweep_store import Columns, Shards
from twoclock.sweeps.plan import Shard, SweepJob, SweepPlan, make_plan
from twoclock.sweeps.progress import Watch, watching
from twoclock.sweeps.sweep_result import Sweep
from twoclock.validation import run_args

__all__ = ["ShardsFailed", "Sweep", "sweep"]


class ShardsFailed(RuntimeError):
    """Some shards could not be computed; the others were, and their records stay."""


def sweep(
    problems: Mapping[str, ProblemSource],
    methods: Mapping[str, Method | Mapping[str, Method]],
    steps: int | float = 100_000,
    seeds: int | Iterable[int] = 20,
    marks: Iterable[int] | None = None,
    precision: str = "float64",
    *,
    out: str | Path | None = None,
    on: str = "local",
    bound: float | None = None,
    lanes: int = 2048,
    memory: float | int = 2.0**30,
    engine: EngineName = "auto",
    progress: bool | Callable[[Watch], None] = False,
    address: str | None = None,
    shared: bool = False,
    tries: int = 4,
) -> Sweep:
    """Run every method on every problem for every seed, into one data set that can be resumed.

    The work is cut into shards, each named by the hash of its computation. A finished shard is not computed again, and
    an unfinished one is ignored. So after a kill, the same call resumes the sweep, and the data set is bit-for-bit
    identical. Methods that differ only in numbers share one compiled program.

    Args:
        problems: label → problem, or a function of a key that makes one for each seed.
        methods: label → method, or a mapping of settings to methods such as ``tc.grid`` gives.
        steps, seeds, marks, precision, bound: as for ``solve``.
        out: the folder of the data set; None keeps it only in memory.
        on: "local", or "ray" for a cluster.
        lanes: the most runs (a method on a seed) in a shard; more use more cores, with fewer less is repeated on
            resuming.
        memory: the most bytes for the iterates, instances and records of a shard.
        engine: as for ``solve``. Engines agree up to rounding, so finished shards of another engine stay valid.
        progress: True for a bar, or a function that is called with a ``Watch``.
        address: of the Ray cluster; None starts Ray on this machine, or uses the cluster that ``ray.init`` joined.
        shared: whether the workers write to ``out`` themselves, a folder that they all see; else results return through
            Ray.
        tries: how often Ray starts a shard whose worker or node died.

    >>> import twoclock as tc
    >>> grid = tc.grid(tc.Fast(), **{"alpha.c": [0.5, 1.0, 2.0]})
    >>> found = sweep({"bowl": tc.problems.quadratic(dim=2)}, {"fast": grid, "standard": tc.Standard()}, 1000, 5)
    >>> found.best("error")["family"].tolist()
    ['fast', 'standard']
    """
    where = check_place(on, address)
    if out is not None:
        validation.check_path("out", out)
    if validation.flag("shared", shared) and (out is None or where != "ray"):
        raise InputError('`shared` needs on="ray" and `out`, a folder that every worker sees')
    validation.whole("tries", tries, 1, 1000)
    run_args.check_progress(progress)
    run_args.check_numbers(precision, bound)
    run = RunSpec.checked(steps, seeds, marks, precision, bound)
    plan = make_plan(problems, methods, run, engine, lanes, memory)
    place: AbstractContextManager[Executor] = (
        nullcontext(ThisProcess()) if where == "local" else on_ray(address, "a problem or method", tries=tries)
    )
    with place as executor:
        folder = Shards(storage.temporary() if out is None else out)
        try:
            with folder.writing():
                folder.claim(plan.spec, plan.identity)
                _run(plan, folder, progress, executor, shared)
                return Sweep.load(folder.folder)
        finally:
            if out is None:
                storage.remove(folder.folder)


def _run(
    plan: SweepPlan, folder: Shards, progress: bool | Callable[[Watch], None], executor: Executor, shared: bool
) -> None:
    """Compute the shards that are missing or damaged."""
    folder.drop({shard.name for shard in plan.shards} & set(folder.damage()))
    done = folder.done()
    missing = [shard for shard in plan.shards if shard.name not in done]
    try:
        with deferred_interrupt() as interrupted, watching(folder, plan, progress) as watch:

            def look(number: int, tick: object) -> None:
                watch.look(missing[number], tick if isinstance(tick, ProgressEvent) else None)
                if interrupted():
                    raise KeyboardInterrupt

            worker = Worker(plan.job, folder.folder if shared else None)
            with closing(executor.map(TaskBatch(Worker.compute, worker, missing, look))) as outcomes:
                for number, outcome in outcomes:
                    if isinstance(outcome, InputError) and not isinstance(outcome, validation.CallbackFailed):
                        raise outcome
                    if not isinstance(outcome, Exception) and not shared:
                        folder.add(missing[number].name, *outcome)
                    watch.finish(missing[number], outcome if isinstance(outcome, Exception) else outcome[1])
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped with {len(folder.done())} of {len(plan.shards)} shards done; "
            "the same call with the same `out` resumes"
        ) from None
    if watch.failed:
        raise ShardsFailed(
            f"{len(watch.failed)} of {len(plan.shards)} shards failed, the first with: "
            f"{next(iter(watch.failed.values()))}; the same call with the same `out` tries them again"
        )
    folder.tidy()


class Worker:
    """Computes shards one after the other, and reuses the instances of the problem while the next shard needs them.

    With a shared folder, rows are written there and not sent back.
    """

    def __init__(self, job: SweepJob, folder: Path | None) -> None:
        self.job, self.folder = job, folder
        self._drawn: tuple[tuple[str, list[int]], Instances] | None = None

    def compute(self, shard: Shard, channel: Channel) -> tuple[dict[tuple[str, str], Columns], Document]:
        """The rows of a shard by (problem, method), the number of diverged runs, and the time."""
        began, run = time.perf_counter(), self.job.run
        methods = pad_to([self.job.methods[label] for label in shard.methods], shard.shape[0])
        seeds = pad_to(shard.seeds, shard.shape[1])
        with jax.enable_x64(run.x64):
            wanted = (shard.problem, seeds)
            if self._drawn is None or self._drawn[0] != wanted:
                self._drawn = None  # free the old ones before drawing the new ones
                self._drawn = wanted, make_instances(self.job.problems[shard.problem], seeds)
            lanes = Lanes.of(self._drawn[1], methods, seeds, run.bound)
            output = drive(lanes, run.marks, engine=self.job.engine, look=channel.report)
        tables: dict[tuple[str, str], Columns] = {}
        for i, label in enumerate(
            shard.methods
        ):  # a column for every metric of the sweep; None if it is not measured here
            found = history_columns(output.rows, i, shard.seeds, run.marks)
            tables[shard.problem, label] = {
                "seed": found["seed"],
                "step": found["step"],
                "diverged": diverged_by(output.carry, i, len(shard.seeds), run.marks),
                **{name: found[name].astype(np.float64) if name in found else None for name in shard.metrics},
            }
        alive = np.asarray(output.carry.alive)[: len(shard.methods), : len(shard.seeds)]
        info = {
            "problem": shard.problem,
            "lanes": shard.lanes,
            "diverged": int(np.count_nonzero(~alive)),
            "engine": output.engine,
            "seconds": round(time.perf_counter() - began, 3),
        }
        if self.folder is None:
            return tables, info
        Shards(self.folder).add(shard.name, tables, info)
        return {}, info
