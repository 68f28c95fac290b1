"""Certificates: step sizes, the inequalities behind them, the conditions for a rate, and the bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Union

import numpy as np
from numpy.typing import NDArray

from twoclock.methods import Fast, Standard
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
# Closed forms meet some of their conditions with equality; this margin absorbs rounding.
MARGIN = 1 + 1e-9
ORDER: list[Rule] = [
    ("α ≤ β", lambda a, b, c: (a, b)),
    ("β ≤ λ", lambda a, b, c: (b, c)),
    ("λ ≤ 1/4", lambda a, b, c: (c, 0.25)),
]

_NAMES = {
    "x": ("x", "x0", "z", "z0", "h", "error", "gap"),
    "y": ("y", "y0", "tracking"),
    "f": ("f", "f0", "df", "df0", "delta_f"),
    "g": ("g", "g0", "dg", "dg0", "delta_g"),
}


@dataclasses.dataclass(frozen=True)
class Condition:
    """One inequality ``left ≤ right`` of a proof; its name is the inequality as written in docs/certificates.md.

    Args:
        name: the inequality.
        left, right: its two sides.

    >>> Condition("c_α ≤ c_β", 1.0, 2.0).slack
    1.0
    """

    name: str
    left: float
    right: float

    @property
    def slack(self) -> float:
        """The slack of the inequality."""
        return self.right - self.left

    @property
    def holds(self) -> bool:
        """Whether the inequality holds."""
        return bool(self.left <= self.right)


@dataclasses.dataclass(frozen=True)
class InitialErrors:
    """The squared errors at the start.

    Attributes:
        x: ‖θ₀−θ*‖² for strongly convex h, h(θ₀)−h* otherwise.
        y: ‖ω₀−ω*(θ₀)‖².
        f: ‖f₀−F(θ₀, ω₀)‖²; ``Fast`` begins with f₀ = 0 unless it is given.
        g: ‖g₀−G(θ₀, ω₀)‖².

    >>> import twoclock as tc
    >>> certificate = tc.certify("strongly-convex", L=1.0, mu_h=0.9, mu_g=0.9, noise=0.5)
    >>> start = tc.theory.InitialErrors(x=1.0, y=1.0, f=0.0, g=0.0)
    >>> bool(certificate.bound(10**9, start) < certificate.bound(10**3, start))
    True
    """

    x: float
    y: float
    f: float
    g: float


def as_conditions(sides: Iterable[tuple[str, Numbers, Numbers]]) -> tuple[Condition, ...]:
    """Inequalities from their names and sides."""
    return tuple(Condition(name, float(left), float(right)) for name, left, right in sides)


def _read_start(value: InitialErrorsLike, levels: int, averages: bool) -> NDArray[np.float64]:
    """The squares of a start: a mapping, a number for each level (twice with averages), or one for all."""
    count = 2 * levels if averages else levels
    if isinstance(value, InitialErrors):
        value = dataclasses.astuple(value)
    if isinstance(value, Mapping):
        needed = {field: names for field, names in _NAMES.items() if averages or field in "xy"}
        found = {field: [value[name] for name in names if name in value] for field, names in needed.items()}
        if unclear := [field for field, values in found.items() if len(values) != 1]:
            names = ", ".join(_NAMES[unclear[0]])
            raise InputError(f"`start` must name each of its numbers once; for `{unclear[0]}` give one of {names}")
        value = [values[0] for values in found.values()]
    given = as_array("start", value)
    numbers = np.full(count, given) if given.ndim == 0 else given
    if numbers.shape not in ((count,), (2 * levels,)) or np.any(numbers < 0):
        raise InputError(
            f"`start` must be {count} finite numbers that are not negative: the squared distance of each level (x, y, "
            f"…){', then ‖Δf‖², ‖Δg‖², …' if averages else ''}; `tc.theory.start(problem, structure)` gives them"
        )
    return numbers[:count]


@dataclasses.dataclass(frozen=True, repr=False)
class Certificate:
    """Step sizes for ``Fast`` or ``Standard`` with a proof and a bound on the error.

        1/k steps:    E m_k ≤ [τ²V₀ + A·B·k]/(k+τ)²                        m = ‖θ−θ*‖² (strongly convex) or h−h* (PL)
        1/√k steps:   min_{t≤k} E‖∇h(θ_t)‖² ≤ [V₀ + A·B·(1+log(k+1))]/(r√(k+1))     (non-convex)

    with V = x + D_y y + D_f‖Δf‖² + D_g‖Δg‖² and B the noise level. With ``mixing`` the √(k+1) of the second is
    (k+1)/√(k+1+τ). For ``Standard`` V₀ = D_x x + D_y y. As printed
    (``proof="printed"``) the bounds are τ²V₀/(k+τ)² + Bτ²/(k+τ) and [32V₀ + 4 log(k+2)]/(α₀√(k+1)), which lacks B.
    ``certify`` makes it.

    Attributes:
        mu_g: one number, or one per fast level.
        c: c_α, c_β of each fast level, and c_λ, which for ``Standard`` occurs in the proof alone.
        weights: D, those of the distances of all levels first.
        mixing: the mixing time that it assumes; 0 for independent samples.
        structure, proof: as in ``certify``.
        of: the method, "fast" or "standard".
        L, mu_h, noise, growth: the constants as in ``certify``.
        tau: τ, the shift of the steps.
        A: the A of the bound.
        rate: the r of the bound; used for non-convex h alone.
        conditions: the inequalities of the proof.
        notes: what was changed in the constants, and other remarks.
    """

    structure: str
    proof: str
    of: str
    L: float
    mu_h: float | None
    mu_g: float | tuple[float, ...]
    noise: float
    c: tuple[float, ...]
    tau: float
    weights: tuple[float, ...]
    A: float
    rate: float
    conditions: tuple[Condition, ...]
    notes: tuple[str, ...] = ()
    growth: float = 0.0
    mixing: float = 0.0

    @property
    def metric(self) -> str:
        """The recorded metric that the bound is about."""
        return METRICS[self.structure]

    @property
    def alpha(self) -> Power:
        """The certified schedule of θ."""
        return self._schedule(0)

    @property
    def beta(self) -> Power | tuple[Power, ...]:
        """The certified schedule of ω, or one per level."""
        found = tuple(self._schedule(i) for i in range(1, len(self.c) - 1))
        return found if len(found) > 1 else found[0]

    @property
    def lam(self) -> Power:
        """The certified averaging weight; for ``Standard`` that of its proof, which the method does not use."""
        return self._schedule(-1)

    def _schedule(self, i: int) -> Power:
        return Power(self.c[i], p=0.5 if self.structure == "non-convex" else 1.0, shift=self.tau + 1)

    def method(self) -> Fast | Standard:
        """The method with the certified step sizes."""
        if self.of == "standard":
            return Standard(self.alpha, self.beta)
        return Fast(self.alpha, self.beta, self.lam, order="paper")

    def bound(self, k: Numbers, start: InitialErrorsLike) -> Numbers:
        """The bound on the metric's mean after k steps, a number or an array, from ``start``: `InitialErrors`.

        Args:
            k: the number of steps.
            start: the squared errors at the start.
        """
        steps = as_array("bound(k=…)", k)
        if not np.all((steps >= 0) & (steps <= LAST_STEP)):
            raise InputError(f"`bound(k=…)` must lie in [0, 2³¹], got {short_repr(k)}; steps are counted in 32 bits")
        # The average that Standard's proof keeps begins at 0.
        squares = _read_start(start, len(self.c) - 1, averages=self.of == "fast")
        if self.mixing:  # the averages in its proof differ from the run's by λ times a solution of Poisson's equation
            lam = self.c[-1] / (np.sqrt(self.tau + 1) if self.structure == "non-convex" else self.tau)
            size = lam * self.mixing * np.sqrt(self.noise)
            levels = len(self.c) - 1
            squares = np.concatenate([squares[:levels], (np.sqrt(squares[levels:]) + size) ** 2])
        v0 = float(np.dot(self.weights[: len(squares)], squares))
        if self.proof == "printed":
            value = self._printed_bound(steps, v0)
        elif self.structure == "non-convex":
            of_steps = self.rate * (steps + 1) / np.sqrt(steps + 1 + self.tau)
            value = (v0 + self.A * self.noise * (1 + np.log(steps + 1))) / of_steps
        else:
            n = steps + self.tau
            value = v0 * (self.tau / n) ** 2 + self.A * self.noise / n * (steps / n)
        return float(value) if value.ndim == 0 else value

    def _printed_bound(self, k: NDArray[np.float64], v0: float) -> NDArray[np.float64]:
        if self.structure == "non-convex":
            return np.asarray((32 * v0 + 4 * np.log(k + 2)) / (self.c[0] * np.sqrt(k + 1)))
        n = k + self.tau
        return np.asarray(v0 * (self.tau / n) ** 2 + self.noise * self.tau**2 / n)

    def __str__(self) -> str:
        beta = self.beta if isinstance(self.beta, Power) else f"({', '.join(map(str, self.beta))})"
        steps = f"alpha={self.alpha}, beta={beta}" + (f", lam={self.lam}" if self.of == "fast" else "")
        return f"{self.structure} ({self.proof} proof): {steps}; A={self.A:.3g}"

    def __repr__(self) -> str:
        kept = sum(condition.holds for condition in self.conditions)
        return f"Certificate({self}; {kept} of {len(self.conditions)} conditions hold)"

    def _repr_html_(self) -> str:
        rows = [(c.name, f"{c.left:.4g}", f"{c.right:.4g}", "holds" if c.holds else "fails") for c in self.conditions]
        return html_table(f"Certificate: {self}", ("condition", "left", "right", ""), rows, "; ".join(self.notes))


def rate_conditions(
    structure: str, name: str, fall: Numbers, promised: float, lam: Numbers, lam0: float, n: Numbers, n0: float
) -> list[tuple[str, Numbers, Numbers]]:
    """The conditions that turn the descent of V into a rate: name, left and right side of two inequalities, n = k + n₀.

        1/k steps     V₊ ≤ (1 − 2/n)V + A·B/n²                   asks 2/n ≤ fall of V and λ ≤ λ₀·n₀/n
        1/√k steps    V₊ ≤ V − r√(n₀/n)·‖∇h‖² + A·B·n₀/n         asks r√(n₀/n) ≤ fall of V and λ ≤ λ₀·√(n₀/n)

    A certificate asks for both at its first step, n = n₀, where they are hardest; ``check`` follows them along a user's
    own schedules. Without the second, constant steps would pass: V falls at each, down to a floor of noise. ``fall`` is
    the decrease of V at step n as a share of V, or of ‖∇h‖² for non-convex h, and ``promised`` is r.
    """
    if structure == "non-convex":
        share = np.sqrt(n0 / n)
        return [(f"r√(n₀/n) ≤ {name}", promised * share, fall), ("λ ≤ λ₀√(n₀/n)", lam, lam0 * share)]
    return [(f"2/n ≤ {name}", 2 / n, fall), ("λ ≤ λ₀n₀/n", lam, lam0 * (n0 / n))]
