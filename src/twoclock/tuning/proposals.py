"""Settings to try: points of a box, evenly spread on a log scale, and later ones near those that did well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from twoclock.engine.run_batch import pad_to
from twoclock.param_paths import paths, setting
from twoclock.protocols import InputError, Method, Schedule
from twoclock.tuning.method_factory import Point, Tunable, made, own
from twoclock.tuning.search_space import Box, inside, round_into

_MOVES = (-0.25, -0.125, 0.125, 0.25)
NEIGHBOURS = len(_MOVES)
_BLOCK, _MOST_BLOCKS = 256, 16


@dataclass(frozen=True)
class Candidates:
    """The settings of a method that may be tried.

    Args:
        method: what they are settings of.
        steps: the horizon up to which its schedules are looked at.
        order: keep α ≤ β ≤ λ up to there. λ ≤ 1, an average and no extrapolation, is kept in any case.
        fast: False where ω has no entries, so that β means nothing.
        seed: draws the points.
    """

    method: Tunable
    steps: int
    order: bool
    fast: bool
    seed: int

    def methods(self, points: Sequence[Point]) -> list[Method]:
        return [made(self.method, point) for point in points]

    def allowed(self, points: Sequence[Point]) -> list[Point]:
        """Those that the method accepts and that keep the order."""
        accepted = [(point, method) for point in points if (method := self._made(point)) is not None]
        if not accepted:
            return []
        fine = keeps_order([method for _, method in accepted], self.steps, self.fast, self.order)
        return [point for (point, _), ok in zip(accepted, fine, strict=True) if ok]

    def spread(self, box: Box, count: int) -> list[Point]:
        """So many points of the box, the method's own first if it is one of them."""
        start = {path: float(own(self.method, path)) for path in box}
        found = self.allowed([start] if inside(start, box) else [])
        found += self._sobol(box, count - len(found), [self.seed], lambda point: True)
        if len(found) < count:
            rule = "α ≤ β ≤ λ ≤ 1" if self.order else "λ ≤ 1"
            remedy = "move its limits, or pass order=False" if self.order else "move its limits"
            tried = _BLOCK * _MOST_BLOCKS
            raise InputError(f"`space` has too few settings with {rule}: {len(found)} of {tried:,} drawn; {remedy}")
        return found

    def around_the_old(self, old: Box, new: Box, count: int, turn: int) -> list[Point]:
        """At most so many points of the new box that are not in the old one."""
        return self._sobol(new, count, [self.seed, turn], lambda point: not inside(point, old))

    def between(self, best: Sequence[Point], box: Box, count: int, turn: int) -> list[Point]:
        """At most so many new points near good ones: one of them, moved by half the way from another to a third.

        So the points close in as the good ones do, along whatever ridge these lie on (differential evolution).
        """
        draws = np.random.default_rng([self.seed, turn])
        logs = np.log([list(point.values()) for point in best])
        seen = {tuple(point.values()) for point in best}
        found: list[Point] = []
        for _ in range(_MOST_BLOCKS):
            picks = np.stack([draws.permutation(len(best))[:3] for _ in range(2 * count)])
            moved = np.exp(logs[picks[:, 0]] + 0.5 * (logs[picks[:, 1]] - logs[picks[:, 2]]))
            points = [round_into(dict(zip(box, row.tolist(), strict=True)), box) for row in moved]
            for point in self.allowed(points):
                if tuple(point.values()) not in seen and len(found) < count:
                    seen.add(tuple(point.values()))
                    found.append(point)
            if len(found) == count:
                break
        return found

    def along_each(self, best: Point, box: Box) -> list[tuple[str, Point]]:
        """Its neighbours along each setting, inside: an eighth and a quarter of the log range, down and up."""
        moved = [
            (path, round_into({**best, path: best[path] * (high / low) ** part}, box))
            for path, (low, high) in box.items()
            for part in _MOVES
            if low <= best[path] * (high / low) ** part <= high
        ]
        allowed = self.allowed([point for _, point in moved])
        return [(path, point) for path, point in moved if point in allowed]

    def _sobol(self, box: Box, count: int, seed: list[int], wanted: Callable[[Point], bool]) -> list[Point]:
        """A scrambled Sobol sequence, log-uniform, three digits."""
        from scipy.stats.qmc import Sobol

        low, high = np.log(np.asarray(list(box.values()))).T
        sequence = Sobol(len(box), seed=seed[0] if len(seed) == 1 else np.random.default_rng(seed))
        found: list[Point] = []
        for _ in range(_MOST_BLOCKS):
            if len(found) >= count:
                break
            rows = np.exp(low + (high - low) * sequence.random(_BLOCK))
            points = [round_into(dict(zip(box, row.tolist(), strict=True)), box) for row in rows]
            found += self.allowed([point for point in points if wanted(point)])
        return found[:count]

    def _made(self, point: Point) -> Method | None:
        try:
            return made(self.method, point)
        except InputError:  # two settings, each allowed, that do not go together
            return None


def keeps_order(
    methods: Sequence[Method], steps: int, fast: bool = True, order: bool = True
) -> Bool[np.ndarray, " methods"]:
    """For each method whether α_k ≤ β_k ≤ λ_k ≤ 1 at every k ≤ steps, as far as it has them (λ_g counts as λ).

    Looked at for each k up to a thousand and at a thousand steps beyond, evenly spread on a log scale.

    Args:
        fast: False where ω has no entries, so that β means nothing.
        order: False asks for λ_k ≤ 1 alone.
    """
    at = np.minimum(np.concatenate([np.arange(1001), np.geomspace(1, steps, 1000).round()]), steps).astype(np.int32)
    names = {path.rsplit(".", 1)[-1]: path for path, value in paths(methods[0]).items() if callable(value)}
    wanted = ("alpha", "beta", "lam", "lam_g") if fast else ("alpha", "lam", "lam_g")
    with jax.enable_x64(True):
        sizes = {
            name: _sizes([setting(method, names[name]) for method in methods], at) for name in wanted if name in names
        }
    ok = np.ones(len(methods), bool)
    slow = [sizes[name] for name in ("alpha", "beta") if name in sizes]
    for weight in (sizes[name] for name in ("lam", "lam_g") if name in sizes):
        ok &= np.all(weight <= 1, axis=1)
        if slow and order:
            ok &= np.all(slow[-1] <= weight, axis=1)
    if len(slow) == 2 and order:
        ok &= np.all(slow[0] <= slow[1], axis=1)
    return ok


def _sizes(schedules: Sequence[Schedule], at: np.ndarray) -> Float[np.ndarray, "schedules steps"]:
    """Those that are not varied are looked at once; in blocks of one size, so that another number compiles nothing."""
    numbers = [tuple(np.asarray(leaf, float).tobytes() for leaf in jax.tree.leaves(one)) for one in schedules]
    distinct = dict(zip(numbers, schedules, strict=True))
    places = {key: i for i, key in enumerate(distinct)}
    found, block = [], _BLOCK if len(distinct) > 1 else 1
    for i in range(0, len(distinct), block):
        some = list(distinct.values())[i : i + block]
        together: Any = jax.tree.map(lambda *leaves: np.asarray(leaves, float), *pad_to(some, block))
        by_step = jax.vmap(lambda schedule: jax.vmap(schedule)(at), axis_size=block)
        found.append(np.asarray(by_step(together))[: len(some)])
    return np.concatenate(found)[[places[key] for key in numbers]]
