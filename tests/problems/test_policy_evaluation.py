"""Linear policy evaluation against enumeration: operators, truth, samples, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from twoclock.models import Mdp
from twoclock.problems.policy_evaluation.benchmarks import random_policy_evaluation
from twoclock.problems.policy_evaluation.linear import policy_evaluation
from twoclock.protocols import InputError
from twoclock.sampling.transitions import Transition

S, A, D = 5, 3, 3
OPERATORS = ["td", "tdc", "gtd2", "tdrc"]


def parts(seed=0, gamma=None):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(S), (S, A))
    gamma = rng.uniform(0.2, 0.95, (S, A, S)) if gamma is None else gamma
    mdp = Mdp(P, rng.normal(size=(S, A, S)), gamma)
    return mdp, rng.normal(size=(S, D)), rng.dirichlet(np.ones(A), S), rng.dirichlet(2 * np.ones(A), S)


def every_transition(mdp, target, behaviour, weights):
    """Each transition with its probability: the expectation without any closed form."""
    s, a, t = (i.ravel() for i in np.indices(mdp.P.shape))
    gamma = np.broadcast_to(mdp.gamma, mdp.P.shape)[s, a, t]
    x = Transition(s, t, target[s, a] / behaviour[s, a], mdp.r[s, a, t], gamma)
    return weights[s] * behaviour[s, a] * mdp.P[s, a, t], x


def mean(operator, theta, omega, p, x):
    return jnp.tensordot(p, jax.jit(jax.vmap(operator, in_axes=(None, None, 0)))(theta, omega, x), 1)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("factor", [2.0, 0.7])
def test_mean_operators_by_enumeration(operator, factor):
    mdp, features, pi, b = parts()
    problem = policy_evaluation(mdp, features, pi, b, operator, factor=factor)
    rng = np.random.default_rng(1)
    theta, omega = jnp.asarray(rng.normal(size=D)), () if operator == "td" else jnp.asarray(rng.normal(size=D))
    p, x = every_transition(mdp, pi, b, mdp.stationary(b))
    np.testing.assert_allclose(mean(problem.F, theta, omega, p, x), problem.mean_F(theta, omega), atol=1e-13)
    if operator == "td":
        assert problem.G(theta, omega, jax.tree.map(lambda leaf: leaf[0], x)) == ()
    else:
        np.testing.assert_allclose(mean(problem.G, theta, omega, p, x), problem.mean_G(theta, omega), atol=1e-13)


@pytest.mark.parametrize("operator", ["tdc", "gtd2"])
@pytest.mark.parametrize("factor", [2.0, 0.7])
def test_the_mean_of_F_is_the_gradient_of_h(operator, factor):
    mdp, features, pi, b = parts()
    problem = policy_evaluation(mdp, features, pi, b, operator, factor=factor)
    theta = jnp.asarray([0.3, -1.0, 2.0])
    omega = problem.omega_star(theta)
    np.testing.assert_allclose(problem.mean_F(theta, omega), jax.grad(problem.h)(theta), atol=1e-12)
    np.testing.assert_allclose(problem.mean_G(theta, omega), 0, atol=1e-13)
    gradient = problem.measure(theta, omega)["gradient"]
    np.testing.assert_allclose(gradient, jnp.sum(jax.grad(problem.h)(theta) ** 2), rtol=1e-12)


@pytest.mark.parametrize("operator", OPERATORS)
def test_all_operators_rest_at_the_td_fixed_point(operator):
    mdp, features, pi, b = parts()
    problem = policy_evaluation(mdp, features, pi, b, operator)
    theta = jnp.asarray(problem.truth.theta_star)
    omega = problem.omega_star(theta)
    np.testing.assert_allclose(problem.mean_F(theta, omega), 0, atol=1e-13)
    assert all(np.abs(leaf).max() < 1e-13 for leaf in jax.tree.leaves(problem.mean_G(theta, omega)))
    measured = problem.measure(theta, omega)
    assert set(measured) - {"tracking"} == {"error", "gap", "gradient", "rmspbe", "rmsve"}
    assert all(float(v) < 1e-12 for k, v in measured.items() if k != "rmsve")


def test_mspbe_is_the_length_of_the_projected_bellman_error():
    mdp, features, pi, b = parts()
    problem = policy_evaluation(mdp, features, pi, b)
    theta = np.array([0.3, -1.0, 2.0])
    D_ = np.diag(mdp.stationary(b))
    projection = features @ np.linalg.solve(features.T @ D_ @ features, features.T @ D_)
    error = projection @ (mdp.reward(pi) + mdp.discounted_chain(pi) @ features @ theta) - features @ theta
    measured = problem.measure(jnp.asarray(theta), jnp.zeros(D))
    assert float(measured["rmspbe"]) == pytest.approx(np.sqrt(error @ D_ @ error), rel=1e-12)
    wrong = features @ theta - mdp.values(pi)
    assert float(measured["rmsve"]) == pytest.approx(np.sqrt(wrong @ D_ @ wrong), rel=1e-12)


def test_dependent_features_measure_the_distance_to_the_nearest_solution():
    mdp, features, pi, b = parts()
    full = policy_evaluation(mdp, features, pi, b)
    doubled = policy_evaluation(mdp, np.hstack([features, features]), pi, b)
    np.testing.assert_allclose(doubled.truth.theta_star, np.tile(full.truth.theta_star / 2, 2), atol=1e-12)
    # (θ*, 0) is a solution too; along it the error vanishes though θ differs from θ*.
    other = jnp.asarray(np.concatenate([full.truth.theta_star, np.zeros(D)]))
    assert float(doubled.measure(other, jnp.zeros(2 * D))["error"]) < 1e-20
    assert float(doubled.measure(other + 1.0, jnp.zeros(2 * D))["error"]) == pytest.approx(2 * D, rel=1e-9)


def draws(problem, count, seed=0):
    key = jax.random.key(seed)
    _, _, env = problem.init(key)

    def one(env, k):
        x, env = problem.draw(problem.noise(jax.random.fold_in(key, k)), None, env)
        return env, x

    return jax.jit(lambda: jax.lax.scan(one, env, jnp.arange(count)))()[1]


@pytest.mark.parametrize("sampling", ["iid", "markov"])
def test_samples_follow_the_behaviour(sampling):
    mdp, features, pi, b = parts(gamma=0.9)
    x = draws(policy_evaluation(mdp, features, pi, b, sampling=sampling), 200_000)
    pairs = np.zeros((S, S))
    np.add.at(pairs, (np.asarray(x.s), np.asarray(x.next_state)), 1)
    expected = mdp.stationary(b)[:, None] * mdp.chain(b)
    if sampling == "iid":
        assert stats.chisquare(pairs.ravel(), 200_000 * expected.ravel()).pvalue > 0.01
    else:
        np.testing.assert_array_equal(x.s[1:], x.next_state[:-1])
        given = pairs.sum(axis=1, keepdims=True) * mdp.chain(b)
        assert stats.chi2.sf(((pairs - given) ** 2 / given).sum(), S * (S - 1)) > 0.01
    # Importance ratios reweight the behaviour's samples to the target.
    weighted = np.zeros((S, S))
    np.add.at(weighted, (np.asarray(x.s), np.asarray(x.next_state)), np.asarray(x.rho))
    np.testing.assert_allclose(weighted / 200_000, mdp.stationary(b)[:, None] * mdp.chain(pi), atol=6e-3)


def test_a_sample_carries_its_own_reward_and_discount():
    mdp, features, pi, b = parts()
    x = draws(policy_evaluation(mdp, features, pi, b), 500)
    for s, t, rho, r, gamma in zip(*map(np.asarray, x), strict=True):
        a = int(np.argmin(np.abs(mdp.r[s, :, t] - r)))
        assert r == mdp.r[s, a, t]
        assert gamma == mdp.gamma[s, a, t]
        assert rho == pytest.approx(pi[s, a] / b[s, a], rel=1e-14)


def test_independent_samples_leave_the_environment_alone():
    problem = policy_evaluation(*parts()[:3])
    env = object()
    u = problem.noise(jax.random.key(0))
    assert problem.draw(u, None, env)[1] is env


def test_random_instances_are_those_of_the_appendix(sampled_law):
    key = jax.random.key(3)
    problem = jax.jit(lambda k: random_policy_evaluation(k, states=12, actions=9, features=4))(key)
    P = sampled_law(problem.sampler.next)
    raw = P / P.max(axis=-1, keepdims=True)
    assert stats.kstest(raw[raw < 1], "uniform").pvalue > 1e-3
    np.testing.assert_allclose(sampled_law(problem.sampler.action), 1 / 9, atol=1e-8)
    pi = np.asarray(problem.sampler.rho) / 9
    again = policy_evaluation(
        Mdp(P, np.broadcast_to(np.asarray(problem.sampler.r)[:, :, 0], (12, 9)), 0.5),
        problem.features,
        pi,
        np.full((12, 9), 1 / 9),
    )
    for name in ("A", "b", "C", "theta_star", "weights", "values"):
        np.testing.assert_allclose(getattr(problem.truth, name), getattr(again.truth, name), atol=1e-6)
    theta = jax.random.normal(jax.random.split(key, 4)[3], (4,))
    np.testing.assert_allclose(problem.truth.theta_star, theta, atol=1e-10)
    np.testing.assert_allclose(problem.features @ theta, problem.truth.values, atol=1e-12)


def test_each_seed_has_its_own_instance():
    keys = jax.random.split(jax.random.key(0), 3)
    problems = jax.jit(jax.vmap(lambda k: random_policy_evaluation(k, states=6, actions=4, features=2)))(keys)
    assert problems.truth.A.shape == (3, 2, 2)
    assert len(np.unique(problems.truth.A)) == 12


GOOD = parts()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": GOOD[2] * 1.5}, r"`target\[0\]` must sum to 1, got 1\.5"),
        ({"behaviour": GOOD[3] - 0.1}, r"`behaviour"),
        ({"behaviour": np.tile([1.0, 0, 0], (S, 1))}, r"in state 0 it never takes action 1, which the target takes"),
        (
            {"features": np.ones((S + 1, 2))},
            r"`features` must have one vector for each of the 5 states, got .*\(6, 2\)",
        ),
        ({"features": "linear"}, r"`features` must be an array of numbers, got str"),
        ({"features": np.zeros((S, 2))}, r"`features` must not all be zero: all parameters would give the same"),
        ({"mdp": np.ones(3)}, r"`mdp` must be a `tc.models.Mdp\(P, r, gamma\)`, got ndarray"),
        ({"features": np.full((S, 2), np.nan)}, r"`features` must be finite"),
        ({"operator": "sarsa"}, r"`operator` must be 'td', 'tdc', 'gtd2', 'tdrc' or 'etd', got 'sarsa'"),
        ({"sampling": "batch"}, r"`sampling` must be 'iid' or 'markov', got 'batch'"),
        ({"ridge": 0.1}, r"`ridge` belongs to operator 'tdrc', got operator 'tdc'"),
        ({"operator": "tdrc", "ridge": -1.0}, r"`ridge` must be a finite number of at least 0, got -1"),
        ({"factor": 0.0}, r"`factor` must be a finite number above 0, got 0"),
        ({"theta0": np.zeros(2)}, r"`theta0` must have the shape \(3,\), one entry per feature, got \(2,\)"),
        ({"weights": np.ones(S)}, r"`weights` must be a distribution over the 5 states"),
        ({"weights": np.ones(S) / S, "sampling": "markov"}, r"`weights` are for sampling 'iid'"),
    ],
)
def test_bad_input_gets_one_line(change, message):
    good = {"mdp": GOOD[0], "features": GOOD[1], "target": GOOD[2], "behaviour": GOOD[3]}
    with pytest.raises(InputError, match=message) as caught:
        policy_evaluation(**(good | change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"states": 0}, "`states` must be at least 1, got 0"),
        ({"states": 3, "features": 4}, "`features` must not exceed the 3 states, got 4"),
        ({"gamma": 1.0}, r"`gamma` must lie in \[0, 1\), got 1"),
        ({"sampling": "no"}, "`sampling` must be"),
        ({"operator": "no"}, "`operator` must be"),
    ],
)
def test_bad_random_problems_get_one_line(change, message):
    with pytest.raises(InputError, match=message):
        random_policy_evaluation(jax.random.key(0), **({"states": 5, "actions": 2, "features": 2} | change))
