"""Successive halving for one method: many settings for a short time, the better for longer, the last on more seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from twoclock.protocols import InputError, Method
from twoclock.storage.run_identity import describe
from twoclock.tuning.method_factory import Point, Recipe, made
from twoclock.tuning.objective import cost
from twoclock.tuning.proposals import NEIGHBOURS, Candidates
from twoclock.tuning.scores import Scores
from twoclock.tuning.search_space import Box, at_edge, widened
from twoclock.tuning.tune_result import Tuned

WIDTH = 8  # settings side by side in the one program that all rungs share, and settings in the last rung
_WIDENING = 2  # rungs' worth of work that may go into a wider box


@dataclass(frozen=True)
class Plan:
    """How the work is cut. Every rung has half the settings of the one before, and costs the same.

    Args:
        rungs: how many.
        steps: those of the last rung, and of the one before; the others have half those of the next.
        metric: what is looked at; without truth it costs fresh samples.
        settings: how many are tuned; the look around the winner goes along each.
        widen: keep something back for a wider box.
        rivals: keep something back for the last comparison with other methods.
    """

    rungs: int
    steps: int
    metric: str
    settings: int
    widen: bool
    rivals: bool

    def stages(self) -> Iterator[tuple[int, int, int]]:
        """Of each rung: settings, steps, and seeds in units of the first rung's."""
        for left in reversed(range(self.rungs)):
            yield WIDTH << left, max(self.steps >> max(left - 1, 0), 1), 1 if left else 2

    def rung(self) -> int:
        """Seed-steps of the dearest rung, for each seed of the first."""
        return max(count * share * cost(self.metric, length) for count, length, share in self.stages())

    def price(self) -> int:
        """Seed-steps in all, at most, for each seed of the first rung."""
        halving = sum(count * share * cost(self.metric, length) for count, length, share in self.stages())
        at_the_end = 2 * cost(self.metric, self.steps)
        around = WIDTH * math.ceil(NEIGHBOURS * self.settings / WIDTH) * at_the_end
        return halving + around + _WIDENING * self.rung() * self.widen + at_the_end * self.rivals


class Judging(Protocol):
    """Runs settings and scores them; ``spent`` counts the seed-steps."""

    spent: int

    def __call__(self, methods: Sequence[Method], seeds: Sequence[int], steps: int) -> Scores: ...


@dataclass
class Halving:
    """The search, and what it found.

    Attributes:
        box: as searched in the end.
        best: the winner.
        ranking: a row for each setting tried, the best first, later rungs before earlier ones.
        curve: a row for each neighbour of the winner, and for itself.
        spent: seed-steps.
    """

    candidates: Candidates
    judge: Judging
    plan: Plan
    box: Box
    best: Point = field(default_factory=dict)
    ranking: list[dict[str, Any]] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)
    spent: int = 0

    def tuned(self, metric: str, spec: dict[str, Any]) -> Tuned:
        """What it found, by this metric and with what was asked."""
        import pandas as pd

        method, best, box = self.candidates.method, self.best, self.box
        told = describe(method.build if isinstance(method, Recipe) else method)
        found = {"method": told, "space": box, "best": best, "spent": self.spent}
        curve = pd.DataFrame(self.curve).sort_values(["setting", "value"], ignore_index=True)
        ranking, edge = pd.DataFrame(self.ranking), at_edge(method, best, box)
        return Tuned(made(method, best), best, metric, ranking, curve, edge, {**spec, **found})

    def search(self, first: int, seeds: int) -> None:
        """Fill in the answer.

        Args:
            first: the first seed; every rung has seeds of its own.
            seeds: how many the first rung has.
        """
        before = self.judge.spent
        stages, purse = list(self.plan.stages()), _WIDENING * self.plan.rung() * seeds * self.plan.widen
        points = self.candidates.spread(self.box, stages[0][0])
        for rung, (count, length, share) in enumerate(stages):
            used = range(first, first + seeds * share)
            first = used.stop
            scores = self.judge(self.candidates.methods(points), used, length)
            scores, points, purse = self._widen(scores, points, used, length, purse)
            ranks = scores.best_first().tolist()
            last = rung == len(stages) - 1
            told = scores.rows(ranks[0] if last else None)
            kept, new = (0, []) if last else self._next([points[i] for i in ranks], count // 2, rung)
            where = {"steps": length, "seeds": len(used), "rung": rung}
            self.ranking = [{**points[i], **told[i], **where} for i in ranks[kept:]] + self.ranking
            if not last:
                points = [*(points[i] for i in ranks[:kept]), *new]
        if scores.diverged[ranks[0]].all():
            raise InputError("`space` has no setting that does not diverge; lower its limits, or give more steps")
        self.best = points[ranks[0]]
        self._look_around(scores, ranks[0], used)
        self.spent = self.judge.spent - before

    def _next(self, ranked: Sequence[Point], count: int, rung: int) -> tuple[int, list[Point]]:
        """For a next rung of so many settings: how many of the best go on, and new ones between them for the rest.

        The last rung has no new ones: every setting in it has been seen on the seeds of two rungs or more.
        """
        new: list[Point] = []
        if count > WIDTH:
            new = self.candidates.between(ranked[:count], self.box, count // 2, 1000 + rung)
        return count - len(new), new

    def _widen(
        self, scores: Scores, points: list[Point], seeds: Sequence[int], length: int, purse: int
    ) -> tuple[Scores, list[Point], int]:
        """While the leader is at an edge: a box twice as wide there, and settings from the new part of it."""
        count = max(len(points) // 2, WIDTH)
        fee = WIDTH * math.ceil(count / WIDTH) * len(seeds) * cost(self.plan.metric, length)
        while purse >= fee:
            leader = points[int(scores.best_first()[0])]
            wider = widened(self.candidates.method, self.box, at_edge(self.candidates.method, leader, self.box))
            if wider == self.box:
                break
            more = self.candidates.around_the_old(self.box, wider, count, purse)
            self.box = wider
            if not more:  # none of them keeps the order
                break
            scores = scores.joined(self.judge(self.candidates.methods(more), seeds, length))
            points, purse = points + more, purse - fee
        return scores, points, purse

    def _look_around(self, scores: Scores, best: int, seeds: Sequence[int]) -> None:
        """How the score changes when one setting moves and the others stay."""
        moved = self.candidates.along_each(self.best, self.box)
        own = scores.only(best)
        if moved:
            methods = self.candidates.methods([point for _, point in moved])
            own = own.joined(self.judge(methods, seeds, self.plan.steps))
        told, *near = own.rows(0)
        self.curve = [{"setting": path, "value": self.best[path], **told} for path in self.box]
        self.curve += [
            {"setting": path, "value": point[path], **row} for (path, point), row in zip(moved, near, strict=True)
        ]
