"""Problems × methods × seeds, as one resumable data set, here or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from twoclock import storage
from twoclock.engine.loop import ProgressEvent
from twoclock.engine.select_engine import EngineName
from twoclock.engine.signals import Interrupted, deferred_interrupt
from twoclock.protocols import InputError, Method, ProblemSource
from twoclock.storage.sweep_store import Shards
from twoclock.sweeps import local_backend, ray_backend
from twoclock.sweeps.arguments import check_bytes, check_choices, check_lanes, job
from twoclock.sweeps.plan import Plan, Shard, plan
from twoclock.sweeps.progress import Watch, watching
from twoclock.sweeps.shard_worker import Computed
from twoclock.sweeps.sweep_result import Sweep
from twoclock.validation import run_args


class ShardsFailed(RuntimeError):
    """Some shards could not be computed; the others were, and are kept."""


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
    """Run every method on every problem for every seed, and keep the record as one data set.

    The work is cut into shards named by the hash of what they compute. A shard that is finished is never computed
    again and one that is not leaves nothing that counts, so a sweep that was killed is called again and ends in the
    same data set, bit for bit. Methods that differ only in numbers share one compiled program.

    Args:
        problems: label → problem, or a function of a key that makes one for each seed.
        methods: label → method, or a mapping of settings to methods such as ``tc.grid`` gives.
        steps, seeds, marks, precision, bound: as for ``solve``.
        out: the folder of the data set; None keeps it only in memory.
        on: "local", or "ray" for a cluster.
        lanes: how many runs (a method on a seed) a shard may hold; more keep more cores busy, fewer resume finer.
        memory: how many bytes the iterates, instances and records of a shard may take.
        engine: as for ``solve``. Engines agree to rounding, so a sweep that goes on with another keeps what is done.
        progress: True for a bar, or a function that is called with a ``Watch``.
        address: of the Ray cluster; None starts Ray on this machine, or joins where ``ray.init`` was called already.
        shared: the workers write to ``out`` themselves, a folder that they all see; else results come back through Ray.
        tries: how often Ray starts a shard whose worker or node died.

    >>> import twoclock as tc
    >>> grid = tc.grid(tc.Fast(), **{"alpha.c": [0.5, 1.0, 2.0]})
    >>> found = sweep({"bowl": tc.problems.quadratic(dim=2)}, {"fast": grid, "standard": tc.Standard()}, 1000, 5)
    >>> found.best("error")["family"].tolist()
    ['fast', 'standard']
    """
    check_choices(on, out, address, shared, tries)
    run_args.check_progress(progress)
    cut = plan(
        *job(problems, methods, steps, seeds, marks, precision, bound, engine),
        lanes=check_lanes(lanes),
        memory=check_bytes(memory),
    )
    if on == "local":
        return _sweep(cut, out, progress, local_backend.compute, None)
    with ray_backend.cluster(address) as compute_on:
        return _sweep(cut, out, progress, compute_on(tries, Path(out) if shared and out else None), shared)


def _sweep(cut: Plan, out: str | Path | None, progress: object, compute: object, shared: object) -> Sweep:
    folder = Shards(storage.temporary() if out is None else out)
    try:
        with folder.writing():
            folder.claim(cut.spec, cut.identity)
            _run(cut, folder, progress, compute, shared)
            return Sweep.load(folder.folder)
    finally:
        if out is None:
            storage.remove(folder.folder)


def _run(cut: Plan, folder: Shards, progress: Any, compute: Any, shared: Any) -> None:
    folder.drop({shard.name for shard in cut.shards} & set(folder.damage()))  # to be computed again
    done = folder.done()
    missing = [shard for shard in cut.shards if shard.name not in done]
    try:
        with deferred_interrupt() as interrupted, watching(folder, cut, progress) as watch:

            def look(shard: Shard, tick: ProgressEvent | None) -> None:
                watch.look(shard, tick)
                if interrupted():
                    raise KeyboardInterrupt

            with closing(compute(cut.job, missing, look)) as outcomes:
                for shard, outcome in outcomes:
                    if isinstance(outcome, InputError):
                        raise outcome
                    if isinstance(outcome, Computed) and not shared:
                        folder.keep(shard.name, outcome.tables, outcome.info)
                    watch.finished(shard, outcome)
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped with {len(folder.done())} of {len(cut.shards)} shards done; "
            "the same call with the same `out` goes on"
        ) from None
    if watch.failed:
        raise ShardsFailed(
            f"{len(watch.failed)} of {len(cut.shards)} shards failed, the first with: "
            f"{next(iter(watch.failed.values()))}; the same call with the same `out` tries them again"
        )
    folder.tidy()
