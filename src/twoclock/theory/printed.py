"""Theorems 1 to 3 as printed: steps, conditions and bounds, errors included (docs/errata.md).

They are here for tests and comparisons; use the other proofs of ``certify``.
"""

from __future__ import annotations

from twoclock.protocols import InputError
from twoclock.theory.certificate import MARGIN, ORDER, Certificate, Rule, as_conditions


def certificate(
    structure: str, L: float, mu_h: float | None, mu_g: tuple[float, ...], noise: float, method: str
) -> Certificate:
    """The largest steps that the printed conditions allow, with the printed bound; none for PL."""
    if method != "fast" or len(mu_g) > 1:
        raise InputError("`proof='printed'` covers `Fast` on two levels; leave it out, the tight proof covers all")
    m, g = mu_h or 0.0, mu_g[0]
    if structure == "pl":
        least, most = theorem_2(L, m, g)
        raise InputError(
            f"no certificate: Theorem 2 as printed asks for c_β ≥ {least:.3g} and c_β ≤ {most:.3g}, and no steps meet "
            "both; take proof='paper', its corrected proof"
        )
    (c, tau), rules = theorem_1(L, m, g) if structure == "strongly-convex" else theorem_3(L)
    steps = [value / (tau + 1) for value in c]
    conditions = as_conditions((text, *rule(*steps)) for text, rule in ORDER + rules)
    # What is 4 log(k+2) in Theorem 3, over 32; Theorem 1 has Bτ².
    A, rate = (tau**2, m / 8 * c[0]) if structure == "strongly-convex" else (1 / 8, c[0] / 32)
    return Certificate(structure, "printed", "fast", L, mu_h, mu_g, noise, c, tau, (1.0,) * 4, A, rate, conditions)


Steps = tuple[tuple[float, float, float], float]


def theorem_1(L: float, m: float, g: float) -> tuple[Steps, list[Rule]]:
    """Appendix A: c_α = 8/μ_h, then the least c_β, c_λ and τ that its list allows, and the list."""
    M, by_y, by_f, by_g = (L + 1) ** 6, 8 * L**4 + 9 * L**2 / g, 56 * L**2 + 4.5 / m, 48 * L**2 + 10 * L / g
    alpha = 8 / m * MARGIN
    beta = alpha / min(1, 8 * g / m, m * g / (152 * M), g / (8 * by_y)) * MARGIN
    lam = max(beta * max(1, 4 * by_f, 4 * by_g), alpha * max(m, 4 * by_g)) * MARGIN
    first = max(2.0, 4 * lam, beta * max(240 * M, g, 168 * L**4 / g), 6 * (L + 1) ** 4 * alpha / m) * MARGIN
    rules: list[Rule] = [
        ("α ≤ λ/μ_h", lambda a, b, c: (a, c / m)),
        ("α ≤ μ_h/(6(L+1)⁴)", lambda a, b, c: (a, m / (6 * (L + 1) ** 4))),
        ("α ≤ 8μ_G β/μ_h", lambda a, b, c: (a, 8 * g * b / m)),
        ("α ≤ μ_hμ_G β/(152(L+1)⁶)", lambda a, b, c: (a, m * g * b / (152 * M))),
        ("α ≤ μ_G β/(8(8L⁴+9L²/μ_G))", lambda a, b, c: (a, g * b / (8 * by_y))),
        ("4(48L²+10L/μ_G) α ≤ λ", lambda a, b, c: (4 * by_g * a, c)),
        ("β ≤ 1/(240(L+1)⁶)", lambda a, b, c: (b, 1 / (240 * M))),
        ("β ≤ 1/μ_G", lambda a, b, c: (b, 1 / g)),
        ("4(56L²+9/(2μ_h)) β ≤ λ", lambda a, b, c: (4 * by_f * b, c)),
        ("4(48L²+10L/μ_G) β ≤ λ", lambda a, b, c: (4 * by_g * b, c)),
        ("β ≤ μ_G/(168L⁴)", lambda a, b, c: (b, g / (168 * L**4))),
    ]
    return ((alpha, beta, lam), first - 1), rules


def theorem_2(L: float, m: float, g: float) -> tuple[float, float]:
    """Appendix B: the least c_β by α ≤ β and c_α ≥ 2/min(μ_h, μ_G), and the largest by the other conditions.

    No steps meet them for any constants: c_β ≤ 1/L, and c_β ≥ c_α ≥ 2/μ_G ≥ 2/L, since μ_G ≤ L.
    """
    return 2 / min(m, g), min(1 / L, m**3 / (480 * (L + 1) ** 6), g / (8 * L**2))


def theorem_3(L: float) -> tuple[Steps, list[Rule]]:
    """Section 3.3: λ₀ = ¼, the largest α₀ and β₀ that it allows, and its conditions."""
    beta = 1 / (72 * L)
    rules: list[Rule] = [
        ("β ≤ 1/(72L)", lambda a, b, c: (b, 1 / (72 * L))),
        ("α ≤ 1/(72L²)", lambda a, b, c: (a, 1 / (72 * L**2))),
    ]
    return ((min(beta, 1 / (72 * L**2)), beta, 0.25), 0.0), rules
