"""Least squares on the same samples as every other method."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock import prng


def by_hand(problem, seed, steps):
    """LSTD as in the textbook, on the samples that step k of a seed sees: A = Σρφ(φ − γφ')ᵀ, b = Σρrφ."""
    d = problem.features.shape[1]
    A, b, env = np.zeros((d, d)), np.zeros(d), problem.init(prng.start_key(seed))[2]
    stream = prng.step_stream(seed)
    draw = jax.jit(lambda k, env: problem.draw(problem.noise(jax.random.fold_in(stream, k)), None, env))
    for k in range(steps):
        x, env = draw(k, env)
        phi, ahead = problem.features[int(x.s)], problem.features[int(x.next_state)]
        A += float(x.rho) * np.outer(phi, phi - float(problem.sampler.discount(x)) * ahead)
        b += float(x.rho * x.r) * phi
    return np.linalg.solve(A, b)


@pytest.mark.parametrize("sampling", ["iid", "markov"])
def test_lstd_is_that_of_the_textbook_on_the_same_samples(sampling):
    problem = tc.problems.walk_tabular("td", sampling)
    result = tc.solve(problem, tc.methods.Lstd(), steps=300, seeds=[4])
    np.testing.assert_allclose(result.theta[0], by_hand(problem, 4, 300), rtol=1e-9)


def test_lstd_is_least_squares_for_any_affine_operator():
    """With F = H(θ − θ*) + noise the estimate is θ* minus the mean noise through H⁻¹, whatever the pytree."""
    H = {"a": np.array([2.0, 4.0]), "b": np.array(3.0)}
    target = {"a": np.array([1.0, -1.0]), "b": np.array(0.5)}
    method = tc.methods.Lstd()

    def F(theta, omega, x):
        return jax.tree.map(lambda h, v, s: h * (v - s) + x, H, theta, target)

    state = method.init(jax.tree.map(jnp.zeros_like, target), jnp.zeros(1))
    shifts = np.random.default_rng(0).normal(size=50)
    for k, shift in enumerate(shifts):
        state = method.step(F, F, state, shift, k)
    theta, _ = method.estimate(state)
    for name in H:
        np.testing.assert_allclose(theta[name], target[name] - shifts.mean() / H[name], rtol=1e-10)


def test_before_there_are_enough_samples_the_estimate_is_finite():
    result = tc.solve(tc.problems.boyan("td"), tc.methods.Lstd(), steps=5, seeds=2, marks=range(6))
    assert np.isfinite(result.history["error"]).all()


def test_the_averaged_setting_is_close_to_lstd():
    """One setting from the feature norm alone; the bar is 1.3 at 10⁵ samples and the band here is for 16 seeds."""

    def problem(operator):
        return lambda key: tc.problems.random_policy_evaluation(key, 20, 10, 5, operator=operator)

    marks = [20_000]
    ours = tc.solve(problem("tdc"), tc.methods.averaged_tdc(mean_sq_feature_norm=5.0), 20_000, 16, marks=marks)
    best = tc.solve(problem("td"), tc.methods.Lstd(), 20_000, 16, marks=marks)
    assert ours.history["error"].mean() < 1.6 * best.history["error"].mean()
