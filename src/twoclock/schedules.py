"""Step sizes as functions of the step number k = 0, 1, …

Their numbers are pytree leaves, so a grid of step sizes is a ``vmap`` and a changed number compiles nothing. Wherever a
schedule is asked for, a plain number, any callable ``k -> value`` (an optax schedule, say) or the text form
(``"0.8/(k+10)"``, ``"2/(k+100)^0.5"``, ``"max(1/(k+1), 0.05)"``) will do.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from twoclock.core import InputError, Schedule, pytree, static


@pytree
class Constant:
    """The same step size at every step, ``c``.

    >>> float(Constant(0.5)(k=7))
    0.5
    """

    c: Any

    def __post_init__(self) -> None:
        as_number("Constant(c=…)", self.c, lambda v: v >= 0, "be a finite number that is not negative")

    def __call__(self, k: Any) -> Any:
        return jnp.asarray(self.c, float)

    def __str__(self) -> str:
        return f"{self.c:g}"


@pytree
class Power:
    """A power of the step number, ``max(c / (k + shift)**p, floor)``.

    p = 1 is the order of Theorems 1 and 2 (strongly convex and PL h), p = 1/2 that of Theorem 3 (non-convex h).

    >>> float(Power(1.0, p=0.5, shift=4.0)(k=0))
    0.5
    """

    c: Any
    p: Any = 1.0
    shift: Any = 1.0
    floor: Any = 0.0

    def __post_init__(self) -> None:
        as_number("Power(c=…)", self.c, lambda v: v >= 0, "be a finite number that is not negative")
        as_number("Power(p=…)", self.p, lambda v: 0 <= v <= 1, "lie in [0, 1]", "for a constant use `Constant(c)`")
        as_number("Power(shift=…)", self.shift, lambda v: v > 0, "be positive", "k starts at 0, so use `shift=1.0`")
        as_number("Power(floor=…)", self.floor, lambda v: v >= 0, "be a finite number that is not negative")

    def __call__(self, k: Any) -> Any:
        n = jnp.asarray(k, float) + self.shift
        return jnp.maximum(self.c / n**self.p, jnp.asarray(self.floor, float))

    def __str__(self) -> str:
        power = "" if self.p == 1 else f"^{self.p:g}"
        text = f"{self.c:g}/(k+{self.shift:g}){power}"
        return f"max({text}, {self.floor:g})" if self.floor else text


@pytree
class Function:
    """A user's own ``k -> value``; part of the program, so another function is another compilation."""

    function: Callable[[Any], Any] = static()

    def __call__(self, k: Any) -> Any:
        return jnp.asarray(self.function(k), float)

    def __str__(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)


def as_schedule(value: Any, name: str) -> Schedule:
    """The schedule that a user means by a schedule, a number, a text or a callable; ``name`` is for the complaint."""
    if isinstance(value, str):
        return parse(value, name)
    if isinstance(value, numbers.Real) or (hasattr(value, "ndim") and hasattr(value, "dtype")):
        return Constant(_scalar(value, name))
    if not callable(value):
        raise InputError(
            f"`{name}` must be a number, a schedule or a function k -> value, got {type(value).__name__}; "
            "try `Power(c, p, shift)`"
        )
    # A schedule class keeps its numbers as leaves; a bare function has none and belongs to the program.
    return value if hasattr(type(value), "__dataclass_fields__") else Function(value)


_NUMBER = r"([0-9.]+(?:e[+-]?[0-9]+)?)"
_POWER = re.compile(rf"{_NUMBER}/\(?k(?:\+{_NUMBER})?\)?(?:(?:\^|\*\*){_NUMBER})?")
_FLOORED = re.compile(rf"max\((.+),{_NUMBER}\)")


def parse(text: str, name: str = "schedule") -> Schedule:
    """Read the text form of a schedule; the inverse of ``str``.

    >>> str(parse("max(0.8/(k+10)^0.5, 0.01)"))
    'max(0.8/(k+10)^0.5, 0.01)'
    """
    bare = text.replace(" ", "").lower()
    try:
        if floored := _FLOORED.fullmatch(bare):
            inner = parse(floored[1], name)
            if isinstance(inner, Power):
                return Power(inner.c, inner.p, inner.shift, float(floored[2]))
        if power := _POWER.fullmatch(bare):
            c, shift, p = power.groups()
            return Power(float(c), float(p or 1), float(shift or 1))
        return Constant(float(bare))
    except InputError:
        raise
    except ValueError:
        raise InputError(
            f"`{name}` is not a schedule: {text!r}; write a number, `c/(k+shift)^p` or `max(c/(k+shift)^p, floor)`"
        ) from None


def _scalar(value: Any, name: str) -> Any:
    if getattr(value, "ndim", 0):
        raise InputError(
            f"`{name}` must be one number, got an array of shape {tuple(value.shape)}; "
            "for a grid of step sizes use `tc.grid`"
        )
    return value


def as_number(what: str, value: Any, rule: Callable[[Any], bool], words: str, remedy: str = "") -> None:
    """Complain unless ``value`` is one finite number that keeps the rule; a tracer was checked when it was a number."""
    _scalar(value, what)
    if isinstance(value, jax.core.Tracer):
        return
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"`{what}` must be a number, got {value!r}") from None
    if not (math.isfinite(number) and rule(number)):
        raise InputError(f"`{what}` must {words}, got {number:g}" + (f"; {remedy}" if remedy else ""))
