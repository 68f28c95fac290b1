"""Lemmas 1 to 15 of the paper's appendices, each as printed, at random points of random problems.

Their statements hold under the conditions on the steps that they name; what fails are the lists of conditions that
the theorems make of them (test_errata.py), and some steps between.
"""

import numpy as np
import pytest

STRUCTURES = ("strongly-convex", "pl", "non-convex")


def problem(rng, dim):
    """F = Hθ + B(ω − Wθ), G = M(ω − Wθ) with L ≥ 1 and their exact constants."""
    root = rng.normal(size=(dim, dim))
    H = root @ root.T / dim + rng.uniform(0.05, 1) * np.eye(dim)
    M = rng.normal(size=(dim, dim)) / np.sqrt(dim)
    M = M - M.T + rng.uniform(0.05, 1) * np.eye(dim)
    B, W = rng.normal(size=(2, dim, dim)) / np.sqrt(dim)
    L = max(1.0, *(np.linalg.norm(part, 2) for part in (H - B @ W, B, M @ W, M, W, H)))
    return (H, B, M, W), L, np.linalg.eigvalsh(H)[0], np.linalg.eigvalsh((M + M.T) / 2)[0]


def steps_of(structure, L, m, g, rng):
    """Steps at the edge of what the lemmas of a structure ask for, or up to a hundred times smaller."""
    M, small = (L + 1) ** 6, 10 ** -rng.uniform(0, 2)
    if structure == "strongly-convex":
        beta = min(1 / (72 * M), 1 / g, 0.25) * small
        alpha = min(beta, m / (6 * (L + 1) ** 4), 1 / (2 * m)) * small
        return alpha, beta, max(beta, 0.25 * small)
    if structure == "pl":  # "the step sizes given": β_k ≤ 1/L, μ_h³/(480(L+1)⁶), μ_G/(8L²), and the ratios to λ
        m = min(m, 2.0)
        lam = 0.25 * small
        beta = min(1 / L, m**3 / (480 * M), g / (8 * L**2), lam * g / (320 * L**4),
                   lam / 4 / (2 * L**2 / m**3 + 58 * L**2), lam / 4 / (50 * L**2 + 8 / g))  # fmt: skip
        return min(beta, g * beta / (4 * (14 * L**3 + 132 * M / m**3)), m**2 * lam / (3072 * M)), beta, lam
    lam = 0.25 * small
    beta = min(small / (72 * L), lam)
    return min(beta, small / (72 * L**2)), beta, lam


def lemmas(structure, parts, L, m, g, steps, points, noise):
    """Left and right side of each lemma of a structure, in the mean over noise of variance ``noise``."""
    (H, B, M, W), (a, b, c) = parts, steps
    theta, omega, f, gg = points

    def means(theta, omega):
        off = omega - theta @ W.T
        return theta @ H.T + off @ B.T, off @ M.T

    def sq(v):
        return np.sum(v * v, axis=1)

    F, G = means(theta, omega)
    new_theta, new_omega = theta - a * f, omega - b * gg
    F1, G1 = means(new_theta, new_omega)
    df, dg, y = sq(f - F), sq(gg - G), sq(omega - theta @ W.T)
    df1 = sq((1 - c) * (f - F) + F - F1) + c**2 * noise
    dg1 = sq((1 - c) * (gg - G) + G - G1) + c**2 * noise
    y1 = sq(new_omega - new_theta @ W.T)
    z, z1 = sq(theta), sq(new_theta)
    x, x1 = (np.sum(t * (t @ H), axis=1) / 2 for t in (theta, new_theta))
    slope = sq(theta @ H)
    # What ‖θ − θ*‖ stands for: √z, 2√x/μ_h or ‖∇h‖; and its square with the factor of the Δ lemmas.
    far, far_sq = {
        "strongly-convex": (L * (L + 1) * np.sqrt(z), 6 * (L + 1) ** 6 * z),
        "pl": (2 * L * (L + 1) / m * np.sqrt(x), 24 * (L + 1) ** 6 / m * x),
        "non-convex": (np.sqrt(slope), 6 * L**2 * slope),
    }[structure]
    size_f, size_g = np.sqrt(df) + L * np.sqrt(y) + far, np.sqrt(dg) + L * np.sqrt(y)

    def delta(own, other):
        own_part = (1 - c) * own - (c / 4 - 24 * L**2 * b**2 / c) * own
        return own_part + 4 / c * (6 * L**2 * b**2 * other + 10 * L**4 * b**2 * y + a**2 * far_sq) + 2 * noise * c**2

    M6 = (L + 1) ** 6
    common_y = (8 * b / g + 2 * L * b**2) * dg + 8 * L * a * df
    last = {
        "strongly-convex": (
            (z1, (1 - m * a / 4) * z + 9 * L**2 * a / m * y + 4.5 * a / m * df),
            (y1, (1 - g * b) * y - (g / 4 * b - 8 * L**4 * a - L**2 * b**2) * y
             + (19 * M6 * a**2 / (g * b) + 3 * M6 * a * b) * z + common_y),
        ),
        "pl": (
            (x1, (1 - m * a) * x - (m / 4 * a - 6 * (L + 1) ** 5 / m**2 * a**2) * x
             + (4 * L**4 / m**3 + 2 * L) * a * y + (2 * L**2 * a / m**3 + 2 * L * a**2) * df),
            (y1, (1 - g * b) * y - (g / 2 * b - (12 * L**3 + 128 * M6 / m**3) * a - L**2 * b**2) * y
             + (m / 8 * a + 24 * M6 / m**2 * a * b) * x + common_y),
        ),
        "non-convex": (
            (x1, x - a / 4 * slope + 1.25 * a * df + 1.25 * L**2 * a * y),
            (y1, (1 - g * b) * y - (g / 2 * b - 108 * L**4 * a - L**2 * b**2) * y + a / 8 * slope + common_y),
        ),
    }[structure]  # fmt: skip
    first = 1 + 5 * STRUCTURES.index(structure)
    found = {first: (np.sqrt(sq(f)), size_f), first + 1: (df1, delta(df, dg)), first + 2: (dg1, delta(dg, df))}
    found |= {first + 3: last[0], first + 4: last[1]}
    found[first] = (np.maximum(found[first][0] - size_f, np.sqrt(sq(gg)) - size_g), 0 * size_f)
    return found, df + dg + y + (z if structure == "strongly-convex" else x)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_lemma_holds_as_printed_under_its_own_conditions(structure):
    rng = np.random.default_rng(STRUCTURES.index(structure))
    for _ in range(60):
        dim = int(rng.integers(1, 4))
        parts, L, m, g = problem(rng, dim)
        steps = steps_of(structure, L, m, g, rng)
        points = rng.normal(size=(4, 500, dim)) * 10 ** rng.uniform(-2, 2, size=(4, 500, 1))
        found, size = lemmas(structure, parts, L, min(m, 2.0) if structure == "pl" else m, g, steps, points, 1.0)
        for number, (left, right) in found.items():
            assert np.all(left <= right + 1e-9 * (1 + size)), f"Lemma {number}"


def test_the_descent_lemma_of_the_pl_case_needs_mu_at_most_two():
    """Lemma 9 with √(2/μ_h) ≤ 2/μ_h at μ_h = L = 20: a quadratic breaks it; with min(μ_h, 2) in its place it holds."""
    L = m = 20.0
    alpha, df = 1e-9, 1.0
    x = np.geomspace(1e-6, 1.0, 200)
    theta = np.sqrt(2 * x / m)
    new = theta - alpha * (m * theta - np.sqrt(df))  # f is too small by √df, y = 0
    x1 = m * new**2 / 2

    def right(m):
        fall = (1 - m * alpha) * x - (m / 4 * alpha - 6 * (L + 1) ** 5 / m**2 * alpha**2) * x
        return fall + (2 * L**2 * alpha / m**3 + 2 * L * alpha**2) * df

    assert np.any(x1 > right(m) * (1 + 1e-12))
    assert np.all(x1 <= right(2.0))


def test_the_printed_conditions_of_the_non_convex_case_do_not_sum_to_a_fall():
    """Each lemma holds at the steps of Section 3.3, and yet V rises there: F = 0.2θ + (ω−θ), G = 0.1(ω−θ)."""
    alpha = beta = 1 / 72
    theta, omega, f, g = 1.0, 0.0, -0.8, -0.1
    for _ in range(20000):
        theta, omega, f, g = (
            theta - alpha * f, omega - beta * g, f + 0.25 * (0.2 * theta + omega - theta - f),
            g + 0.25 * (0.1 * (omega - theta) - g),
        )  # fmt: skip
    assert abs(theta) > 1
