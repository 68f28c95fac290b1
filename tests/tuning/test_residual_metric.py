"""E[F] and E[G] from samples, against the exact means."""

import jax
import numpy as np
import pytest

import twoclock as tc
from twoclock.engine.loop import drive
from twoclock.engine.run_batch import Lanes, make_instances
from twoclock.tree_math import sqnorm
from twoclock.tuning.fresh_samples import OracleHalf, read_samples, samples_used
from twoclock.tuning.residual_estimate import estimate_residuals

METHODS = [tc.Standard(0.0, 0.0), tc.Standard(0.01, 0.02)]


def look(problem, steps=20, seeds=40, samples=340, methods=METHODS):
    """The residuals after a few steps, and the estimates they were taken at."""
    lanes = Lanes.of(make_instances(problem, range(seeds)), methods, range(seeds), None)
    carry = drive(lanes, [steps]).carry
    return estimate_residuals(read_samples(lanes, carry, steps, samples)), carry.state


def close(estimates, exact, share=0.0):
    """Each setting's mean over seeds agrees with the exact one: within four standard errors, and a share of it."""
    off, exact = estimates - np.asarray(exact), np.asarray(exact)
    allowed = 4 * off.std(axis=1, ddof=1) / np.sqrt(off.shape[1]) + share * exact.mean(axis=1) + 1e-12
    assert np.all(np.abs(off.mean(axis=1)) <= allowed)


REGULATOR = tc.Fast(tc.Power(1.0, shift=2000.0), tc.Power(4.0, shift=2000.0), tc.Power(160.0, shift=2000.0))
CASES = {
    "quadratic": (tc.problems.quadratic(dim=3, sigma=1.0), {}),
    "rates": (tc.problems.rates("pl", coupling="kinked", dim=2), {}),
    "walk": (tc.problems.walk_dependent(), {"samples": 1700}),
    "lqr": (tc.problems.paper_lqr(), {"steps": 2000, "samples": 5100, "seeds": 24, "methods": [REGULATOR]}),
}


@pytest.mark.parametrize("name", CASES)
def test_squared_means_are_unbiased_on_independent_samples_and_chains(name):
    """‖E F‖² and ‖E G‖² without bias; up to the error of the slopes the slow one is ‖E F‖² at ω*(θ)."""
    problem, how = CASES[name]
    found, state = look(problem, **how)
    field = getattr(problem, "field", jax.grad(problem.h))

    def exact(theta, omega):
        means = problem.mean_F(theta, omega), problem.mean_G(theta, omega), field(theta)
        return tuple(sqnorm(mean) for mean in means)

    F, G, slow = jax.vmap(jax.vmap(exact))(state.theta, state.omega)
    close(found.F.value, F)
    close(found.G.value, G)
    close(found.slow.value, slow, share=0.1)
    assert np.all(np.abs(found.rest.value) < 1e-9)


def test_the_distance_estimates_the_squared_error():
    """The curvature is measured too: exactly the distance where F and G are affine, here with steep and flat ways."""
    problem = tc.problems.quadratic(dim=4, mu_h=0.01, sigma=0.3)
    found, state = look(problem)
    close(
        found.distance.value, jax.vmap(jax.vmap(lambda t, w: problem.measure(t, w)["error"]))(state.theta, state.omega)
    )


def test_scaling_an_operator_scales_the_slow_residual_but_not_the_distance():
    plain = tc.problems.quadratic(dim=2)

    def scaled(f, g):
        start = plain.init(jax.random.key(0))
        return tc.problems.custom(
            lambda t, w, x: f * plain.F(t, w, x), lambda t, w, x: g * plain.G(t, w, x), plain.noise, *start[:2],
            draw=plain.draw,
        )  # fmt: skip

    once, twice = (look(scaled(f, g), methods=METHODS[:1])[0] for f, g in ((1.0, 1.0), (3.0, 7.0)))
    np.testing.assert_allclose(twice.slow.value, 9 * once.slow.value, rtol=1e-8)
    np.testing.assert_allclose(twice.distance.value, once.distance.value, rtol=1e-8)


def test_large_problems_use_random_directions():
    problem = tc.problems.quadratic(dim=40, sigma=0.01)
    found, state = look(problem, samples=340, seeds=4, methods=METHODS[1:])
    exact = jax.vmap(jax.vmap(lambda t, w: sqnorm(problem.mean_G(t, w))))(state.theta, state.omega)
    assert np.all(np.isnan(found.distance.value))
    assert np.all(found.rest.value > 0)
    assert np.all(found.rest.value < exact)
    assert np.all(found.unit > 0)


def test_without_omega_the_slow_residual_is_that_of_f():
    found, _ = look(tc.problems.boyan(operator="td"))
    np.testing.assert_allclose(found.slow.value, found.F.value)
    assert np.all(found.G.value == 0)


def test_a_diverged_lane_is_infinitely_far():
    problem, _ = CASES["quadratic"]
    found, _ = look(problem, steps=400, methods=[tc.Standard(0.0, 0.0), tc.Standard(1e3, 1e3)])
    assert np.all(np.isfinite(found.slow.value[0]))
    assert np.all(np.isinf(found.slow.value[1]))


def test_the_oracle_hides_the_answer():
    problem = tc.problems.paper_lqr(guard=True)
    names = ("measure", "h", "omega_star", "mean_F", "mean_G", "report")
    assert all(problem.knows(name) for name in names)
    assert not any(OracleHalf(problem).knows(name) for name in names)


def test_samples_are_rounded_to_batches():
    assert [samples_used(n) for n in (1, 20, 50, 1700)] == [20, 20, 40, 1700]
