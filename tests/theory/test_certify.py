"""Certificates: their inequalities hold for all constants, and the recursion they rest on holds for real operators."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import twoclock as tc
from twoclock.protocols import InputError
from twoclock.theory import STRUCTURES, Condition, InitialErrors, lyapunov_search
from twoclock.theory.certificate import ORDER
from twoclock.theory.paper import paper_rules

PROOFS = ("tight", "paper")


@st.composite
def triples(draw):
    L = 10 ** draw(st.floats(0, 2))
    mu_h, mu_g = (L * 10 ** draw(st.floats(-4, 0)) for _ in range(2))
    return {"L": L, "mu_h": mu_h, "mu_g": mu_g}


@pytest.mark.parametrize("proof", PROOFS)
@pytest.mark.parametrize("structure", STRUCTURES)
@settings(max_examples=5, deadline=None, derandomize=True)
@given(known=triples())
def test_every_inequality_holds_for_random_constants(structure, proof, known):
    certificate = tc.certify(structure, **known, noise=0.5, proof=proof)
    assert certificate.conditions
    for condition in certificate.conditions:
        assert condition.holds, condition
        assert condition.slack >= 0, condition
    bounds = certificate.bound(np.array([0, 10, 10**6]), 1.0)
    assert np.all(bounds > 0)
    assert np.all(np.isfinite(bounds))
    assert certificate.bound(0, 1.0) >= 1 - 1e-12  # it never promises less than it was given


def test_tight_certificates_at_unit_constants():
    """The numbers on record, which a search over all weights has since improved on: smaller A at smaller τ."""
    unit = {"L": 1.0, "mu_h": 1.0, "mu_g": 1.0}
    convex, pl, rough = (tc.certify(s, **unit) for s in STRUCTURES)
    assert convex.tau < 287
    assert convex.A < 7e3
    assert pl.tau < 152
    assert pl.A < 2.5e3
    # Non-convex: [4V₀ + 4A·B·(1+log(k+1))]/(α₀√(k+1)) at α₀ = 0.017; the repaired paper has 16/9e-7.
    assert 1 / rough.rate < 4 / 0.017
    assert tc.certify("non-convex", **unit, proof="paper").alpha.c == pytest.approx(8.9e-7, rel=0.01)
    assert tc.certify("strongly-convex", **unit, proof="paper").tau == pytest.approx(1.9e9, rel=0.01)


def test_paper_certificates_lie_within_the_theorems_as_printed():
    """With λ₀ ≤ ¼ the theorems' own bounds survive: Bτ²/(k+τ) + τ²V₀/(k+τ)², and [32V₀ + 16B·log(k+2)]/(α₀√(k+1))."""
    k = np.array([1, 10, 10**3, 10**6, 10**9], float)
    for structure in ("strongly-convex", "pl"):
        c = tc.certify(structure, L=1.5, mu_h=0.7, mu_g=0.9, noise=2.0, proof="paper")
        printed = 2.0 * c.tau**2 / (k + c.tau) + c.tau**2 * 4 / (k + c.tau) ** 2
        assert np.all(c.bound(k, 1.0) <= printed)
    c = tc.certify("non-convex", L=1.5, mu_g=0.9, noise=2.0, proof="paper")
    assert np.all(c.bound(k, 1.0) <= (32 * 4 + 16 * 2.0 * np.log(k + 2)) / (c.alpha.c * np.sqrt(k + 1)))


def test_schedules_and_method():
    c = tc.certify("pl", L=1.0, mu_h=0.9, mu_g=0.9)
    method = c.method()
    assert isinstance(method, tc.Fast)
    for name, constant in zip(("alpha", "beta", "lam"), c.c, strict=True):
        assert float(getattr(method, name)(0)) == pytest.approx(constant / (c.tau + 1))
    rough = tc.certify("non-convex", L=1.0, mu_g=0.9)
    assert (rough.alpha.p, rough.alpha.shift) == (0.5, 1.0)


def test_the_condition_that_fails_is_named(monkeypatch):
    monkeypatch.setattr(lyapunov_search, "conditions", lambda *_: (Condition("α ≤ 1/L", 2.0, 1.0),))
    with pytest.raises(InputError, match="no certificate: `α ≤ 1/L` fails, 2 > 1"):
        tc.certify("pl", L=1.0, mu_h=0.9, mu_g=0.9)


def _linear_problem(rng, dim, symmetric, size=1.0):
    """F = Hθ + B(ω − Wθ), G = M(ω − Wθ) with their exact constants; ``size`` makes all of them small."""
    root = rng.normal(size=(dim, dim))
    H = root @ root.T / dim + rng.uniform(0.05, 1) * np.eye(dim)
    M = rng.normal(size=(dim, dim)) / np.sqrt(dim)
    M = (M @ M.T if symmetric else M - M.T) + rng.uniform(0.05, 1) * np.eye(dim)
    B, W = rng.normal(size=(2, dim, dim)) / np.sqrt(dim)
    H, M, B, W = (size * part for part in (H, M, B, W))
    A, C = H - B @ W, -M @ W
    L = max(*(np.linalg.norm(part, 2) for part in (A, B, C, M, W, H)))
    return (A, B, C, M, H, W), {
        "L": L,
        "mu_h": np.linalg.eigvalsh(H)[0],
        "mu_g": np.linalg.eigvalsh((M + M.T) / 2)[0],
    }


def _fall(structure, certificate, matrices, k, points):
    """V before and after one noiseless step k of Algorithm 1 from many points, and what V was promised to lose."""
    A, B, C, M, H, W = matrices
    eps = (k + 1) ** -0.5 if structure == "non-convex" else 1 / (k + certificate.tau + 1)
    alpha, beta, lam = eps * np.array(certificate.c)

    def lyapunov(theta, omega, f, g):
        x = theta * theta if structure == "strongly-convex" else theta * (theta @ H) / 2
        parts = (
            x,
            (omega - theta @ W.T) ** 2,
            (f - theta @ A.T - omega @ B.T) ** 2,
            (g - theta @ C.T - omega @ M.T) ** 2,
        )
        return sum(weight * part.sum(1) for weight, part in zip(certificate.weights, parts, strict=True))

    theta, omega, f, g = points
    before = lyapunov(theta, omega, f, g)
    new_f, new_g = f + lam * (theta @ A.T + omega @ B.T - f), g + lam * (theta @ C.T + omega @ M.T - g)
    after = lyapunov(theta - alpha * f, omega - beta * g, new_f, new_g)
    measure = np.sum((theta @ H) ** 2, axis=1) if structure == "non-convex" else before
    return before, after, certificate.rate * eps * measure


@pytest.mark.parametrize("proof", PROOFS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_v_falls_as_promised_on_real_operators(structure, proof):
    """Random points of random linear problems, with gradients and with rotations as G."""
    rng = np.random.default_rng(1)
    for trial in range(12):
        dim = 1 + trial % 3
        matrices, known = _linear_problem(rng, dim, symmetric=trial % 2 == 0, size=0.1 if trial % 4 > 1 else 1.0)
        certificate = tc.certify(structure, **known, proof=proof)
        for k in (0, 1000):
            points = rng.normal(size=(4, 2000, dim)) * 10 ** rng.uniform(-2, 2, size=(4, 2000, 1))
            before, after, promised = _fall(structure, certificate, matrices, k, points)
            assert np.all(after <= before - promised + 1e-12 * before)


def test_v_falls_on_a_pl_function_that_is_not_convex():
    """h = (x² + 3 sin²x)/8 and ω* = ½ sin x: the PL and the non-convex recursion away from linear problems."""
    known = {"L": 1.45, "mu_h": 0.0219, "mu_g": 1.0}
    rng = np.random.default_rng(2)
    h, slope = (lambda x: (x**2 + 3 * np.sin(x) ** 2) / 8), (lambda x: (2 * x + 3 * np.sin(2 * x)) / 8)

    def F(x, w):
        return slope(x) + 0.9 * G(x, w)

    def G(x, w):
        return w - np.sin(x) / 2

    for structure in ("pl", "non-convex"):
        certificate = tc.certify(structure, **known)
        eps = 1 / (certificate.tau + 1)
        alpha, beta, lam = eps * np.array(certificate.c)
        x, w, f, g = rng.normal(size=(4, 20000)) * 10 ** rng.uniform(-2, 2, size=(4, 20000))

        def lyapunov(x, w, f, g, D=certificate.weights):
            return D[0] * h(x) + D[1] * G(x, w) ** 2 + D[2] * (f - F(x, w)) ** 2 + D[3] * (g - G(x, w)) ** 2

        before = lyapunov(x, w, f, g)
        after = lyapunov(x - alpha * f, w - beta * g, f + lam * (F(x, w) - f), g + lam * (G(x, w) - g))
        fall = certificate.rate * eps * (slope(x) ** 2 if structure == "non-convex" else before)
        assert np.all(after <= before - fall + 1e-12 * before)


def test_a_nonnegative_matrix_is_not_enough_when_lambda_exceeds_one():
    """I − N ≥ 0 allows λ = 1 + αL, which bounds ‖Δf₊‖ by 0; with F = −Lθ it is really 2αL‖Δf‖. So λ ≤ 1 is asked."""
    L, alpha, theta, f = 1.0, 0.1, 0.0, 1.0
    lam = 1 + alpha * L
    case = lyapunov_search.ProofCase("fast", "non-convex", L, (0.0, 1.0))
    N = lyapunov_search.comparison(case, (alpha, alpha, lam), 1.0)
    assert np.all((np.eye(4) - N)[1:] >= -1e-15)
    new_theta, new_f = theta - alpha * f, (1 - lam) * f + lam * (-L * theta)
    assert abs(new_f - (-L * new_theta)) == pytest.approx(2 * alpha * L)
    assert (np.eye(4) - N)[2, 2] == pytest.approx(0)


def test_the_search_begins_where_v_falls():
    """The ratios and weights in the docs are feasible for all L ≥ 1 and μ ≤ L."""
    rng = np.random.default_rng(3)
    for _ in range(500):
        L = 10 ** rng.uniform(0, 3)
        mu_h, mu_g = L * 10 ** rng.uniform(-4, 0, size=2)
        for structure in STRUCTURES:
            known = lyapunov_search.ProofCase("fast", structure, L, (mu_h, mu_g))
            c, D, _ = lyapunov_search.initial_guess(known)
            assert np.all(D > 0)
            assert lyapunov_search.speed(known, c, D, 0.0) > 0


def test_the_vector_in_the_docs_shows_an_m_matrix():
    rng = np.random.default_rng(4)
    for _ in range(500):
        L = 10 ** rng.uniform(0, 3)
        mu_h, mu_g = np.minimum(L, L * 10 ** rng.uniform(-4, 0.3, size=2))
        c = (mu_h * mu_g / (16 * L**3), 1.0, 12 * L**2 / mu_g)
        N = lyapunov_search.comparison(lyapunov_search.ProofCase("fast", "strongly-convex", L, (mu_h, mu_g)), c, 0.0)
        v = np.array([1.1 * (L + mu_g / 3) / mu_h, 1, mu_g / 3, mu_g / 3])
        assert np.all(N @ v >= [0, 0.49 * mu_g, 2.5 * L**2, 2.5 * L**2])


def test_start_may_be_written_in_several_ways():
    c = tc.certify("strongly-convex", L=1.0, mu_h=0.9, mu_g=0.9, noise=0.5)
    value = c.bound(100, InitialErrors(1.0, 2.0, 3.0, 4.0))
    assert c.bound(100, (1, 2, 3, 4)) == value
    assert c.bound(100, {"error": 1, "tracking": 2, "delta_f": 3, "delta_g": 4}) == value
    assert c.bound(np.array([100, 100]), {"z0": 1, "y0": 2, "f0": 3, "g0": 4}).tolist() == [value, value]
    assert isinstance(value, float)


GOOD = {"structure": "pl", "L": 1.0, "mu_h": 0.5, "mu_g": 0.5, "noise": 0.5}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"structure": "convex"}, "`structure` must be 'strongly-convex', 'pl' or 'non-convex'"),
        ({"mu_h": 2.0}, "`mu_h` must not exceed L"),
        ({"mu_g": 2.0}, "`mu_g` must not exceed L"),
        ({"mu_g": 0.0}, "`mu_g` must be a finite number above 0"),
        ({"mu_h": -1.0}, "`mu_h` must be a finite number above 0"),
        ({"mu_h": None}, "`mu_h` must be given"),
        ({"L": float("nan")}, "`L` must be a finite number above 0"),
        ({"L": "wide"}, "`L` must be one number"),
        ({"noise": -1.0}, "`noise` must be a finite number of at least 0"),
        ({"proof": "guess"}, r"`certify\(proof=…\)` must be 'tight', 'paper' or 'printed'"),
        ({"L": 1e60, "mu_g": 1e-60}, "too far apart for double precision"),
        ({"horizon": 2**31 + 1}, "`horizon` must be a whole number"),
        ({"horizon": 2.5}, "`horizon` must be a whole number"),
    ],
)
def test_bad_input_gets_one_line(change, words):
    with pytest.raises(InputError, match=words) as caught:
        tc.certify(**(GOOD | change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("k", [-1, 2**31 + 1, np.array([1, 2**32])])
def test_a_bound_beyond_the_last_step_is_refused(k):
    with pytest.raises(InputError, match="32 bits"):
        tc.certify(**GOOD).bound(k, 1.0)


@pytest.mark.parametrize("start", [-1.0, (1, 2), {"y": 1}, {"x": 1, "z": 1, "y": 1, "f": 1, "g": 1}, float("nan")])
def test_a_bad_start_is_refused(start):
    with pytest.raises(InputError, match="`start` must"):
        tc.certify(**GOOD).bound(1, start)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_small_lipschitz_constants_are_scaled_with_a_note(structure):
    """F, G and h in other units: the same run, the same bound."""
    small = tc.certify(structure, L=0.5, mu_h=0.4, mu_g=0.4, noise=0.25)
    unit = tc.certify(structure, L=1.0, mu_h=0.8, mu_g=0.8, noise=1.0)
    assert small.c == (2 * unit.c[0], 2 * unit.c[1], unit.c[2])
    assert "below 1" in small.notes[0]
    assert not unit.notes
    x, unit_of_metric = (1.0, 1.0) if structure == "strongly-convex" else (0.5, 0.5)
    unit_of_metric = 0.25 if structure == "non-convex" else unit_of_metric
    for k in (0, 1000):
        assert small.bound(k, (x, 1, 0.25, 0.25)) == pytest.approx(unit_of_metric * unit.bound(k, 1.0))


def test_a_horizon_before_tau_is_noted():
    assert "τ" in tc.certify("pl", L=1.0, mu_h=0.4, mu_g=0.4, horizon=100).notes[0]


def test_paper_conditions_are_the_ones_in_use():
    for structure in STRUCTURES:
        c = tc.certify(structure, L=1.0, mu_h=0.9, mu_g=0.9, proof="paper")
        names = [name for name, _ in ORDER + paper_rules(structure, 1.0, 0.9, 0.9)]
        assert [condition.name for condition in c.conditions][: len(names)] == names
