"""Errors of the paper that docs/errata.md lists, each shown by numbers: what is printed fails, what is right holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc

CONSTANTS = [(1.0, 1.0, 1.0), (1.0, 0.2, 0.7), (3.0, 0.5, 2.0)]  # L, μ_h, μ_G


def printed_steps_of_theorem_1(L, m, g):
    """The largest α/β and β/λ of the printed list, L1115 to L1118, as (α, β, λ) for β = 1."""
    M = (L + 1) ** 6
    alpha = min(1, 8 * g / m, m * g / (152 * M), g / (8 * (8 * L**4 + 9 * L**2 / g)))
    lam = max(1, 4 * (56 * L**2 + 4.5 / m), 4 * (48 * L**2 + 10 * L / g), m * alpha)
    return alpha, 1.0, lam


@pytest.mark.parametrize("constants", CONSTANTS)
def test_the_printed_list_of_theorem_1_leaves_nothing_for_z(constants):
    L, m, g = constants
    M, (alpha, beta, _) = (L + 1) ** 6, printed_steps_of_theorem_1(*constants)
    for size in (1e-3, 1e-9):  # however late the step
        beta_k = size / (240 * M)
        left = m / 8 - 15 * M * beta_k - 19 * M * (alpha / beta) / g
        assert left < 0 or alpha / beta < m * g / (152 * M)
    # With half as much for each, and μ_h in the condition on β, something is left.
    assert m / 8 - 3 * M * m / (96 * M) - 19 * M * (m * g / (304 * M)) / g >= 0


@pytest.mark.parametrize("constants", CONSTANTS)
def test_two_sums_of_theorem_1_do_not_follow(constants):
    alpha, beta, lam = printed_steps_of_theorem_1(*constants)
    for size in alpha / lam * np.array([1.0, 1e-3, 1e-6]):  # late steps, with λ_k ≤ ¼
        a, b, c = alpha * size, beta * size, lam * size
        assert c <= 0.25
        assert 80 * b**2 / c > 20 * b**2
        assert 48 * a**2 / c > 12 * a * b


def test_eight_over_mu_h_gives_half_the_fall():
    """V₊ ≤ (1 − μ_hα/8)V, and 2/(k+τ+1) is asked for: c_α = 8/μ_h gives 1/(k+τ+1)."""
    assert [0.7 * (c / 0.7) / 8 for c in (8, 16)] == pytest.approx([1, 2])


@pytest.mark.parametrize("constants", CONSTANTS)
def test_the_printed_list_of_theorem_2_leaves_nothing_for_y(constants):
    L, m, g = constants
    R = 14 * L**3 + 132 * (L + 1) ** 6 / m**3
    for beta in (g / (8 * L**2), 1e-9):
        assert g / 4 - R * g / (4 * R) - L**2 * beta < 0
        assert g / 4 - R * g / (8 * R) - L**2 * beta >= 0


def test_theorem_3_as_printed_lacks_the_noise_level():
    """F = θ + X, G = ω with Var X = B: exact second moments against both bounds, L = 1, steps of Section 3.3."""
    B, theta = 1e8, 10.0
    as_printed = tc.certify("non-convex", L=1.0, mu_g=1.0, noise=B, proof="printed")
    alpha, _, lam = as_printed.c
    v0 = theta**2 / 2  # f₀ = ∇h(θ₀), so that Δf₀ = 0, and y₀ = Δg₀ = 0

    def step(k, state):
        tt, tf, ff, least = state  # Eθ², Eθf, Ef²
        r = 1 / jnp.sqrt(k + 1.0)
        a, c = alpha * r, lam * r
        after = tt - 2 * a * tf + a * a * ff
        return (
            after,
            (1 - c) * tf + c * tt - a * (1 - c) * ff - a * c * tf,
            (1 - c) ** 2 * ff + 2 * c * (1 - c) * tf + c * c * (tt + B),
            jnp.minimum(least, after),
        )

    with jax.enable_x64(True):
        walk = jax.jit(lambda first, last, state: jax.lax.fori_loop(first, last, step, state))
        state, first, ratios = (theta**2,) * 4, 0, []
        for k in (1_000_000, 2_000_000, 4_000_000):
            state, first = walk(first, k, state), k
            ratios.append(float(state[3]) / as_printed.bound(k, (v0, 0.0, 0.0, 0.0)))
            assert state[3] <= (32 * v0 + 16 * B * np.log(k + 2)) / (alpha * np.sqrt(k + 1))
    assert ratios[-1] > 1.2


def test_partial_stationarity_is_not_that_of_a_bilevel_problem():
    """f₁ = ½(y−1)², f₂ = ½(y−x)²: y* = x, so x = 1 is the solution, and ∂f₁/∂x = 0 everywhere."""
    f1 = lambda x, y: 0.5 * (y - 1) ** 2  # noqa: E731
    for x in (-2.0, 0.0, 5.0):
        assert jax.grad(f1)(x, x) == 0
        assert jax.grad(lambda x: f1(x, x))(x) == x - 1
    assert jax.grad(lambda x: f1(x, x))(1.0) == 0


def test_the_noise_of_tdc_grows_with_theta():
    problem = tc.problems.boyan("tdc")
    with jax.enable_x64(True):
        theta, omega, env = problem.init(jax.random.key(0))
        noise = jax.vmap(problem.noise)(jax.random.split(jax.random.key(1), 2000))

        def variance(size):
            at = size * jnp.arange(1.0, theta.size + 1)

            def one(env, u):
                x, env = problem.draw(u, at, env)
                return env, problem.F(at, omega, x)

            F = jax.lax.scan(one, env, noise)[1]
            return float(jnp.sum(jnp.var(F, axis=0)))

        assert variance(1000.0) > 50 * variance(100.0) > 2000 * variance(1.0)


def test_no_pl_constant_serves_all_softmax_policies():
    problem = tc.problems.forest(temp=0.1)
    with jax.enable_x64(True):
        logits, V, _ = problem.init(jax.random.key(0))
        best = np.asarray(problem.truth.soft.solve()[0])
        worst = (best == best.min(axis=1, keepdims=True)).astype(float)
        assert worst.shape == logits.shape
        ratios = []
        for size in (0.0, 5.0, 10.0, 20.0):
            found = problem.measure(jnp.asarray(size * worst), V)
            ratios.append(float(found["gradient"] / found["gap"]))
    assert ratios[3] < 1e-6 * ratios[0]
    assert ratios[1] > ratios[2] > ratios[3]
