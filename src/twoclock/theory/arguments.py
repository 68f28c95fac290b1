"""The numbers a user gives, looked at before any proof sees them."""

from __future__ import annotations

import dataclasses
import math
from numbers import Real

from twoclock.protocols import InputError
from twoclock.theory.certificate import LAST_STEP, METRICS
from twoclock.validation import choice, number, shown

#: The structures that a proof covers.
STRUCTURES = tuple(METRICS)


@dataclasses.dataclass(frozen=True)
class Known:
    """The constants of a problem, as numbers."""

    L: float
    mu_h: float | None
    mu_g: float
    noise: float

    def scaled(self) -> tuple[float, float | None, float, float]:
        """The constants of F/L, G/L and h/L where L < 1; ω* stays, and its slope is below 1 anyhow."""
        s = min(self.L, 1.0)
        return self.L / s, None if self.mu_h is None else self.mu_h / s, self.mu_g / s, self.noise / s**2


_FLATTEST = 1e-30


def checked(structure: str, L: float, mu_h: float | None, mu_g: float, noise: float) -> tuple[Known, tuple[str, ...]]:
    """The constants as numbers, and what the user should know of them; complains of constants that cannot be."""
    choice("structure", structure, STRUCTURES)
    if structure == "non-convex":
        mu_h = None
    elif mu_h is None:
        raise InputError(f"`mu_h` must be given for a {structure} h; without one use structure='non-convex'")
    positive = {"L": L, "mu_g": mu_g} | ({} if mu_h is None else {"mu_h": mu_h})
    known = {name: number(name, value, 0, above=True) for name, value in positive.items()}
    for name in ("mu_h", "mu_g"):
        if known.get(name, 0.0) > known["L"]:
            raise InputError(
                f"`{name}` must not exceed L, got {known[name]:g} > {known['L']:g}; an operator is never steeper than "
                "its Lipschitz constant, so one of the two is wrong"
            )
        if name in known and known[name] < _FLATTEST * known["L"]:
            raise InputError(
                f"`{name}` must be at least {_FLATTEST:g} L, got {known[name]:g} with L = {known['L']:g}; they are "
                "too far apart for double precision"
            )
    numbers = Known(known["L"], known.get("mu_h"), known["mu_g"], number("noise", noise, 0))
    note = f"L = {numbers.L:g} is below 1, which the proofs use: they are applied to F/L, G/L and h/L"
    return numbers, (note,) if numbers.L < 1 else ()


def whole_steps(name: str, value: float) -> int:
    """A number of steps, as an integer that 32 bits can count."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    new = float(value) if real and 0 < value <= LAST_STEP else math.nan
    if not new.is_integer():
        raise InputError(
            f"`{name}` must be a whole number in [1, 2³¹], got {shown(value)}; steps are counted in 32 bits"
        )
    return int(new)
