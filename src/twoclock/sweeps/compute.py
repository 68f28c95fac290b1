"""Computing one shard. The same in this process, on another core and on another machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from twoclock.engine import fit
from twoclock.engine.run import Tick, run, stack, start
from twoclock.solve import instances
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
        self._drawn: tuple[Any, Any] = (None, None)

    def compute(self, shard: Shard, look: Callable[[Tick], None] = lambda tick: None) -> Computed:
        began = time.perf_counter()
        job = self.job
        methods = _filled([job.methods[label] for label in shard.methods], shard.shape[0])
        seeds = _filled(list(shard.seeds), shard.shape[1])
        rows = []
        with jax.enable_x64(job.precision == "float64"):
            problem, own = self._instances(shard.problem, seeds)
            stacked = stack(methods)
            carry = start(problem, stacked, seeds, own=own)
            fit.check_start(carry.state.theta, carry.state.omega)
            for tick in run(problem, stacked, seeds, job.marks, carry, own=own, bound=job.bound):
                if tick.row is not None:
                    rows.append(tick.row)
                look(tick)
            end = tick.carry()
        count, width = len(shard.methods), len(shard.seeds)
        ended = np.where(end.alive, job.marks[-1] + 1, end.last)[:count, :width]
        tables = {
            (shard.problem, label): self._columns(
                shard, [{name: v[i] for name, v in row.items()} for row in rows], stop
            )
            for i, (label, stop) in enumerate(zip(shard.methods, ended, strict=True))
        }
        info = {
            "problem": shard.problem,
            "lanes": count * width,
            "diverged": int(np.count_nonzero(~end.alive[:count, :width])),
            "seconds": round(time.perf_counter() - began, 3),
        }
        return Computed(tables, info)

    def _instances(self, label: str, seeds: list[int]) -> tuple[Any, bool]:
        wanted = (label, tuple(seeds))
        if self._drawn[0] != wanted:
            self._drawn = (None, None)  # the old ones go before the new ones come
            _, every, own = instances(self.job.problems[label], seeds)
            self._drawn = (wanted, (every, own))
        return self._drawn[1]

    def _columns(self, shard: Shard, rows: list[dict[str, np.ndarray]], ended: np.ndarray) -> Columns:
        """Seeds outside, marks inside; a seed has diverged at the marks after its last finite step."""
        marks, width = np.asarray(self.job.marks), len(shard.seeds)
        values = {name: np.stack([row[name][:width] for row in rows], axis=1).ravel() for name in rows[0]}
        return {
            "seed": np.repeat(np.asarray(shard.seeds, np.int64), len(marks)),
            "step": np.tile(marks, width),
            "diverged": (ended[:, None] < marks[None, :]).ravel(),
            **{name: values[name].astype(np.float64) if name in values else None for name in shard.metrics},
        }


def _filled(items: list[Any], size: int) -> list[Any]:
    return items + [items[-1]] * (size - len(items))
