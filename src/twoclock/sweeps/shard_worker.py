"""Computing one shard. The same in this process, on another core and on another machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from twoclock.engine import metrics
from twoclock.engine.loop import ProgressEvent, RunOutput, drive
from twoclock.engine.run_batch import Instances, Lanes, make_instances, pad_to
from twoclock.sweeps.plan import Job, Shard

Columns = dict[str, np.ndarray | None]


@dataclass(frozen=True)
class Computed:
    """What a shard came to: its rows by (problem, method), the runs that diverged, and the seconds it took."""

    tables: dict[tuple[str, str], Columns]
    info: dict[str, Any]


class Worker:
    """Computes shards one after the other, keeping the instances of the problem while the next shard needs them too."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._drawn: tuple[tuple[str, list[int]], Instances] | None = None

    def compute(self, shard: Shard, look: Callable[[ProgressEvent], None] = lambda tick: None) -> Computed:
        began, run = time.perf_counter(), self.job.run
        methods = pad_to([self.job.methods[label] for label in shard.methods], shard.shape[0])
        seeds = pad_to(shard.seeds, shard.shape[1])
        with jax.enable_x64(run.x64):
            lanes = Lanes.of(self._instances(shard.problem, seeds), methods, seeds, run.bound)
            walked = drive(lanes, run.marks, engine=self.job.engine, look=look)
        tables = {(shard.problem, label): self._columns(shard, walked, i) for i, label in enumerate(shard.methods)}
        alive = np.asarray(walked.carry.alive)[: len(shard.methods), : len(shard.seeds)]
        info = {
            "problem": shard.problem,
            "lanes": shard.lanes,
            "diverged": int(np.count_nonzero(~alive)),
            "engine": walked.engine,
            "seconds": round(time.perf_counter() - began, 3),
        }
        return Computed(tables, info)

    def _instances(self, label: str, seeds: list[int]) -> Instances:
        wanted = (label, seeds)
        if self._drawn is None or self._drawn[0] != wanted:
            self._drawn = None  # the old ones go before the new ones come
            self._drawn = wanted, make_instances(self.job.problems[label], seeds)
        return self._drawn[1]

    def _columns(self, shard: Shard, walked: RunOutput, method: int) -> Columns:
        """The rows of a method, with a column for every metric of the sweep, None where it is not measured here."""
        marks = self.job.run.marks
        found = metrics.columns(walked.rows, method, shard.seeds, marks)
        return {
            "seed": found["seed"],
            "step": found["step"],
            "diverged": metrics.diverged_by(walked.carry, method, len(shard.seeds), marks),
            **{name: found[name].astype(np.float64) if name in found else None for name in shard.metrics},
        }
