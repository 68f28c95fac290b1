"""Step sizes as functions of the step number k = 0, 1, …

Their numbers are pytree leaves, so a grid of step sizes is a ``vmap`` and a changed number needs no compilation. A
schedule may be given as a plain number, any callable ``k -> value`` (an optax schedule, say) or the text form
(``"0.8/(k+10)"``, ``"2/(k+100)^0.5"``, ``"max(1/(k+1), 0.05)"``).
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twoclock.protocols import InputError, Scalar, Schedule, brief, checked, pytree, static
from twoclock.validation import FRACTION, NOT_NEGATIVE, POSITIVE, check_number, short_repr

ScheduleLike = Schedule | Callable[[Any], Any] | float | str
LevelsLike = ScheduleLike | Sequence[ScheduleLike]

if TYPE_CHECKING:  # a field that is set to any ``ScheduleLike`` and read as a schedule

    class StepSize:
        def __get__(self, obj: object, owner: object = None) -> Schedule: ...
        def __set__(self, obj: object, value: ScheduleLike) -> None: ...

    class LevelSizes:
        def __get__(self, obj: object, owner: object = None) -> Schedule: ...
        def __set__(self, obj: object, value: LevelsLike) -> None: ...

    class OptionalLevelSizes:
        def __get__(self, obj: object, owner: object = None) -> Schedule | None: ...
        def __set__(self, obj: object, value: LevelsLike | None) -> None: ...
else:
    StepSize = LevelSizes = OptionalLevelSizes = Schedule


@pytree
class Constant:
    """The same step size at every step, ``c``.

    Args:
        c: the step size.

    >>> float(Constant(0.5)(k=7))
    0.5
    """

    c: Scalar = checked(check_number, *NOT_NEGATIVE)

    def __call__(self, k: Scalar) -> Float[Array, ""]:
        return jnp.asarray(self.c, float)

    def __str__(self) -> str:
        return brief(self.c)


@pytree
class Power:
    """A power of the step number, ``max(c / (k + shift)**p, floor)``.

    p = 1 is the order of Theorems 1 and 2 (strongly convex and PL h), p = 1/2 that of Theorem 3 (non-convex h).

    Args:
        c: the factor, 0 or more.
        p: the power, between 0 and 1.
        shift: added to k, which starts at 0; positive.
        floor: the least step size.

    >>> float(Power(1.0, p=0.5, shift=4.0)(k=0))
    0.5
    """

    c: Scalar = checked(check_number, *NOT_NEGATIVE)
    p: Scalar = checked(check_number, *FRACTION, "for a constant use `Constant(c)`", default=1.0)
    shift: Scalar = checked(check_number, *POSITIVE, "k starts at 0, so use `shift=1.0`", default=1.0)
    floor: Scalar = checked(check_number, *NOT_NEGATIVE, default=0.0)

    def __call__(self, k: Scalar) -> Float[Array, ""]:
        n = jnp.asarray(k, float) + self.shift
        return jnp.maximum(self.c / n**self.p, jnp.asarray(self.floor, float))

    def __str__(self) -> str:
        power = "" if _is(self.p, 1.0) else f"^{brief(self.p)}"
        text = f"{brief(self.c)}/(k+{brief(self.shift)}){power}"
        return text if _is(self.floor, 0.0) else f"max({text}, {brief(self.floor)})"


@pytree
class Function:
    """A user's own ``k -> value``. It is part of the program, so another function needs another compilation."""

    function: Callable[[Any], Any] = static()

    def __call__(self, k: Scalar) -> Array:
        return jnp.asarray(self.function(k), float)

    def __str__(self) -> str:
        return brief(self.function)


@pytree
class Levels:
    """A schedule for each level of ω, if ω is a tuple; its value is the tuple of their values.

    A level's setting has a path, such as ``"beta.1.c"``.

    >>> [float(size) for size in Levels((Power(1.0), Constant(0.5)))(k=1)]
    [0.5, 0.5]
    """

    entries: tuple[Schedule, ...]

    def __call__(self, k: Scalar) -> tuple[Float[Array, ""], ...]:
        return tuple(entry(k) for entry in self.entries)

    def __str__(self) -> str:
        return "; ".join(map(str, self.entries))


def step_size(default: str | None, most: float = math.inf, levels: bool = False) -> Any:
    """A field of a method for a schedule with values of at most ``most``; it may be None if its default is.

    A bounded one is an averaging weight. With ``levels`` it may also be a sequence, or a text with semicolons: one
    schedule per level.
    """

    def read(owner: str, name: str, value: LevelsLike | None) -> Schedule | Levels | None:
        if value is None and default is None:
            return None
        if isinstance(value, Levels):
            value = value.entries
        elif isinstance(value, str) and ";" in value:
            value = value.split(";")
        if isinstance(value, Sequence) and not isinstance(value, str):
            if not (levels and value):
                if levels:
                    raise InputError(f"`{name}` must be one schedule, or one per level of ω, got an empty sequence")
                raise InputError(
                    f"`{name}` must be one schedule, got a sequence of {len(value)}; write the number or the schedule "
                    "itself (`beta` takes one per level of ω)"
                )
            return Levels(tuple(as_schedule(entry, f"{name}[{i}]", most) for i, entry in enumerate(value)))
        return as_schedule(value, name, most)

    return dataclasses.field(default=default, metadata={"check": read, "most": most})


def as_schedule(value: object, name: str, most: float = math.inf) -> Schedule:
    """Convert a schedule, a number, a text or a callable (``ScheduleLike``) to a schedule.

    Args:
        name: the argument's name in errors.
        most: the largest allowed value.
    """
    schedule = _read(value, name)
    first = _first(schedule)
    if first is not None and not 0 <= first < math.inf:
        raise InputError(f"`{name}` must be finite and not negative, got {first:g} at k=0, the first step")
    if first is not None and first > most:
        raise InputError(
            f"`{name}` must not exceed {most:g}, got {first:g} at k=0; take a smaller constant or a larger shift"
        )
    return schedule


def _read(value: Any, name: str) -> Schedule:
    if isinstance(value, str):
        return parse(value, name)
    is_array = hasattr(value, "ndim") and hasattr(value, "dtype")
    if is_array or (isinstance(value, numbers.Real) and not isinstance(value, bool)):
        check_number(name, value, *NOT_NEGATIVE)
        return Constant(value if is_array or isinstance(value, (int, float)) else float(value))
    if isinstance(value, type):
        raise InputError(f"`{name}` must be a schedule, got the class {value.__name__}; call it, `Power(0.5)`")
    if not callable(value):
        raise InputError(
            f"`{name}` must be a number, a schedule or a function k -> value, got {type(value).__name__}; "
            "try `Power(c, p, shift)`"
        )
    # A schedule class keeps its numbers as leaves; a bare function has none and belongs to the program.
    is_schedule: bool = dataclasses.is_dataclass(value)
    return value if is_schedule else Function(value)


def _first(schedule: Schedule) -> float | None:
    """The value at k = 0, a step of every run, at which our schedules are largest; None if it is unknown."""
    if isinstance(schedule, Constant):
        schedule = Power(schedule.c, p=0.0)
    try:
        if isinstance(schedule, Power):  # in plain floats, so that a method made at import starts no device
            c, p, shift, floor = map(float, jax.tree.leaves(schedule))
            return max(c / shift**p, floor)
        with jax.ensure_compile_time_eval():
            return float(schedule(jnp.int32(0)))
    except Exception:  # traced numbers, or a fault in the user's function, which the run reports
        return None


_NUMBER = r"([+-]?[0-9.]+(?:e[+-]?[0-9]+)?)"
_POWER = re.compile(rf"{_NUMBER}/\(k\+{_NUMBER}\)(?:(?:\^|\*\*){_NUMBER})?")
_UNSHIFTED = re.compile(rf"{_NUMBER}/(?:k|\(k\))((?:\^|\*\*){_NUMBER})?")
_FLOORED = re.compile(rf"max\((.+),{_NUMBER}\)")


def parse(text: str, name: str = "schedule") -> Schedule:
    """Read the text form of a schedule; the inverse of ``str``.

    >>> str(parse("max(0.8/(k+10)^0.5, 0.01)"))
    'max(0.8/(k+10)^0.5, 0.01)'
    """
    bare = text.replace(" ", "").lower()
    small = re.findall(r"[0-9]*\.?[0-9]+(?:e-[0-9]+)?", bare)
    if tiny := [part for part in small if float(part) == 0 and re.match(r"[0.]*[1-9]", part)]:
        raise InputError(f"`{name}` is {short_repr(text)}, and {tiny[0]:.40} is too small for a float; write 0")
    try:
        if floored := _FLOORED.fullmatch(bare):
            inner = parse(floored[1], name)
            if isinstance(inner, Power):
                return Power(inner.c, inner.p, inner.shift, float(floored[2]))
        if power := _POWER.fullmatch(bare):
            c, shift, p = power.groups()
            return Power(float(c), float(p or 1), float(shift))
        if unshifted := _UNSHIFTED.fullmatch(bare):
            shifted = f"{unshifted[1]}/(k+1){unshifted[2] or ''}"
            raise InputError(f"`{name}` must be finite at k=0, where {short_repr(text)} is not; write `{shifted}`")
        return Constant(float(bare))
    except InputError as error:
        if f"`{name}`" in str(error):
            raise
        raise InputError(f"`{name}` is {short_repr(text)}, and {error}") from None
    except ValueError:
        raise InputError(
            f"`{name}` is not a schedule: {short_repr(text)}; write a number, `c/(k+shift)^p` or "
            "`max(c/(k+shift)^p, floor)`"
        ) from None


def _is(value: Scalar, number: float) -> bool:
    return np.ndim(value) == 0 and not isinstance(value, jax.core.Tracer) and bool(value == number)
