"""The actor-critic's operators: exact moments, the algorithm as printed, rivals, warnings and errors."""

import itertools

import control
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock import prng
from twoclock.problems.lqr.actor_critic import BOEING, DOUBLE_INTEGRATOR, PAPER

STEPS = tc.Power(1.0, shift=400.0), tc.Power(1.0, shift=400.0), tc.Power(40.0, shift=400.0)
GAIN = 0.1 * np.arange(6.0).reshape(2, 3) - 0.2


def gauss_hermite(dimension):
    """Nodes and weights that integrate any polynomial of degree five against N(0, I) exactly."""
    points, weights = np.array([-np.sqrt(3), 0.0, np.sqrt(3)]), np.array([1 / 6, 2 / 3, 1 / 6])
    grid = np.array(list(itertools.product(range(3), repeat=dimension)))
    return points[grid], weights[grid].prod(axis=1)


def exact_mean(problem, K, omega):
    """The stationary mean of F and of G under K, by driving the problem's own draw with a quadrature."""
    n, m = problem.lqr.shape
    sigma, ahead = float(problem.sigma), problem.operators.expected_action
    nodes, weights = gauss_hermite(2 * n + m + (0 if ahead else m))
    x = nodes[:, :n] @ np.linalg.cholesky(problem.lqr.state_covariance(K, sigma)).T
    here = x if ahead else np.hstack([x, sigma * nodes[:, 2 * n + m :] - x @ K.T])
    watch = None if problem.bounds is None else problem.bounds.start()

    def one(here, u):
        sample, _ = problem.draw(u, K, (here, watch))
        return problem.F(K, omega, sample), problem.G(K, omega, sample)

    means = jax.jit(jax.vmap(one))(here, nodes[:, n : 2 * n + m])
    return jax.tree.map(lambda leaf: np.tensordot(weights, np.asarray(leaf), axes=1), means)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("lqr", [PAPER, DOUBLE_INTEGRATOR])
def test_means_by_exact_gaussian_moments(lqr, ahead):
    K = GAIN if lqr is PAPER else np.array([[0.4, 0.9]])
    problem = tc.problems.lqr_actor_critic(lqr, sigma=0.9, K0=K, expected_action=ahead)
    with jax.enable_x64(True):
        truth = problem.omega_star(K)
        f, g = exact_mean(problem, jnp.asarray(K), truth)
        scale = np.abs(truth["Omega"]).max() * np.abs(lqr.covariance(K, 0.9)).max() ** 2
        assert abs(g["J"]) < 1e-8
        np.testing.assert_allclose(g["Omega"], 0, atol=1e-8 * max(1.0, scale))
        np.testing.assert_allclose(f, lqr.natural_gradient(K) / 2, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(problem.field(K), f, rtol=1e-10, atol=1e-12)
        # Away from the truth the closed form is the mean as well.
        rng = np.random.default_rng(0)
        half = rng.normal(size=(sum(lqr.shape),) * 2)
        omega = {"J": 3.0, "Omega": half + half.T}
        f, g = exact_mean(problem, jnp.asarray(K), omega)
        mean = problem.mean_G(K, omega)
        np.testing.assert_allclose(g["J"], mean["J"], rtol=1e-9)
        np.testing.assert_allclose(g["Omega"], mean["Omega"], rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(f, problem.mean_F(K, omega), rtol=1e-12)


def test_a_guard_keeps_the_roots():
    """Also where it changes units: on the Boeing, G still vanishes at the truth and F along the natural gradient."""
    problem = tc.problems.boeing_747()
    K = np.asarray(problem.K0)
    assert problem.bounds.weight is not None
    with jax.enable_x64(True):
        truth = problem.omega_star(K)
        g = problem.mean_G(K, truth)
        typical = problem.mean_G(K, {"J": truth["J"], "Omega": np.zeros_like(truth["Omega"])})
        assert np.abs(g["Omega"]).max() < 1e-8 * np.abs(typical["Omega"]).max()
        np.testing.assert_allclose(problem.mean_F(K, truth) * problem.bounds.cost_unit, BOEING.natural_gradient(K) / 2)


@pytest.mark.parametrize("ahead", [False, True])
def test_the_operators_follow_the_algorithm_line_by_line(ahead):
    """Forty steps of the corrected Algorithm 2 in plain NumPy, against the library."""
    problem = tc.problems.paper_lqr(expected_action=ahead)
    steps, seed = 40, 3
    result = tc.solve(problem, tc.Fast(*STEPS), steps=steps, seeds=[seed], marks=[steps])
    with jax.enable_x64(True):
        start = np.asarray(problem.noise(prng.start_key(seed)))
        noise = [np.asarray(problem.noise(prng.step_key(seed, k))) for k in range(steps)]
        sizes = [[float(schedule(k)) for schedule in STEPS] for k in range(steps)]
    A, B, sigma, kappa = PAPER.A, PAPER.B, 1.0, 2.0
    K, J, Omega = np.zeros((2, 3)), 0.0, np.zeros((5, 5))
    f, gJ, gO = np.zeros((2, 3)), 0.0, np.zeros((5, 5))
    x, u = start[:3], sigma * start[3:]
    for k in range(steps):
        alpha, beta, lam = sizes[k]
        if ahead:
            u = -K @ x + sigma * noise[k][3:]
        after = A @ x + B @ u + noise[k][:3]
        then = -K @ after + (0 if ahead else sigma * noise[k][3:])
        z, new, c = np.append(x, u), np.append(after, then), x @ x + u @ u
        later = new @ Omega @ new + (sigma**2 * np.trace(Omega[3:, 3:]) if ahead else 0)
        delta = z @ Omega @ z - later + J - c
        F, GJ, GO = Omega[3:, 3:] @ K - Omega[3:, :3], kappa * (J - c), np.outer(z, z) * delta
        K, J, Omega = K - alpha * f, J - beta * gJ, Omega - beta * gO
        f, gJ, gO = (1 - lam) * f + lam * F, (1 - lam) * gJ + lam * GJ, (1 - lam) * gO + lam * GO
        x, u = after, then
    np.testing.assert_allclose(result.theta[0], K, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.omega["J"][0], J, rtol=1e-9)
    np.testing.assert_allclose(result.omega["Omega"][0], Omega, rtol=1e-9, atol=1e-12)


def test_the_actor_critic_learns_and_measures():
    problem = tc.problems.paper_lqr()
    result = tc.solve(problem, tc.Fast(*STEPS), steps=20_000, seeds=20, marks=[0, 1000, 20_000])
    table = result.history.groupby("step").median()
    assert {"gap", "error", "tracking", "spectral_radius"} <= set(result.metrics)
    assert table.gap[0] == pytest.approx(0.418325, abs=1e-6)
    assert table.gap[20_000] < 0.1 * table.gap[1000] < 0.1 * table.gap[0]
    assert table.tracking[20_000] < 0.02 * table.tracking[1000]
    assert table.spectral_radius[20_000] == pytest.approx(PAPER.spectral_radius(PAPER.gain), abs=0.02)
    assert not result.diverged.any()


def test_the_expected_action_is_worth_its_formula():
    """By about a quarter at the end; the two share their seeds, so fifty pairs tell."""
    gaps = [
        tc.solve(tc.problems.paper_lqr(expected_action=ahead), tc.Fast(*STEPS), 10_000, 64, marks=[10_000]).history.gap
        for ahead in (False, True)
    ]
    assert gaps[1].mean() < 0.9 * gaps[0].mean()


def test_certainty_equivalence_is_least_squares_on_the_same_trajectory():
    problem, steps, seed = tc.problems.paper_lqr(), 120, 5
    fast = tc.Fast(*STEPS)
    rival = tc.PlugIn(fast, tc.models.CertaintyEquivalence(PAPER.Q, PAPER.R, sigma=1.0, ridge=1e-9))
    both = tc.solve(problem, {"fast": fast, "rival": rival}, steps, [seed], marks=[steps])

    with jax.enable_x64(True):
        theta, omega, env = problem.init(prng.start_key(seed))
        state, rows = rival.init(theta, omega), []

        @jax.jit
        def step(state, env, k):
            x, env = problem.draw(problem.noise(prng.step_key(seed, k)), state.theta, env)
            return rival.step(problem.F, problem.G, state, x, k), env, x

        for k in range(steps):
            state, env, x = step(state, env, k)
            rows.append(np.concatenate([x["z"], x["next"][:3]]))
    np.testing.assert_allclose(both["fast"].theta[0], state.theta, rtol=1e-10)

    rows = np.array(rows)
    fit = np.linalg.lstsq(rows[:, :5], rows[:, 5:], rcond=None)[0].T
    gain, _, _ = control.dlqr(fit[:, :3], fit[:, 3:], PAPER.Q, PAPER.R)
    np.testing.assert_allclose(both["rival"].theta[0], gain, rtol=1e-6)
    assert both["rival"].history.gap.iloc[0] == pytest.approx(PAPER.J(gain, 1.0) - PAPER.J(PAPER.gain, 1.0), rel=1e-4)
    assert both["rival"].history.gap.iloc[0] < both["fast"].history.gap.iloc[0]


def test_exact_natural_policy_gradient():
    problem = tc.problems.exact(tc.problems.paper_lqr())
    result = tc.solve(problem, tc.Standard(alpha=0.3, beta=1.0), steps=60, seeds=1, marks=[0, 10, 20, 60])
    gaps = result.history.gap.to_numpy()
    assert np.all(np.diff(gaps) < 0)
    assert gaps[-1] < 1e-12
    np.testing.assert_allclose(result.theta[0], PAPER.gain, atol=1e-6)


def test_float32():
    result = tc.solve(tc.problems.paper_lqr(guard=True), tc.Fast(*STEPS), 2000, 4, precision="float32")
    assert result.theta.dtype == np.float32
    assert np.isfinite(result.history.to_numpy()).all()


def test_small_sigma_warns_in_one_line_with_the_constant():
    constant = PAPER.monotonicity(np.zeros((2, 3)), 0.1, 2.0)
    with pytest.warns(tc.problems.BlindCriticWarning, match="monotonicity constant at K0 is 0.000166") as caught:
        tc.problems.lqr_actor_critic(PAPER, sigma=0.1)
    assert constant == pytest.approx(0.000166, abs=1e-6)
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    with pytest.warns(tc.problems.BlindCriticWarning):
        tc.problems.lqr_actor_critic(PAPER, sigma=0.0)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"sigma": -1.0}, r"`sigma` must lie in \[0, 1e\+50\], got -1"),
    ({"kappa": 0.0}, "`kappa` must be a finite number above 0"),
    ({"K0": np.zeros((3, 2))}, r"`K0` has shape \(3, 2\) and `B` \(3, 2\): `K0` must be \(2, 3\)"),
    ({"K0": [[2.0, 0, 0], [0, 0, 0]]}, "`K0` does not stabilise: A − B·K0 has spectral radius 1.5000"),
    ({"guard": 3}, "`guard` must be a Guard, True or None"),
])  # fmt: skip
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(tc.InputError, match=message) as error:
        tc.problems.lqr_actor_critic(PAPER, **arguments)
    assert "\n" not in str(error.value)


def test_bad_input_of_other_kinds():
    with pytest.raises(tc.InputError, match=r"`K0=None` means zero, which does not stabilise.*spectral radius 1"):
        tc.problems.lqr_actor_critic(DOUBLE_INTEGRATOR)
    with pytest.raises(tc.InputError, match=r"`lqr` must be a tc.models.Lqr"):
        tc.problems.lqr_actor_critic(np.eye(3))
    with pytest.raises(tc.InputError, match=r"`PlugIn\(model=…\)` must have prior"):
        tc.PlugIn(tc.Fast(), object())
    with pytest.raises(tc.InputError, match=r"`problem` must be a `tc.Problem`, got object"):
        tc.problems.exact(object())
    without_answer = tc.problems.custom(
        F=lambda theta, omega, x: theta, G=lambda theta, omega, x: omega, noise=lambda key: key, theta=0.0, omega=0.0
    )
    with pytest.raises(tc.InputError, match="it has no omega_star"):
        tc.problems.exact(without_answer)


def test_the_inputs_of_algorithm_2_are_where_a_run_starts():
    lqr = tc.problems.paper_lqr().lqr
    Omega0 = np.asarray(lqr.Omega(np.zeros((2, 3))))
    problem = tc.problems.lqr_actor_critic(lqr, Omega0=Omega0, J0=7.0, x0=[1.0, -2.0, 3.0])
    with jax.enable_x64(True):
        _, omega, (z, _) = problem.init(jax.random.key(0))
    assert np.array_equal(omega["Omega"], Omega0)
    assert float(omega["J"]) == 7.0
    assert np.array_equal(z[:3], [1.0, -2.0, 3.0])
    # F sees the critic of the first gain at once.
    first = tc.solve(problem, tc.Standard(0.0, 0.0), 1, 2, [0])
    assert np.allclose(first.history["tracking"], (7.0 - float(lqr.J(np.zeros((2, 3)), 1.0))) ** 2)
    for wrong, words in (
        ({"Omega0": np.eye(3)}, "`Omega0` must be a symmetric matrix"),
        ({"Omega0": np.triu(np.ones((5, 5)))}, "`Omega0` must be .* got one that is not symmetric"),
        ({"x0": [1.0]}, r"`x0` must have the shape \(3,\), one entry per state"),
        ({"J0": np.nan}, "`J0`"),
    ):
        with pytest.raises(tc.InputError, match=words):
            tc.problems.lqr_actor_critic(lqr, **wrong)
