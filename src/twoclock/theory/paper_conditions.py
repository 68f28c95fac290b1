"""The paper's conditions on the step sizes, put right, and the closed forms that meet them.

Each condition is written once, as a pair of functions of (α, β, λ): a certificate evaluates it at its first step, where
it is hardest, and ``check`` follows it along a user's own schedules. The derivations are in docs/certificates.md.
"""

from __future__ import annotations

from twoclock.theory import rate_conditions
from twoclock.theory.certificate import Certificate, Condition, Rule

# Closed forms meet some of their conditions with equality; this margin keeps rounding out of the comparison.
MARGIN = 1 + 1e-9

ORDER: list[Rule] = [
    ("α ≤ β", lambda a, b, c: (a, b)),
    ("β ≤ λ", lambda a, b, c: (b, c)),
    ("λ ≤ 1/4", lambda a, b, c: (c, 0.25)),
]


def rules(structure: str, L: float, mu_h: float | None, mu_g: float) -> list[Rule]:
    """What the paper's proof, put right, asks of every (α_k, β_k, λ_k), besides the plain order."""
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


def decay(structure: str, mu_h: float | None, mu_g: float) -> tuple[str, float]:
    """By how many α_k the unweighted V falls in step k, and how the proof writes it."""
    if structure == "strongly-convex":
        return "μ_h α/8", (mu_h or 0.0) / 8
    if structure == "pl":
        return "min(μ_h, μ_G) α", min(mu_h or 0.0, 2.0, mu_g)
    return "α/16", 1 / 16


def certificate(structure: str, L: float, mu_h: float | None, mu_g: float, noise: float) -> Certificate:
    c, tau = _steps(structure, L, mu_h, mu_g)
    n = tau + 1
    alpha, beta, lam = (v / n for v in c)
    name, speed = decay(structure, mu_h, mu_g)
    sides = [(text, *rule(alpha, beta, lam)) for text, rule in ORDER + rules(structure, L, mu_h, mu_g)]
    sides += rate_conditions.conditions(structure, name, speed * alpha, speed * alpha, lam, lam, n, n)
    found = tuple(Condition(text, float(left), float(right)) for text, left, right in sides)
    ones = (1.0, 1.0, 1.0, 1.0)
    return Certificate(structure, "paper", L, mu_h, mu_g, noise, c, tau, ones, 4 * c[2] ** 2, speed * c[0], found)


def _steps(structure: str, L: float, mu_h: float | None, g: float) -> tuple[tuple[float, float, float], float]:
    M = (L + 1) ** 6
    if structure == "non-convex":
        lam = 0.25
        beta = min(
            1 / (72 * L),
            lam / (4 * (9.25 * L + 48 * L**2)),
            lam / (4 * (50 * L**2 + 8 / g)),
            g * lam / (320 * L**4),
            g / (8 * L**2),
        )
        beta /= MARGIN
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
