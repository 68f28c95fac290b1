"""Shards as Ray tasks: one core each, tried again when a worker or a node dies.

Memory: a worker takes what JAX does (about 400 MB) plus the sweep's ``memory``. Object store: the job once, and the
rows of the shards that are finished and not yet fetched, one a core at most; with a shared folder a few bytes each.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twoclock.engine.loop import ProgressEvent
from twoclock.executor.ray_cluster import ONE_THREAD, connected, first_line
from twoclock.protocols import InputError
from twoclock.storage.sweep_store import Shards
from twoclock.sweeps.plan import Job, Shard
from twoclock.sweeps.shard_worker import Computed, Worker

_SECONDS_BETWEEN_LOOKS = 0.5
# The job that this worker process was last given; its functions must stay the same objects to be compiled once.
_worker: tuple[str, Any] = ("", None)

Look = Callable[[Shard, ProgressEvent | None], None]
Outcomes = Iterator[tuple[Shard, Computed | Exception]]


@contextmanager
def cluster(address: str | None) -> Iterator[Callable[..., Callable[[Job, Sequence[Shard], Look], Outcomes]]]:
    """Connect to a cluster, or start Ray on this machine; what was started here is stopped here."""
    with connected(address) as ray:
        yield lambda tries, folder: lambda job, shards, look: _outcomes(ray, job, shards, look, tries, folder)


def _outcomes(ray: Any, job: Job, shards: Sequence[Shard], look: Look, tries: int, folder: Path | None) -> Outcomes:
    """Keep a task for each core in flight, and hand over what is finished as it finishes."""
    task = ray.remote(num_cpus=1, max_retries=tries - 1, runtime_env={"env_vars": ONE_THREAD})(_compute)
    try:
        home, name = ray.put(job), uuid.uuid4().hex
    except (TypeError, AttributeError) as error:
        why = first_line(error.__cause__ or error)
        raise InputError(f"a problem or method cannot travel to the workers: {why}") from None
    waiting = list(reversed(shards))
    flying: dict[Any, Shard] = {}
    try:
        while waiting or flying:
            while waiting and len(flying) < max(int(ray.cluster_resources().get("CPU", 1)), 1):
                shard = waiting.pop()
                flying[task.remote(name, [home], shard, folder)] = shard
                look(shard, None)
            ready, _ = ray.wait(list(flying), timeout=_SECONDS_BETWEEN_LOOKS)
            for reference in ready:
                yield flying.pop(reference), _fetch(ray, reference)
            if flying:
                look(next(iter(flying.values())), None)
    finally:
        for reference in flying:
            ray.cancel(reference, force=True)


def _fetch(ray: Any, reference: Any) -> Computed | Exception:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        return error.cause if isinstance(error.cause, Exception) else error
    except ray.exceptions.RayError as error:
        return error


def _compute(name: str, home: list[Any], shard: Shard, folder: Path | None) -> Computed:
    """Runs in a Ray worker."""
    global _worker
    if _worker[0] != name:
        import ray

        _worker = name, Worker(ray.get(home[0]))
    computed = _worker[1].compute(shard)
    if folder is None:
        return computed
    Shards(folder).keep(shard.name, computed.tables, computed.info)
    return Computed({}, computed.info)
