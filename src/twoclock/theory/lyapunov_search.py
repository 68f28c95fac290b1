"""The tight proof: one recursion in norms, a weighted Lyapunov function, and a search for its weights.

With e = (e₀, √y, ‖Δf‖, ‖Δg‖) in root mean squares, a step gives e₊ ≤ (I − N)e and noise λ√B in the last two, where N
has the rows below in (α, β, λ); V = Σ D_i e_i² (with x or h−h* in the first place) then falls by a quadratic form in e.
How much it falls is the smallest eigenvalue of that form relative to a diagonal. Everything is in docs/certificates.md.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from twoclock.theory.certificate import Certificate, Condition, Rule, rate_conditions

Array = NDArray[np.float64]
Steps = Array | tuple[float, float, float]  # (α, β, λ), or their ratios
Weights = Array | tuple[float, float, float, float]  # D

# What the search weighs against each other: A·√τ for 1/k steps; for 1/√k steps the start against ten units of noise,
# about what 1+log(k+1) comes to in a real run.
_TAU_POWER, _NOISE_WEIGHT = 0.5, 10.0

FALL = "fall of one V for all k"


def comparison(structure: str, c: Steps, eps: float, L: float, mu_h: float | None, mu_g: float) -> Array:
    """The matrix N at steps (α, β, λ) = eps·c, divided by eps; its first row counts for strongly convex h only."""
    a, b, l = c
    s = L * L if structure == "strongly-convex" else L  # ‖∇h‖ ≤ L‖θ−θ*‖, or e₀ is ‖∇h‖ itself
    return np.array(
        [
            [a * (mu_h or 0.0), -a * L, -a, 0.0],
            [-a * s, b * mu_g - eps * (b * L) ** 2 / 2 - a * L**2, -a * L, -b],
            [-a * s, -(a + b) * L**2, l - a * L, -b * L],
            [-a * s, -(a + b) * L**2, -a * L, l - b * L],
        ]
    )


def descent(structure: str, c: Steps, D: Weights, eps: float, L: float, mu_h: float | None, mu_g: float) -> Array:
    """The symmetric matrix Q with (V − V₊)/eps ≥ eᵀQe, noise apart, at steps eps·c."""
    N = comparison(structure, c, eps, L, mu_h, mu_g)
    weights = np.array(D, float)
    if structure != "strongly-convex":
        weights[0] = 0.0
    DN = weights[:, None] * N
    Q: Array = DN + DN.T - eps * (N.T @ DN)
    if structure != "strongly-convex":  # h₊ ≤ h − (α/2)‖∇h‖² + (α/2)(‖Δf‖ + L√y)²
        v = np.array([0.0, L, 1.0, 0.0])
        Q = Q - c[0] / 2 * np.outer(v, v)
        Q[0, 0] += c[0] / 2
    return Q


def speed(structure: str, c: Steps, D: Weights, eps: float, L: float, mu_h: float | None, mu_g: float) -> float:
    """How fast V falls at steps eps·c: the largest r with V₊ ≤ (1 − r·eps)V, or V₊ ≤ V − r·eps‖∇h‖² (non-convex).

    It is the smallest eigenvalue of Q relative to a diagonal, −inf where Q is not positive definite.
    """
    relative = np.array(D, float)
    if structure == "pl":
        relative[0] = 1 / (2 * mu_h) if mu_h else math.inf  # h−h* ≤ ‖∇h‖²/(2μ_h)
    if structure == "non-convex":
        relative = np.array([1.0, 0.0, 0.0, 0.0])
    Q = descent(structure, c, D, eps, L, mu_h, mu_g)
    diagonal = np.diag(Q)
    if not np.all(np.isfinite(Q)) or np.any(diagonal <= 0):
        return -math.inf
    # By way of the inverse of Q scaled to a unit diagonal: it keeps its digits where the entries span twenty decades.
    scale = 1 / np.sqrt(diagonal)
    try:
        lower = np.linalg.cholesky(Q * np.outer(scale, scale))
    except np.linalg.LinAlgError:
        return -math.inf
    root = np.linalg.inv(lower) * (scale * np.sqrt(relative))
    return float(1 / np.linalg.eigvalsh(root.T @ root)[-1])


def rules(structure: str, L: float, mu_h: float | None) -> list[Rule]:
    """What the recursion in norms asks of every (α_k, β_k, λ_k)."""
    largest, text = (2 / (L + (mu_h or 0.0)), "2/(L+μ_h)") if structure == "strongly-convex" else (1 / L, "1/L")
    return [(f"α ≤ {text}", lambda a, b, c: (a, largest)), ("λ ≤ 1", lambda a, b, c: (c, 1.0))]


def margin(structure: str, steps: Steps, L: float, mu_h: float | None, mu_g: float) -> tuple[float, Array]:
    """1 − ρ of the nonnegative matrix K that bounds a step at (α, β, λ), from below, and weights for which V falls.

    Weights exist if and only if the spectral radius ρ is below 1. For PL and non-convex h the first row of K is
    (0, L, 1, 0): it bounds ‖f−∇h‖, which enters with the same weight α/2 with which ‖∇h‖ leaves.
    """
    N = comparison(structure, steps, 1.0, L, mu_h, mu_g)
    if structure != "strongly-convex":
        N[0] = 1.0, -L, -1.0, 0.0
    try:
        v, u = np.linalg.solve(N, np.ones(4)), np.linalg.solve(N.T, np.ones(4))
    except np.linalg.LinAlgError:
        return 0.0, np.ones(4)
    if min(v.min(), u.min()) <= 0:  # not an M-matrix
        return min(1 - float(np.abs(np.linalg.eigvals(np.eye(4) - N)).max()), 0.0), np.ones(4)
    D = (u / v) / (u[0] / v[0])
    # Kv = v − 1 ≤ (1 − 1/max v)v; the eigenvalue itself would drown in rounding where steps are tiny.
    return float(1 / v.max()), D if structure == "strongly-convex" else D * steps[0] / 2


def initial_guess(structure: str, L: float, mu_h: float | None, mu_g: float) -> tuple[float, float, Array]:
    """Ratios c_α/c_β and c_λ/c_β and weights D at which V falls for all L ≥ 1 and μ ≤ L: where the search begins."""
    if structure != "strongly-convex":
        return mu_g / (40 * L**2), 40 * L**2 / mu_g, np.array([1.0, 1.0, L**-2, L**-2])
    r1, r2 = (mu_h or 0.0) * mu_g / (16 * L**3), 12 * L**2 / mu_g
    N = comparison(structure, (r1, 1.0, r2), 0.0, L, mu_h, mu_g)  # a nonsingular M-matrix, so v and u are positive
    v, u = np.linalg.solve(N, np.ones(4)), np.linalg.solve(N.T, np.ones(4))
    return r1, r2, (u / v) / (u[0] / v[0])


def certificate(structure: str, L: float, mu_h: float | None, mu_g: float, noise: float) -> Certificate:
    known = (L, mu_h, mu_g)
    ratios, D, e = _search(structure, *known)
    r = speed(structure, ratios, D, e, *known)
    # Non-convex: steps e·ratios over √(k+1). Else the scale at which V contracts by 2/n, and 1/(τ+1) = e/scale.
    scale = e if structure == "non-convex" else 2 / r * (1 + 1e-6)
    tau = 0.0 if structure == "non-convex" else scale / e - 1
    c = (float(scale * ratios[0]), float(scale), float(scale * ratios[2]))
    A = float(c[2] ** 2 * (D[2] + D[3]))
    promised = 2.0 if structure != "non-convex" else r * e * (1 - 1e-6)
    weights = (1.0, float(D[1]), float(D[2]), float(D[3]))
    found = conditions(structure, c, weights, tau, promised, *known)
    return Certificate(structure, "tight", L, mu_h, mu_g, noise, c, tau, weights, A, promised, found)


@lru_cache(maxsize=1024)  # a fifth of a second each; the noise plays no part
def _search(structure: str, L: float, mu_h: float | None, mu_g: float) -> tuple[Array, Array, float]:
    """Where the bound is best: ratios of the steps, weights, and the first step, not too large."""
    from scipy.optimize import minimize  # slow to load, and needed here alone

    known = (L, mu_h, mu_g)
    largest_alpha = 2 / (L + (mu_h or 0.0)) if structure == "strongly-convex" else 1 / L

    def read(x: Array) -> tuple[Array, Array, float]:
        """From the logarithms of two ratios, of three weights and of the first step."""
        ratios, D = np.exp([x[0], 0.0, x[1]]), np.exp([0.0, *x[2:5]])
        return ratios, D, min(math.exp(min(x[5], 50.0)), (1 - 1e-9) / ratios[2], (1 - 1e-9) * largest_alpha / ratios[0])

    def cost(x: Array) -> float:
        ratios, D, e = read(x)
        r = speed(structure, ratios, D, e, *known)
        if r <= 0:
            return math.inf
        if structure == "non-convex":
            return math.log((1 + _NOISE_WEIGHT * (e * ratios[2]) ** 2 * (D[2] + D[3])) / (r * e))
        return math.log((ratios[2] / r) ** 2 * (D[2] + D[3])) + _TAU_POWER * math.log(1 / (r * e))

    r1, r2, D = initial_guess(structure, *known)
    x = np.log([r1, r2, *D[1:], 1e-2 / r2])
    before = cost(x)
    for _ in range(8):  # started again from where it stalled, with a simplex of full size
        with np.errstate(over="ignore", invalid="ignore"):
            x = minimize(cost, x, method="Nelder-Mead", options={"maxfev": 600, "xatol": 1e-3, "fatol": 1e-4}).x
        if before - (before := cost(x)) < 1e-3:
            break
    return read(x)


def conditions(
    structure: str, c: Steps, D: Weights, tau: float, promised: float, L: float, mu_h: float | None, mu_g: float
) -> tuple[Condition, ...]:
    """The inequalities of the tight proof at the first step, where they are hardest."""
    n = tau + 1
    alpha, beta, lam = (v / n for v in c)
    sides = [(name, *rule(alpha, beta, lam)) for name, rule in rules(structure, L, mu_h)]
    fall = speed(structure, c, D, 1 / n, L, mu_h, mu_g) / n
    sides += [
        ("0 ≤ smallest weight", 0.0, min(D)),
        *rate_conditions(structure, FALL, fall, promised, lam, lam, n, n),
    ]
    return tuple(Condition(name, float(left), float(right)) for name, left, right in sides)
