"""Checks of a user's own schedules, and the constants of problems."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock import theory
from twoclock.problems.synthetic import Quadratic
from twoclock.protocols import InputError, pytree

FIG1 = {"alpha": 5e-4, "beta": 2e-3, "lam": "0.8/(k+10)"}
KNOWN = {"L": 1.0, "mu_h": 0.5, "mu_g": 0.5}


def test_figure_one_leaves_the_order_at_step_391():
    """0.8/(390+10) is 2e-3 itself, so β ≤ λ holds there for the last time."""
    report = theory.check(tc.Fast(**FIG1), "strongly-convex", **KNOWN)
    order = {finding.name: finding for finding in report.group("order")}
    assert order["α ≤ β"].always
    assert order["λ ≤ 1/4"].always
    assert order["β ≤ λ"].holds == ((0, 390),)
    assert order["β ≤ λ"].leaves == report.leaves_order == 391
    assert "fails from k = 391 on" in str(report)
    assert report.covered == ()


def test_a_report_says_from_which_step_an_inequality_holds():
    method = tc.Fast(alpha="0.1/(k+1)", beta="1/(k+1)", lam=lambda k: 30 / (k + 30))
    findings = {f.name: f for f in theory.check(method, "strongly-convex", **KNOWN, horizon=10**6).findings}
    assert findings["λ ≤ 1/4"].since == 90
    assert findings["λ ≤ 1/4"].leaves == 0
    assert findings["λ ≤ 1"].always
    assert findings["β ≤ λ"].always
    assert str(findings["λ ≤ 1/4"]) == "holds from k = 90 on"


def test_of_two_averaging_weights_the_worse_one_is_judged():
    method = tc.Fast(alpha="0.1/(k+1)", beta="1/(k+1)", lam="30/(k+30)", lam_g="0.9/(k+1)")
    findings = {f.name: f for f in theory.check(method, "strongly-convex", **KNOWN, horizon=10**6).findings}
    assert findings["λ ≤ 1/4"].since == 90
    assert findings["β ≤ λ"].holds == ()


def test_an_inequality_may_come_and_go():
    method = tc.Fast(alpha=1e-3, beta=1e-2, lam=lambda k: 0.005 + 0.02 * jnp.exp(-(((k - 5000) / 1000) ** 2)))
    findings = {f.name: f for f in theory.check(method, "pl", **KNOWN, horizon=20_000).findings}
    ((first, last),) = findings["β ≤ λ"].holds
    edge = 1000 * np.sqrt(np.log(4))
    assert (first, last) == (np.ceil(5000 - edge), np.floor(5000 + edge))
    assert "[" in str(findings["β ≤ λ"])


@pytest.mark.parametrize("size", [1.0, 0.1])
@pytest.mark.parametrize("structure", theory.STRUCTURES)
@pytest.mark.parametrize("proof", ["tight", "paper"])
def test_certified_methods_pass_their_own_check(structure, proof, size):
    known = {name: size * value for name, value in KNOWN.items()}
    certificate = tc.certify(structure, **known, proof=proof)
    findings = theory.check(certificate.method(), structure, **known).group(proof)
    assert all(finding.always for finding in findings)


def scaled(schedule, factor, p=None):
    """The schedule times a factor; with another power p, from the same first value."""
    c, q = factor * schedule.c, schedule.p if p is None else p
    return tc.Power(c * schedule.shift ** (q - schedule.p), p=q, shift=schedule.shift)


NOISE, SPEED = "λ ≤ λ₀n₀/n", "2/n ≤ fall of one V for all k"


@pytest.mark.parametrize(
    ("structure", "proof", "worse", "fails"),
    [
        ("strongly-convex", "tight", lambda s: float(s(0)), NOISE),
        ("strongly-convex", "tight", lambda s: 1e-20 * float(s(0)), NOISE),
        ("strongly-convex", "tight", lambda s: scaled(s, 1e-6), SPEED),
        ("strongly-convex", "tight", lambda s: scaled(s, 1.0, p=0.67), NOISE),
        ("strongly-convex", "tight", lambda s: lambda k: jnp.maximum(s(k), 1e-3 * s(0)), NOISE),
        ("strongly-convex", "paper", lambda s: 1e-6 * float(s(0)), NOISE),
        ("strongly-convex", "paper", lambda s: scaled(s, 1e-6), SPEED),
        ("pl", "paper", lambda s: float(s(0)), NOISE),
        ("pl", "tight", lambda s: scaled(s, 0.5), SPEED),
        ("non-convex", "tight", lambda s: float(s(0)), "λ ≤ λ₀√(n₀/n)"),
        ("non-convex", "paper", lambda s: scaled(s, 1.0, p=0.4), "λ ≤ λ₀√(n₀/n)"),
    ],
)
def test_a_v_that_falls_is_not_yet_a_rate(structure, proof, worse, fails):
    """Constant steps end at a floor of noise, and steps that are too small lag behind 2/n; V falls all the same."""
    certificate = tc.certify(structure, **KNOWN, proof=proof)
    method = tc.Fast(*map(worse, (certificate.alpha, certificate.beta, certificate.lam)))
    report = theory.check(method, structure, **KNOWN)
    findings = {finding.name: finding for finding in report.group("tight")}
    assert findings["0 < 1 − ρ(K)"].always
    assert not findings[fails].always
    assert report.covered == ()


def test_a_certificate_and_a_check_ask_for_the_same():
    for structure in theory.STRUCTURES:
        for proof in ("tight", "paper"):
            certificate = tc.certify(structure, **KNOWN, proof=proof)
            asked = {finding.name for finding in theory.check(certificate.method(), structure, **KNOWN)}
            assert {c.name for c in certificate.conditions} - {"0 ≤ smallest weight"} <= asked


def test_a_function_is_read_as_the_power_that_it_is():
    certificate = tc.certify("pl", **KNOWN)
    alike = tc.Fast(*(lambda k, s=s: s(k) for s in (certificate.alpha, certificate.beta, certificate.lam)))
    assert theory.check(alike, "pl", **KNOWN).covered == ("tight",)


def test_tiny_steps_are_judged_without_rounding():
    """At L = 30 the paper's steps contract by 1e-30 a step; 1 − ρ from an eigenvalue would be 0."""
    known = {"L": 30.0, "mu_h": 0.1, "mu_g": 0.1}
    certificate = tc.certify("strongly-convex", **known, proof="paper")
    assert theory.check(certificate.method(), "strongly-convex", **known).covered == ("paper", "tight")


def test_check_refuses_what_it_cannot_judge():
    with pytest.raises(InputError, match="must be a `Fast` or a `Standard`, got Polyak"):
        theory.check(tc.Polyak(), "pl", **KNOWN)
    with pytest.raises(InputError, match="must have order='paper'"):
        theory.check(tc.Fast(order="fresh"), "pl", **KNOWN)
    with pytest.raises(InputError, match="`horizon` must be a whole number"):
        theory.check(tc.Fast(), "pl", **KNOWN, horizon=2**32)
    with pytest.raises(InputError, match="`structure` must be 'strongly-convex'"):
        theory.check(tc.Fast(), "concave", **KNOWN)


class Bare(Quadratic):
    """A quadratic that knows none but the named members of its answer."""

    def knows(self, member):
        return member in self.known


def bare_quadratic(*known):
    """The problem, and the constants that it keeps to itself."""
    inner = tc.problems.quadratic(dim=3, sigma=0.3)
    fields = {field.name: getattr(inner, field.name) for field in dataclasses.fields(inner)}
    return pytree(type("Bare", (Bare,), {"known": known}))(**fields), inner.constants()


def test_affine_means_give_exact_constants():
    problem, truth = bare_quadratic("mean_F", "mean_G")
    found = theory.constants(problem)
    assert found.exact == ("L", "mu_h", "mu_g")
    for name in found.exact:
        assert found[name] == pytest.approx(truth[name], rel=1e-12)
    assert abs(found.noise - truth["noise"]) < 4 * found.spread["noise"]
    assert "estimate" in str(found)


def test_without_means_they_are_estimates_with_a_spread():
    problem, truth = bare_quadratic("omega_star")
    found = theory.constants(problem)
    assert found.exact == ()
    assert set(found.spread) == {"L", "mu_h", "mu_g", "noise"}
    for name in found:
        assert found[name] == pytest.approx(truth[name], abs=5 * found.spread[name] + 1e-9)


@pytree
class Coin(tc.Problem):
    """F = a·θ with a = 1 or 3 and G = ω: noise that grows with θ."""

    def init(self, key):
        return jnp.ones(1), jnp.zeros(1), None

    def noise(self, key):
        return jax.random.bernoulli(key)

    def draw(self, u, theta, env):
        return jnp.where(u, 3.0, 1.0), env

    def F(self, theta, omega, x):
        return x * theta

    def G(self, theta, omega, x):
        return omega

    def mean_F(self, theta, omega):
        return 2.0 * theta

    def mean_G(self, theta, omega):
        return omega


@pytree
class Sampled(Coin):
    """The same, but multiplicative slopes seen through samples alone."""

    def knows(self, member):
        return member not in ("mean_F", "mean_G") and super().knows(member)


def test_the_noise_level_is_the_larger_of_those_at_the_start_and_at_the_solution():
    """At the start, θ = 1, it is 1; at the solution it vanishes."""
    found = theory.constants(Coin())
    assert found.exact == ("L", "mu_h", "mu_g")
    assert found.noise == pytest.approx(1.0, abs=4 * found.spread["noise"] + 1e-3)


def test_sampled_slopes_have_a_spread():
    found = theory.constants(Sampled(), samples=512)
    assert 0 < found.spread["L"] < 0.1
    assert abs(found.L - 2.0) < 4 * found.spread["L"]


def test_constants_of_an_instance_drawn_from_a_key():
    def make(key):
        return tc.problems.custom(
            F=lambda theta, omega, x: theta + omega + x,
            G=lambda theta, omega, x: 2 * omega + x,
            noise=lambda k: jax.random.normal(k),
            theta=jax.random.normal(key),
            omega=0.0,
        )

    found = theory.constants(make)
    assert (found.L, found.mu_h, found.mu_g) == pytest.approx((2.0, 1.0, 2.0))


def test_constants_and_start_refuse_what_they_cannot_know():
    with pytest.raises(InputError, match="`samples` must be at least 16, got 1"):
        theory.constants(Coin(), samples=1)
    with pytest.raises(InputError, match="measures `error` and `tracking`"):
        theory.start(Coin(), "strongly-convex")


def test_start_is_that_of_fast():
    problem = tc.problems.rates("pl", noise=0.0, start=2.0)
    start = theory.start(problem, "pl")
    assert start.x == pytest.approx((4 + 3 * np.sin(2) ** 2) / 8)
    assert start.y == start.g == pytest.approx(np.sin(2) ** 2 / 4)
    assert start.f == pytest.approx(((4 + 3 * np.sin(4)) / 8 - 0.45 * np.sin(2)) ** 2)
