"""Shards one after the other in this process, each on all its cores and devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from twoclock.engine.loop import ProgressEvent
from twoclock.sweeps.plan import Job, Shard
from twoclock.sweeps.shard_worker import Computed, Worker


def compute(
    job: Job, shards: Sequence[Shard], look: Callable[[Shard, ProgressEvent | None], None]
) -> Iterator[tuple[Shard, Computed | Exception]]:
    worker = Worker(job)
    for shard in shards:
        look(shard, None)
        outcome: Computed | Exception
        try:
            outcome = worker.compute(shard, partial(look, shard))
        except Exception as error:  # one shard's trouble is reported and does not stop the others
            outcome = error
        yield shard, outcome
