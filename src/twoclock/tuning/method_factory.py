"""What can be tuned: the numbers inside a method, or those that a function makes a method from."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from twoclock.param_paths import setting, with_settings
from twoclock.protocols import InputError, Method
from twoclock.validation import check_method, shown

Point = dict[str, float]


@dataclass(frozen=True)
class Recipe:
    """A function of a few positive numbers that makes a method, and the numbers that hold where no others are given."""

    build: Callable[..., Method]
    at: Point

    @classmethod
    def of(cls, build: Callable[..., Method], space: object) -> Recipe:
        """With the numbers in the middle of each range, if the function takes them and makes a method of them."""
        name = getattr(build, "__name__", "") or getattr(getattr(build, "func", None), "__name__", "the function")
        if not isinstance(space, Mapping) or not space:
            raise InputError(
                f"`space` is needed for a function that makes a method: {name} has no step sizes to build a box "
                "around; try `space={'c': (0.01, 10)}`, by the names of its arguments"
            )
        try:
            inspect.signature(build).bind(**space)
        except (TypeError, ValueError) as error:
            raise InputError(f"`space` must name the arguments of {name} that have no value yet: {error}") from None
        at = {path: _middle(path, limits) for path, limits in space.items()}
        try:
            method = build(**at)
        except InputError:
            raise
        except Exception as error:
            first = (str(error).splitlines() or [""])[0][:100]
            raise InputError(f"`method`: {name} fails at {at}, {type(error).__name__}: {first}") from None
        check_method(method, f"method: what {name} returns")
        return cls(build, at)


Tunable = Method | Recipe


def is_recipe(thing: object) -> bool:
    """Whether it is a function that makes methods, and no method itself."""
    return callable(thing) and not isinstance(thing, (type, Method))


def made(what: Tunable, values: Mapping[str, float]) -> Method:
    """The method with these settings."""
    if isinstance(what, Recipe):
        return what.build(**{**what.at, **values})
    return with_settings(what, dict(values))


def own(what: Tunable, path: str) -> Any:
    """What the setting is as long as nothing is tried."""
    return what.at[path] if isinstance(what, Recipe) else setting(what, path)


def _middle(path: str, limits: Any) -> float:
    try:
        low, high = (float(limit) for limit in limits)
        return float(f"{math.sqrt(low * high):.3g}")
    except (TypeError, ValueError):
        raise InputError(f"`{path}` must be given as (low, high), both positive, got {shown(limits)}") from None
