"""From a structure and its constants to a certificate, or to one line that says why there is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from twoclock.protocols import InputError
from twoclock.theory import lyapunov_search, paper_conditions
from twoclock.theory.arguments import Known, checked, whole_steps
from twoclock.theory.certificate import Certificate
from twoclock.validation import choice

PROOFS = {"tight": lyapunov_search.certificate, "paper": paper_conditions.certificate}


def certify(
    structure: str,
    *,
    L: float,
    mu_h: float | None = None,
    mu_g: float,
    noise: float = 1.0,
    proof: str = "tight",
    horizon: float | None = None,
) -> Certificate:
    """Step sizes with a proof, for a problem of which only four constants are known.

        alpha, beta, lam = c_α, c_β, c_λ over (k+τ+1)      strongly convex or PL h
        alpha, beta, lam = c_α, c_β, c_λ over √(k+1)       non-convex h

    A certificate comes back only when every inequality of its own proof holds in floating point; otherwise the error
    names the one that does not.

    Args:
        structure: "strongly-convex", "pl" or "non-convex": what is known of h.
        L: a Lipschitz constant of the mean F and G in each of θ and ω, of ∇h and of ω*. The proofs use L ≥ 1; below it
            they are applied to F/L, G/L and h/L, with a note. ``conditions`` then speak of those.
        mu_h: strong convexity of h, or its PL constant, ½‖∇h‖² ≥ μ_h(h−h*); not used for non-convex h.
        mu_g: strong monotonicity of the mean G in ω.
        noise: the noise level B, a bound on E‖F(θ,ω,X)−F(θ,ω)‖² and on the same for G.
        proof: "tight" (a weighted Lyapunov function, found by search) or "paper" (the paper's closed forms, put right).
        horizon: the steps you mean to make; where τ exceeds them a note says so.

    >>> import twoclock as tc
    >>> certificate = tc.certify("strongly-convex", L=1.0, mu_h=0.9, mu_g=0.9, noise=0.5)
    >>> method = certificate.method()
    >>> all(condition.holds for condition in certificate.conditions)
    True

    Reference: Zeng & Doan, Theorems 1–3, with the repairs and the tight proof of docs/certificates.md.
    """
    known, notes = checked(structure, L, mu_h, mu_g, noise)
    choice("certify(proof=…)", proof, PROOFS)
    certificate = _prove(PROOFS[proof], structure, known)
    for condition in certificate.conditions:
        if not condition.holds:
            raise InputError(
                f"no certificate: `{condition.name}` fails, {condition.left:.6g} > {condition.right:.6g}; "
                "the constants are too far apart for double precision"
            )
    if horizon is not None:
        notes += _seen_from(certificate, whole_steps("horizon", horizon))
    return dataclasses.replace(certificate, notes=notes)


def _prove(proof: Callable[..., Certificate], structure: str, known: Known) -> Certificate:
    try:
        with np.errstate(all="ignore"):
            certificate = proof(structure, *known.scaled())
    except (ArithmeticError, np.linalg.LinAlgError):
        raise InputError("no certificate: the constants are too far apart for double precision") from None
    return certificate if known.L >= 1 else _unscaled(certificate, known)


def _unscaled(certificate: Certificate, known: Known) -> Certificate:
    """Back from F/L, G/L and h/L to F, G and h: steps grow by 1/L, squares of Δf and Δg by L², h by L."""
    s, (a, b, lam), (_, y, f, g) = known.L, certificate.c, certificate.weights
    if certificate.structure == "strongly-convex":
        weights, A, rate = (1.0, y, f / s**2, g / s**2), certificate.A / s**2, certificate.rate
    else:
        weights, A = (1.0, s * y, f / s, g / s), certificate.A / s
        rate = certificate.rate / s if certificate.structure == "non-convex" else certificate.rate
    return dataclasses.replace(
        certificate,
        L=known.L,
        mu_h=known.mu_h,
        mu_g=known.mu_g,
        noise=known.noise,
        c=(a / s, b / s, lam),
        weights=weights,
        A=A,
        rate=rate,
    )


def _seen_from(certificate: Certificate, horizon: int) -> tuple[str, ...]:
    if certificate.structure != "non-convex" and certificate.tau > horizon:
        return (
            f"τ = {certificate.tau:.3g} exceeds the horizon of {horizon} steps: by then the bound will hardly fall",
        )
    return ()
