"""The regulator's closed forms against scipy, python-control, known constants and each other."""

import control
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.signal

import twoclock as tc
from twoclock.models.lqr import Lqr
from twoclock.models.riccati import lyapunov, riccati, spectral_radius
from twoclock.problems.lqr.actor_critic import BOEING, DOUBLE_INTEGRATOR, PAPER

CASES = {
    "paper": (PAPER, np.zeros((2, 3)), 1.0),
    "double integrator": (DOUBLE_INTEGRATOR, np.array([[0.5, 1.0]]), 0.0),
    "boeing": (BOEING, np.full((4, 5), 0.005), 1.0),
}


def random_plant(seed, n=4, m=2):
    rng = np.random.default_rng(seed)
    A, B = rng.normal(size=(n, n)) * 0.6, rng.normal(size=(n, m))
    half = [rng.normal(size=(k, k)) for k in (n, m, n)]
    Q, R, noise = (h @ h.T + 0.1 * np.eye(len(h)) for h in half)
    lqr = Lqr(A, B, Q, R, noise)
    return lqr, lqr.gain + 0.05 * rng.normal(size=(m, n))


@pytest.mark.parametrize(("name", "optimum", "gap"), [
    ("paper", 6.957820, 0.418325), ("double integrator", 7.560257, 1.239743), ("boeing", 11190.7426, 52498.62),
])  # fmt: skip
def test_known_constants(name, optimum, gap):
    lqr, K0, sigma = CASES[name]
    best = lqr.J(lqr.gain, sigma)
    np.testing.assert_allclose(best, optimum, rtol=1e-7)
    np.testing.assert_allclose(lqr.J(K0, sigma) - best, gap, rtol=2e-6)


def test_known_gains():
    np.testing.assert_allclose(PAPER.J(PAPER.gain), 3.787425, atol=1e-6)
    np.testing.assert_allclose(PAPER.J(np.zeros((2, 3))) - PAPER.J(PAPER.gain), 0.214236, atol=1e-6)
    np.testing.assert_allclose(PAPER.gain, [[0.264084, 0.003699, -0.003929], [0.027172, 0.066879, 0.066136]], atol=1e-6)
    np.testing.assert_allclose(DOUBLE_INTEGRATOR.gain, [[0.422082, 1.243929]], atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_riccati_agrees_with_scipy_and_control(name):
    lqr = CASES[name][0]
    gain, value, poles = control.dlqr(lqr.A, lqr.B, lqr.Q, lqr.R)
    np.testing.assert_allclose(lqr.gain, gain, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(lqr.value, value, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(lqr.value, scipy.linalg.solve_discrete_are(lqr.A, lqr.B, lqr.Q, lqr.R), rtol=1e-8)
    np.testing.assert_allclose(lqr.spectral_radius(lqr.gain), np.abs(poles).max(), rtol=1e-8)


def test_a_closed_form_is_one_program(compilations):
    lqr, K = random_plant(0, n=6, m=1)
    lqr.closed_loop(K)  # whatever is compiled once for all of them
    for form in (lqr.J, lqr.critic):
        before = compilations()
        form(K, 0.5)
        assert compilations() - before == 1
        form(1.001 * K, 0.4)
        assert compilations() - before == 1


@pytest.mark.parametrize("seed", range(5))
def test_lyapunov_agrees_with_scipy(seed):
    lqr, K = random_plant(seed)
    assert lqr.spectral_radius(K) < 1
    closed = lqr.A - lqr.B @ K
    # scipy solves aXaᴴ − X + q = 0
    P = scipy.linalg.solve_discrete_lyapunov(closed.T, lqr.Q + K.T @ lqr.R @ K)
    np.testing.assert_allclose(lqr.P(K), P, rtol=1e-9)
    covariance = scipy.linalg.solve_discrete_lyapunov(closed, lqr.noise + 0.25 * lqr.B @ lqr.B.T)
    np.testing.assert_allclose(lqr.state_covariance(K, 0.5), covariance, rtol=1e-9)
    z = lqr.covariance(K, 0.5)
    np.testing.assert_allclose(z[:4, :4], covariance, rtol=1e-9)
    np.testing.assert_allclose(z[4:, 4:], K @ covariance @ K.T + 0.25 * np.eye(2), rtol=1e-9)
    cost = scipy.linalg.block_diag(lqr.Q, lqr.R)
    np.testing.assert_allclose(lqr.J(K, 0.5), np.sum(cost * z), rtol=1e-9)  # the mean cost, the other way round


def test_a_gain_that_does_not_stabilise_costs_infinity():
    assert DOUBLE_INTEGRATOR.J([[-0.5, -1.0]]) == np.inf
    assert DOUBLE_INTEGRATOR.J([[0.0, 0.0]], sigma=1) == np.inf
    assert np.isinf(DOUBLE_INTEGRATOR.P([[-0.5, -1.0]])).all()


@pytest.mark.parametrize("seed", range(3))
def test_derivatives_agree_with_differences(seed):
    lqr, K = random_plant(seed)
    with jax.enable_x64(True):
        gradient = jax.grad(lambda K: lqr.J(K, 0.7))(jnp.asarray(K))
        np.testing.assert_allclose(gradient, lqr.natural_gradient(K) @ lqr.state_covariance(K, 0.7), rtol=1e-8)
        # The optimal cost as a function of the plant: implicit through Riccati, against central differences.
        optimal = lambda A: jnp.sum(riccati(A, lqr.B, lqr.Q, lqr.R)[0] ** 2)  # noqa: E731
        slope = jax.grad(optimal)(jnp.asarray(lqr.A))
        step = 1e-5 * np.eye(16)[3].reshape(4, 4)
        difference = (optimal(jnp.asarray(lqr.A + step)) - optimal(jnp.asarray(lqr.A - step))) / 2e-5
        np.testing.assert_allclose(slope[0, 3], difference, rtol=1e-6)


def test_vmap_and_float32():
    gains = np.stack([np.zeros((2, 3)), PAPER.gain]).astype(np.float32)
    with jax.enable_x64(False):
        costs = jax.jit(jax.vmap(lambda K: PAPER.J(K, 1.0)))(gains)
    assert costs.dtype == jnp.float32
    np.testing.assert_allclose(costs, [6.957820 + 0.418325, 6.957820], rtol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_spectral_radius_is_that_of_the_eigenvalues(n):
    a = np.random.default_rng(n).normal(size=(50, n, n))
    with jax.enable_x64(True):
        found = jax.vmap(spectral_radius)(a)
    np.testing.assert_allclose(found, np.abs(np.linalg.eigvals(a)).max(axis=-1), rtol=1e-12)


def test_spectral_radius_of_what_cannot_be_diagonalised():
    with jax.enable_x64(True):
        assert spectral_radius(np.array([[0.9, 100.0], [0.0, 0.9]])) == pytest.approx(0.9, rel=1e-11)
        assert spectral_radius(np.array([[0.0, 1.0], [0.0, 0.0]])) == 0.0
        assert np.isnan(spectral_radius(np.full((2, 2), np.nan)))


def test_lyapunov_near_the_edge():
    a, q = np.array([[1 - 1e-9]]), np.ones((1, 1))
    with jax.enable_x64(True):
        np.testing.assert_allclose(lyapunov(a, q), 1 / (1 - a**2), rtol=1e-6)


@pytest.mark.parametrize(("lqr", "K", "sigma"), CASES.values(), ids=CASES)
def test_critic_operator_has_the_truth_as_its_root(lqr, K, sigma):
    M, c = lqr.critic(K, 1.0, 2.0)
    row, column = np.triu_indices(sum(lqr.shape))
    svec = lqr.Omega(K)[row, column] * np.where(row == column, 1.0, np.sqrt(2.0))
    truth = np.concatenate([[lqr.J(K, 1.0)], svec])
    np.testing.assert_allclose(M @ truth, c, rtol=1e-8, atol=1e-8 * np.abs(c).max())


def test_critic_operator_agrees_with_sampled_moments():
    """The paper's M and c, averaged over the stationary distribution by plain Monte Carlo."""
    lqr, K = random_plant(1, n=2, m=1)
    rng = np.random.default_rng(0)
    count, sigma = 400_000, 0.8
    x = rng.multivariate_normal(np.zeros(2), lqr.state_covariance(K, sigma), size=count)
    u = -x @ K.T + sigma * rng.normal(size=(count, 1))
    after = x @ lqr.A.T + u @ lqr.B.T + rng.multivariate_normal(np.zeros(2), lqr.noise, size=count)
    then = -after @ K.T + sigma * rng.normal(size=(count, 1))

    def features(x, u):
        z = np.hstack([x, u])
        row, column = np.triu_indices(3)
        return z[:, row] * z[:, column] * np.where(row == column, 1.0, np.sqrt(2.0))

    phi = features(x, u)
    samples = phi[:, :, None] * (phi - features(after, then))[:, None, :]
    M, _ = lqr.critic(K, sigma)
    error = samples.std(axis=0) / np.sqrt(count)
    assert np.all(np.abs(samples.mean(axis=0) - M[1:, 1:]) < 5 * error)
    assert np.all(np.abs(phi.mean(axis=0) - M[1:, 0]) < 5 * phi.std(axis=0) / np.sqrt(count))


def test_monotonicity_needs_kappa():
    """κ = 1 is not enough at −K*, 2 is; on the Boeing 2 is not enough either. κ > ¼bᵀT⁻¹b is."""
    assert PAPER.monotonicity(-PAPER.gain, 1.0, 1.0) == pytest.approx(-0.0287, abs=1e-4)
    assert PAPER.monotonicity(-PAPER.gain, 1.0, 2.0) > 0.6
    K0 = np.full((4, 5), 0.005)
    assert BOEING.monotonicity(K0, 1.0, 2.0) < 0 < BOEING.monotonicity(K0, 1.0, 12.0)
    for lqr, K in ((PAPER, -PAPER.gain), (BOEING, K0)):
        M, _ = lqr.critic(K, 1.0)
        T, b = (M[1:, 1:] + M[1:, 1:].T) / 2, M[1:, 0]
        threshold = b @ np.linalg.solve(T, b) / 4
        assert lqr.monotonicity(K, 1.0, 0.99 * threshold) < 0 < lqr.monotonicity(K, 1.0, 1.01 * threshold)


def test_from_a_state_space():
    system = control.ss(PAPER.A, PAPER.B, np.eye(3), np.zeros((3, 2)), dt=0.1)
    np.testing.assert_array_equal(Lqr.from_system(system, PAPER.Q, PAPER.R).gain, PAPER.gain)
    continuous = control.ss(PAPER.A, PAPER.B, np.eye(3), np.zeros((3, 2)))
    with pytest.raises(tc.InputError, match=r"discrete.*from_continuous"):
        Lqr.from_system(continuous, PAPER.Q, PAPER.R)
    with pytest.raises(tc.InputError, match="`system` must be a state space"):
        Lqr.from_system(3.0, PAPER.Q, PAPER.R)


def test_simulated_logs_have_the_stationary_moments():
    x, u, c = PAPER.simulate(PAPER.gain, 1.0, 40_000)
    z = np.hstack([x, u])
    np.testing.assert_allclose(z.T @ z / len(z), PAPER.covariance(PAPER.gain, 1.0), atol=0.06)
    np.testing.assert_allclose(c.mean(), PAPER.J(PAPER.gain, 1.0), rtol=0.02)


@pytest.mark.parametrize(("change", "message"), [
    ({"A": np.eye(3)[:2]}, r"`A` must be square, got shape \(2, 3\)"),
    ({"B": np.ones((2, 1))}, r"`B` has shape \(2, 1\) and `A` \(3, 3\)"),
    ({"Q": np.eye(2)}, r"`Q` has shape \(2, 2\) and `A` \(3, 3\)"),
    ({"R": np.eye(3)}, r"`R` has shape \(3, 3\) and `B` \(3, 2\)"),
    ({"noise": np.eye(2)}, r"`noise` has shape \(2, 2\) and `A` \(3, 3\)"),
    ({"Q": np.diag([1.0, 1.0, -1.0])}, "`Q` must be symmetric positive semidefinite, got the smallest eigenvalue -1"),
    ({"A": np.diag([1.0, 0.5, 0.5]), "Q": np.diag([0.0, 1.0, 1.0])}, r"`\(A, Q\)` must be detectable: the mode 1 of"),
    ({"R": np.diag([1.0, 0.0])}, "`R` must be symmetric positive definite, got the smallest eigenvalue 0"),
    ({"R": [[1.0, 2.0], [0.0, 1.0]]}, "`R` must be symmetric positive definite, got one that is not symmetric"),
    ({"noise": -np.eye(3)}, "`noise` must be symmetric positive semidefinite, got the smallest eigenvalue -1"),
    ({"A": 2 * np.eye(3), "B": [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]}, r"`\(A, B\)` must be stabilisable.*mode 2"),
    ({"A": [1.0, 2.0]}, r"`A` must be a matrix, got shape \(2,\)"),
    ({"B": "nonsense"}, "`B` must be a matrix of numbers"),
    ({"A": np.full((3, 3), np.nan)}, "`A` must be finite"),
])  # fmt: skip
def test_bad_input_is_refused(change, message):
    arguments = {"A": PAPER.A, "B": PAPER.B, "Q": PAPER.Q, "R": PAPER.R, "noise": None} | change
    with pytest.raises(tc.InputError, match=message) as error:
        Lqr(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("Q", [np.diag([1.0, 0.0]), np.outer([1.0, 0.5], [1.0, 0.5])])
def test_a_semidefinite_cost_is_accepted(Q):
    """A mass whose place alone costs: it is detectable, and SciPy's Riccati equation has the same answer."""
    A, B = DOUBLE_INTEGRATOR.A, DOUBLE_INTEGRATOR.B
    lqr = Lqr(A, B, Q, [[2.0]])
    P = scipy.linalg.solve_discrete_are(A, B, Q, np.array([[2.0]]))
    np.testing.assert_allclose(lqr.value, P, rtol=1e-9)
    np.testing.assert_allclose(lqr.natural_gradient(lqr.gain), 0, atol=1e-9)
    assert lqr.J(lqr.gain) < lqr.J(1.1 * lqr.gain)
    problem = tc.problems.lqr_actor_critic(lqr, K0=[[0.5, 1.0]])
    result = tc.solve(tc.problems.exact(problem), tc.Standard(alpha=0.1, beta=1.0), steps=1000, seeds=1)
    assert result.history.gap.iloc[-1] < 1e-9


def test_what_decays_may_cost_nothing():
    lqr = Lqr(A=np.diag([0.5, 0.9]), B=np.eye(2), Q=np.zeros((2, 2)), R=np.eye(2))
    np.testing.assert_allclose(lqr.gain, 0, atol=1e-12)
    assert lqr.J(lqr.gain) == 0


def test_plain_lists_and_numbers_are_accepted():
    gain = [[0.5, 1.0]]
    for method in ("P", "J", "Omega", "natural_gradient", "state_covariance", "covariance", "spectral_radius"):
        from_list = getattr(DOUBLE_INTEGRATOR, method)(gain)
        np.testing.assert_array_equal(from_list, getattr(DOUBLE_INTEGRATOR, method)(np.array(gain)))
    assert DOUBLE_INTEGRATOR.J(gain, 1).dtype == np.float64


def _held(A, B, dt):
    """The plant at steps of dt, and the exact integral of its cost over one: a matrix on (x, u), and that of noise."""
    z = np.block([[A, B], [np.zeros((1, 3))]])
    C = np.diag([1.0, 1.0, 0.1])
    block = scipy.linalg.expm(dt * np.block([[-z.T, C], [np.zeros((3, 3)), z]]))
    times = (np.arange(100) + 0.5) * dt / 100
    noise = [np.trace(Lqr.from_continuous(A, B, C[:2, :2], C[2:, 2:], t).noise) for t in times]
    return Lqr.from_continuous(A, B, C[:2, :2], C[2:, 2:], dt), block[3:, 3:].T @ block[:3, 3:], dt * np.mean(noise)


def _integral(plant, C, K, within):
    """The mean of the integral over a step: zᵀCz, z = (x, −Kx), and the noise that enters within the step."""
    rows = np.vstack([np.eye(2), -K])
    return float(np.trace(rows.T @ C @ rows @ np.asarray(plant.state_covariance(K)))) + within


def test_from_continuous():
    """A held action against SciPy, noise against its integral, and the gain of short steps against continuous time."""
    A, B = np.array([[0.0, 1.0], [2.0, -0.3]]), np.array([[0.0], [1.5]])
    Q, R, W = np.diag([1.0, 0.2]), np.array([[0.5]]), np.array([[0.1, 0.05], [0.05, 0.4]])
    plant = Lqr.from_continuous(A, B, Q, R, 0.2, noise=W)
    held = scipy.signal.cont2discrete((A, B, np.eye(2), np.zeros((2, 1))), 0.2)
    np.testing.assert_allclose(plant.A, held[0], atol=1e-12)
    np.testing.assert_allclose(plant.B, held[1], atol=1e-12)
    times = (np.arange(2000) + 0.5) * 0.2 / 2000
    spread = np.mean([scipy.linalg.expm(A * t) @ W @ scipy.linalg.expm(A * t).T for t in times], axis=0) * 0.2
    np.testing.assert_allclose(plant.noise, spread, rtol=1e-6)
    P = scipy.linalg.solve_continuous_are(A, B, Q, R)
    short = Lqr.from_continuous(A, B, Q, R, 1e-4)
    np.testing.assert_allclose(short.gain, np.linalg.solve(R, B.T @ P), rtol=1e-3)
    for dt, excess, above in ((0.1, 2e-5, 0.005), (0.5, 4e-3, 0.12)):
        for a in ([[0.0, 1.0], [0.0, 0.0]], [[1.0, 0.5], [0.0, -2.0]], [[0.0, 1.0], [9.8, 0.0]]):
            held, exact, within = _held(np.asarray(a), np.array([[0.0], [1.0]]), dt)
            best = scipy.linalg.solve_discrete_are(held.A, held.B, exact[:2, :2], exact[2:, 2:], s=exact[:2, 2:])
            price = exact[2:, 2:] + held.B.T @ best @ held.B
            K = np.linalg.solve(price, held.B.T @ best @ held.A + exact[2:, :2])
            least, found = (_integral(held, exact, gain, within) for gain in (K, np.asarray(held.gain)))
            assert least <= found <= (1 + excess) * least
            assert found <= float(held.J(held.gain)) <= (1 + above) * found
    for wrong, words in (({"dt": 0.0}, "`dt`"), ({"B": [[1.0]]}, "`B` has shape")):
        with pytest.raises(tc.InputError, match=words):
            Lqr.from_continuous(**{"A": A, "B": B, "Q": Q, "R": R, "dt": 0.1} | wrong)
