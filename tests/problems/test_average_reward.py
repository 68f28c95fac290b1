"""Actor, gain and differential critic: means by enumeration, both samplings, and runs against the exact gain."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from tests.models.test_mdp import random_mdp
from twoclock import prng
from twoclock.problems.entropy_mdp import Step
from twoclock.protocols import InputError


def built(kind, sampling="markov", temp=0.3):
    mdp, _ = random_mdp(3)
    rng = np.random.default_rng(3)
    options = {}
    if kind == "features":
        options = {"features": rng.standard_normal((6, 2)), "policy_features": rng.standard_normal((6, 3, 4))}
    problem = tc.problems.average_reward(mdp, temp, sampling, **options)
    theta, (_, values), _ = problem.init(prng.start_key(0))
    omega = jnp.asarray(0.7), jnp.asarray(rng.standard_normal(values.shape))
    return mdp, problem, jnp.asarray(rng.standard_normal(theta.shape)), omega


@jax.jit
def enumerated(problem, law, P, theta, omega):
    """Σ μ(s)π(a|s)P(s'|s, a) of F and of G, one transition at a time."""
    s, a, t = (np.asarray(axis, np.int32) for axis in zip(*itertools.product(*map(range, P.shape)), strict=True))
    x = Step(s, a, t, jnp.broadcast_to(problem.r, P.shape)[s, a, t], None, None)
    each = jax.vmap(lambda x: (problem.F(theta, omega, x), problem.G(theta, omega, x)))(x)
    weight = law[s] * problem.policy(theta)[s, a] * P[s, a, t]
    return jax.tree.map(lambda part: jnp.tensordot(weight, part, axes=1), each)


@pytest.mark.parametrize("kind", ["table", "features"])
def test_means_are_the_sums_over_all_transitions(kind):
    mdp, problem, theta, omega = built(kind)
    law = jnp.asarray(mdp.stationary(np.asarray(problem.policy(theta))))
    for point in (omega, problem.omega_star(theta), (omega[0], problem.critic(theta, omega[0]))):
        f, g = enumerated(problem, law, jnp.asarray(mdp.P), theta, point)
        np.testing.assert_allclose(problem.mean_F(theta, point), f, atol=1e-12)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), problem.mean_G(theta, point), g)
    # The last point has a wrong gain and the critic that answers to it: the level of the critic is at its root.
    np.testing.assert_allclose(g[1], 0, atol=1e-12)
    assert float(g[0]) == pytest.approx(0.7 - float(problem.omega_star(theta)[0]), abs=1e-12)


def test_at_its_root_the_critic_gives_the_gradient_of_the_gain():
    mdp, problem, theta, omega = built("table")
    slope = -mdp.average_reward(0.3).gradient(np.asarray(theta))
    np.testing.assert_allclose(problem.mean_F(theta, problem.omega_star(theta)), slope, atol=1e-12)
    # An error in the gain moves all values alike, and F sees differences only.
    np.testing.assert_allclose(problem.mean_F(theta, (omega[0], problem.critic(theta, omega[0]))), slope, atol=1e-12)


@pytest.mark.parametrize("kind", ["table", "features"])
def test_the_levels_are_stable_whatever_the_policy(kind):
    """The Jacobian of the mean of G in ω has eigenvalues in the right half-plane only, none of them zero."""
    _, problem, theta, omega = built(kind)
    flat, unflatten = jax.flatten_util.ravel_pytree(omega)
    jacobian = jax.jit(
        jax.jacobian(lambda z, theta: jax.flatten_util.ravel_pytree(problem.mean_G(theta, unflatten(z)))[0])
    )
    for spread in (0.0, 1.0, 4.0):
        assert np.linalg.eigvals(jacobian(flat, spread * theta)).real.min() > 0


def test_independent_samples_follow_the_stationary_law_of_the_present_policy():
    mdp, problem, theta, _ = built("table", "iid")
    law = mdp.stationary(np.asarray(problem.policy(theta)))
    draw = jax.jit(jax.vmap(lambda k: problem.draw(problem.noise(prng.step_key(0, k)), theta, None)[0].s))
    counts = np.bincount(draw(np.arange(20_000)), minlength=6)
    np.testing.assert_allclose(counts / 20_000, law, atol=5 * 0.5 / np.sqrt(20_000))


def test_a_policy_that_stays_is_evaluated():
    mdp, pi = random_mdp(5)
    problem = tc.problems.average_reward(mdp, theta0=np.log(pi))
    result = tc.solve(problem, tc.Fast(0.0, ("5/(k+100)", "50/(k+500)"), "50/(k+200)"), 100_000, 8)
    np.testing.assert_array_equal(result.theta[0], np.log(pi))
    gain, bias, _ = mdp.average_reward().evaluate(np.log(pi))
    np.testing.assert_allclose(result.omega[0], gain, atol=0.03)
    np.testing.assert_allclose(result.omega[1].mean(axis=0), bias, atol=0.05)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda mdp: tc.problems.average_reward(mdp, features=np.eye(6)), "independent of each other and of the const"),
        (lambda mdp: tc.problems.average_reward(mdp, features=np.ones((5, 1))), "one vector for each of the 6 states"),
        (lambda mdp: tc.problems.average_reward(mdp, sampling="restart"), "`sampling` must be"),
        (lambda mdp: tc.problems.average_reward(mdp, temp=-1.0), "`temp` must"),
        (lambda mdp: tc.problems.average_reward(mdp, theta0=np.zeros(3)), r"`theta0` must have the shape \(6, 3\)"),
        (lambda mdp: tc.problems.average_reward(mdp.P), "`mdp` must be a `tc.models.Mdp"),
        (lambda mdp: tc.problems.river_swim(states=1), "`states` must"),
        (lambda mdp: tc.problems.access_control(free=1.0), "`free` must"),
    ],
)
def test_wrong_arguments_get_one_line(make, words):
    with pytest.raises(InputError, match=words):
        make(random_mdp(3)[0])


ACTOR, GAIN, CRITIC, AVERAGE = (tc.Power(c * 1e5, shift=1e5) for c in (0.03, 0.002, 0.2, 0.5))
METHODS = {"fast": tc.Fast(ACTOR, (GAIN, CRITIC), AVERAGE), "standard": tc.Standard(ACTOR, (GAIN, CRITIC))}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("make", "best"), [(tc.problems.access_control, 2.747642), (tc.problems.river_swim, 0.428622)])
def test_runs_reach_the_exact_gain(make, best, method):
    """Every seed's policy is within 1 % of the best gain, and its estimate of that gain within 5 %."""
    result = tc.solve(make(temp=0.1), METHODS[method], 600_000, 4)
    end = result.history[result.history["step"] == 600_000]
    assert (end["gain"] > 0.99 * best).all()
    np.testing.assert_allclose(result.omega[0], end["gain"], rtol=0.05)


def test_without_a_method_it_is_refused_with_the_steps_to_use():
    """On the random table the matrix gain ended far from the optimum and said that it had arrived."""
    for problem in (tc.problems.average_reward(random_mdp(7)[0], 0.1), tc.problems.access_control(temp=0.1)):
        with pytest.raises(InputError, match=r"on AverageRewardProblem; use steps for each level, tc\.Standard"):
            tc.solve(problem, steps=100)


def test_independent_samples_reach_it_too():
    mdp, _ = random_mdp(7)
    problem = tc.problems.average_reward(mdp, 0.05, "iid")
    history = tc.solve(problem, tc.Standard("2e3/(k+4e3)", ("20/(k+2e3)", "1e3/(k+4e3)")), 50_000, 4).history
    start, end = (history[history["step"] == step]["gap"].to_numpy() for step in (0, 50_000))
    assert (end < 0.05 * start).all()
