"""What settings are worth: the same seeds for all of them, a page of settings at a time, in one compiled program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from twoclock.core import Method, ProblemSource
from twoclock.engine.drive import drive
from twoclock.engine.instances import Instances, instances
from twoclock.engine.lanes import Lanes, padded
from twoclock.stats import bootstrap_mean
from twoclock.tuning.residuals import Residuals, blind, residuals, samples_used

RESIDUAL = "residual"
MOST_SEEDS = 64  # at once, which bounds the memory


@dataclass(frozen=True)
class Scores:
    """Settings × seeds: the score, whether the seed diverged, and the squared residuals where there is no truth."""

    values: np.ndarray
    diverged: np.ndarray
    F: np.ndarray | None = None
    G: np.ndarray | None = None

    def best_first(self) -> np.ndarray:
        """The settings in order: fewer diverged seeds first, then the smaller mean."""
        return np.lexsort((self.values.mean(axis=1), self.diverged.mean(axis=1)))

    def rows(self, best: np.ndarray | None = None) -> list[dict[str, float]]:
        """One for each setting; ``best`` is the score, seed by seed, that ratios are taken to."""
        low, high = bootstrap_mean(self.values)
        columns = {"score": self.values.mean(axis=1), "low": low, "high": high}
        columns |= dict(zip(("ratio", "ratio_low", "ratio_high"), _ratios(self.values, best), strict=True))
        columns["diverged"] = self.diverged.mean(axis=1)
        for name, part in (("F", self.F), ("G", self.G)):
            if part is not None:
                columns |= {name: part.mean(axis=1), f"{name}_se": _standard_error(part)}
        return [{name: float(column[i]) for name, column in columns.items()} for i in range(len(self.values))]


def cost(metric: str, steps: int) -> int:
    """Seed-steps for one seed of one setting: without truth there are as many fresh samples as steps."""
    return steps + (samples_used(steps) if metric == RESIDUAL else 0)


class Judge:
    """Runs settings and scores them.

    Args:
        problem: as for ``solve``.
        metric: a metric of it, or "residual".
        seeds: those of the first call; later calls must bring a multiple of their number.
        width: how many settings are run at once.
        bound: as for ``solve``.
        look: called with the seed-steps spent so far.
    """

    def __init__(
        self,
        problem: ProblemSource,
        metric: str,
        seeds: Sequence[int],
        width: int,
        bound: float | None,
        look: Callable[[int], None],
    ) -> None:
        self.problem, self.metric, self.width, self.bound = problem, metric, width, bound
        self.seeds = min(len(seeds), MOST_SEEDS)
        self._made: tuple[list[int], Instances] | None = None
        self.example = self._instances(list(seeds[: self.seeds])).example
        self.unit: float | None = None
        self.spent, self.look = 0, look

    def __call__(self, methods: Sequence[Method], seeds: Sequence[int], steps: int) -> Scores:
        """The scores of any number of settings. The unit of G comes from the first call and stays."""
        parts = []
        for i in range(0, len(seeds), self.seeds):
            some = list(seeds[i : i + self.seeds])
            ready = self._instances(some)
            pages = [self._page(ready, list(methods[j : j + self.width]), some, steps)
                     for j in range(0, len(methods), self.width)]  # fmt: skip
            parts.append([np.concatenate(part)[: len(methods)] for part in zip(*pages, strict=True)])
        alive, *values = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
        if self.metric != RESIDUAL:
            return Scores(np.where(np.isfinite(values[0]), values[0], np.inf), ~alive)
        found = Residuals(*values)
        if self.unit is None:
            self.unit = _median(found.unit)
        score = found.slow + self.unit * found.rest if np.isnan(found.distance).any() else found.distance
        return Scores(np.where(np.isfinite(score), score, np.inf), ~np.isfinite(score), found.F, found.G)

    def _instances(self, seeds: list[int]) -> Instances:
        """As ``solve`` makes them. Drawing them can take longer than a run, so the last ones are kept."""
        if self._made is None or self._made[0] != seeds:
            self._made = (seeds, instances(self.problem, seeds))
        return self._made[1]

    def _page(self, problem: Instances, methods: list[Method], seeds: list[int], steps: int) -> list[np.ndarray]:
        """Whether each lane is alive, and its metric or its residuals. A short page is filled up with its last."""
        lanes = Lanes.of(problem, padded(methods, self.width), seeds, self.bound)
        walked = drive(blind(lanes) if self.metric == RESIDUAL else lanes, [steps])
        self.spent += self.width * len(seeds) * cost(self.metric, steps)
        self.look(self.spent)
        alive = np.asarray(walked.carry.alive)
        if self.metric != RESIDUAL:
            return [alive, walked.rows[-1][self.metric]]
        found = residuals(lanes, walked.carry, steps, steps)
        return [alive, *(getattr(found, field.name) for field in dataclasses.fields(found))]


def _median(values: np.ndarray) -> float:
    """Of the lanes that did not diverge."""
    fine = values[np.isfinite(values)]
    return float(np.median(fine)) if fine.size else 0.0


def _ratios(values: np.ndarray, best: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means over the best one's with a 95 % bootstrap interval over the shared seeds; NaN if that is not above 0."""
    nothing = np.full(len(values), np.nan)
    if best is None or not best.mean() > 0:
        return nothing, nothing, nothing
    draws = np.random.default_rng(0).integers(best.size, size=(999, best.size))
    base = best[draws].mean(axis=1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        drawn = np.where(base > 0, values[:, draws].mean(axis=2) / base, np.inf)
        low, high = np.quantile(drawn, [0.025, 0.975], axis=1, method="nearest")
        return values.mean(axis=1) / best.mean(), low, high


def _standard_error(part: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return part.std(axis=1, ddof=1) / np.sqrt(part.shape[1])
