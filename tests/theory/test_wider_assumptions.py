"""Noise that grows, gradients in another metric, PL constants of the two applications, and residuals along a run."""

import jax
import numpy as np
import pytest

import twoclock as tc
from twoclock import theory

W, C = 0.5, 0.5  # ω* = Wθ and F = θ + C(ω − ω*), G = ω − ω*: L = μ_h = μ_G = 1


@pytest.mark.parametrize("method", ["fast", "standard"])
@pytest.mark.parametrize("structure", ["strongly-convex", "pl"])
@pytest.mark.parametrize("growth", [0.1, 3.0])
def test_v_falls_in_the_mean_under_noise_that_grows(method, structure, growth):
    """E V₊ ≤ (1 − 2/n)V + A·B₀/n² at random points, with exact expectations over noise B₀ + B₁(z + y)."""
    noise = 0.7
    found = tc.certify(structure, L=1.0, mu_h=1.0, mu_g=1.0, noise=noise, growth=growth, method=method)
    n = found.tau + 1
    a, b, lam = np.array(found.c) / n
    rng = np.random.default_rng(0)
    x, w, u, v = rng.normal(size=(4, 20000)) * 10 ** rng.uniform(-2, 2, size=(4, 20000))
    half = 1.0 if structure == "strongly-convex" else 0.5
    # For Standard, V of the proof is Certificate's over its share 1 + s/D_u: the share is weights[0].
    D = np.array(found.weights) / found.weights[0]

    def lyapunov(x, w, u, v):
        return D[0] * half * x**2 + D[1] * (w - W * x) ** 2 + D[2] * u**2 + D[3] * v**2

    if method == "fast":  # u, v are Δf, Δg
        F, G = x + C * (w - W * x), w - W * x
        x1, w1 = x - a * (F + u), w - b * (G + v)
        u1, v1 = (1 - lam) * u + F - (x1 + C * (w1 - W * x1)), (1 - lam) * v + G - (w1 - W * x1)
        level, into = noise + growth * (x**2 + (w - W * x) ** 2), (lam, lam)
    else:  # θ = x + u and ω = w + v are run
        t, o = x + u, w + v
        x1, w1 = x + lam * u - a * (t + C * (o - W * t)), w + lam * v - b * (o - W * t)
        u1, v1 = (1 - lam) * u, (1 - lam) * v
        level, into = noise + growth * (t**2 + (o - W * t) ** 2), (a, b)
    after = lyapunov(x1, w1, u1, v1) + (D[2] * into[0] ** 2 + D[3] * into[1] ** 2) * level
    bound = (1 - 2 / n) * lyapunov(x, w, u, v) + found.A / found.weights[0] * noise / n**2
    assert np.all(after <= bound * (1 + 1e-9))


def test_growth_makes_steps_smaller_and_is_refused_where_it_has_no_proof():
    known = {"L": 1.0, "mu_h": 1.0, "mu_g": 1.0}
    taus = [tc.certify("pl", **known, growth=growth).tau for growth in (0.0, 0.1, 10.0)]
    assert taus == sorted(taus)
    assert taus[0] < taus[-1] / 10
    for wrong in ({"proof": "paper"}, {"metric": (1.0, 2.0)}):
        with pytest.raises(tc.InputError, match="`growth` and `metric`"):
            tc.certify("pl", **known, growth=1.0, **wrong)
    with pytest.raises(tc.InputError, match="non-convex"):
        tc.certify("non-convex", L=1.0, mu_g=1.0, growth=1.0)


def test_v_falls_where_f_is_the_gradient_in_another_metric():
    """∇h = SF* with S between 0.5 and 3, h = ½θᵀHθ: V in units of the gap falls by 2/n at random points."""
    rng = np.random.default_rng(1)
    for method in ("fast", "standard"):
        S, H = np.diag([0.5, 3.0]), np.array([[1.0, 0.2], [0.2, 0.8]])
        A, off = np.linalg.inv(S) @ H, 0.4 * np.eye(2)
        slope, couple = off, 0.3 * np.eye(2)
        L = max(np.linalg.norm(m, 2) for m in (A, A - couple @ slope, H, np.eye(2)))
        # ½‖F*‖² ≥ μ(h − h*): the least eigenvalue of AᵀA relative to H.
        mu = float(np.linalg.eigvals(np.linalg.solve(H, A.T @ A)).real.min())
        found = tc.certify("pl", L=L, mu_h=min(mu, L), mu_g=1.0, metric=(0.5, 3.0), method=method)
        n = found.tau + 1
        a, b, lam = np.array(found.c) / n
        x, w, u, v = rng.normal(size=(4, 5000, 2)) * 10 ** rng.uniform(-2, 2, size=(4, 5000, 1))
        D = np.array(found.weights) / found.weights[0]

        def means(x, w, A=A, slope=slope, couple=couple):
            gap = w - x @ slope.T
            return x @ A.T + gap @ couple.T, gap

        def lyapunov(x, w, u, v, D=D, H=H, slope=slope):
            parts = np.sum(x * (x @ H), 1) / 2, *(np.sum(p * p, 1) for p in (w - x @ slope.T, u, v))
            return sum(d * part for d, part in zip(D, parts, strict=True))

        if method == "fast":
            F, G = means(x, w)
            x1, w1 = x - a * (F + u), w - b * (G + v)
            F1, G1 = means(x1, w1)
            u1, v1 = (1 - lam) * u + F - F1, (1 - lam) * v + G - G1
        else:
            F, G = means(x + u, w + v)
            x1, w1, u1, v1 = x + lam * u - a * F, w + lam * v - b * G, (1 - lam) * u, (1 - lam) * v
        assert np.all(lyapunov(x1, w1, u1, v1) <= (1 - 2 / n) * lyapunov(x, w, u, v) * (1 + 1e-9))


def test_the_pl_constant_of_the_lqr_holds_on_its_sublevel_set():
    problem = tc.problems.paper_lqr()
    found = theory.constants(problem, samples=256, points=3)
    low, high = found["metric"]
    assert "mu_h" in found.exact
    assert found.mu_g > 0
    rng = np.random.default_rng(2)
    with jax.enable_x64(True):
        for _ in range(40):
            K = np.asarray(problem.confine(rng.normal(size=(2, 3))))
            assert float(problem.h(K)) <= float(problem.h(problem.K0)) * (1 + 1e-12)
            E = np.asarray(problem.field(K))
            assert np.sum(E**2) / 2 >= found.mu_h * (float(problem.h(K)) - float(problem.J_star)) * (1 - 1e-9)
            S = 2 * np.asarray(problem.lqr.state_covariance(K, 1.0))
            assert np.allclose(np.asarray(jax.grad(problem.h)(K)), E @ S)
            assert low * (1 - 1e-12) <= np.linalg.eigvalsh(S)[0] <= np.linalg.eigvalsh(S)[-1] <= high
    certificate = tc.certify("pl", **found)
    assert all(condition.holds for condition in certificate.conditions)


@pytest.mark.parametrize("make", [lambda: tc.problems.forest(temp=1.0), lambda: tc.problems.frozen_lake(temp=0.5)])
def test_the_pl_constant_of_soft_mdps_holds_where_it_is_meant(make):
    problem = make()
    soft, shape = problem.truth.soft, problem.theta0.shape
    rng = np.random.default_rng(3)
    tightest = np.inf
    for scale in (0.1, 1.0, 3.0):
        for _ in range(10):
            theta = scale * rng.normal(size=shape)
            mu = problem.pl_constants([theta])["mu_h"]
            gap = float(problem.truth.J_star) - float(soft.J(theta))
            slope = float(np.sum(np.asarray(soft.gradient(theta)) ** 2))
            assert slope / 2 >= mu * gap
            tightest = min(tightest, slope / 2 / (mu * gap))
    assert 1 < tightest < 1e12


def test_constants_of_a_warm_mdp_are_certified_and_those_of_a_cold_one_refused():
    warm = theory.constants(tc.problems.forest(temp=1.0), samples=256, points=3)
    assert all(condition.holds for condition in tc.certify("pl", **warm).conditions)
    cold = theory.constants(tc.problems.forest(temp=0.0), samples=256, points=3)
    assert cold.mu_h == 0
    with pytest.raises(tc.InputError, match="`mu_h` must be"):
        tc.certify("pl", **cold)


def test_residuals_by_hand():
    """Three steps of Algorithm 1 in numpy beside what the record says."""
    problem = tc.problems.rates("strongly-convex", noise=0.0)
    method = theory.residuals(problem, tc.Fast(0.5, 0.25, 0.125))
    result = tc.solve(problem, method, 3, 1, [0, 1, 2, 3])
    t, w, f, g = 1.0, 0.0, 0.0, 0.0
    for row in result.history.itertuples():
        G = w - np.sin(t) / 2
        F = t + 0.9 * G
        want = {"delta_f": (f - F) ** 2, "delta_g": (g - G) ** 2}
        want["V"] = want["delta_f"] + want["delta_g"] + t**2 + G**2
        assert {name: getattr(row, name) for name in want} == pytest.approx(want)
        t, w, f, g = t - 0.5 * f, w - 0.25 * g, f + 0.125 * (F - f), g + 0.125 * (G - g)
    plain = tc.solve(problem, tc.Fast(0.5, 0.25, 0.125), 3, 1)
    assert np.array_equal(plain.theta, result.theta)


def test_residuals_refuse_what_has_none():
    problem = tc.problems.rates()
    with pytest.raises(tc.InputError, match="must be a `Fast`"):
        theory.residuals(problem, tc.Standard())
    blind = tc.problems.custom(F=lambda t, w, x: t, G=lambda t, w, x: w, theta=1.0, omega=0.0, noise=jax.random.normal)
    with pytest.raises(tc.InputError, match="has no `mean_F`"):
        theory.residuals(blind, tc.Fast())


def test_pl_constants_in_a_metric_below_one_may_exceed_the_lipschitz_constant():
    """F* = ∇h/S with S = ½ and h = ½θ²: F* is 2-Lipschitz and ½‖F*‖² = 4h."""
    known = {"L": 2.0, "mu_h": 4.0, "mu_g": 1.0}
    with pytest.raises(tc.InputError, match="`mu_h` must not exceed L, got 4 > 2"):
        tc.certify("pl", **known)
    assert all(condition.holds for condition in tc.certify("pl", **known, metric=(0.5, 0.5)).conditions)
    with pytest.raises(tc.InputError, match="`mu_h` must not exceed L in the metric, got 9 > 8"):
        tc.certify("pl", L=2.0, mu_h=9.0, mu_g=1.0, metric=(0.5, 0.5))
