"""The numbers a user gives, looked at before any proof sees them."""

from __future__ import annotations

import math
import numbers
from typing import Any

from twoclock.core import InputError
from twoclock.theory.certificate import LAST_STEP, METRICS

STRUCTURES = tuple(METRICS)


def checked(structure: Any, L: Any, mu_h: Any, mu_g: Any, noise: Any) -> tuple[float | None, tuple[str, ...]]:
    """μ_h as a number or None, and what the user should know of L; complains of constants that cannot be."""
    if structure not in STRUCTURES:
        raise InputError(f"`structure` must be one of {', '.join(STRUCTURES)}, got {structure!r}")
    if structure == "non-convex":
        mu_h = None
    elif mu_h is None:
        raise InputError(f"`mu_h` must be given for a {structure} h; without one use structure='non-convex'")
    given = {"L": L, "mu_h": mu_h, "mu_g": mu_g, "noise": noise}
    for name, value in given.items():
        if value is None and name == "mu_h":
            continue
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise InputError(f"`{name}` must be a number, got {value!r}") from None
        if not math.isfinite(number) or number < 0 or (number == 0 and name != "noise"):
            words = "not negative" if name == "noise" else "positive"
            raise InputError(f"`{name}` must be finite and {words}, got {number:g}")
    for name in ("mu_h", "mu_g"):
        if given[name] is not None and float(given[name]) > float(L):
            raise InputError(
                f"`{name}` must not exceed L, got {float(given[name]):g} > {float(L):g}; an operator is never steeper "
                "than its Lipschitz constant, so one of the two is wrong"
            )
    raised = f"L = {float(L):g} was raised to 1: a Lipschitz constant may be taken larger, and the proofs use L ≥ 1"
    return None if mu_h is None else float(mu_h), (raised,) if float(L) < 1 else ()


def whole(name: str, value: Any) -> int:
    """A number of steps, as an integer that 32 bits can count."""
    number = float(value) if isinstance(value, numbers.Real) else math.nan
    if not (0 < number <= LAST_STEP and number.is_integer()):
        raise InputError(f"`{name}` must be a whole number in [1, 2³¹], got {value}; steps are counted in 32 bits")
    return int(number)
