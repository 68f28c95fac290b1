"""The paper's own proofs: corrected, in closed forms, and Theorems 1 to 3 as printed, errors included (docs/errata.md).

Each condition is written once, as a pair of functions of (α, β, λ): a certificate evaluates it at its first step, where
it is hardest, and ``check`` follows it along a user's own schedules. The derivations are in docs/certificates.md. The
printed theorems are here for tests and comparisons.
"""

from __future__ import annotations

from twoclock.protocols import InputError
from twoclock.theory.certificate import MARGIN, ORDER, Certificate, Rule, as_conditions, rate_conditions

Steps = tuple[tuple[float, float, float], float]  # c_α, c_β, c_λ, and τ


def paper_rules(structure: str, L: float, mu_h: float | None, mu_g: float) -> list[Rule]:
    """The conditions of the paper's corrected proof on every (α_k, β_k, λ_k), besides the plain order."""
    M, m, g = (L + 1) ** 6, mu_h or 0.0, mu_g
    if structure == "strongly-convex":
        return [
            ("α ≤ μ_h/(6(L+1)⁴)", lambda a, b, c: (a, m / (6 * (L + 1) ** 4))),
            ("β ≤ 1/(72(L+1)⁶)", lambda a, b, c: (b, 1 / (72 * M))),
            ("β ≤ 1/μ_G", lambda a, b, c: (b, 1 / g)),
            ("β ≤ 1/L", lambda a, b, c: (b, 1 / L)),
            ("μ_h α ≤ λ", lambda a, b, c: (m * a, c)),
            ("μ_h α ≤ 8μ_G β", lambda a, b, c: (m * a, 8 * g * b)),
            ("Δf: 4(56L²+9/(2μ_h)) β ≤ λ", lambda a, b, c: (4 * (56 * L**2 + 4.5 / m) * b, c)),
            ("Δg: 4(48L²+10L/μ_G) β ≤ λ", lambda a, b, c: (4 * (48 * L**2 + 10 * L / g) * b, c)),
            ("z: 304(L+1)⁶ α ≤ μ_hμ_G β", lambda a, b, c: (304 * M * a, m * g * b)),
            ("z: 1536(L+1)⁶ α ≤ μ_h λ", lambda a, b, c: (1536 * M * a, m * c)),
            ("z: β ≤ μ_h/(96(L+1)⁶)", lambda a, b, c: (b, m / (96 * M))),
            ("y: 8(8L⁴+9L²/μ_h) α ≤ μ_G β", lambda a, b, c: (8 * (8 * L**4 + 9 * L**2 / m) * a, g * b)),
            ("y: 642L⁴ β ≤ μ_G λ", lambda a, b, c: (642 * L**4 * b, g * c)),
        ]
    if structure == "pl":
        m = min(m, 2.0)  # √(2/μ_h) ≤ 2/μ_h is used
        return [
            ("β ≤ 1/L", lambda a, b, c: (b, 1 / L)),
            ("Δf: 4(2L²/μ_h³+58L²) β ≤ λ", lambda a, b, c: (4 * (2 * L**2 / m**3 + 58 * L**2) * b, c)),
            ("Δg: 4(50L²+8/μ_G) β ≤ λ", lambda a, b, c: (4 * (50 * L**2 + 8 / g) * b, c)),
            ("x: 3072(L+1)⁶ α ≤ μ_h² λ", lambda a, b, c: (3072 * M * a, m**2 * c)),
            ("x: β ≤ μ_h³/(480(L+1)⁶)", lambda a, b, c: (b, m**3 / (480 * M))),
            ("y: 8(14L³+132(L+1)⁶/μ_h³) α ≤ μ_G β", lambda a, b, c: (8 * (14 * L**3 + 132 * M / m**3) * a, g * b)),
            ("y: 320L⁴ β ≤ μ_G λ", lambda a, b, c: (320 * L**4 * b, g * c)),
            ("y: β ≤ μ_G/(8L²)", lambda a, b, c: (b, g / (8 * L**2))),
        ]
    return [
        ("β ≤ 1/(72L)", lambda a, b, c: (b, 1 / (72 * L))),
        ("α ≤ 1/(72L²)", lambda a, b, c: (a, 1 / (72 * L**2))),
        ("Δf: 4(37L/4+48L²) β ≤ λ", lambda a, b, c: (4 * (9.25 * L + 48 * L**2) * b, c)),
        ("Δg: 4(50L²+8/μ_G) β ≤ λ", lambda a, b, c: (4 * (50 * L**2 + 8 / g) * b, c)),
        ("∇h: 768L² α ≤ λ", lambda a, b, c: (768 * L**2 * a, c)),
        ("y: 880L⁴ α ≤ μ_G β", lambda a, b, c: (880 * L**4 * a, g * b)),
        ("y: 320L⁴ β ≤ μ_G λ", lambda a, b, c: (320 * L**4 * b, g * c)),
        ("y: β ≤ μ_G/(8L²)", lambda a, b, c: (b, g / (8 * L**2))),
    ]


def paper_decay(structure: str, mu_h: float | None, mu_g: float) -> tuple[str, float]:
    """The decrease of the unweighted V in step k, in units of α_k, and its form in the proof."""
    if structure == "strongly-convex":
        return "μ_h α/8", (mu_h or 0.0) / 8
    if structure == "pl":
        return "min(μ_h, μ_G) α", min(mu_h or 0.0, 2.0, mu_g)
    return "α/16", 1 / 16


def corrected(structure: str, L: float, mu_h: float | None, mu_g: tuple[float, ...], noise: float) -> Certificate:
    """Steps in closed form that meet the conditions of the corrected proof, with its bound."""
    c, tau = _paper_steps(structure, L, mu_h, mu_g[0])
    n = tau + 1
    alpha, beta, lam = (v / n for v in c)
    name, speed = paper_decay(structure, mu_h, mu_g[0])
    sides = [(text, *rule(alpha, beta, lam)) for text, rule in ORDER + paper_rules(structure, L, mu_h, mu_g[0])]
    sides += rate_conditions(structure, name, speed * alpha, speed * alpha, lam, lam, n, n)
    A, rate, found = 4 * c[2] ** 2, speed * c[0], as_conditions(sides)
    return Certificate(structure, "paper", "fast", L, mu_h, mu_g, noise, c, tau, (1.0,) * 4, A, rate, found)


def _paper_steps(structure: str, L: float, mu_h: float | None, g: float) -> Steps:
    M = (L + 1) ** 6
    if structure == "non-convex":
        lam = 0.25
        by_f, by_g = lam / (4 * (9.25 * L + 48 * L**2)), lam / (4 * (50 * L**2 + 8 / g))
        beta = min(1 / (72 * L), by_f, by_g, g * lam / (320 * L**4), g / (8 * L**2)) / MARGIN
        alpha = min(beta, 1 / (72 * L**2), lam / (768 * L**2), g * beta / (880 * L**4)) / MARGIN
        return (alpha, beta, lam), 0.0
    m = mu_h or 0.0
    if structure == "strongly-convex":
        r1 = min(1, 8 * g / m, m * g / (304 * M), g / (8 * (8 * L**4 + 9 * L**2 / m)))
        r2 = min(1, 1 / (4 * (56 * L**2 + 4.5 / m)), 1 / (4 * (48 * L**2 + 10 * L / g)), g / (642 * L**4))
        alpha = 16 / m * MARGIN
        beta = alpha / r1 * MARGIN
        lam = max(beta / r2, m * alpha, 1536 * M * alpha / m) * MARGIN
        largest = min(1 / (72 * M), m / (96 * M), 1 / g, 1 / L)
        return (alpha, beta, lam), max(1, 4 * lam, beta / largest, 6 * (L + 1) ** 4 * alpha / m) * MARGIN
    m = min(m, 2.0)
    alpha = 2 / min(m, g) * MARGIN
    beta = alpha * max(1, 8 * (14 * L**3 + 132 * M / m**3) / g) * MARGIN
    most = max(1, 4 * (2 * L**2 / m**3 + 58 * L**2), 4 * (50 * L**2 + 8 / g), 320 * L**4 / g)
    lam = max(beta * most, 3072 * M * alpha / m**2) * MARGIN
    return (alpha, beta, lam), max(1, 4 * lam, beta / min(1 / L, m**3 / (480 * M), g / (8 * L**2))) * MARGIN


def printed(structure: str, L: float, mu_h: float | None, mu_g: tuple[float, ...], noise: float) -> Certificate:
    """The largest steps that the printed conditions allow, with the printed bound; none for PL."""
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
