"""The box that is searched: the user's, or one around the method's own step sizes; its edges, and how it grows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypeGuard

import numpy as np

from twoclock.param_paths import check_field, paths, setting
from twoclock.protocols import InputError, Method
from twoclock.tuning.method_factory import Point, Recipe, Tunable, made
from twoclock.validation import shown

Box = dict[str, tuple[float, float]]
Side = Literal["low", "high"]

_NEAR = 0.1  # of the log range: nearer to a limit than this is at the edge
_BISECTIONS = 30


def check_box(method: Tunable, space: object) -> Box:
    """The box as floats, or one line that says what is wrong with it."""
    if not isinstance(space, Mapping) or not space:
        raise InputError("`space` must map settings to (low, high), one or more; try `space={'alpha.c': (0.01, 10)}`")
    box = {}
    for path, limits in space.items():
        if not isinstance(method, Recipe):
            _check_number(method, path)
        try:
            low, high = (float(limit) for limit in limits)
        except (TypeError, ValueError):
            raise InputError(f"`{path}` must be given as (low, high), got {shown(limits)}") from None
        if not (0 < low < high < math.inf):
            raise InputError(f"`{path}` must have 0 < low < high, both finite, got ({low:g}, {high:g})")
        if not isinstance(method, Recipe):  # each field has its own rules
            check_field(method, path, low)
            check_field(method, path, high)
        box[path] = (low, high)
    return box


def default_box(method: Method, fast: bool) -> Box:
    """A box around the method's own step sizes.

    Every c from a hundredth to a hundred times what it is, and one shift for all steps, from a tenth of the smallest to
    a hundred times the largest. An averaging weight λ has its c within a factor ten and keeps its own shift.

    Args:
        fast: False where ω has no entries, so that β means nothing.
    """
    box, shifts = Box(), {}
    for path, schedule in paths(method).items():
        name = path.rsplit(".", 1)[-1]
        c, shift = (getattr(schedule, field, 0.0) if callable(schedule) else 0.0 for field in ("c", "shift"))
        if not _is_number(c) or not c > 0 or (name == "beta" and not fast):
            continue
        weight = name.startswith("lam")
        factor = 10.0 if weight else 100.0
        box[f"{path}.c"] = (
            _furthest(method, f"{path}.c", c, c / factor, weight),
            _furthest(method, f"{path}.c", c, c * factor, weight),
        )
        if _is_number(shift) and shift > 0 and not weight:
            shifts[f"{path}.shift"] = float(shift)
    if shifts:
        box[",".join(shifts)] = (min(shifts.values()) / 10, max(shifts.values()) * 100)
    box = {path: limits for path, limits in box.items() if limits[0] < limits[1]}
    if not box:
        name = type(method).__name__
        raise InputError(f"`space` is needed: {name} has no step size `c` to build a box around; name what to tune")
    return box


def at_edge(method: Tunable, point: Mapping[str, float], box: Box) -> dict[str, Side]:
    """The settings that lie at a limit of the box, or within a tenth of its log range of one, and could pass it."""
    found: dict[str, Side] = {}
    for path, (low, high) in box.items():
        place = math.log(point[path] / low) / math.log(high / low)
        side: Side = "low" if place < 0.5 else "high"
        if min(place, 1 - place) <= _NEAR and _beyond(method, path, box[path], side) is not None:
            found[path] = side
    return found


def widened(method: Tunable, box: Box, edge: Mapping[str, Side]) -> Box:
    """The box with its log range doubled at each of these edges, as far as the fields' own rules allow."""
    new = dict(box)
    for path, side in edge.items():
        limit = _beyond(method, path, box[path], side)
        if limit is not None:
            new[path] = (limit, box[path][1]) if side == "low" else (box[path][0], limit)
    return new


def inside(point: Mapping[str, float], box: Box) -> bool:
    return all(box[path][0] <= value <= box[path][1] for path, value in point.items())


def round_into(point: Mapping[str, float], box: Box) -> Point:
    """Three digits are enough for a step size, and can be read; never out of the box."""
    return {path: min(max(float(f"{value:.3g}"), box[path][0]), box[path][1]) for path, value in point.items()}


def _beyond(method: Tunable, path: str, limits: tuple[float, float], side: Side) -> float | None:
    """The limit that doubles the log range on this side; None where a rule of the field stands in the way."""
    low, high = limits
    old, new = (low, low * low / high) if side == "low" else (high, high * high / low)
    found = _furthest(method, path, old, new, weight=False)
    return found if abs(math.log(found / old)) > 1e-2 else None


def _furthest(method: Tunable, path: str, here: float, there: float, weight: bool) -> float:
    """The value nearest to ``there``, on the way from ``here``, that the method accepts; a ``weight`` stays below 1."""

    def fine(value: float) -> bool:
        try:
            changed = made(method, {path: value})
        except InputError:
            return False
        return not weight or float(np.max(setting(changed, path.rsplit(".", 1)[0])(0))) <= 1 + 1e-12

    if fine(there):
        return float(f"{there:.3g}")
    good, bad = here, there
    for _ in range(_BISECTIONS):
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if fine(middle) else (good, middle)
    rounded = float(f"{good:.3g}")
    return rounded if fine(rounded) else good


def _check_number(method: Method, path: str) -> None:
    if not _is_number(setting(method, path)):
        numbers = ", ".join(p for p, v in paths(method).items() if _is_number(v) and p.startswith(path))
        raise InputError(f"`{path}` is not a number and cannot be tuned; try {numbers or 'another setting'}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
