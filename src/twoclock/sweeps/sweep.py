"""Problems × methods × seeds, as one resumable data set, here or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from twoclock import inputs, record
from twoclock.core import InputError, Method
from twoclock.engine.drive import Tick
from twoclock.engine.interrupt import Interrupted, deferred_interrupt
from twoclock.record.identity import RunSpec
from twoclock.record.shards import Shards, hive
from twoclock.sweeps import on_local, on_ray
from twoclock.sweeps.compute import Computed
from twoclock.sweeps.outcome import Sweep
from twoclock.sweeps.plan import Job, Plan, Shard, plan
from twoclock.sweeps.watch import Watch, watching


class ShardsFailed(RuntimeError):
    """Some shards could not be computed; the others were, and are kept."""


def sweep(
    problems: Mapping[str, Any],
    methods: Mapping[str, Any],
    steps: Any = 100_000,
    seeds: Any = 20,
    marks: Any = None,
    precision: str = "float64",
    *,
    out: str | Path | None = None,
    on: str = "local",
    bound: float | None = None,
    lanes: int = 2048,
    memory: float | int = 2.0**30,
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
    cut = plan(*_job(problems, methods, steps, seeds, marks, precision, bound), lanes=_whole(lanes), memory=memory)
    if shared and (out is None or on != "ray"):
        raise InputError('`shared` needs on="ray" and `out`, a folder that every worker sees')
    if on == "local":
        return _sweep(cut, out, progress, on_local.compute, None)
    if on != "ray":
        raise InputError(f"`on` must be 'local' or 'ray', got {on!r}")
    with on_ray.cluster(address) as compute_on:
        return _sweep(cut, out, progress, compute_on(tries, Path(out) if shared and out else None), shared)


def _sweep(cut: Plan, out: str | Path | None, progress: Any, compute: Any, shared: Any) -> Sweep:
    folder = Shards(record.temporary() if out is None else out)
    try:
        with folder.writing():
            folder.claim(cut.spec, cut.identity)
            _run(cut, folder, progress, compute, shared)
            return Sweep.load(folder.folder)
    finally:
        if out is None:
            record.remove(folder.folder)


def _run(cut: Plan, folder: Shards, progress: Any, compute: Any, shared: Any) -> None:
    folder.drop(folder.damage())  # what cannot be trusted is computed again
    done = folder.done()
    missing = [shard for shard in cut.shards if shard.name not in done]
    try:
        with deferred_interrupt() as interrupted, watching(folder, cut, progress) as watch:

            def look(shard: Shard, tick: Tick | None) -> None:
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


def _job(
    problems: Any, methods: Any, steps: Any, seeds: Any, marks: Any, precision: Any, bound: Any
) -> tuple[Job, dict[str, str]]:
    for name, given in {"problems": problems, "methods": methods}.items():
        if not isinstance(given, Mapping) or not given:
            raise InputError(f"`{name}` must be a mapping of labels with at least one entry, got {given!r:.60}")
    run = RunSpec.checked(steps, seeds, marks, precision, bound)
    flat: dict[str, Any] = {}
    families: dict[str, str] = {}
    for label, entry in methods.items():
        if isinstance(entry, Mapping) and not entry:
            raise InputError(f"`methods` has an empty grid under {label!r}; give it at least one setting")
        settings = {f"{label} {s}": m for s, m in entry.items()} if isinstance(entry, Mapping) else {label: entry}
        flat.update(settings)
        families.update(dict.fromkeys(settings, label))
    alone = [label for label in methods if label in flat]
    kinds = [_kind(flat[label]) for label in alone]
    families.update({label: kind for label, kind in zip(alone, kinds, strict=True) if kinds.count(kind) > 1})
    for label, method in flat.items():
        hive("method", label)
        if not isinstance(method, Method):
            raise InputError(
                f"`methods` has {label!r}, which is no method but a {type(method).__name__}; try tc.Fast()"
            )
    for label in problems:
        hive("problem", label)
    return Job({label: inputs.check_problem(p) for label, p in problems.items()}, flat, run), families


def _kind(method: Any) -> str:
    """Methods given one by one are compared with those of their kind, as settings of it."""
    inner = getattr(method, "method", None)
    return type(method).__name__ + (f"({_kind(inner)})" if hasattr(inner, "step") else "")


def _whole(lanes: Any) -> int:
    if not isinstance(lanes, int) or lanes < 1:
        raise InputError(f"`lanes` must be a whole number from 1 on, got {lanes!r}; leave it out for 2048")
    return lanes
