"""The box of settings for tuning: the user's, or one around the method's own step sizes; and its growth."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

import numpy as np

from twoclock.param_paths import check_field, paths, setting, with_settings
from twoclock.protocols import InputError, Method
from twoclock.validation import short_repr
from twoclock.validation.run_args import check_method

Point = dict[str, float]
Box = dict[str, tuple[float, float]]
Side = Literal["low", "high"]

_NEAR = 0.1  # of the log range: nearer to a limit than this is at the edge
_BISECTIONS = 30


class FunctionFailed(InputError):
    """A function that makes methods fails, or makes something else."""


@dataclass(frozen=True)
class MethodFactory:
    """A function of a few positive numbers that makes a method, with a default for each number."""

    function: Callable[..., Method]
    defaults: Point
    name: str

    @classmethod
    def of(cls, function: Callable[..., Method], space: object) -> MethodFactory:
        """Take the middle of each range as the default, if the function takes it and makes a method of it."""
        inner = getattr(function, "func", None)  # of a functools.partial
        name = getattr(function, "__name__", "") or getattr(inner, "__name__", "the function")
        if not isinstance(space, Mapping) or not space:
            raise InputError(
                f"`space` is needed for a function that makes a method: {name} has no step sizes to build a box "
                "around; try `space={'c': (0.01, 10)}`, by the names of its arguments"
            )
        try:
            inspect.signature(function).bind(**space)
        except (TypeError, ValueError) as error:
            raise InputError(f"`space` must name the arguments of {name} that have no value yet: {error}") from None
        ranges = (_check_limits(path, limits) for path, limits in space.items())
        middle = {path: float(f"{math.sqrt(low * high):.3g}") for path, (low, high) in zip(space, ranges, strict=True)}
        made = cls(function, middle, name)
        build(made, {})
        return made


# The settings of an agent are tuned like those of a method: only their paths matter here.
Tunable = Method | MethodFactory


def build(tunable: Tunable, values: Mapping[str, float]) -> Method:
    """Make the method with these settings."""
    if not isinstance(tunable, MethodFactory):
        return with_settings(tunable, dict(values))
    chosen = {**tunable.defaults, **values}
    try:
        method = tunable.function(**chosen)
    except InputError:
        raise
    except Exception as error:
        first = (str(error).splitlines() or [""])[0][:100]
        raise FunctionFailed(f"`method`: {tunable.name} fails at {chosen}, {type(error).__name__}: {first}") from None
    try:
        return check_method(method, f"method: what {tunable.name} returns")
    except InputError as error:
        raise FunctionFailed(error) from None


def check_box(tunable: Tunable, space: object) -> Box:
    """Check the limits of every setting, and return them as floats."""
    if not isinstance(space, Mapping) or not space or not all(isinstance(path, str) for path in space):
        raise InputError("`space` must map settings to (low, high), one or more; try `space={'alpha.c': (0.01, 10)}`")
    box = {}
    for path, limits in space.items():
        if not isinstance(tunable, MethodFactory) and not is_number(setting(tunable, path)):
            numbers = ", ".join(p for p, v in paths(tunable).items() if is_number(v) and p.startswith(path))
            raise InputError(f"`{path}` is not a number and cannot be tuned; try {numbers or 'another setting'}")
        box[path] = _check_limits(path, limits)
        if not isinstance(tunable, MethodFactory):  # each field has its own rules
            for limit in box[path]:
                check_field(tunable, path, limit)
    return box


def _check_limits(path: str, limits: Any) -> tuple[float, float]:
    try:
        low, high = (float(limit) for limit in limits)
    except (TypeError, ValueError):
        raise InputError(f"`{path}` must be given as (low, high), got {short_repr(limits)}") from None
    if not (0 < low < high < math.inf):
        raise InputError(f"`{path}` must have 0 < low < high, both finite, got ({low:g}, {high:g})")
    return low, high


def default_box(method: Method, fast: bool) -> Box:
    """Make a box around the method's own step sizes.

    Every c from a hundredth to a hundred times its value, and one shift for all steps, from a tenth of the smallest to
    a hundred times the largest. An averaging weight λ has its c within a factor ten and keeps its own shift.

    Args:
        fast: False if ω has no entries, so that β has no effect.
    """
    box, shifts = Box(), {}
    for path, schedule in paths(method).items():
        name = path.rsplit(".", 1)[-1]
        c, shift = (getattr(schedule, field, 0.0) if callable(schedule) else 0.0 for field in ("c", "shift"))
        if not is_number(c) or not c > 0 or (name == "beta" and not fast):
            continue
        weight = name.startswith("lam")
        factor = 10.0 if weight else 100.0
        low, high = (_furthest(method, f"{path}.c", c, limit, weight) for limit in (c / factor, c * factor))
        if low < high:
            box[f"{path}.c"] = (low, high)
        if is_number(shift) and shift > 0 and not weight:
            shifts[f"{path}.shift"] = float(shift)
    if shifts:
        box[",".join(shifts)] = (min(shifts.values()) / 10, max(shifts.values()) * 100)
    if not box:
        name = type(method).__name__
        raise InputError(f"`space` is needed: {name} has no step size `c` to build a box around; name what to tune")
    return box


def at_edge(tunable: Tunable, point: Mapping[str, float], box: Box) -> dict[str, tuple[Side, tuple[float, float]]]:
    """The settings within a tenth of the log range of an extendable limit, with the range doubled there.

    The range is doubled on the log scale, as far as the fields' own rules allow.
    """
    edge: dict[str, tuple[Side, tuple[float, float]]] = {}
    for path, (low, high) in box.items():
        place = math.log(point[path] / low) / math.log(high / low)
        if place <= _NEAR and (limit := _furthest(tunable, path, low, low * low / high)) < 0.99 * low:
            edge[path] = "low", (limit, high)
        if place >= 1 - _NEAR and (limit := _furthest(tunable, path, high, high * high / low)) > 1.01 * high:
            edge[path] = "high", (low, limit)
    return edge


def is_inside(point: Mapping[str, float], box: Box) -> bool:
    return all(box[path][0] <= value <= box[path][1] for path, value in point.items())


def round_into(point: Mapping[str, float], box: Box) -> Point:
    """Round to three digits without leaving the box."""
    return {path: min(max(float(f"{value:.3g}"), box[path][0]), box[path][1]) for path, value in point.items()}


def _furthest(tunable: Tunable, path: str, here: float, there: float, weight: bool = False) -> float:
    """The accepted value nearest to ``there`` between it and ``here``; a ``weight`` stays below 1."""

    def is_accepted(value: float) -> bool:
        try:
            method = build(tunable, {path: value})
        except InputError:
            return False
        return not weight or float(np.max(setting(method, path.rsplit(".", 1)[0])(0))) <= 1 + 1e-12

    if is_accepted(there):
        return float(f"{there:.3g}")
    good, bad = here, there
    for _ in range(_BISECTIONS):
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if is_accepted(middle) else (good, middle)
    rounded = float(f"{good:.3g}")
    return rounded if is_accepted(rounded) else good


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
