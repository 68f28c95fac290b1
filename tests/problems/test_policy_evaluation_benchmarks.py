"""The cases of the literature: their exact constants, who diverges on them and who does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc

WALKS = {"tabular": tc.problems.walk_tabular, "inverted": tc.problems.walk_inverted}
WALKS["dependent"] = tc.problems.walk_dependent


def at_start(problem):
    theta, omega, _ = problem.init(jax.random.key(0))
    return {name: float(value) for name, value in jax.jit(problem.measure)(theta, omega).items()}


def last(result, metric):
    return result.summary(metric)["mean"].iloc[-1]


def test_baird_has_the_known_constants():
    problem = tc.problems.baird()
    assert at_start(problem)["rmspbe"] == pytest.approx(8.2214, abs=5e-5)
    assert at_start(problem)["rmsve"] == pytest.approx(5.3184, abs=5e-5)
    assert np.linalg.matrix_rank(problem.features) == 7
    np.testing.assert_allclose(problem.truth.weights, 1 / 7)
    assert np.linalg.eigvals(-problem.truth.A).real.max() == pytest.approx(0.239, abs=5e-4)
    np.testing.assert_allclose(problem.truth.theta_star, 0, atol=1e-12)


def test_td_diverges_on_baird():
    result = tc.solve(tc.problems.baird("td"), tc.Standard(0.01, 0.0), steps=20_000, seeds=3)
    assert (result.history.groupby("seed")["rmspbe"].last() > 1e6 * at_start(tc.problems.baird())["rmspbe"]).all()


@pytest.mark.parametrize("sampling", ["markov"])
@pytest.mark.parametrize(
    ("operator", "method"),
    [
        ("tdc", tc.Standard(0.005, 0.05)),
        ("tdc", tc.Fast(0.005, 0.05, 0.5)),
        ("gtd2", tc.Standard(0.002, 0.02)),
        ("tdrc", tc.Standard(0.02, 0.02)),
    ],
    ids=["tdc", "fast-tdc", "gtd2", "tdrc"],
)
def test_gradient_methods_converge_on_baird(operator, method, sampling):
    result = tc.solve(tc.problems.baird(operator, sampling), method, steps=100_000, seeds=3)
    assert not result.diverged.any()
    assert last(result, "rmspbe") < 0.05 * at_start(tc.problems.baird())["rmspbe"]


def test_boyan_has_the_known_values():
    problem = tc.problems.boyan()
    np.testing.assert_allclose(problem.truth.values, -2.0 * np.arange(13), atol=1e-12)
    np.testing.assert_allclose(problem.truth.theta_star, [-24, -16, -8, 0], atol=1e-10)


@pytest.mark.parametrize(("name", "rmspbe"), [("tabular", 0.24037), ("inverted", 0.24037), ("dependent", 0.17159)])
def test_walk_has_the_known_constants(name, rmspbe):
    problem = WALKS[name]()
    np.testing.assert_allclose(problem.truth.values, [-0.269173, 0.218045, 0.542857, 0.759398, 0.903759], atol=5e-7)
    np.testing.assert_allclose(problem.truth.weights, np.array([1, 2, 3, 2, 1]) / 9, rtol=1e-12)
    assert at_start(problem)["rmspbe"] == pytest.approx(rmspbe, abs=5e-6)
    if name == "dependent":
        np.testing.assert_allclose(problem.truth.theta_star, [-0.187546, 0.324983, 0.719203], atol=5e-7)
    else:
        np.testing.assert_allclose(problem.features @ problem.truth.theta_star, problem.truth.values, atol=1e-12)


@pytest.mark.parametrize("problem", [tc.problems.boyan, *WALKS.values()])
@pytest.mark.parametrize("sampling", ["iid", "markov"])
def test_least_squares_finds_the_fixed_point(problem, sampling):
    instance = problem("td", sampling)
    result = tc.solve(instance, tc.methods.Lstd(), steps=100_000, seeds=2)
    spread = float(np.sum(np.square(instance.truth.theta_star)))
    assert last(result, "error") < 2e-3 * spread


@pytest.mark.parametrize(("gamma", "diverges"), [(0.4, False), (0.6, True)])
def test_td_diverges_on_tsitsiklis_and_van_roy_beyond_one_half(gamma, diverges):
    assert tc.problems.tsitsiklis_van_roy(gamma).truth.A.item() == pytest.approx(1 - 2 * gamma)
    td = tc.solve(tc.problems.tsitsiklis_van_roy(gamma, "td"), tc.Standard(0.1, 0.0), 10_000, 2)
    assert last(td, "error") > 1e20 if diverges else last(td, "error") < 1e-20
    tdc = tc.solve(tc.problems.tsitsiklis_van_roy(gamma), tc.Standard(0.1, 0.1), 10_000, 2)
    assert last(tdc, "error") < 1e-10


def largest(result, metric):
    """Over the whole run, for each seed; a seed that is no longer finite counts as infinite."""
    return result.history.fillna(np.inf).groupby("seed")[metric].max()


def test_nonlinear_td_diverges_on_the_spiral():
    problem = tc.problems.spiral("td")
    result = tc.solve(problem, tc.Standard(1e-6, 0.0), steps=8_000, seeds=3, marks=range(0, 8_001, 50))
    assert (largest(result, "rmsve") > 100 * at_start(problem)["rmsve"]).all()


@pytest.mark.parametrize(("operator", "sampling"), [("tdc", "markov")])
def test_nonlinear_gradient_methods_stay_on_the_spiral(operator, sampling):
    problem = tc.problems.spiral(operator, sampling)
    methods = {"standard": tc.Standard(1e-6, 1e-5), "fast": tc.Fast(1e-6, 1e-5, 0.25)}
    for result in tc.solve(problem, methods, steps=200_000, seeds=3).values():
        assert not result.diverged.any()
        assert (largest(result, "rmsve") < 1.1 * at_start(problem)["rmsve"]).all()
        assert last(result, "rmspbe") < 0.9 * at_start(problem)["rmspbe"]


def test_spiral_mean_is_the_gradient():
    problem = tc.problems.spiral()
    for theta in map(jnp.asarray, (-3.0, 0.0, 1.7)):
        mean = jax.jit(lambda t: problem.mean_F(t, problem.omega_star(t)))(theta)
        assert float(mean) == pytest.approx(float(jax.jit(jax.grad(problem.h))(theta)), abs=1e-8)
