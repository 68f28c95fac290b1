"""Certificates: step sizes, the inequalities behind them, what turns a descent into a rate, and the bound they buy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Union

import numpy as np
from numpy.typing import NDArray

from twoclock.methods import Fast
from twoclock.protocols import InputError, html_table
from twoclock.schedules import Power
from twoclock.validation import short_repr
from twoclock.validation.arrays import as_array

METRICS = {"strongly-convex": "error", "pl": "gap", "non-convex": "gradient"}
Numbers = float | NDArray[np.float64]
# An inequality by name, with its two sides as functions of (α, β, λ).
Rule = tuple[str, Callable[[Numbers, Numbers, Numbers], tuple[Numbers, Numbers]]]
InitialErrorsLike = Union["InitialErrors", Mapping[str, float], Sequence[float], float]

LAST_STEP = 2**31  # steps are counted in 32 bits

_NAMES = {
    "x": ("x", "x0", "z", "z0", "h", "error", "gap"),
    "y": ("y", "y0", "tracking"),
    "f": ("f", "f0", "df", "df0", "delta_f"),
    "g": ("g", "g0", "dg", "dg0", "delta_g"),
}


@dataclasses.dataclass(frozen=True)
class Condition:
    """One inequality ``left ≤ right`` of a proof; its name is the inequality as written in docs/certificates.md."""

    name: str
    left: float
    right: float

    @property
    def slack(self) -> float:
        """How much room the inequality leaves."""
        return self.right - self.left

    @property
    def holds(self) -> bool:
        """Whether the inequality holds."""
        return bool(self.left <= self.right)


@dataclasses.dataclass(frozen=True)
class InitialErrors:
    """Where a run begins, in squares: x is ‖θ₀−θ*‖² for strongly convex h, h(θ₀)−h* otherwise."""

    x: float
    y: float  # ‖ω₀−ω*(θ₀)‖²
    f: float  # ‖f₀−F(θ₀, ω₀)‖²; ``Fast`` begins with f₀ = 0
    g: float  # ‖g₀−G(θ₀, ω₀)‖²

    @classmethod
    def read(cls, value: InitialErrorsLike) -> InitialErrors:
        """A start from a start, a mapping, four numbers, or one number for all four."""
        if isinstance(value, InitialErrors):
            return value
        if isinstance(value, Mapping):
            found = {field: [value[name] for name in names if name in value] for field, names in _NAMES.items()}
            if unclear := [field for field, values in found.items() if len(values) != 1]:
                names = ", ".join(_NAMES[unclear[0]])
                raise InputError(
                    f"`start` must name its four numbers once each; for `{unclear[0]}` give one of {names}"
                )
            value = [values[0] for values in found.values()]
        numbers = np.broadcast_to(np.asarray(value, float), (4,)) if np.ndim(value) == 0 else np.asarray(value, float)
        if numbers.shape != (4,) or not np.all(np.isfinite(numbers)) or np.any(numbers < 0):
            raise InputError(
                "`start` must be four finite numbers that are not negative (x, y, ‖Δf‖², ‖Δg‖²); "
                "`tc.theory.start(problem, structure)` gives them"
            )
        return cls(*(float(v) for v in numbers))


@dataclasses.dataclass(frozen=True, repr=False)
class Certificate:
    """Step sizes for ``Fast`` with a proof that they work, and how well.

        1/k steps:    E m_k ≤ [τ²V₀ + A·B·k]/(k+τ)²                        m = ‖θ−θ*‖² (strongly convex) or h−h* (PL)
        1/√k steps:   min_{t≤k} E‖∇h(θ_t)‖² ≤ [V₀ + A·B·(1+log(k+1))]/(r√(k+1))     (non-convex)

    with V = x + D_y y + D_f‖Δf‖² + D_g‖Δg‖² and B the noise level. ``certify`` makes certificates.
    """

    structure: str
    proof: str
    L: float
    mu_h: float | None
    mu_g: float
    noise: float
    c: tuple[float, float, float]
    tau: float
    weights: tuple[float, float, float, float]
    A: float
    rate: float
    conditions: tuple[Condition, ...]
    notes: tuple[str, ...] = ()

    @property
    def metric(self) -> str:
        """The recorded metric that the bound is about."""
        return METRICS[self.structure]

    @property
    def alpha(self) -> Power:
        """The certified schedule of θ."""
        return self._schedule(0)

    @property
    def beta(self) -> Power:
        """The certified schedule of ω."""
        return self._schedule(1)

    @property
    def lam(self) -> Power:
        """The certified averaging weight."""
        return self._schedule(2)

    def _schedule(self, i: int) -> Power:
        return Power(self.c[i], p=0.5 if self.structure == "non-convex" else 1.0, shift=self.tau + 1)

    def method(self) -> Fast:
        """Algorithm 1 with the certified step sizes."""
        return Fast(self.alpha, self.beta, self.lam, order="paper")

    def bound(self, k: Numbers, start: InitialErrorsLike) -> Numbers:
        """What the metric's mean cannot exceed after k steps, a number or an array, from ``start``: `InitialErrors`."""
        steps = as_array("bound(k=…)", k)
        if not np.all((steps >= 0) & (steps <= LAST_STEP)):
            raise InputError(f"`bound(k=…)` must lie in [0, 2³¹], got {short_repr(k)}; steps are counted in 32 bits")
        s = InitialErrors.read(start)
        v0 = float(np.dot(self.weights, (s.x, s.y, s.f, s.g)))
        if self.structure == "non-convex":
            value = (v0 + self.A * self.noise * (1 + np.log(steps + 1))) / (self.rate * np.sqrt(steps + 1))
        else:
            n = steps + self.tau
            value = v0 * (self.tau / n) ** 2 + self.A * self.noise / n * (steps / n)
        return float(value) if value.ndim == 0 else value

    def __str__(self) -> str:
        a, b, c = self.alpha, self.beta, self.lam
        return f"{self.structure} ({self.proof} proof): alpha={a}, beta={b}, lam={c}; A={self.A:.3g}"

    def __repr__(self) -> str:
        kept = sum(condition.holds for condition in self.conditions)
        return f"Certificate({self}; {kept} of {len(self.conditions)} conditions hold)"

    def _repr_html_(self) -> str:
        rows = [(c.name, f"{c.left:.4g}", f"{c.right:.4g}", "holds" if c.holds else "fails") for c in self.conditions]
        return html_table(f"Certificate: {self}", ("condition", "left", "right", ""), rows, "; ".join(self.notes))


def rate_conditions(
    structure: str, name: str, fall: Numbers, promised: float, lam: Numbers, lam0: float, n: Numbers, n0: float
) -> list[tuple[str, Numbers, Numbers]]:
    """What turns the descent of V into a rate: name, left and right side of two inequalities, with n = k + n₀.

        1/k steps     V₊ ≤ (1 − 2/n)V + A·B/n²                   asks 2/n ≤ fall of V and λ ≤ λ₀·n₀/n
        1/√k steps    V₊ ≤ V − r√(n₀/n)·‖∇h‖² + A·B·n₀/n         asks r√(n₀/n) ≤ fall of V and λ ≤ λ₀·√(n₀/n)

    A certificate asks for both at its first step, n = n₀, where they are hardest; ``check`` follows them along a user's
    own schedules. Without the second, constant steps would pass: V falls at each, down to a floor of noise. ``fall`` is
    how much V falls at step n, its share of V, or of ‖∇h‖² for non-convex h, and ``promised`` is r.
    """
    if structure == "non-convex":
        share = np.sqrt(n0 / n)
        return [(f"r√(n₀/n) ≤ {name}", promised * share, fall), ("λ ≤ λ₀√(n₀/n)", lam, lam0 * share)]
    return [(f"2/n ≤ {name}", 2 / n, fall), ("λ ≤ λ₀n₀/n", lam, lam0 * (n0 / n))]
