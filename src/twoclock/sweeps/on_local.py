"""Shards one after the other in this process, each on all its cores and devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from twoclock.engine.drive import Tick
from twoclock.sweeps.compute import Computed, Worker
from twoclock.sweeps.plan import Job, Shard


def compute(
    job: Job, shards: Sequence[Shard], look: Callable[[Shard, Tick | None], None]
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
