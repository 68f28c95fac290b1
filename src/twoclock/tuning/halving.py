"""Successive halving: many settings for a short time, the better ones for longer, the last on more seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Bool, Float

from twoclock.engine.run_batch import pad_to
from twoclock.param_paths import paths, setting
from twoclock.protocols import InputError, Method, Schedule
from twoclock.storage.run_identity import describe
from twoclock.tuning import search_space
from twoclock.tuning.objective import WIDTH, Objective
from twoclock.tuning.search_space import Box, MethodFactory, Point, Tunable, at_edge, build, is_inside, round_into
from twoclock.tuning.tune_result import Tuned

_WIDENING = 2  # the work for a wider box, in rungs
_MOVES = (-0.25, -0.125, 0.125, 0.25)  # of the log range, around the winner
_BLOCK, _MOST_BLOCKS = 256, 16


@dataclass(frozen=True)
class Proposals:
    """The candidate settings of a method.

    Args:
        order: whether to require α ≤ β ≤ λ up to ``steps``. λ ≤ 1, so that it is an average, is always required.
        fast: False where ω has no entries, so that β means nothing.
    """

    method: Tunable
    steps: int
    order: bool
    fast: bool
    seed: int

    def spread(self, box: Box, count: int) -> list[Point]:
        """Draw ``count`` points of the box; the method's own comes first if it lies in the box."""
        if isinstance(self.method, MethodFactory):
            start = self.method.defaults
        else:
            start = {path: float(setting(self.method, path)) for path in box}
        points = self._select_allowed([start] if is_inside(start, box) else [])
        points += self.draw(box, count - len(points), self.seed)
        if len(points) < count:
            rule = "α ≤ β ≤ λ ≤ 1" if self.order else "λ ≤ 1"
            remedy = "move its limits, or pass order=False" if self.order else "move its limits"
            tried = _BLOCK * _MOST_BLOCKS
            raise InputError(f"`space` has too few settings with {rule}: {len(points)} of {tried:,} drawn; {remedy}")
        return points

    def draw(self, box: Box, count: int, seed: int | np.random.Generator, outside: Box | None = None) -> list[Point]:
        """Draw up to ``count`` points of a scrambled Sobol sequence, log-uniform; only ``outside`` a box, if given."""
        from scipy.stats.qmc import Sobol

        low, high = np.log(np.asarray(list(box.values()))).T
        sequence = Sobol(len(box), seed=seed)
        points: list[Point] = []
        for _ in range(_MOST_BLOCKS):
            if len(points) >= count:
                break
            drawn = _as_points(np.exp(low + (high - low) * sequence.random(_BLOCK)), box)
            points += self._select_allowed([point for point in drawn if not (outside and is_inside(point, outside))])
        return points[:count]

    def recombine(self, best: Sequence[Point], box: Box, count: int, turn: int) -> list[Point]:
        """Make up to ``count`` new points: a good one, moved by half the difference of two others.

        So the points contract as the good ones do, along any ridge (differential evolution).
        """
        draws = np.random.default_rng([self.seed, turn])
        logs = np.log([list(point.values()) for point in best])
        seen = {tuple(point.values()) for point in best}
        points: dict[tuple[float, ...], Point] = {}
        for _ in range(_MOST_BLOCKS):
            picks = np.stack([draws.permutation(len(best))[:3] for _ in range(2 * count)])
            moved = np.exp(logs[picks[:, 0]] + 0.5 * (logs[picks[:, 1]] - logs[picks[:, 2]]))
            for point in self._select_allowed(_as_points(moved, box)):
                if (values := tuple(point.values())) not in seen and len(points) < count:
                    points.setdefault(values, point)
            if len(points) == count:
                break
        return list(points.values())

    def coordinate_neighbours(self, best: Point, box: Box) -> list[tuple[str, Point]]:
        """Move one setting at a time inside the box: an eighth and a quarter of its log range, down and up."""
        moved = [
            (path, round_into({**best, path: best[path] * (high / low) ** part}, box))
            for path, (low, high) in box.items()
            for part in _MOVES
            if low <= best[path] * (high / low) ** part <= high
        ]
        allowed = self._select_allowed([point for _, point in moved])
        return [(path, point) for path, point in moved if point in allowed]

    def _select_allowed(self, points: Sequence[Point]) -> list[Point]:
        """Select the points that the method accepts and that keep the order."""
        accepted, methods = [], []
        for point in points:
            try:
                methods.append(build(self.method, point))
                accepted.append(point)
            except search_space.FunctionFailed:
                raise
            except InputError:  # two settings that are allowed alone but not together
                continue
        if not methods:
            return []
        ordered = keeps_order(methods, self.steps, self.fast, self.order)
        return [point for point, ok in zip(accepted, ordered, strict=True) if ok]


def _as_points(rows: np.ndarray, box: Box) -> list[Point]:
    return [round_into(dict(zip(box, row.tolist(), strict=True)), box) for row in rows]


def keeps_order(
    methods: Sequence[Method], steps: int, fast: bool = True, order: bool = True
) -> Bool[np.ndarray, " methods"]:
    """For each method whether α_k ≤ β_k ≤ λ_k ≤ 1 at every k ≤ steps, as far as it has them (λ_g counts as λ),
    for each level of ω.

    Checked for each k up to a thousand and at a thousand later steps, evenly spaced on a log scale.

    Args:
        fast: False where ω has no entries, so that β means nothing.
        order: False asks for λ_k ≤ 1 alone.
    """
    at = np.minimum(np.concatenate([np.arange(1001), np.geomspace(1, steps, 1000).round()]), steps).astype(np.int32)
    names = {path.rsplit(".", 1)[-1]: path for path, value in paths(methods[0]).items() if callable(value)}
    wanted = [name for name in ("alpha", "beta", "lam", "lam_g") if name in names and (fast or name != "beta")]
    with jax.enable_x64(True):
        sizes = {name: _step_sizes([setting(method, names[name]) for method in methods], at) for name in wanted}
    ok = np.ones(len(methods), bool)
    slow = [sizes[name] for name in ("alpha", "beta") if name in sizes]
    for weight in (sizes[name] for name in ("lam", "lam_g") if name in sizes):
        ok &= np.all(weight <= 1, axis=(1, 2))
        if slow and order:
            ok &= np.all(slow[-1] <= weight, axis=(1, 2))
    if len(slow) == 2 and order:
        ok &= np.all(slow[0] <= slow[1], axis=(1, 2))
    return ok


def _step_sizes(schedules: Sequence[Schedule], at: np.ndarray) -> Float[np.ndarray, "schedules steps levels"]:
    """Evaluate schedules, one for each level of ω if there are some.

    Those that differ in numbers are evaluated in blocks of one size, so that their count needs no compilation.
    """
    parts, block = [], _BLOCK if len({jax.tree.structure(one) for one in schedules}) == 1 else 1
    for i in range(0, len(schedules), block):
        some = schedules[i : i + block]
        stacked = jax.tree.map(lambda *leaves: np.asarray(leaves, float), *pad_to(some, block))
        by_step = jax.vmap(lambda schedule: jax.vmap(schedule)(at), axis_size=block)
        parts.append(np.stack(jax.tree.leaves(by_step(stacked)), axis=-1)[: len(some)])
    return np.concatenate(parts)


@dataclass(frozen=True)
class Halving:
    """The search for the best settings of one method. Every rung has half the settings of the one before.

    Args:
        widen: reserve work for a wider box, and use it while the leader lies at an edge.
        rivals: reserve work for the final comparison with other methods.
    """

    proposals: Proposals
    objective: Objective
    box: Box
    rungs: int
    widen: bool
    rivals: bool

    def stages(self) -> list[tuple[int, int, int]]:
        """For each rung: settings, steps, and seeds in units of the first rung's."""
        return [
            (WIDTH << left, max(self.proposals.steps >> max(left - 1, 0), 1), 1 if left else 2)
            for left in reversed(range(self.rungs))
        ]

    def price(self) -> int:
        """The most seed-steps in all, for each seed of the first rung."""
        halving = sum(count * share * self.objective.cost(length) for count, length, share in self.stages())
        at_the_end = 2 * self.objective.cost(self.proposals.steps)
        around = _pages(len(_MOVES) * len(self.box)) * at_the_end
        return halving + around + self._for_widening() + at_the_end * self.rivals

    def _for_widening(self) -> int:
        dearest = max(count * share * self.objective.cost(length) for count, length, share in self.stages())
        return _WIDENING * dearest * self.widen

    def search(self, first: int, seeds: int, spec: Mapping[str, object]) -> Tuned:
        """Find the best settings; the first rung runs on ``seeds`` seeds from ``first`` on, every rung on new ones."""
        import pandas as pd

        tunable, spent, box = self.proposals.method, self.objective.spent, self.box
        stages, purse = self.stages(), self._for_widening() * seeds
        points, ranking = self.proposals.spread(box, stages[0][0]), list[dict[str, float]]()
        for rung, (count, length, share) in enumerate(stages):
            used = range(first, first + seeds * share)
            first, last = used.stop, rung == len(stages) - 1
            scores = self.objective(self._methods(points), used, length, seeds)
            more = max(len(points) // 2, WIDTH)
            fee = _pages(more) * len(used) * self.objective.cost(length)
            while purse >= fee:
                leader = points[int(scores.best_first()[0])]
                wider = box | {path: limits for path, (_, limits) in at_edge(tunable, leader, box).items()}
                draws = np.random.default_rng([self.proposals.seed, purse])
                new = self.proposals.draw(wider, more, draws, outside=box) if wider != box else []
                box = wider
                if not new:  # the leader is inside, or nothing outside keeps the order
                    break
                scores = scores.join(self.objective(self._methods(new), used, length, seeds))
                points, purse = points + new, purse - fee
            ranks = scores.best_first().tolist()
            ranked, rows = [points[i] for i in ranks], scores.rows(ranks[0] if last else None)
            new = []  # the last rung has none: every setting in it has been seen on the seeds of two rungs or more
            if count // 2 > WIDTH:
                new = self.proposals.recombine(ranked[: count // 2], box, count // 4, 1000 + rung)
            survivors = 0 if last else count // 2 - len(new)
            where = {"steps": length, "seeds": len(used), "rung": rung}
            ranking = [{**points[i], **rows[i], **where} for i in ranks[survivors:]] + ranking
            points = ranked[:survivors] + new
        if scores.diverged[ranks[0]].all():
            raise InputError("`space` has no setting that does not diverge; lower its limits, or give more steps")
        best, own = ranked[0], scores.select(ranks[0])
        moved = self.proposals.coordinate_neighbours(best, box)
        if moved:
            own = own.join(self.objective(self._methods([point for _, point in moved]), used, length, seeds))
        unmoved, *near = own.rows(0)
        curve = [{"setting": path, "value": best[path], **unmoved} for path in box]
        curve += [{"setting": path, "value": at[path], **row} for (path, at), row in zip(moved, near, strict=True)]
        described = describe(tunable.function if isinstance(tunable, MethodFactory) else tunable)
        return Tuned(
            self.objective.finish(build(tunable, best)),
            best,
            self.objective.label,
            pd.DataFrame(ranking),
            pd.DataFrame(curve).sort_values(["setting", "value"], ignore_index=True),
            {path: side for path, (side, _) in at_edge(tunable, best, box).items()},
            None if scores.start is None else float(scores.start[ranks[0]].mean()),
            {**spec, "given": self.box, "order": self.proposals.order, "widen": self.widen, "method": described}
            | {"space": box, "best": best, "spent": self.objective.spent - spent},
        )

    def _methods(self, points: Sequence[Point]) -> list[Method]:
        return [build(self.proposals.method, point) for point in points]


def _pages(settings: int) -> int:
    """The number of settings rounded up to whole pages."""
    return WIDTH * math.ceil(settings / WIDTH)
