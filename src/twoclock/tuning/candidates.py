"""Settings to try: points of a box, evenly spread on a log scale, that keep the theory's order of the steps."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from twoclock.core import InputError, Method
from twoclock.paths import check_field, paths, setting, with_settings

Space = Mapping[str, tuple[float, float]]

_MOVES = (-0.25, -0.125, 0.125, 0.25)
NEIGHBOURS = len(_MOVES)
_BLOCK, _MOST_BLOCKS = 256, 16


def check_space(method: Method, space: Any) -> dict[str, tuple[float, float]]:
    """The box as floats, or one line that says what is wrong with it."""
    if not isinstance(space, Mapping) or not space:
        raise InputError("`space` must map settings to (low, high), one or more; try `space={'alpha.c': (0.01, 10)}`")
    box = {}
    for path, limits in space.items():
        now = setting(method, path)
        if isinstance(now, bool) or not isinstance(now, (int, float, np.number)):
            numbers = ", ".join(
                p for p, v in paths(method).items() if isinstance(v, (int, float)) and p.startswith(path)
            )
            raise InputError(f"`{path}` is not a number and cannot be tuned; try {numbers or 'another setting'}")
        try:
            low, high = (float(limit) for limit in limits)
        except (TypeError, ValueError):
            raise InputError(f"`{path}` must be given as (low, high), got {limits!r}") from None
        if not (0 < low < high < math.inf):
            raise InputError(f"`{path}` must have 0 < low < high, both finite, got ({low:g}, {high:g})")
        for end in (low, high):
            check_field(method, path, end)
        box[path] = (low, high)
    return box


def draw(method: Method, space: Space, count: int, seed: int, ordered: Any) -> list[dict[str, float]]:
    """So many points, the method's own first if it is one: a scrambled Sobol sequence, log-uniform, three digits.

    Args:
        ordered: methods → for each of them whether it may be tried.
    """
    from scipy.stats.qmc import Sobol

    low, high = np.log(np.asarray(list(space.values()))).T
    sequence = Sobol(len(space), seed=seed)
    own = {path: float(setting(method, path)) for path in space}
    found = [own] if _inside(own, space) and ordered([method])[0] else []
    tried = 0
    while len(found) < count and tried < _BLOCK * _MOST_BLOCKS:
        rows = np.exp(low + (high - low) * sequence.random(_BLOCK))
        points = [round_into(dict(zip(space, row.tolist(), strict=True)), space) for row in rows]
        found += keeping(method, points, ordered)
        tried += _BLOCK
    if len(found) < count:
        raise InputError(
            f"`space` has too few settings with α ≤ β ≤ λ ≤ 1: {len(found)} of {tried:,} drawn; "
            "move its limits, or pass order=False"
        )
    return found[:count]


def keeping(method: Method, points: Sequence[dict[str, float]], ordered: Any) -> list[dict[str, float]]:
    """The points that the method accepts (its λ must not exceed 1, for one) and that are ordered."""
    made = []
    for point in points:
        with contextlib.suppress(InputError):
            made.append((point, with_settings(method, point)))
    allowed = ordered([new for _, new in made]) if made else []
    return [point for (point, _), ok in zip(made, allowed, strict=True) if ok]


def around(best: Mapping[str, float], space: Space) -> list[tuple[str, dict[str, float]]]:
    """The neighbours of a point along each setting, inside: an eighth and a quarter of its log range, down and up."""
    out = []
    for path, (low, high) in space.items():
        for part in _MOVES:
            moved = {**best, path: best[path] * (high / low) ** part}
            if _inside(moved, space):
                out.append((path, round_into(moved, space)))
    return out


def keeps_order(methods: Sequence[Method], steps: int, fast: bool = True) -> np.ndarray:
    """For each method whether α_k ≤ β_k ≤ λ_k ≤ 1 at every k ≤ steps, as far as it has them (λ_g counts as λ).

    Looked at for each k up to a thousand and at a thousand steps beyond, evenly spread on a log scale.

    Args:
        fast: False where ω has no entries, so that β means nothing.
    """
    at = np.minimum(np.concatenate([np.arange(1001), np.geomspace(1, steps, 1000).round()]), steps).astype(np.int32)
    names = {path.rsplit(".", 1)[-1]: path for path, value in paths(methods[0]).items() if callable(value)}
    names = {name: names[name] for name in ("alpha", "beta", "lam", "lam_g") if name in names}
    if not fast:
        names.pop("beta", None)
    with jax.enable_x64(True):
        sizes = {name: _sizes([setting(method, path) for method in methods], at) for name, path in names.items()}
    ok = np.ones(len(methods), bool)
    slow = [sizes[name] for name in ("alpha", "beta") if name in sizes]
    for weight in (sizes[name] for name in ("lam", "lam_g") if name in sizes):
        ok &= np.all(weight <= 1, axis=1)
        if slow:
            ok &= np.all(slow[-1] <= weight, axis=1)
    if len(slow) == 2:
        ok &= np.all(slow[0] <= slow[1], axis=1)
    return ok


def _sizes(schedules: Sequence[Any], at: np.ndarray) -> np.ndarray:
    """Schedules × steps."""
    together = jax.tree.map(lambda *leaves: np.asarray(leaves, float), *schedules)
    by_step = jax.vmap(lambda schedule: jax.vmap(schedule)(at), axis_size=len(schedules))
    return np.asarray(by_step(together))


def round_into(point: Mapping[str, float], space: Space) -> dict[str, float]:
    """Three digits are enough for a step size, and can be read; never out of the box."""
    return {path: min(max(float(f"{value:.3g}"), space[path][0]), space[path][1]) for path, value in point.items()}


def _inside(point: Mapping[str, float], space: Space) -> bool:
    return all(space[path][0] <= value <= space[path][1] for path, value in point.items())
