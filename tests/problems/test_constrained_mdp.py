"""Constrained MDPs: exact answers by the linear program, operators against sums over all transitions, and runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

import twoclock as tc
from twoclock import prng
from twoclock.problems.constrained_mdp import CostStep, fischer_burmeister
from twoclock.problems.entropy_mdp import Step, frozen_lake_mdp

COIN = tc.models.Mdp(np.ones((1, 2, 1)), [[1.0, 0.0]], 0.5)
PAYS = [[1.0, 0.0]]


def random_mdp(seed=0, states=4, actions=3, gamma=0.8):
    rng = np.random.default_rng(seed)
    mdp = tc.models.Mdp(rng.dirichlet(np.ones(states), (states, actions)), rng.uniform(size=(states, actions)), gamma)
    return mdp, rng.uniform(size=(states, actions, states))


def middle(mdp, cost, temp, share=0.5):
    """A limit between the least cost and that of the free optimum."""
    free = tc.models.constrained_optimum(mdp, cost, 1e3, temp)
    return free.least_cost + share * (free.free_cost - free.least_cost)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.5])
def test_best_responses_solve_the_linear_program(share):
    """max Σ x(s, a)r(s, a) over occupancies x ≥ 0 with Σ_a x(s, a) − Σ (γP)x = ρ and Σ xc ≤ limit; κ is its dual."""
    for seed in range(5):
        mdp, cost = random_mdp(seed, states=5)
        limit, c = middle(mdp, cost, 0.0, share), np.sum(mdp.P * cost, axis=2)
        balance = np.repeat(np.eye(5), 3, axis=1) - mdp.gamma * mdp.P.reshape(15, 5).T
        found = linprog(-mdp.r.ravel(), c.reshape(1, -1), [limit + 1e-12], balance, np.full(5, 0.2))
        best = tc.models.constrained_optimum(mdp, cost, limit)
        np.testing.assert_allclose(best.reward, -found.fun, rtol=1e-8)
        if share:  # with the least cost any larger multiplier is right too
            np.testing.assert_allclose(best.multiplier, -found.ineqlin.marginals[0], atol=1e-7)
        else:
            assert best.high == np.inf


def test_the_lake_is_that_of_the_linear_program():
    problem = tc.problems.constrained_frozen_lake(temp=0.0)
    np.testing.assert_allclose(problem.reward_star, 0.180057, atol=5e-7)
    np.testing.assert_allclose(problem.multipliers, 0.191142, atol=5e-7)
    free = tc.problems.constrained_frozen_lake(limit=1.0, temp=0.0)
    np.testing.assert_allclose(free.reward_star, 0.180472, atol=5e-7)
    assert free.multipliers == (0, 0)
    mdp, falls = frozen_lake_mdp(4, 0.95, slippery=True)
    best = tc.models.constrained_optimum(mdp, falls, 0.05, start=0)
    np.testing.assert_allclose(best.free_cost, 0.052167, atol=5e-7)
    np.testing.assert_allclose(best.policy[2], [0.7126, 0, 0, 0.2874], atol=5e-5)
    np.testing.assert_allclose(mdp.values(best.policy)[0], best.reward, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_the_multiplier_is_the_slope_of_the_best_reward(seed):
    mdp, cost = random_mdp(seed)
    for temp, step in ((0.0, 1e-5), (0.05, 1e-4)):
        limit = middle(mdp, cost, temp)
        left, at, right = (tc.models.constrained_optimum(mdp, cost, limit + s, temp) for s in (-step, 0, step))
        np.testing.assert_allclose(at.multiplier, (right.reward - left.reward) / (2 * step), rtol=1e-4)
        np.testing.assert_allclose(at.cost, limit, rtol=1e-9)


def test_a_falling_temperature_leads_to_the_linear_program():
    mdp, cost = random_mdp(1)
    limit = middle(mdp, cost, 0.0)
    cold, exact = (tc.models.constrained_optimum(mdp, cost, limit, temp) for temp in (1e-5, 0.0))
    np.testing.assert_allclose([cold.reward, cold.multiplier], [exact.reward, exact.multiplier], rtol=1e-3)


def test_units_of_reward_and_cost_only_scale_the_answer():
    mdp, cost = random_mdp(2)
    for temp in (0.0, 0.05):
        limit = middle(mdp, cost, temp)
        plain = tc.models.constrained_optimum(mdp, cost, limit, temp)
        scaled = tc.models.Mdp(mdp.P, 1e-6 * mdp.r, mdp.gamma)
        other = tc.models.constrained_optimum(scaled, 1e5 * cost, 1e5 * limit, 1e-6 * temp)
        np.testing.assert_allclose(other.multiplier, 1e-11 * plain.multiplier, rtol=1e-5)
        np.testing.assert_allclose(other.reward, 1e-6 * plain.reward, rtol=1e-6)


def test_a_kink_has_several_multipliers_and_all_are_right():
    """With just the whole toss allowed, more is worth nothing and less costs 1."""
    best = tc.models.constrained_optimum(COIN, PAYS, 2.0)
    np.testing.assert_allclose([best.low, best.high], [0, 1], atol=1e-6)
    problem = tc.problems.constrained_mdp(COIN, PAYS, 2.0, temp=0.0)
    with jax.enable_x64(True):
        _, omega, _ = problem.init(prng.start_key(0))
        errors = [float(problem.measure(jnp.asarray(k), omega)["error"]) for k in (0.5, 2.0)]
    np.testing.assert_allclose(errors, [0, 1], atol=1e-6)


def test_the_coin_in_closed_form():
    """π = σ((1 − κ)/τ) and C = 2π: half of the tosses at κ = 1, a quarter at κ = 1 + τ log 3."""
    for limit, kappa in ((1.0, 1.0), (0.5, 1 + 0.3 * np.log(3)), (1.99, 0.0)):
        best = tc.models.constrained_optimum(COIN, PAYS, limit, temp=0.3)
        np.testing.assert_allclose(best.multiplier, kappa, atol=1e-12)


@pytest.mark.parametrize("sampling", ["restart", "stationary", "iid"])
def test_mean_operators_are_sums_over_all_transitions(sampling):
    mdp, cost = random_mdp()
    problem = tc.problems.constrained_mdp(mdp, cost, middle(mdp, cost, 0.1), 0.1, sampling=sampling)
    rng = np.random.default_rng(5)
    with jax.enable_x64(True):
        theta, logits = jnp.asarray(0.7), jnp.asarray(rng.normal(size=(4, 3)))
        omega = logits, (jnp.asarray(rng.normal(size=4)), jnp.asarray(rng.normal(size=4)))
        pi, uniform = np.asarray(problem.policy(omega)), np.full(4, 0.25)
        law = {"restart": mdp.visitation(pi), "stationary": mdp.stationary(pi), "iid": uniform}[sampling]
        F, G = 0.0, jax.tree.map(jnp.zeros_like, omega)
        for s, a, t in np.ndindex(4, 3, 4):
            step = Step(jnp.int32(s), jnp.int32(a), jnp.int32(t), jnp.asarray(mdp.r[s, a]), None, None)
            x, weight = CostStep(step, jnp.asarray(cost[s, a, t])), law[s] * pi[s, a] * mdp.P[s, a, t]
            F += weight * problem.F(theta, omega, x)
            G = jax.tree.map(lambda total, g, w=weight: total + w * g, G, problem.G(theta, omega, x))
        np.testing.assert_allclose(F, problem.mean_F(theta, omega), atol=1e-12)
        for got, mean in zip(jax.tree.leaves(G), jax.tree.leaves(problem.mean_G(theta, omega)), strict=True):
            np.testing.assert_allclose(got, mean, atol=1e-10)


@pytest.mark.parametrize(("seed", "temp", "share"), [(0, 0.1, 0.5), (1, 0.02, 0.3), (2, 0.3, 2.0)])
def test_all_means_are_zero_at_the_truth(seed, temp, share):
    mdp, cost = random_mdp(seed)
    problem = tc.problems.constrained_mdp(mdp, cost, middle(mdp, cost, temp, share), temp)
    assert (problem.multipliers[0] == 0) == (share > 1)
    with jax.enable_x64(True):
        theta = jnp.asarray(problem.multipliers[0])
        omega = problem.omega_star(theta)
        for leaf in jax.tree.leaves((problem.mean_F(theta, omega), problem.mean_G(theta, omega))):
            np.testing.assert_allclose(leaf, 0, atol=1e-10)
        metrics = problem.measure(theta, omega)
        assert all(float(metrics[name]) < 1e-9 for name in metrics if name != "multiplier")


def test_no_step_of_one_or_less_turns_the_multiplier_negative():
    kappa, slack = np.meshgrid(np.geomspace(1e-9, 1e3, 50), np.linspace(-10, 10, 81))
    value = np.asarray(fischer_burmeister(jnp.asarray(kappa), jnp.asarray(slack)))
    assert (value <= kappa * (1 + 1e-6) + 1e-6).all()
    assert np.isfinite(jax.grad(fischer_burmeister)(0.0, 0.0))
    problem = tc.problems.constrained_mdp(COIN, PAYS, 1.9, temp=0.5)
    history = tc.solve(problem, tc.Standard(1.0, (0.1, 0.5)), 5_000, 8).history
    assert (history.multiplier >= -1e-12).all()


METHOD = tc.Fast("3/(k+10000)", ("100/(k+5000)", "500/(k+2000)"), "2000/(k+8000)")


@pytest.mark.parametrize("sampling", ["restart", "iid", "stationary"])
def test_a_binding_limit_is_met_at_the_right_price(sampling):
    mdp, cost = random_mdp(3)
    problem = tc.problems.constrained_mdp(mdp, cost, middle(mdp, cost, 0.1), 0.1, sampling=sampling)
    history = tc.solve(problem, METHOD, 200_000, 8).history
    end = history[history.step == 200_000].mean()
    np.testing.assert_allclose(end.multiplier, problem.multipliers[0], rtol=0.02)
    assert end.gap < 0.03 * problem.reward_star
    assert end.violation < 0.03 * problem.limit


def test_a_limit_that_does_not_bind_costs_nothing():
    mdp, cost = random_mdp(3)
    problem = tc.problems.constrained_mdp(mdp, cost, middle(mdp, cost, 0.1, 1.2), 0.1, kappa0=1.0)
    assert problem.multipliers == (0, 0)
    history = tc.solve(problem, METHOD, 200_000, 8).history
    end = history[history.step == 200_000].mean()
    assert 0 <= end.multiplier < 0.01
    assert end.violation == 0
    assert end.gap < 0.02 * problem.reward_star


def test_without_a_method_it_says_what_to_use():
    with pytest.raises(tc.InputError, match=r"`method` Auto looks for roots .*; use steps for each level, tc\.Fast"):
        tc.solve(tc.problems.constrained_frozen_lake())


def test_engines_agree():
    mdp, cost = random_mdp(3)
    problem = tc.problems.constrained_mdp(mdp, cost, middle(mdp, cost, 0.1), 0.1)
    c, xla = (tc.solve(problem, METHOD, 5_000, 3, engine=engine) for engine in ("c", "xla"))
    np.testing.assert_allclose(c.theta, xla.theta, rtol=1e-9)


def test_states_without_reward_where_costs_go_on_are_not_over():
    """An action in a state that never earns anything still matters where it costs."""
    P = np.zeros((2, 2, 2))
    P[:, :, 1] = 1
    mdp = tc.models.Mdp(P, [[1.0, 0.0], [0.0, 0.0]], 0.5)
    problem = tc.problems.constrained_mdp(mdp, [[0.0, 0.0], [1.0, 0.0]], 0.2, temp=0.1, start=0)
    assert (problem.actor.temp == 0.1).all()
    assert problem.multipliers[0] > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"limit": -1.0}, "`limit` must be at least 0, the least expected cost of any policy, got -1"),
        ({"limit": 0.0}, "`limit` must lie above 0, the least .* the multiplier would be infinite"),
        ({"limit": "1"}, "`limit` must be one number"),
        ({"cost": [1.0]}, r"`cost` must have the shape \(1, 2\) or \(1, 2, 1\) to go with the MDP, got \(1,\)"),
        ({"cost": [[np.nan, 0.0]]}, "`cost` must"),
        ({"mdp": 3}, "`mdp` must be a `tc.models.Mdp"),
        ({"temp": -0.1}, "`temp` must"),
        ({"kappa0": -1.0}, "`kappa0` must"),
        ({"sampling": "chain"}, "`sampling` must"),
    ],
)
def test_wrong_arguments_get_one_line(change, words):
    with pytest.raises(tc.InputError, match=words) as error:
        tc.problems.constrained_mdp(**{"mdp": COIN, "cost": PAYS, "limit": 1.0, "temp": 0.1} | change)
    assert "\n" not in str(error.value)
