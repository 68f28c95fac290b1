"""Runs settings and scores them: the same seeds for all of them, a page of settings at a time, in one program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from twoclock.engine.loop import drive
from twoclock.engine.run_batch import Instances, Lanes, make_instances, pad_to
from twoclock.protocols import Method, ProblemSource
from twoclock.tuning.residual_math import Residuals
from twoclock.tuning.residuals import blind, residuals, samples_used
from twoclock.tuning.scores import By, Scores, marks_of

RESIDUAL = "residual"
MOST_SEEDS = 64  # at once, which bounds the memory


def cost(metric: str, steps: int) -> int:
    """Seed-steps for one seed of one setting: without truth there are as many fresh samples as steps."""
    return steps + (samples_used(steps) if metric == RESIDUAL else 0)


class Objective:
    """Runs settings of one method, or of several that differ only in numbers, and scores them.

    Args:
        problem: as for ``solve``.
        metric: a metric of it, or "residual".
        by: "end" or "area".
        seeds: those of the first call; later calls must bring a multiple of their number.
        width: how many settings are run at once.
        bound, engine: as for ``solve``.
        look: called with the seed-steps of every page.
        unit: turns a square of G into one of F, for a large ω; measured in the first call if None.
    """

    def __init__(
        self,
        problem: ProblemSource,
        metric: str,
        by: By,
        seeds: Sequence[int],
        width: int,
        bound: float | None,
        look: Callable[[int], None],
        unit: float | None = None,
        engine: str = "auto",
    ) -> None:
        self.engine = engine
        self.problem, self.metric, self.by, self.width, self.bound = problem, metric, by, width, bound
        self.seeds = min(len(seeds), MOST_SEEDS)
        self._made: tuple[list[int], Instances] | None = None
        self.example = self._instances(list(seeds[: self.seeds])).example
        self.unit, self.spent, self.look = unit, 0, look

    def __call__(self, methods: Sequence[Method], seeds: Sequence[int], steps: int) -> Scores:
        """The scores of any number of settings."""
        parts = []
        for i in range(0, len(seeds), self.seeds):
            some = list(seeds[i : i + self.seeds])
            ready = self._instances(some)
            pages = [self._page(ready, list(methods[j : j + self.width]), some, steps)
                     for j in range(0, len(methods), self.width)]  # fmt: skip
            parts.append([np.concatenate(part)[: len(methods)] for part in zip(*pages, strict=True)])
        alive, *values = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
        if self.metric != RESIDUAL:
            return Scores(np.where(np.isfinite(values[0]), values[0], np.inf), ~alive).check(self.metric)
        found = Residuals(*values)
        if self.unit is None:
            self.unit = _median(found.unit)
        score, noise = found.distance, found.distance_se
        if np.isnan(score).any():
            score, noise = found.slow + self.unit * found.rest, found.slow_se + self.unit * found.rest_se
        lost = ~np.isfinite(score) | ~np.isfinite(noise)
        score, noise = (np.where(lost, np.inf, part) for part in (score, noise))
        return Scores(score[..., None], lost, found.F, found.G, noise)

    def _instances(self, seeds: list[int]) -> Instances:
        """As ``solve`` makes them. Drawing them can take longer than a run, so the last ones are kept."""
        if self._made is None or self._made[0] != seeds:
            self._made = (seeds, make_instances(self.problem, seeds))
        return self._made[1]

    def _page(self, problem: Instances, methods: list[Method], seeds: list[int], steps: int) -> list[np.ndarray]:
        """Whether each lane is alive, and its metric or its residuals. A short page is filled up with its last."""
        lanes = Lanes.of(problem, pad_to(methods, self.width), seeds, self.bound)
        shown = blind(lanes) if self.metric == RESIDUAL else lanes
        walked = drive(shown, marks_of(self.by, steps), engine=self.engine)
        spent = self.width * len(seeds) * cost(self.metric, steps)
        self.spent += spent
        self.look(spent)
        alive = np.asarray(walked.carry.alive)
        if self.metric != RESIDUAL:
            return [alive, np.stack([row[self.metric] for row in walked.rows], axis=-1)]
        found = residuals(lanes, walked.carry, steps, steps, self.engine)
        return [alive, *(getattr(found, field.name) for field in dataclasses.fields(found))]


def _median(values: np.ndarray) -> float:
    """Of the lanes that did not diverge."""
    fine = values[np.isfinite(values)]
    return float(np.median(fine)) if fine.size else 0.0
