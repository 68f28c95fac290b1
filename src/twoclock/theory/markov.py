"""Certificates for samples along a Markov chain: the tight proof on averages corrected by the Poisson equation.

The noise of a chain is a martingale difference plus the change of the solution ν of its Poisson equation. So Δ̃f = Δf +
λ₋ν has martingale noise alone, and the rest is of order λ². The proof is in docs/certificates.md.
"""

from __future__ import annotations

import numpy as np

from twoclock.theory.certificate import Certificate, Condition
from twoclock.theory.lyapunov_search import ProofCase, conditions, noise_gain, search, speed

# The required decrease of V, in units of 1/n: 2 for the bound, and 1 for the terms of order λ².
_FALL = 3.0


def certificate(
    structure: str, L: float, mu_h: float, mu_g: tuple[float, ...], noise: float, method: str, *, mixing: float
) -> Certificate:
    """Steps of ``Fast`` on two levels, h strongly convex, for samples of a chain whose mixing time is bounded."""
    known = ProofCase(method, structure, L, (mu_h, *mu_g), drift=2.0)
    ratios, D, e = search(known)
    e = min(e, (1 - 1e-9) / (mixing * ratios[-1]))  # λ₀ times the mixing time is at most 1
    scale = _FALL / speed(known, ratios, D, e) * (1 + 1e-6)
    tau = scale / e - 1
    c = tuple((scale * ratios).tolist())
    alpha, beta, lam = c
    # The second-order terms of each row, in units of ε² and of the size of ν; λ₋ is at most (1 + 1/τ)λ.
    extra = (1 + 1 / tau) * lam * np.array([alpha, beta + L * alpha, *[2 * L * (alpha + beta) + lam] * 2])
    first = 1 / (tau + 1)
    A = mixing**2 * (noise_gain(known, c, D) + first * (1 + first) * float(extra**2 @ D))
    found = (
        *conditions(known, c, tuple(D.tolist()), tau, _FALL),
        Condition("λ₀ times the mixing time ≤ 1", lam * first * mixing, 1.0),
        Condition("½ ≤ c_λ", 0.5, lam),
    )
    return Certificate(
        structure, "tight", method, L, mu_h, mu_g, noise, c, tau, tuple(D.tolist()), A, 2.0, found, mixing=mixing
    )
