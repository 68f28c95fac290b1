"""Certificates from a structure and its constants, by the paper's conditions (corrected) or by the tight proof.

Each condition of the paper is written once, as a pair of functions of (α, β, λ): a certificate evaluates it at its
first step, where it is hardest, and ``check`` follows it along a user's own schedules. The derivations are in
docs/certificates.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from twoclock.protocols import InputError
from twoclock.theory import lyapunov_search, printed
from twoclock.theory.certificate import (
    LAST_STEP,
    MARGIN,
    METRICS,
    ORDER,
    Certificate,
    Rule,
    as_conditions,
    rate_conditions,
)
from twoclock.validation import as_whole, choice, number, short_repr

#: The structures that a proof covers.
STRUCTURES = tuple(METRICS)
#: The methods that a proof covers.
METHODS = ("fast", "standard")
_FLATTEST = 1e-30
_MOST_LEVELS = 6  # the constants grow by two or three decades with each


@dataclasses.dataclass(frozen=True)
class ProofConstants:
    """The constants of a problem, as numbers."""

    L: float
    mu_h: float | None
    mu_g: tuple[float, ...]  # of each fast level
    noise: float
    growth: float = 0.0
    metric: tuple[float, float] | None = None

    def scaled(self) -> tuple[float, float | None, tuple[float, ...], float]:
        """The constants of F/L, G/L and h/L if L < 1; ω* stays, and its slope is below 1 in any case."""
        s = min(self.L, 1.0)
        mu_h = None if self.mu_h is None else self.mu_h / s
        return self.L / s, mu_h, tuple(mu / s for mu in self.mu_g), self.noise / s**2


def check_constants(
    structure: str, L: float, mu_h: float | None, mu_g: float | Sequence[float], noise: float, low: float = 1.0
) -> tuple[ProofConstants, tuple[str, ...]]:
    """Check the constants, in a metric that is at least ``low``; return them as numbers, and notes for the user."""
    choice("structure", structure, STRUCTURES)
    if structure == "non-convex":
        mu_h = None
    elif mu_h is None:
        raise InputError(f"`mu_h` must be given for a {structure} h; without one use structure='non-convex'")
    fast = dict(_name_levels("mu_g", mu_g))
    positive = {"L": L, **fast} | ({} if mu_h is None else {"mu_h": mu_h})
    known = {name: number(name, value, 0, above=True) for name, value in positive.items()}
    for name in ("mu_h", *fast):
        largest = known["L"] / min(low, low**2) if name == "mu_h" else known["L"]
        if known.get(name, 0.0) > largest:
            raise InputError(
                f"`{name}` must not exceed L{' in the metric' if largest != known['L'] else ''}, got {known[name]:g} > "
                f"{largest:g}; an operator is never steeper than "
                "its Lipschitz constant, so one of the two is wrong"
            )
        if name in known and known[name] < _FLATTEST * known["L"]:
            raise InputError(
                f"`{name}` must be at least {_FLATTEST:g} L, got {known[name]:g} with L = {known['L']:g}; they are "
                "too far apart for double precision"
            )
    mu_fast = tuple(known[name] for name in fast)
    numbers = ProofConstants(known["L"], known.get("mu_h"), mu_fast, number("noise", noise, 0))
    note = f"L = {numbers.L:g} is below 1, which the proofs use: they are applied to F/L, G/L and h/L"
    return numbers, (note,) if numbers.L < 1 else ()


def _name_levels(name: str, value: float | Sequence[float]) -> list[tuple[str, float]]:
    """One value, or one per fast level, by name."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [(name, value)]
    if not 0 < len(value) < _MOST_LEVELS:
        raise InputError(f"`{name}` must have 1 to {_MOST_LEVELS - 1} entries, one per fast level, got {len(value)}")
    return [(f"{name}[{i}]", entry) for i, entry in enumerate(value)]


def check_steps(name: str, value: float) -> int:
    """Check a number of steps, and return it as an integer that 32 bits can count."""
    new = as_whole(value)
    if new is None or not 0 < new <= LAST_STEP:
        raise InputError(
            f"`{name}` must be a whole number in [1, 2³¹], got {short_repr(value)}; steps are counted in 32 bits"
        )
    return new


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


def paper_certificate(
    structure: str, L: float, mu_h: float | None, mu_g: tuple[float, ...], noise: float, method: str
) -> Certificate:
    if method != "fast" or len(mu_g) > 1:
        raise InputError("`proof='paper'` covers `Fast` on two levels; leave it out, the tight proof covers all")
    c, tau = _paper_steps(structure, L, mu_h, mu_g[0])
    n = tau + 1
    alpha, beta, lam = (v / n for v in c)
    name, speed = paper_decay(structure, mu_h, mu_g[0])
    sides = [(text, *rule(alpha, beta, lam)) for text, rule in ORDER + paper_rules(structure, L, mu_h, mu_g[0])]
    sides += rate_conditions(structure, name, speed * alpha, speed * alpha, lam, lam, n, n)
    A, rate, found = 4 * c[2] ** 2, speed * c[0], as_conditions(sides)
    return Certificate(structure, "paper", "fast", L, mu_h, mu_g, noise, c, tau, (1.0,) * 4, A, rate, found)


def _paper_steps(structure: str, L: float, mu_h: float | None, g: float) -> tuple[tuple[float, float, float], float]:
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


def _in_units_of(certificate: Certificate, known: ProofConstants) -> Certificate:
    """Back from F/L, G/L and h/L where L < 1: steps grow by 1/L, squares of Δf and Δg by L², h by L; u is as θ is."""
    s = min(known.L, 1.0)
    convex, levels = certificate.structure == "strongly-convex", len(known.mu_g) + 1
    of_rest = 1 / s**2 if certificate.of == "fast" else 1.0
    scale = np.r_[np.ones(levels), np.full(levels, of_rest)] * (1.0 if convex else s)
    scale[0] = 1.0
    return dataclasses.replace(
        certificate,
        L=known.L,
        mu_h=known.mu_h,
        mu_g=known.mu_g,
        noise=known.noise,
        growth=known.growth,
        c=(*(c / s for c in certificate.c[:-1]), certificate.c[-1]),
        weights=tuple((np.array(certificate.weights) * scale).tolist()),
        A=certificate.A / (s**2 if convex else s),
        rate=certificate.rate / s if certificate.structure == "non-convex" else certificate.rate,
    )


def _read_metric(structure: str, metric: Sequence[float] | None) -> tuple[float, float] | None:
    if metric is None:
        return None
    if structure != "pl":
        raise InputError(
            f"`metric` is for structure='pl', got {short_repr(structure)}; a strongly monotone F(θ, ω*(θ)) needs none, "
            "give its constant as mu_h"
        )
    if not isinstance(metric, Sequence) or len(metric) != 2:
        raise InputError(f"`metric` must be two numbers, low and high, got {short_repr(metric)}")
    low = number("metric[0]", metric[0], 0, above=True)
    return low, number("metric[1]", metric[1], low)


def _in_metric(known: ProofConstants, metric: tuple[float, float] | None) -> ProofConstants:
    """The constants of h/low, of which the mean of F at ω* is the gradient in a metric between 1 and high/low."""
    if metric is None:
        return known
    low = metric[0]
    return dataclasses.replace(known, L=known.L * max(1.0, 1 / low), mu_h=(known.mu_h or 0.0) * low, metric=metric)


PROOFS: dict[str, Callable[..., Certificate]] = {
    "tight": lyapunov_search.certificate,
    "paper": paper_certificate,
    "printed": printed.certificate,
}


def certify(
    structure: str,
    *,
    L: float,
    mu_h: float | None = None,
    mu_g: float | Sequence[float],
    noise: float = 1.0,
    growth: float = 0.0,
    metric: Sequence[float] | None = None,
    mixing: float | None = None,
    method: str = "fast",
    proof: str = "tight",
    horizon: float | None = None,
) -> Certificate:
    """Compute step sizes with a proof from four constants of a problem.

        alpha, beta, lam = c_α, c_β, c_λ over (k+τ+1)      strongly convex or PL h
        alpha, beta, lam = c_α, c_β, c_λ over √(k+1)       non-convex h (√(k+τ+1) with ``mixing``)

    A certificate is returned only when every inequality of its proof holds in floating point; otherwise the error names
    the one that does not.

    Args:
        structure: the structure of h: "strongly-convex", "pl" or "non-convex".
        L: a Lipschitz constant of the mean F and G in each of θ and ω, of ∇h and of ω*. The proofs use L ≥ 1; below it
            they are applied to F/L, G/L and h/L, with a note, and ``conditions`` refer to these.
        mu_h: strong convexity of h, or its PL constant, ½‖∇h‖² ≥ μ_h(h−h*); not used for non-convex h.
        mu_g: strong monotonicity of the mean G in ω. With more than two levels one number for each fast level: for its
            mean operator in its own variable, with the levels after it at their solutions.
        noise: the noise level B, a bound on E‖F(θ,ω,X)−F(θ,ω)‖² and on the same for G.
        growth: B₁, for noise that grows with the iterates: the bound is then B + B₁(‖θ−θ*‖² + ‖ω−ω*(θ)‖²). It makes
            steps smaller; the form of the bound stays. Not for non-convex h, which has no single θ*.
        metric: two numbers, low and high, if F(θ, ω*(θ)) is not ∇h but ∇h in a metric: low‖v‖² ≤ ⟨v, S(θ)v⟩ ≤
            high‖v‖² with ∇h = S(θ)F(θ, ω*(θ)). mu_h is then that of ½‖F(θ, ω*(θ))‖² ≥ μ_h(h−h*). For PL h.
        mixing: t, for samples along a Markov chain: from every state of it the sum over s ≥ 0 of 2‖Pˢ(x, ·) − π‖ in
            total variation is at most t. Then noise bounds ‖F(θ,ω,x)−F(θ,ω)‖² for every sample x, and L is of every
            sample. For `Fast` and the tight proof. There is no factor log k beyond the theorem's, but a factor t².
        method: "fast", Algorithm 1, or "standard". Steps of one order give the standard method the same rates.
        proof: "tight" (a weighted Lyapunov function, found by search), "paper" (the paper's closed forms, corrected) or
            "printed": steps and bounds as printed, errors included (docs/errata.md). The paper assumes L ≥ 1, so a
            smaller L is raised to 1, with a note; no steps meet Theorem 2; and Theorem 3's bound lacks the noise level.
        horizon: the planned number of steps; if τ exceeds it, a note says so.

    >>> import twoclock as tc
    >>> certificate = tc.certify("strongly-convex", L=1.0, mu_h=0.9, mu_g=0.9, noise=0.5)
    >>> method = certificate.method()
    >>> all(condition.holds for condition in certificate.conditions)
    True

    Reference: Zeng & Doan, Theorems 1–3, with the repairs and the tight proof of docs/certificates.md.
    """
    choice("structure", structure, STRUCTURES)
    between = _read_metric(structure, metric)
    given, notes = check_constants(structure, L, mu_h, mu_g, noise, between[0] if between else 1.0)
    choice("certify(proof=…)", proof, PROOFS)
    known = dataclasses.replace(_in_metric(given, between), growth=number("growth", growth, 0))
    more: dict[str, float] = {}
    if known.growth or known.metric:
        if proof != "tight" or structure == "non-convex" or (known.growth and known.metric):
            raise InputError(
                "`growth` and `metric` are for the tight proof, one of them at a time, and `growth` not for non-convex "
                "h; leave one out, or take a noise level that holds where the run stays"
            )
        scale = min(known.L, 1.0)
        low, high = known.metric or (1.0, 1.0)
        more = {"growth": known.growth / scale**2, "condition": high / low}
    choice("certify(method=…)", method, METHODS)
    if mixing is not None:
        more["mixing"] = number("mixing", mixing, 1)
        if method != "fast" or proof != "tight" or known.growth:
            raise InputError(
                "`mixing` is for method='fast', proof='tight' and without `growth`; take Algorithm 1 (method='fast'), "
                "whose averages the proof on a chain needs, and a noise level that bounds every sample"
            )
    if proof == "printed" and known.L < 1:
        notes = (f"L = {known.L:g} is raised to 1, which the paper assumes",)
        known = dataclasses.replace(known, L=1.0)
    try:
        with np.errstate(all="ignore"):
            certificate = PROOFS[proof](structure, *known.scaled(), method, **more)
    except (ArithmeticError, np.linalg.LinAlgError):
        raise InputError("no certificate: the constants are too far apart for double precision") from None
    certificate = _in_units_of(certificate, known)
    if known.metric:  # back from h/low
        low = known.metric[0]
        weights = (certificate.weights[0], *(low * weight for weight in certificate.weights[1:]))
        certificate = dataclasses.replace(
            certificate, L=given.L, mu_h=given.mu_h, weights=weights, A=low * certificate.A
        )
    if not isinstance(mu_g, Sequence):
        certificate = dataclasses.replace(certificate, mu_g=known.mu_g[0])
    for condition in certificate.conditions:
        if not condition.holds:
            raise InputError(
                f"no certificate: `{condition.name}` fails, {condition.left:.6g} > {condition.right:.6g}; "
                "the constants are too far apart for double precision"
            )
    if horizon is not None:
        last = check_steps("horizon", horizon)
        if structure != "non-convex" and certificate.tau > last:
            tau = f"τ = {certificate.tau:.3g}"
            notes += (f"{tau} exceeds the horizon of {last} steps: by then the bound will hardly fall",)
    return dataclasses.replace(certificate, notes=notes)
