"""The tight proof for the standard method and for more than two levels, against real operators and runs."""

import jax
import numpy as np
import pytest

import twoclock as tc
from twoclock import theory
from twoclock.cli.commands.certify import fit_quadratic
from twoclock.protocols import InputError
from twoclock.theory import STRUCTURES, lyapunov_search


def _nest(rng, levels, dim, kink=0.0):
    """Operators F_i(x) = M_i(x_i − y_i(x_<i)) + Σ_{j>i} C_ij(x_j − y_j(x_<j)), their solutions y_i, and constants.

    With a kink the solutions are |·| of a linear map, whose slope is the same.
    """
    skew = rng.normal(size=(levels, dim, dim))
    M = [0.3 * (S - S.T) / np.sqrt(dim) + np.diag(rng.uniform(0.3, 1, dim)) for S in skew]
    M[0] = np.diag(rng.uniform(0.3, 1, dim))  # the gradient of a convex h
    W = rng.normal(size=(levels, levels, dim, dim)) * 0.4 / dim
    C = rng.normal(size=(levels, levels, dim, dim)) * 0.4 / dim

    def root(i, x):
        way = sum((x[j] @ W[i, j].T for j in range(i)), np.zeros_like(x[0]))
        return np.abs(way) if kink else way

    def operators(x):
        off = [x[i] - root(i, x) for i in range(levels)]
        return [off[i] @ M[i].T + sum(off[j] @ C[i, j].T for j in range(i + 1, levels)) for i in range(levels)]

    mu = [float(np.linalg.eigvalsh((m + m.T) / 2)[0]) for m in M]
    slopes = [np.linalg.norm(W[i, j], 2) for i in range(levels) for j in range(i)]
    # An operator's slope in level j: its own, and through the solutions of later levels.
    size = np.zeros((levels, levels))
    for i in range(levels):
        for m in range(i, levels):
            weight = np.linalg.norm(M[i] if m == i else C[i, m], 2)
            size[i, m] += weight
            for j in range(m):
                size[i, j] += weight * np.linalg.norm(W[m, j], 2)
    return operators, root, {"L": float(max(size.max(), *slopes)), "mu_h": mu[0], "mu_g": mu[1:]}


def _distances(x, root):
    return [np.linalg.norm(x[i] - root(i, x), axis=1) for i in range(len(x))]


@pytest.mark.parametrize("levels", [2, 3, 4])
@pytest.mark.parametrize("method", ["fast", "standard"])
@pytest.mark.parametrize("kink", [False, True])
def test_every_norm_obeys_its_row_and_v_falls(method, levels, kink):
    """One step without noise from thousands of points: e₊ ≤ (I − εN)e row by row, and V₊ ≤ (1 − 2/n)V."""
    rng = np.random.default_rng(levels)
    for _ in range(4):
        operators, root, known = _nest(rng, levels, dim=2, kink=kink)
        certificate = tc.certify("strongly-convex", **known, method=method)
        scale = min(known["L"], 1.0)  # below 1 the proof is about the operators over L
        n = certificate.tau + 1
        steps, lam = np.array(certificate.c[:-1]) / n, certificate.c[-1] / n
        x, r = (list(rng.normal(size=(levels, 2000, 2)) * 10 ** rng.uniform(-2, 2, (levels, 2000, 1))) for _ in "xr")
        if method == "fast":
            mean = operators(x)
            f = [m + s for m, s in zip(mean, r, strict=True)]
            new = [x[i] - steps[i] * f[i] for i in range(levels)]
            averaged = [f[i] + lam * (mean[i] - f[i]) - operators(new)[i] for i in range(levels)]
            before = [*_distances(x, root), *(np.linalg.norm(s, axis=1) / scale for s in r)]
            after = [*_distances(new, root), *(np.linalg.norm(s, axis=1) / scale for s in averaged)]
        else:
            at = operators([x[i] + r[i] for i in range(levels)])
            new = [x[i] + lam * r[i] - steps[i] * at[i] for i in range(levels)]
            before = [*_distances(x, root), *(np.linalg.norm(s, axis=1) for s in r)]
            after = [*_distances(new, root), *((1 - lam) * np.linalg.norm(s, axis=1) for s in r)]
        constants = lyapunov_search.ProofCase(
            method,
            "strongly-convex",
            known["L"] / scale,
            tuple(m / scale for m in (known["mu_h"], *known["mu_g"])),
        )
        c = (*(scale * v for v in certificate.c[:-1]), certificate.c[-1])
        rows = np.eye(2 * levels) - lyapunov_search.comparison(constants, c, 1 / n) / n
        assert np.all(np.array(after) <= rows @ before * (1 + 1e-9))
        units = np.r_[np.ones(levels), np.full(levels, scale if method == "fast" else 1.0)]
        D = np.array(certificate.weights)[:, None]
        falls = [np.sum(D * (units[:, None] * np.array(e)) ** 2, axis=0) for e in (before, after)]
        assert np.all(falls[1] <= falls[0] * (1 - 2 / n) * (1 + 1e-12))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_standard_method_has_the_smaller_bound_at_unit_constants(structure):
    unit = {"L": 1.0, "mu_h": 1.0, "mu_g": 1.0, "noise": 1.0}
    fast, standard = (tc.certify(structure, **unit, method=method) for method in ("fast", "standard"))
    assert isinstance(standard.method(), tc.Standard)
    start = {"x": 1.0, "y": 1.0, "f": 0.0, "g": 0.0}
    for k in (10**4, 10**6, 10**8):
        assert standard.bound(k, start) < fast.bound(k, start)
    if structure != "non-convex":
        assert standard.A < fast.A


def test_certificates_of_the_standard_method_hold_on_thirty_random_triples():
    rng = np.random.default_rng(20261118)
    for _ in range(30):
        L = 10 ** rng.uniform(-0.5, 0.7)
        known = {
            "L": L,
            "mu_h": L * rng.uniform(0.2, 1),
            "mu_g": L * rng.uniform(0.2, 1),
            "noise": 10 ** rng.uniform(-2, 1),
        }
        structure = STRUCTURES[int(rng.integers(3))]
        certificate = tc.certify(structure, **known, method="standard")
        problem = fit_quadratic(certificate)
        result = tc.solve(problem, certificate.method(), 2000, 20, [10, 100, 2000])
        start = theory.start(problem, structure)
        mean = result.history.groupby("step")[certificate.metric].mean()
        if structure == "non-convex":
            mean = mean.cummin()
        assert np.all(mean.to_numpy() <= certificate.bound(mean.index.to_numpy(float), start))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_certified_steps_of_the_standard_method_pass_their_own_check(structure):
    known = {"L": 1.3, "mu_h": 0.7, "mu_g": 0.9}
    certificate = tc.certify(structure, **known, method="standard")
    report = theory.check(certificate.method(), structure, **known)
    assert report.covered == ("tight",)
    assert not report.group("paper")


def test_constant_steps_and_fast_first_levels_fail_the_check_of_the_standard_method():
    known = {"L": 1.0, "mu_h": 1.0, "mu_g": 1.0}
    constant = theory.check(tc.Standard(1e-3, 1e-2), "strongly-convex", **known)
    assert not constant.covered
    # c_α/c_β must stay below μ_hμ_G/(L²(L+μ_h)) = ½.
    inside, outside = (
        theory.check(tc.Standard(f"{a}/(k+1e6)", "1e-2/(k+1e6)"), "strongly-convex", **known, horizon=100)
        for a in (0.0049, 0.0051)
    )
    assert [f.always for report in (inside, outside) for f in report if f.name.startswith("0 < 1")] == [True, False]


def test_a_certificate_has_a_step_for_each_level_and_runs():
    certificate = tc.certify("strongly-convex", L=1.0, mu_h=0.8, mu_g=(0.9, 1.0), noise=0.1)
    method = certificate.method()
    assert len(method.beta.entries) == 2
    problem = tc.problems.custom(
        F=lambda theta, omega, x: 0.8 * theta + 0.2 * (omega[0] - theta / 4) + x,
        G=(
            lambda theta, omega, x: 0.9 * (omega[0] - theta / 4) + 0.1 * (omega[1] - omega[0] / 4) + x,
            lambda theta, omega, x: omega[1] - omega[0] / 4 + x,
        ),
        noise=lambda key: 0.3 * jax.random.normal(key),
        theta=1.0,
        omega=(0.0, 0.0),
        measure=lambda theta, omega: {"error": theta**2},
    )
    history = tc.solve(problem, method, 5000, 20, [100, 1000, 5000]).history
    mean = history.groupby("step")["error"].mean()
    assert np.all(mean.to_numpy() <= certificate.bound(mean.index.to_numpy(float), 1.0))


@pytest.mark.parametrize("mu_g", [(0.9, 0.5), (0.6, 0.3, 0.9)])
@pytest.mark.parametrize("method", ["fast", "standard"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_certified_steps_of_more_levels_pass_their_own_check(structure, method, mu_g):
    known = {"L": 1.3, "mu_h": 0.7, "mu_g": mu_g}
    certificate = tc.certify(structure, **known, method=method)
    assert "beta=(" in str(certificate)
    assert "Power(" not in str(certificate)
    report = theory.check(certificate.method(), structure, **known)
    assert report.covered == ("tight",)
    assert [f.name for f in report.group("order")][:2] == ["α ≤ β₁", "β₁ ≤ β₂"]
    # One clock for all levels, as fast as the last, is a nest that no V covers.
    last = certificate.beta[-1]
    one = tc.Standard(last, last) if method == "standard" else tc.Fast(last, last, certificate.lam)
    findings = {f.name: f for f in theory.check(one, structure, **known).group("tight")}
    assert findings["0 < 1 − ρ(K)"].leaves == 0


def test_a_check_with_another_number_of_levels_gets_one_line():
    three = tc.Standard("1/(k+9)", ("2/(k+9)", "4/(k+9)"))
    with pytest.raises(InputError, match=r"`mu_g` must have one number for each fast level, .* has 2 levels, got 1"):
        theory.check(three, "strongly-convex", L=1.0, mu_h=1.0, mu_g=1.0)


def test_levels_cost_decades():
    """What a nest of N levels costs: on record, to be improved on."""
    found = [tc.certify("strongly-convex", L=1.0, mu_h=1.0, mu_g=(1.0,) * n, method="standard").A for n in (1, 2, 3)]
    assert found[0] < 1.0e3
    assert found[1] < 4e5
    assert found[2] < 3e9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "slow"}, "must be 'fast' or 'standard'"),
        ({"mu_g": ()}, "`mu_g` must have 1 to 5 entries"),
        ({"mu_g": (1.0, 2.0)}, r"`mu_g\[1\]` must not exceed L"),
        ({"mu_g": (1.0, 1.0), "proof": "paper"}, "covers `Fast` on two levels"),
        ({"method": "standard", "proof": "paper"}, "covers `Fast` on two levels"),
    ],
)
def test_bad_levels_and_methods_get_one_line(change, words):
    with pytest.raises(InputError, match=words):
        tc.certify("strongly-convex", **{"L": 1.0, "mu_h": 1.0, "mu_g": 1.0, **change})
