"""Mean fields: closed forms against dynamic programming, exact means, and runs that find their own answer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, optimize

import twoclock as tc
from twoclock import prng

FIELD = tc.models.LinearQuadraticField
SLOW = ("population", "policy")
METHOD = tc.Standard("4/(k+400)", ("40/(k+4000)", "80/(k+4000)"))
# c1, c2, c3, c4, c5, dt, rate
CASES = [
    (0.25, 1.5, 0.5, 0.6, 1.0, 0.1, 1.0),
    (0.7, -0.4, 0.3, -1.2, -0.2, 0.3, 0.2),
    (1.0, 0.9, 0.2, 2.0, 0.0, 1.0, 2.0),
]


def made(case):
    c1, c2, c3, c4, c5, dt, rate = case
    return FIELD(c1, c2, c3, c4, c5, dt=dt, rate=rate)


def riccati(field, weight):
    """Gain of the regulator with cost ½a² + weight·x², by SciPy."""
    root, dt = np.sqrt(float(field.rho)), float(field.dt)
    A, B = np.array([[root]]), np.array([[root * dt]])
    p = linalg.solve_discrete_are(A, B, np.array([[weight * dt]]), np.array([[dt / 2]]))
    return float((linalg.inv(np.array([[dt / 2]]) + B.T @ p @ B) @ B.T @ p @ A)[0, 0])


@pytest.mark.parametrize("case", CASES)
def test_the_gain_is_scipys(case):
    field = made(case)
    assert float(field.gain) == pytest.approx(riccati(field, field.c1 + field.c3), rel=1e-10)


def test_the_numbers_of_the_literature():
    fine = FIELD(dt=1e-7)
    assert float(fine.gain) / 2 == pytest.approx(0.411438, abs=1e-6)
    assert [float(fine.mean(slow)) for slow in SLOW] == pytest.approx([0.8, 0.192])


@pytest.mark.parametrize("case", CASES)
def test_no_agent_gains_at_the_nash_equilibrium(case):
    """The discounted cost of one agent, noise left out, over 2,000 steps from three starts, with m held fixed."""
    field = made(case)
    m, (K, b) = float(field.mean("population")), np.asarray(field.answer("population"))
    assert b / K == pytest.approx(m)

    def cost(policy, start):
        x, total, weight, rho = start, 0.0, 1.0, float(field.rho)
        for _ in range(2000):
            a = policy[1] - policy[0] * x
            total += weight * field.dt * (a**2 / 2 + field.cost(x, m))
            x, weight = x + field.dt * a, weight * rho
        return total

    for start in (-1.0, 0.3, 2.0):
        at = cost((K, b), start)
        for move in ((1e-2, 0), (-1e-2, 0), (0, 1e-2), (0, -1e-2)):
            assert cost((K + move[0], b + move[1]), start) >= at - 1e-12


@pytest.mark.parametrize("case", CASES)
def test_the_social_optimum_is_the_planners_steady_state(case):
    """The planner's own problem in the mean, minimised over whole paths from another start, settles at the formula."""
    field = made(case)
    steps = int(12 / field.dt)
    m, dt, rho = float(field.mean("policy")), float(field.dt), float(field.rho)
    weights = dt * rho ** np.arange(steps)

    def total(path):
        mean = np.concatenate([[m + 0.5], path])
        actions = np.diff(mean) / dt
        return np.sum(weights * (actions**2 / 2 + field.cost(mean[:-1], mean[:-1])))

    # The total is quadratic in the path: one Newton step from anywhere is its minimum.
    with jax.enable_x64(True):
        weight, start = jnp.asarray(weights), jnp.asarray([m + 0.5])

        def smooth(path):
            mean = jnp.concatenate([start, path])
            return jnp.sum(weight * (jnp.square(jnp.diff(mean) / dt) / 2 + field.cost(mean[:-1], mean[:-1])))

        zero = jnp.zeros(steps)
        best = np.asarray(-jnp.linalg.solve(jax.hessian(smooth)(zero), jax.grad(smooth)(zero)))
    assert total(best) < min(total(best + move) for move in 1e-3 * np.random.default_rng(0).standard_normal((9, steps)))
    planner = riccati(field, field.pull("policy"))
    np.testing.assert_allclose(
        best[: steps // 4] - m, 0.5 * (1 - dt * planner) ** np.arange(1, steps // 4 + 1), atol=2e-4
    )
    # And a static view of the same number: no other mean is cheaper for all.
    static = optimize.minimize_scalar(lambda mean: float(field.cost(mean, mean)))
    assert static.x == pytest.approx(m, abs=1e-6)


@pytest.mark.parametrize("slow", SLOW)
@pytest.mark.parametrize("case", CASES)
def test_means_agree_with_quadrature(case, slow):
    """Gauss–Hermite nodes in all four normals are exact for these polynomials."""
    problem = tc.problems.mean_field(made(case), slow)
    rng = np.random.default_rng(1)
    theta, omega, _ = problem.init(prng.start_key(0))
    theta, omega = jax.tree.map(lambda leaf: leaf + 0.4 * rng.standard_normal(leaf.shape), (theta, omega))
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)
    u = np.stack([grid.ravel() for grid in np.meshgrid(*[nodes] * 4)], axis=1)
    weight = np.prod(np.stack(np.meshgrid(*[weights] * 4)), axis=0).ravel() / (2 * np.pi) ** 2
    x = jax.vmap(lambda u: problem.draw(u, theta, omega, None)[0])(jnp.asarray(u))
    for operator, mean in ((problem.F, problem.mean_F), (problem.G, problem.mean_G)):
        values = jax.vmap(lambda x, operator=operator: operator(theta, omega, x))(x)
        for got, want in zip(jax.tree.leaves(values), jax.tree.leaves(mean(theta, omega)), strict=True):
            np.testing.assert_allclose(np.tensordot(weight, got, axes=1), want, rtol=1e-9, atol=1e-9)
    # Derivatives at a sample include how the sample itself moves: their mean is the derivative of the mean.
    slopes = jax.vmap(lambda x: jax.jacobian(problem.G, (0, 1))(theta, omega, x))(x)
    for got, want in zip(
        jax.tree.leaves(slopes), jax.tree.leaves(jax.jacobian(problem.mean_G, (0, 1))(theta, omega)), strict=True
    ):
        np.testing.assert_allclose(np.tensordot(weight, got, axes=1), want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("slow", SLOW)
@pytest.mark.parametrize("case", CASES)
def test_the_limit_of_the_slow_clock_is_the_stated_answer_and_stable(case, slow):
    problem = tc.problems.mean_field(made(case), slow)
    best = jnp.asarray(problem.model.mean(slow) if slow == "population" else problem.model.answer(slow))
    measured = problem.measure(best, problem.omega_star(best))
    assert max(float(measured[name]) for name in ("error", "tracking", "consistency")) < 1e-24
    np.testing.assert_allclose(problem.field(best), 0, atol=1e-12)
    assert np.linalg.eigvals(np.atleast_2d(jax.jacobian(problem.field)(best))).real.min() > 0


@pytest.mark.parametrize("slow", SLOW)
def test_each_clock_finds_its_own_answer(slow):
    problem = tc.problems.linear_quadratic_field(slow)
    result = tc.solve(problem, METHOD, steps=100_000, seeds=8)
    own, other = (float(problem.model.mean(which)) for which in (slow, *(s for s in SLOW if s != slow)))
    found = result.history[result.history["step"] == 100_000]["mean"]
    assert abs(found.mean() - own) < 0.04
    assert (abs(found - other) > 0.4).all()
    start, end = (result.history[result.history["step"] == step]["error"].mean() for step in (0, 100_000))
    assert end < 0.01 * start


@pytest.mark.parametrize("slow", SLOW)
def test_without_a_method(slow):
    """`Zap` has derivatives of what is drawn from the population too, or its matrix would be singular."""
    problem = tc.problems.linear_quadratic_field(slow)
    result = tc.solve(problem, steps=100_000, seeds=4)
    assert result.history.groupby("step")["error"].mean().iloc[-1] < 2e-3
    assert abs(result.history.groupby("step")["mean"].mean().iloc[-1] - problem.model.mean(slow)) < 0.04


def test_a_population_that_would_run_away_is_refused():
    runaway = FIELD(c1=1.0, c2=2.0, c3=0.5)
    with pytest.raises(
        tc.InputError, match=r"must have c1 \+ c3 − c1·c2 > 0 for a Nash equilibrium .* got -0\.5; lower"
    ):
        tc.problems.mean_field(runaway, "population")
    assert tc.problems.mean_field(runaway, "policy").slow == "policy"
