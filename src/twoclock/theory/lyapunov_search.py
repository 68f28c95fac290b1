"""The tight proof: one recursion in norms, a weighted Lyapunov function, and a search for its weights.

Levels 1 … N, θ the first, have steps c_1 … c_N times ε, and a weight c_λ ε. In root mean squares, e = (d, r):

* d_i is the distance of level i from its solution given the levels before it: √z (or ‖∇h‖), √y, …
* r_i is the error of an average: Δf, Δg, … of ``Fast``. ``Standard`` has no average; its proof introduces one,
  u ← (1−λ)u − α·noise, and follows θ − u instead of θ.

A step gives e₊ ≤ (I − εN)e plus noise in r, and V = Σ D_i e_i² falls by a quadratic form in e. The decrease is the
smallest eigenvalue of that form relative to a diagonal. The proof is in docs/certificates.md.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twoclock.theory.certificate import Certificate, Condition, Rule, as_conditions, rate_conditions

Array = NDArray[np.float64]
Numbers = Array | tuple[float, ...]


class ProofCase(NamedTuple):
    """The setting of the proof: a method, the structure of h, and the constants.

    Attributes:
        mu: the constant of each level; the first is 0 for non-convex h.
        condition: high/low of the metric in which the mean of F at ω* is the gradient of h; 1 if it is ∇h.
        growth: B₁, by which the noise level grows with the squared distances of all levels.
        mixing: the mixing time of the chain that samples come from; 0 for independent samples.
    """

    method: str
    structure: str
    L: float
    mu: tuple[float, ...]
    condition: float = 1.0
    growth: float = 0.0
    mixing: float = 0.0


# The objective of the search: A·√τ for 1/k steps; for 1/√k steps the start plus ten units of noise, about the value of
# 1+log(k+1) in a real run.
_TAU_POWER, _NOISE_WEIGHT = 0.5, 10.0
# The share of each square's own contraction that pays for the terms of order ε² of a chain.
_SHARE = 0.25

FALL = "fall of one V for all k"


def _from_nest(i: int, levels: int, L: float) -> Array:
    """The error of operator i, as a row over d, since the levels after it are not at their nested solutions."""
    off = np.zeros((levels, levels))
    for j in range(i + 1, levels):  # level j is d_j from its solution, which moved with the levels between
        off[j] = L * off[i + 1 : j].sum(axis=0)
        off[j, j] += 1
    return L * np.concatenate([off.sum(axis=0), np.zeros(levels)])


def comparison(known: ProofCase, c: Numbers, eps: float) -> Array:
    """The matrix N at steps eps·c; its first row counts for strongly convex h only."""
    method, structure, L, mu = known[:4]
    n = len(mu)
    steps, lam, (d, r) = np.asarray(c[:n], float), c[n], np.eye(2 * n).reshape(2, n, 2 * n)
    off = np.array([_from_nest(i, n, L) for i in range(n)])
    size = L * d + off  # of each mean operator: L times the distance, or e₀ is ‖∇h‖ itself
    if structure != "strongly-convex":
        size[0] += (1 - L) * d[0]
    if method == "fast":
        moved = steps[:, None] * (size + r)
        error, last = steps[:, None] * (off + r), lam * r - (2 if known.mixing else 1) * L * moved.sum(axis=0)
    else:  # the operators are taken at θ and not at θ − u
        away = L * r.sum(axis=0)
        moved = steps[:, None] * (size + away) + lam * r
        error, last = steps[:, None] * (off + away) + lam * r, lam * r
    contracts = steps * mu - eps * (steps * L) ** 2 / 2 * (np.arange(n) > 0)
    drift = L * (np.cumsum(moved, axis=0) - moved)  # of a level's solution, with the levels before it
    return np.concatenate([contracts[:, None] * d - error - drift, last])


def direction_error(known: ProofCase, c: Numbers) -> Array:
    """The row v with ‖direction of θ − ∇h‖ ≤ v·e."""
    method, _, L, mu = known[:4]
    n = len(mu)
    r = np.eye(2 * n)[n:]
    own = r[0] if method == "fast" else L * r.sum(axis=0) + c[n] / c[0] * r[0]
    return _from_nest(0, n, L) + own


def distances(known: ProofCase) -> Array:
    """The rows that bound ‖θ − θ*‖ and the distance of each fast level from its solution by e."""
    method, structure, L, mu = known[:4]
    d, r = np.eye(2 * len(mu)).reshape(2, len(mu), -1)
    if structure == "pl":  # μ_h‖θ − θ*‖ ≤ ‖∇h‖
        d[0] /= mu[0]
    return d if method == "fast" else d + r + L * (np.cumsum(r, axis=0) - r)


def speed(known: ProofCase, c: Numbers, D: Numbers, eps: float) -> float:
    """The rate at which V falls at steps eps·c: the largest r with V₊ ≤ (1 − r·eps)V, or V₊ ≤ V − r·eps‖∇h‖²
    (non-convex).

    It is the smallest eigenvalue relative to a diagonal of the matrix Q with (V − V₊)/eps ≥ eᵀQe, noise apart; −inf
    where Q is not positive definite.
    """
    method, structure, L, mu = known[:4]
    n, weights = len(mu), np.array(D, float)
    if structure != "strongly-convex":
        weights[0] = 0.0
    N = comparison(known, c, eps)
    DN = weights[:, None] * N
    Q = DN + DN.T - eps * (N.T @ DN)
    if structure != "strongly-convex":  # h₊ ≤ h − (α/2)‖∇h‖² + (α/2)‖direction − ∇h‖²
        v = direction_error(known, c)
        Q -= (1 + _SHARE * bool(known.mixing)) * known.condition * c[0] / 2 * np.outer(v, v)
        Q[0, 0] += c[0] / 2
    if known.growth:
        away = distances(known)
        Q -= eps * known.growth * noise_gain(known, c, D, eps) * (away.T @ away)
    if known.mixing:
        stays = np.eye(2 * n) - eps * N
        Q -= stays.T @ ((weights * _shares(known, c))[:, None] * stays)
    diagonal = np.diag(Q)
    if not np.all(np.isfinite(Q)) or np.any(diagonal <= 0):
        return -math.inf
    # By the inverse of Q scaled to a unit diagonal, which is accurate even if the entries span twenty decades.
    scale = 1 / np.sqrt(diagonal)
    try:
        lower = np.linalg.cholesky(Q * np.outer(scale, scale))
    except np.linalg.LinAlgError:
        return -math.inf
    root = np.linalg.inv(lower) * scale
    if structure == "non-convex":  # ‖∇h(θ)‖ ≤ ‖∇h(θ − u)‖ + L‖u‖
        return float(1 / np.sum((root[:, 0] + L * root[:, n] * (method == "standard")) ** 2))
    relative = np.array(D, float)
    if structure == "pl":
        relative[0] = 1 / (2 * mu[0]) if mu[0] else math.inf  # h−h* ≤ ‖∇h‖²/(2μ_h)
    return float(1 / np.linalg.eigvalsh((root * np.sqrt(relative)).T @ (root * np.sqrt(relative)))[-1])


def rules(structure: str, L: float, mu_h: float | None) -> list[Rule]:
    """The conditions of the recursion in norms on every (α_k, β_k, λ_k)."""
    largest, text = (2 / (L + (mu_h or 0.0)), "2/(L+μ_h)") if structure == "strongly-convex" else (1 / L, "1/L")
    return [(f"α ≤ {text}", lambda a, *_: (a, largest)), ("λ ≤ 1", lambda *steps: (steps[-1], 1.0))]


def _m_matrix(N: Array) -> tuple[Array, Array] | None:
    """The positive v and u with Nv = 1 and Nᵀu = 1, where N is a nonsingular M-matrix."""
    one = np.ones(len(N))
    try:
        v, u = np.linalg.solve(N, one), np.linalg.solve(N.T, one)
    except np.linalg.LinAlgError:
        return None
    return (v.astype(float), u.astype(float)) if min(v.min(), u.min()) > 0 else None


def margin(known: ProofCase, steps: Numbers) -> tuple[float, Array]:
    """1 − ρ of the nonnegative matrix K that bounds a step, from below, and weights for which V falls.

    Weights exist if and only if the spectral radius ρ is below 1. For PL and non-convex h the first row of K bounds
    ‖direction − ∇h‖, which enters with the same weight α/2 with which ‖∇h‖ leaves.
    """
    N = comparison(known, steps, 1.0)
    convex = known[1] == "strongly-convex"
    if not convex:
        N[0] = np.eye(len(N))[0] - math.sqrt(known.condition) * direction_error(known, steps)
    found = _m_matrix(N)
    if found is None and not np.isfinite(N).all():
        return 0.0, np.ones(len(N))
    if found is None:
        with np.errstate(all="ignore"):
            return min(1 - float(np.abs(np.linalg.eigvals(np.eye(len(N)) - N)).max()), 0.0), np.ones(len(N))
    v, u = found
    D = (u / v) / (u[0] / v[0])
    # Kv = v − 1 ≤ (1 − 1/max v)v; the eigenvalue itself would drown in rounding where steps are tiny.
    return float(1 / v.max()), D if convex else D * steps[0] / 2


def initial_guess(known: ProofCase) -> tuple[Array, Array, float]:
    """Ratios of the steps, with that of the last level 1, weights D, and a first step at which V falls.

    For ``Fast`` on two levels they are closed forms that hold for all L ≥ 1 and μ ≤ L.
    """
    method, structure, L, mu = known[:4]
    if method == "fast" and len(mu) == 2:
        if structure != "strongly-convex":
            ratio = 40 * L**2 / mu[1] * known.condition
            guess = np.array([1 / ratio, 1.0, ratio]), np.array([1.0, 1.0, L**-2, L**-2]), 1e-2 / ratio
        else:
            c = np.array([mu[0] * mu[1] / (16 * L**3), 1.0, 12 * L**2 / mu[1]])
            v, u = _m_matrix(comparison(known, c, 0.0)) or (np.ones(4), np.ones(4))
            guess = c, (u / v) / (u[0] / v[0]), 1e-2 / c[2]
        c, D, first = guess
        for shrink in 4.0 ** -np.arange(100.0):  # growing noise needs smaller steps
            if speed(known, c, D, first * shrink) > 0:
                return c, D, first * shrink
    # Else set the levels apart, and λ, until N is an M-matrix, and take small steps until V falls.
    for apart in 4.0 ** np.arange(1, 100):
        for lam in 4.0 ** np.arange(0, 50):
            c = np.array([*apart ** -np.arange(len(mu) - 1.0, -1.0, -1.0), lam])
            fits, D = margin(known, c * 1e-9 / lam)
            if fits > 0:
                D = D / D[0] if structure == "strongly-convex" else np.array([1.0, *D[1:] * 1e9 * lam])
                firsts = 4.0 ** -np.arange(30.0 if known.growth == 0 else 100.0) / lam
                # Where V falls it falls at all smaller steps, too, and for most ratios it does not.
                if max(speed(known, c, D, firsts[i]) for i in (-1, len(firsts) // 2)) > 0:
                    return c, D, next(first for first in firsts if speed(known, c, D, first) > 0)
    raise ArithmeticError


def _shares(known: ProofCase, c: Numbers) -> Array:
    """The s of (x + δ)² ≤ (1 + sε)x² + (1 + 1/(sε))δ² for each entry of e."""
    n = len(known.mu)
    return _SHARE * np.concatenate([np.asarray(c[:n]) * known.mu, np.full(n, c[n])])


def noise_gain(known: ProofCase, c: Numbers, D: Numbers, eps: float, before: float = 1.0) -> float:
    """The A of V₊ ≤ (1 − …)V + A·B·ε² at steps ε·c: the noise that enters r, weighted.

    On a chain ε is the first step and ``before`` bounds the ratio of one step's λ to the next.
    """
    method, structure, L, mu = known[:4]
    n, weights = len(mu), np.asarray(D)
    steps, lam = np.asarray(c[:n]), c[n]
    into = np.full(n, lam) if method == "fast" else steps
    gain = float(np.sum(into**2 * weights[n:]))
    if not known.mixing:
        return gain
    # The terms of order ε² in each row, in units of the size of Poisson's solution.
    more = np.concatenate([steps + L * (np.cumsum(steps) - steps), np.full(n, 2 * L * steps.sum() + lam)])
    rows = slice(int(structure != "strongly-convex"), None)
    gain += eps * float(np.sum((weights * (before * lam * more) ** 2)[rows] * (eps + 1 / _shares(known, c)[rows])))
    if structure != "strongly-convex":
        gain += eps * known.condition * steps[0] / 2 * (1 + 1 / _SHARE) * (before * lam) ** 2
    return known.mixing**2 * gain


def metric_share(known: ProofCase, D: Numbers) -> float:
    """A bound on the metric of θ relative to V: (√z̃ + ‖u‖)² ≤ (1 + 1/D_u)(z̃ + D_u‖u‖²) for ``Standard``, else 1."""
    method, structure, L, mu = known[:4]
    if method == "fast" or structure == "non-convex":
        return 1.0
    return 1 + (1 if structure == "strongly-convex" else L / 2) / float(D[len(mu)])


def certificate(
    structure: str,
    L: float,
    mu_h: float | None,
    mu_g: tuple[float, ...],
    noise: float,
    method: str = "fast",
    *,
    condition: float = 1.0,
    growth: float = 0.0,
    mixing: float = 0.0,
) -> Certificate:
    known = ProofCase(method, structure, L, (mu_h or 0.0, *mu_g), condition, growth, mixing)
    ratios, D, e = search(known)
    r = speed(known, ratios, D, e)
    if structure == "non-convex":  # the first step is e·ratios; on a chain λ₀(τ+1) is at least ½
        tau = max(0.0, 0.5 * (1 + 1e-9) / (e * ratios[-1]) - 1) if mixing else 0.0
        scale, before = e * math.sqrt(tau + 1), math.sqrt(1 + 1 / (tau + 1))
        promised = r * scale * (1 - 1e-6)
    else:  # the scale at which V contracts by 2/n, and 1/(τ+1) = e/scale
        scale, promised = 2 / r * (1 + 1e-6), 2.0
        tau = scale / e - 1
        before = 1 + 1 / tau
    c, weights = tuple((scale * ratios).tolist()), tuple(D.tolist())
    share = metric_share(known, D)
    found = conditions(known, c, weights, tau, promised)
    return Certificate(
        structure, "tight", method, L, mu_h, mu_g, noise, c, tau, tuple((share * D).tolist()),
        share * noise_gain(known, c, D, e / scale, before), promised, found, mixing=mixing,
    )  # fmt: skip


@lru_cache(maxsize=1024)  # a fifth of a second each; the noise plays no part
def search(known: ProofCase) -> tuple[Array, Array, float]:
    """The minimiser of the bound: ratios of the steps, weights, and the first step, not too large."""
    from scipy.optimize import minimize  # slow to load, and needed here alone

    _, structure, L, mu = known[:4]
    n, largest_alpha = len(mu), 2 / (L + mu[0]) if structure == "strongly-convex" else 1 / L
    largest_lam = 1 / max(1.0, known.mixing)

    def read(x: Array) -> tuple[Array, Array, float]:
        """Read the logarithms of n ratios, of 2n − 1 weights and of the first step."""
        ratios, D = np.exp([*x[: n - 1], 0.0, x[n - 1]]), np.exp([0.0, *x[n:-1]])
        largest = (1 - 1e-9) * largest_lam / ratios[n], (1 - 1e-9) * largest_alpha / ratios[0]
        return ratios, D, min(math.exp(min(x[-1], 50.0)), *largest)

    def cost(x: Array) -> float:
        ratios, D, e = read(x)
        r, gain = speed(known, ratios, D, e), noise_gain(known, ratios, D, e)
        if r <= 0:
            return math.inf
        if structure == "non-convex":
            return math.log((1 + _NOISE_WEIGHT * e**2 * gain) / (r * e))
        return math.log(metric_share(known, D) * gain / r**2) + _TAU_POWER * math.log(1 / (r * e))

    c, D, e = initial_guess(known)
    x = np.log([*c[: n - 1], c[n], *D[1:], e])
    before = cost(x)
    for _ in range(8 if n == 2 else 30):  # restarted from where it stalled, with a simplex of full size
        with np.errstate(over="ignore", invalid="ignore"):
            x = minimize(
                cost, x, method="Nelder-Mead",
                options={"maxfev": 300 * n, "xatol": 1e-3, "fatol": 1e-4, "adaptive": n > 2},
            ).x  # fmt: skip
        if before - (before := cost(x)) < 1e-3:
            break
    return read(x)


def conditions(known: ProofCase, c: Numbers, D: Numbers, tau: float, promised: float) -> tuple[Condition, ...]:
    """The inequalities of the tight proof at the first step, where they are hardest."""
    _, structure, L, mu = known[:4]
    n = tau + 1
    first = 1 / math.sqrt(n) if structure == "non-convex" else 1 / n
    steps = [v * first for v in c]
    lam, fall = steps[-1], speed(known, c, D, first) * first
    sides = [(name, *rule(*steps)) for name, rule in rules(structure, L, mu[0])]
    sides += [("0 ≤ smallest weight", 0.0, min(D))]
    sides += rate_conditions(structure, FALL, fall, promised * first, lam, lam, n, n)
    if known.mixing:
        sides += [("λ₀ times the mixing time ≤ 1", lam * known.mixing, 1.0), ("½ ≤ λ₀(τ+1)", 0.5, lam * n)]
    return as_conditions(sides)
