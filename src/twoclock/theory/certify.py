"""Certificates from a structure and its constants, by the paper's proofs or by the tight one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from twoclock.protocols import InputError
from twoclock.theory import lyapunov_search, paper
from twoclock.theory.certificate import LAST_STEP, METRICS, Certificate
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
    "paper": paper.corrected,
    "printed": paper.printed,
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
    more: dict[str, str | float] = {"method": method} if proof == "tight" else {}
    if known.growth or known.metric:
        if proof != "tight" or structure == "non-convex" or (known.growth and known.metric):
            raise InputError(
                "`growth` and `metric` are for the tight proof, one of them at a time, and `growth` not for non-convex "
                "h; leave one out, or take a noise level that holds where the run stays"
            )
        scale = min(known.L, 1.0)
        low, high = known.metric or (1.0, 1.0)
        more |= {"growth": known.growth / scale**2, "condition": high / low}
    choice("certify(method=…)", method, METHODS)
    if proof != "tight" and (method != "fast" or len(known.mu_g) > 1):
        raise InputError(f"`proof={proof!r}` covers `Fast` on two levels; leave it out, the tight proof covers all")
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
            certificate = PROOFS[proof](structure, *known.scaled(), **more)
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
