"""Certificates against runs: below the bound at every mark, close to hand-tuned steps, and the case to refuse."""

import dataclasses

import jax
import numpy as np
import pytest

import twoclock as tc
from twoclock import theory


def gentle():
    """A quadratic in two dimensions with L = 1 and μ_h = μ_G = 0.9 exactly."""
    return tc.problems.quadratic(dim=2, mu_h=0.9, mu_g=0.9, top=1.0, rotation=0.0, coupling=0.3, sigma=0.5)


PROBLEMS = {
    "gentle": (gentle, "strongly-convex"),
    "rotating": (lambda: tc.problems.quadratic(dim=3, mu_h=0.8, mu_g=0.8), "strongly-convex"),
    "small": (lambda: tc.problems.quadratic(dim=2, mu_h=0.15, mu_g=0.15, top=0.2, coupling=0.1), "strongly-convex"),
    "small by gap": (lambda: tc.problems.quadratic(dim=2, mu_h=0.15, mu_g=0.15, top=0.2, coupling=0.1), "pl"),
    "kinked": (lambda: tc.problems.rates("strongly-convex", "kinked", dim=2, noise=2.0), "strongly-convex"),
    "wavy and kinked": (lambda: tc.problems.rates("pl", "kinked", dim=2), "pl"),
    "bounded": (lambda: tc.problems.rates("non-convex", "kinked", noise=2.0), "non-convex"),
}


@pytest.mark.usefixtures("long_walks")
@pytest.mark.parametrize("name", PROBLEMS)
def test_mean_error_stays_below_the_bound_at_every_mark(name):
    make, structure = PROBLEMS[name]
    problem = make()
    known = theory.constants(problem)
    assert set(known.exact) == {"L", "mu_h", "mu_g", "noise"}
    certificates = {proof: tc.certify(structure, **known, proof=proof) for proof in ("tight", "paper")}
    methods = {proof: certificate.method() for proof, certificate in certificates.items()}
    start = theory.start(problem, structure)
    for proof, result in tc.solve(problem, methods, steps=20_000, seeds=100).items():
        certificate = certificates[proof]
        table = result.summary(certificate.metric)
        assert not result.diverged.any()
        assert np.all(table["high"] <= certificate.bound(table["step"].to_numpy(), start) * (1 + 1e-9))


def test_starts_of_the_averages_count_in_the_bound_and_in_the_run():
    problem = gentle()
    known = theory.constants(problem)
    certificate = tc.certify("strongly-convex", **known)
    theta, omega, _ = problem.init(jax.random.key(0))
    F, G = np.asarray(problem.mean_F(theta, omega)), np.asarray(problem.mean_G(theta, omega))
    f0, g0 = F + np.array([3.0, -4.0]), G + np.array([0.0, 2.0])
    method = dataclasses.replace(certificate.method(), f0=f0, g0=g0)
    start, at_rest = theory.start(problem, "strongly-convex", method=method), theory.start(problem, "strongly-convex")
    assert (start.x, start.y) == (at_rest.x, at_rest.y)
    np.testing.assert_allclose((start.f, start.g), (25.0, 4.0), rtol=1e-6)
    np.testing.assert_allclose((at_rest.f, at_rest.g), (F @ F, G @ G), rtol=1e-6)
    result = tc.solve(problem, method, steps=20_000, seeds=100)
    table = result.summary("error")
    assert np.all(table["high"] <= certificate.bound(table["step"].to_numpy(), start))
    with pytest.raises(tc.InputError, match="must be a `Fast`"):
        theory.start(problem, "strongly-convex", method=tc.Standard())


def test_tight_steps_are_as_accurate_as_hand_tuned_ones_from_ten_thousand_steps_on():
    """Against the best of a grid at each mark; the certified c_α ≈ 1.8/μ_h costs at most a quarter of variance."""
    problem = gentle()
    certificate = tc.certify("strongly-convex", **theory.constants(problem))
    hand = {
        f"{c}": tc.Fast(
            tc.Power(c / 0.9, shift=32), tc.Power(4 * c / 0.9, shift=32), tc.Power(16 * c / 0.9, shift=32 + 32 * c)
        )
        for c in (0.6, 1.0, 1.5, 2.0)
    }
    results = tc.solve(
        problem, {"certified": certificate.method(), **hand}, 50_000, 200, marks=[10_000, 20_000, 50_000]
    )
    means = {label: result.summary("error")["mean"].to_numpy() for label, result in results.items()}
    certified = means.pop("certified")
    assert np.all(certified <= 1.4 * np.min(list(means.values()), axis=0))


def trap():
    return tc.problems.custom(
        F=lambda theta, omega, x: 0.2 * theta + (omega - theta) + x,
        G=lambda theta, omega, x: 0.1 * (omega - theta) + x,
        noise=lambda key: jax.random.normal(key),
        theta=1.0,
        omega=0.0,
        measure=lambda theta, omega: {"gradient": (0.2 * theta) ** 2},
    )


def test_the_case_that_meets_the_printed_conditions_and_diverges_is_refused():
    """Section 3.3 asks α₀ ≤ β₀ ≤ min(1/(72L), λ₀) and α₀ ≤ 1/(72L²), no more. It is not enough."""
    printed = tc.Fast(tc.Power(1 / 72, p=0.5), tc.Power(1 / 72, p=0.5), tc.Power(0.25, p=0.5))
    report = theory.check(printed, "non-convex", L=1.0, mu_g=0.1)
    findings = {finding.name: finding for finding in report.findings}
    for name in ("α ≤ β", "β ≤ λ", "λ ≤ 1/4", "β ≤ 1/(72L)", "α ≤ 1/(72L²)"):
        assert findings[name].always
    for name in ("Δg: 4(50L²+8/μ_G) β ≤ λ", "y: 880L⁴ α ≤ μ_G β", "y: 320L⁴ β ≤ μ_G λ", "0 < 1 − ρ(K)"):
        assert not findings[name].holds
    assert report.covered == ()
    result = tc.solve(trap(), printed, steps=300_000, seeds=40, marks=[1000, 30_000])
    first, middle, last = result.summary("gradient")["mean"]
    assert first < 1
    assert middle > 10 * first
    assert last > 1e6  # about 2e7, and 2e14 at a million

    certificate = tc.certify("non-convex", L=1.0, mu_g=0.1, noise=1.0)
    assert theory.check(certificate.method(), "non-convex", L=1.0, mu_g=0.1).covered == ("tight",)
    calm = tc.solve(trap(), certificate.method(), steps=100_000, seeds=40)
    assert calm.summary("gradient")["mean"].max() < 0.1
