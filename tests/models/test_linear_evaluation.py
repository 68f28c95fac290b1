"""The exact limit law of linear policy evaluation, against sums over lags and against simulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock.codegen import compiler
from twoclock.models import limit_law
from twoclock.problems.policy_evaluation.benchmarks import slow_walk_setting
from twoclock.protocols import InputError
from twoclock.sampling.transitions import Transition

WALK = slow_walk_setting()
ENGINE = "xla" if isinstance(compiler.find(), str) else "c"  # tests compile XLA's programs in haste, and these are long


def every_sample(mdp, target, behaviour):
    """All transitions with their probabilities, as one sample with a leading axis, and the chain from each to each."""
    s, a, t = np.nonzero(behaviour[:, :, None] * mdp.P)
    share = mdp.stationary(behaviour)[s] * behaviour[s, a] * mdp.P[s, a, t]
    follows = (t[:, None] == s[None, :]) * (behaviour[s, a] * mdp.P[s, a, t])[None, :]
    x = Transition(jnp.asarray(s), jnp.asarray(t), jnp.asarray((target / behaviour)[s, a]), mdp.r[s, a], None)
    return x, share, follows


@pytest.mark.parametrize("operator", ["td", "tdc", "gtd2", "tdrc"])
@pytest.mark.parametrize("sampling", ["iid", "markov"])
def test_every_operator_has_the_law_that_sums_over_lags_give(operator, sampling):
    """By the chain of whole transitions, lag by lag, with the joint Jacobian of the problem's own F and G."""
    problem = tc.problems.slow_walk(operator, sampling)
    x, share, follows = every_sample(WALK["mdp"], WALK["target"], WALK["behaviour"])
    d = problem.features.shape[1]
    size = d if operator == "td" else 2 * d

    def both(z, x):
        omega = () if operator == "td" else z[d:]
        theta = z[:d]
        return jnp.concatenate(
            [problem.F(theta, omega, x), *([] if operator == "td" else [problem.G(theta, omega, x)])]
        )

    law = limit_law(**WALK, sampling=sampling)
    solution = jnp.concatenate([jnp.asarray(law.theta), jnp.zeros(size - d)])
    g = np.asarray(jax.vmap(both, in_axes=(None, 0))(solution, x))
    J = np.einsum("x,xij->ij", share, jax.vmap(jax.jacobian(both), in_axes=(None, 0))(solution, x))
    np.testing.assert_allclose(share @ g, 0, atol=1e-15)

    def seen(block):
        S, ahead = g.T @ (share[:, None] * g), g
        for lag in range(1, block if sampling == "markov" else 1):
            ahead = follows @ ahead
            lagged = (1 - lag / block) * (g.T @ (share[:, None] * ahead))
            S = S + lagged + lagged.T
        return np.linalg.solve(J, np.linalg.solve(J, S).T)[:d, :d]

    for block in (1, 2, 300):
        np.testing.assert_allclose(law.covariance(block), seen(block), rtol=1e-9, atol=1e-12)
    # S_ℓ = S − c/ℓ up to a term that decays like the chain's second eigenvalue.
    np.testing.assert_allclose(law.covariance(), 2 * seen(6000) - seen(3000), rtol=1e-9, atol=1e-12)


def test_least_squares_has_the_law():
    """400 seeds: the variance of a simulated mean is known to 7 %, and the bar is four times that."""
    result = tc.solve(
        tc.problems.slow_walk("td"), tc.methods.Lstd(), steps=30_000, seeds=400, marks=[30_000], engine=ENGINE
    )
    law = limit_law(**WALK, sampling="markov")
    simulated = 30_000 * np.mean(np.square(result.theta - law.theta), axis=0)
    np.testing.assert_allclose(simulated / np.diag(law.covariance()), 1, atol=0.28)


def test_averaged_iterates_have_the_law():
    """Fast TDC, off-policy along a chain, with features that miss V: within four standard errors and a little bias."""
    rng = np.random.default_rng(5)
    mdp = tc.models.Mdp(rng.dirichlet(np.ones(4), size=(4, 2)), rng.normal(size=(4, 2)), 0.5)
    given = {
        "mdp": mdp, "features": rng.normal(size=(4, 2)), "target": rng.dirichlet(np.ones(2), size=4),
        "behaviour": np.full((4, 2), 0.5), "sampling": "markov",
    }  # fmt: skip
    law, step = limit_law(**given), tc.Power(1.0, p=0.7, shift=20.0)
    method = tc.Polyak(tc.Fast(step, step, 0.5), power=0.0, skip=2000)
    result = tc.solve(
        tc.problems.policy_evaluation(**given), method, steps=30_000, seeds=400, marks=[30_000], engine=ENGINE
    )
    simulated = 28_000 * np.mean(np.square(result.theta - law.theta), axis=0)
    np.testing.assert_allclose(simulated / np.diag(law.covariance()), 1, atol=0.3)
    assert (np.abs(law.coverage(np.eye(2)) - 0.95) > 0.015).any()  # so that the sum over lags is put to the test


def test_where_steps_are_independent_or_v_is_in_reach_nothing_is_missed():
    """The score is then a martingale difference, on a slow chain too."""
    apart, tabular = limit_law(**WALK), limit_law(**{**WALK, "features": np.eye(20)}, sampling="markov")
    for law in (apart, tabular):
        np.testing.assert_allclose(law.coverage(law.features), 0.95, rtol=1e-6)


def test_weights_per_step_miss_on_the_slow_walk_and_long_blocks_do_not():
    law = limit_law(**WALK, sampling="markov")
    assert 0.40 < np.median(law.coverage(law.features)) < 0.42
    assert (np.abs(law.coverage(law.features, block=3125, blocks=32) - 0.95) < 0.005).all()


def test_a_chain_that_returns_after_two_steps_has_a_law_too():
    """A cycle of two states: Z exists where powers of P do not converge."""
    mdp = tc.models.Mdp(np.array([[[0.0, 1.0]], [[1.0, 0.0]]]), [[1.0], [0.0]], 0.5)
    law = limit_law(mdp, np.ones((2, 1)), np.ones((2, 1)), sampling="markov")
    np.testing.assert_allclose(law.covariance(), 0, atol=1e-15)  # every two steps the score sums to 0
    assert law.covariance(block=1) > 0.9


def test_wrong_arguments_are_refused():
    with pytest.raises(InputError, match="`features` leave θ undetermined"):
        limit_law(**{**WALK, "features": np.ones((20, 2))})
    with pytest.raises(InputError, match="`directions` must have one row an output and 3 columns"):
        limit_law(**WALK).variance(np.eye(2))
