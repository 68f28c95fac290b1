"""The step-size conditions of Theorems 1 and 2 as they are printed: the largest steps that meet them, if any do."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import twoclock as tc
from twoclock import Method, Problem, Result, theory


class PrintedSteps(NamedTuple):
    """c_α, c_β, c_λ and τ of steps c/(k + τ + 1)."""

    alpha: float
    beta: float
    lam: float
    tau: float

    def method(self) -> Method:
        alpha, beta, lam = (tc.Power(c, shift=self.tau + 1) for c in (self.alpha, self.beta, self.lam))
        return tc.Fast(alpha, beta, lam, order="paper")


def first(L: float, mu_h: float, mu_g: float) -> PrintedSteps:
    """Theorem 1's, Appendix A: c_α ≥ 8/μ_h, then the least c_β, c_λ and τ that its list allows."""
    m, g, M = mu_h, mu_g, (L + 1) ** 6
    alpha = 8 / m
    beta = alpha / min(1, 8 * g / m, m * g / (152 * M), g / (8 * (8 * L**4 + 9 * L**2 / g)))
    by_f, by_g = 4 * (56 * L**2 + 4.5 / m), 4 * (48 * L**2 + 10 * L / g)
    lam = max(beta * max(1, by_f, by_g), alpha * max(m, by_g))
    first_step = max(2.0, 4 * lam, beta * max(240 * M, g, 168 * L**4 / g), 6 * (L + 1) ** 4 * alpha / m)
    return PrintedSteps(alpha, beta, lam, first_step - 1)


def second(L: float, mu_h: float, mu_g: float) -> tuple[float, float]:
    """Theorem 2's, Appendix B: the least c_β that α ≤ β and c_α ≥ 2/min(μ_h, μ_G) allow, and the most of the others.

    No steps meet them for any constants: c_β ≤ 1/L, and c_β ≥ c_α ≥ 2/μ_G ≥ 2/L, since μ_G ≤ L.
    """
    return 2 / min(mu_h, mu_g), min(1 / L, mu_h**3 / (480 * (L + 1) ** 6), mu_g / (8 * L**2))


def gentle() -> Problem:
    """A quadratic with the constants at which Theorem 1's printed steps are nearly the largest, in little noise."""
    return tc.problems.quadratic(dim=2, mu_h=0.315, mu_g=0.315, top=0.315, rotation=0.0, coupling=0.18, sigma=1e-5)


def bound(problem: Problem, steps: PrintedSteps, k: np.ndarray) -> np.ndarray:
    """Theorem 1's bound as printed, B·τ²/(k+τ) + τ²V₀/(k+τ)², for E‖θ_k−θ*‖²."""
    start = theory.start(problem, "strongly-convex")
    noise, later = theory.constants(problem)["noise"], k + steps.tau
    v0 = start.x + start.y + start.f + start.g
    return np.asarray(noise * steps.tau**2 / later + v0 * (steps.tau / later) ** 2)


def of_gentle() -> PrintedSteps:
    constants = theory.constants(gentle())
    return first(constants["L"], constants["mu_h"], constants["mu_g"])


def moved(result: Result, metric: str) -> float:
    """The metric's mean at the end over that at the start."""
    mean = result.summary(metric)["mean"]
    return float(mean.iloc[-1] / mean.iloc[0])
