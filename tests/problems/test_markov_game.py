"""Zero-sum Markov games: operators against exact gradients, saddles against LP and closed forms, and runs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import softmax

import twoclock as tc
from twoclock.models.markov_game import solve_matrix_games
from twoclock.problems.markov_game import GameStep
from twoclock.protocols import InputError

PENNIES = np.ones((1, 2, 2, 1)), np.array([[[3.0, -1.0], [-1.0, 1.0]]])


def random_game(seed=0, states=3, a=3, b=2, gamma=0.8, next_rewards=False):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(states), size=(states, a, b))
    R = rng.standard_normal((states, a, b, states) if next_rewards else (states, a, b))
    return P, R, gamma


def policies(problem, seed=1):
    rng = np.random.default_rng(seed)
    theta, phi = (jnp.asarray(rng.standard_normal(np.shape(logits))) for logits in (problem.theta0, problem.phi0))
    return theta, phi, jnp.asarray(rng.standard_normal(len(theta)))


def enumerated(problem, P, R, weights, theta, omega):
    """Σ weights(s) π(a|s) φ(b|s) P(s'|s, a, b) of F and G, one transition at a time."""
    pi, phi = softmax(theta, axis=1), softmax(omega[0], axis=1)
    s, a, b, t = (np.asarray(axis, np.int32) for axis in zip(*itertools.product(*map(range, P.shape)), strict=True))
    r = R[s, a, b] if R.ndim == 3 else R[s, a, b, t]
    weight = weights[s] * pi[s, a] * phi[s, b] * P[s, a, b, t]
    one = jax.jit(jax.vmap(lambda x: (problem.F(theta, omega, x), problem.G(theta, omega, x))))
    return jax.tree.map(lambda part: np.tensordot(weight, part, axes=1), one(GameStep(s, a, b, t, r, None)))


@pytest.mark.parametrize("temp", [0.0, 0.3])
@pytest.mark.parametrize("next_rewards", [False, True])
def test_under_restarts_the_means_are_the_exact_gradients_of_both_players(temp, next_rewards):
    P, R, gamma = random_game(next_rewards=next_rewards)
    problem = tc.problems.markov_game(P, R, gamma, temp, start=[0.5, 0.3, 0.2])
    theta, phi, _ = policies(problem)
    pi, ph = softmax(theta, axis=1), softmax(phi, axis=1)

    def J(theta, phi):  # from the definition, without the library
        log_pi, log_phi = jax.nn.log_softmax(theta), jax.nn.log_softmax(phi)
        both = jnp.exp(log_pi)[:, :, None] * jnp.exp(log_phi)[:, None, :]
        mean = R if R.ndim == 3 else (P * R).sum(-1)
        r = jnp.sum(both * (mean - temp * log_pi[:, :, None] + temp * log_phi[:, None, :]), axis=(1, 2))
        chain = jnp.einsum("sab,sabt->st", both, P)
        return jnp.array([0.5, 0.3, 0.2]) @ jnp.linalg.solve(jnp.eye(3) - gamma * chain, r)

    chain = np.einsum("sa,sb,sabt->st", pi, ph, P)
    law = (1 - gamma) * np.linalg.solve(np.eye(3) - gamma * chain.T, [0.5, 0.3, 0.2])
    V = jnp.asarray(problem.game.evaluate(theta, phi, temp))
    f, (g, critic) = enumerated(problem, P, R, law, theta, (phi, V))
    up, down = jax.grad(J, (0, 1))(theta, phi)
    np.testing.assert_allclose(f, -up, atol=1e-12)  # π ascends
    np.testing.assert_allclose(g, down, atol=1e-12)  # φ descends
    np.testing.assert_allclose(critic, 0, atol=1e-12)
    assert float(problem.game.start @ V) == pytest.approx(float(J(theta, phi)), abs=1e-12)


@pytest.mark.parametrize("sampling", ["restart", "iid"])
def test_means_at_any_critic_by_enumeration(sampling):
    P, R, gamma = random_game(4, next_rewards=True)
    problem = tc.problems.markov_game(P, R, gamma, 0.3, sampling=sampling)
    theta, phi, V = policies(problem)
    chain = np.einsum("sa,sb,sabt->st", softmax(theta, axis=1), softmax(phi, axis=1), P)
    law = np.full(3, 1 / 3)
    if sampling == "restart":
        law = (1 - gamma) * np.linalg.solve(np.eye(3) - gamma * chain.T, law)
    f, g = enumerated(problem, P, R, law, theta, (phi, V))
    np.testing.assert_allclose(problem.mean_F(theta, (phi, V)), f, atol=1e-12)
    for got, want in zip(problem.mean_G(theta, (phi, V)), g, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-12)


def test_the_slope_of_h_is_that_of_the_best_response_value():
    problem = tc.problems.markov_game(*random_game(), temp=0.3)
    theta, _, _ = policies(problem)
    slope, move = jax.grad(problem.h)(theta), np.random.default_rng(5).standard_normal(theta.shape)
    ahead, behind = (float(problem.h(theta + e * move)) for e in (1e-5, -1e-5))
    assert float(jnp.sum(slope * move)) == pytest.approx((ahead - behind) / 2e-5, rel=1e-6)
    np.testing.assert_allclose(problem.field(theta), slope, atol=1e-12)
    # No policy of the minimiser holds the maximiser lower than its best response.
    worst = min(float(problem.game.evaluate(theta, policies(problem, i)[1], 0.3).mean()) for i in range(20))
    assert -float(problem.h(theta)) < worst


def test_matrix_games_in_closed_form():
    game = tc.models.MarkovGame(*PENNIES, 0.0)
    saddle = game.saddle()
    np.testing.assert_allclose(saddle.V, 1 / 3, atol=1e-12)
    np.testing.assert_allclose([saddle.pi[0], saddle.phi[0]], [[1 / 3, 2 / 3]] * 2, atol=1e-12)
    for temp in (1e-3, 0.1, 10.0):
        # The saddle of matching pennies is uniform at any temperature, and the two bonuses cancel.
        log_pi, log_phi, value = solve_matrix_games(np.array([[[1.0, -1.0], [-1.0, 1.0]]]), temp)
        np.testing.assert_allclose(np.exp([log_pi, log_phi]), 0.5, atol=1e-12)
        assert value[0] == pytest.approx(0, abs=1e-12)
        # One action of the opponent leaves a softmax.
        row = np.array([[[0.3], [1.0], [-2.0]]])
        log_pi, _, value = solve_matrix_games(row, temp)
        np.testing.assert_allclose(np.exp(log_pi[0]), softmax(row[0, :, 0] / temp), atol=1e-12)
        assert value[0] == pytest.approx(temp * np.log(np.exp((row - 1) / temp).sum()) + 1, abs=1e-12)


@pytest.mark.parametrize(("a", "b"), [(2, 2), (5, 3), (12, 15)])
@pytest.mark.parametrize("temp", [50.0, 1.0, 0.1, 0.01])
def test_soft_matrix_games_solve_their_fixed_point(a, b, temp):
    M = 3 * np.random.default_rng(a).standard_normal((20, a, b))
    log_pi, log_phi, value = solve_matrix_games(M, temp)
    pi, phi = np.exp(log_pi), np.exp(log_phi)
    np.testing.assert_allclose(pi, softmax(np.einsum("nab,nb->na", M, phi) / temp, axis=1), atol=1e-8)
    np.testing.assert_allclose(phi, softmax(-np.einsum("nab,na->nb", M, pi) / temp, axis=1), atol=1e-8)
    bonus = temp * (np.sum(phi * log_phi, axis=1) - np.sum(pi * log_pi, axis=1))
    np.testing.assert_allclose(value, np.einsum("na,nab,nb->n", pi, M, phi) + bonus, atol=1e-8)


def test_the_saddle_without_bonus_is_shapleys_by_lp():
    P, R, gamma = random_game(2, states=4)
    game, V = tc.models.MarkovGame(P, R, gamma), np.zeros(4)
    for _ in range(120):  # 0.8^120 = 2e-12
        for s, M in enumerate(R + gamma * P @ V):
            rows = np.column_stack([-M.T, np.ones(2)])
            V[s] = -linprog([0, 0, 0, -1], rows, [0, 0], [[1, 1, 1, 0]], [1], [(0, 1)] * 3 + [(None, None)]).fun
    saddle = game.saddle()
    np.testing.assert_allclose(saddle.V, V, atol=1e-10)
    assert abs(game.exploitability(saddle.log_pi, saddle.log_phi, 0.0)) < 1e-9


@pytest.mark.parametrize("temp", [0.001, 0.1, 1.0])
def test_exploitability_is_zero_at_the_saddle_and_positive_elsewhere(temp):
    problem = tc.problems.markov_game(*random_game(3, gamma=0.95), temp=temp)
    game, saddle = problem.game, problem.truth
    np.testing.assert_allclose(
        solve_matrix_games(game.R + game.gamma * game.P @ saddle.V, temp)[2], saddle.V, rtol=1e-9
    )
    assert abs(game.exploitability(saddle.log_pi, saddle.log_phi, temp)) < 1e-8
    at = problem.measure(jnp.asarray(saddle.log_pi), (jnp.asarray(saddle.log_phi), jnp.asarray(saddle.V)))
    for name in ("gap", "exploitability", "tracking_1", "tracking_2"):
        assert abs(float(at[name])) < 1e-8, name
    assert at["nash_conv"] > 0  # of the regularised saddle in the game itself
    for seed in range(5):
        theta, phi, V = policies(problem, seed)
        off = problem.measure(theta, (phi, V))
        assert off["exploitability"] > off["gap"] > 1e-3
        # The colder saddle is a saddle of the game itself.
    assert game.exploitability(*game.saddle()[1:], 0.0) < 1e-9


def test_the_bonus_costs_at_most_its_size():
    """|V*_τ − V*_0| ≤ τ·log(actions)/(1 − γ)."""
    game = tc.models.MarkovGame(*random_game(6))
    for temp in (0.01, 0.1):
        assert np.abs(game.saddle(temp).V - game.saddle().V).max() <= temp * np.log(3) / (1 - 0.8) + 1e-12


def test_one_action_of_the_minimiser_is_an_mdp():
    P, R, gamma = random_game(7, b=1)
    for temp in (0.0, 0.2):
        V = tc.models.Mdp(P[:, :, 0], R[:, :, 0], gamma).soft_values(temp)
        np.testing.assert_allclose(tc.models.MarkovGame(P, R, gamma).saddle(temp).V, V, rtol=1e-10)


def test_the_players_swapped_have_minus_the_value():
    P, R, gamma = random_game(8)
    one = tc.models.MarkovGame(P, R, gamma)
    other = tc.models.MarkovGame(P.swapaxes(1, 2), -R.swapaxes(1, 2), gamma)
    for temp in (0.0, 0.1):
        np.testing.assert_allclose(one.saddle(temp).V, -other.saddle(temp).V, rtol=1e-9)


def test_pursuit_treats_mirrored_positions_alike_and_an_evader_that_cannot_slip_escapes():
    V = tc.problems.pursuit().truth.V
    pairs = [(p, e) for p in range(9) for e in range(9) if p != e]
    for s, (p, e) in enumerate(pairs):
        mirrored = pairs.index((p // 3 * 3 + 2 - p % 3, e // 3 * 3 + 2 - e % 3))
        assert V[s] == pytest.approx(V[mirrored], rel=1e-9)
    assert np.abs(tc.problems.pursuit(slip=0.0, temp=0.0).truth.V).max() < 1e-9


def test_a_falling_temperature_is_carried_by_the_sample():
    problem = tc.problems.matrix_game("2/(k+4)^0.5")
    theta, omega, env = problem.init(jax.random.key(0))
    for k in range(4):
        x, env = problem.sample(problem.noise(jax.random.key(k)), theta, omega, env)
        assert float(x.temp) == pytest.approx(2 / np.sqrt(k + 4))
    assert not problem.knows("mean_F")
    floored = tc.problems.matrix_game("max(2/(k+4)^0.5, 0.1)")
    np.testing.assert_allclose(floored.truth.V, tc.problems.matrix_game(0.1).truth.V)
    same = tc.problems.matrix_game(tc.Power(0.1, p=0.0))
    assert same.knows("mean_F")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tc.problems.markov_game(np.ones((2, 2)), PENNIES[1], 0.5), r"`P` must have the shape \(states, act"),
        (lambda: tc.problems.markov_game(PENNIES[0], np.ones((2, 2)), 0.5), r"`R` must have the shape \(1, 2, 2\)"),
        (lambda: tc.problems.markov_game(2 * PENNIES[0], PENNIES[1], 0.5), r"`P\[0, 0, 0\]` must sum to 1, got 2"),
        (lambda: tc.problems.markov_game(*PENNIES, 1.0), r"`gamma` must lie in \[0, 1\), got 1"),
        (lambda: tc.problems.markov_game(*PENNIES, 0.5, -1.0), r"`temp` must be a finite number that is not negative"),
        (lambda: tc.problems.markov_game(*PENNIES, 0.5, lambda k: 1.0), r"`temp` must be a number or a `Power`"),
        (lambda: tc.problems.markov_game(*PENNIES, 0.5, 1e-9), r"`temp` = 1e-09 is too small beside rewards of"),
        (lambda: tc.problems.markov_game(*PENNIES, 0.5, 5e-324), r"`temp` = 4.94066e-324 is too small beside"),
        (lambda: tc.problems.pursuit(2, temp=1e-300), r"`temp` = 1e-300 is too small beside rewards of"),
        (lambda: tc.problems.markov_game(*random_game(), start=0, sampling="iid"), r"`start` must give every state"),
        (lambda: tc.problems.markov_game(*PENNIES, 0.5, sampling="on"), r"`sampling` must be 'restart' or 'iid'"),
        (lambda: tc.problems.markov_game(*PENNIES, 0.5, phi0=np.ones(2)), r"`phi0` must have the shape \(1, 2\)"),
        (lambda: tc.problems.pursuit(size=1), r"`size` must be a whole number from 2 to 5, got 1"),
        (lambda: tc.problems.pursuit(slip=1.0), r"`slip` must lie in \[0, 1\), got 1"),
    ],
)
def test_bad_input_gets_one_line(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def mean_metrics(problem, method, steps, seeds=8, **options):
    return tc.solve(problem, method, steps, seeds, marks=[0, steps], **options).history.groupby("step").mean()


@pytest.mark.parametrize("sampling", ["restart", "iid"])
def test_per_level_steps_reach_the_saddle_at_a_fixed_temperature(sampling):
    method = tc.Standard("100/(k+2000)", ("100/(k+2000)", "400/(k+2000)"))
    found = mean_metrics(tc.problems.matrix_game(0.5, sampling), method, 100_000)
    assert found["exploitability"].iloc[-1] < 0.01 * found["exploitability"].iloc[0]
    assert found["tracking_1"].iloc[-1] < 0.01


def test_without_a_method_it_says_what_to_use():
    with pytest.raises(tc.InputError, match=r"on MarkovGameProblem; use steps for each level, tc\.Standard"):
        tc.solve(tc.problems.matrix_game(), steps=100)


def test_the_last_iterate_settles_as_the_temperature_falls():
    method = tc.Standard("1/(k+1000)^0.67", ("1/(k+1000)^0.67", "4/(k+1000)^0.67"))
    found = mean_metrics(tc.problems.matrix_game("8/(k+1000)^0.33"), method, 300_000)
    assert found["exploitability"].iloc[-1] < 0.15  # 1 at the start
    assert found["temp"].iloc[-1] == pytest.approx(8 / 300_999**0.33)
    # Without a bonus the players go round the saddle and do not settle.
    bare = mean_metrics(tc.problems.matrix_game(0.0), method, 300_000)
    assert bare["exploitability"].iloc[-1] > 3 * found["exploitability"].iloc[-1]


def test_a_markov_game_on_both_engines():
    problem = tc.problems.pursuit(2)
    method = tc.Standard("1000/(k+2e4)", ("2000/(k+2e4)", "4000/(k+2e4)"))
    c, xla = (tc.solve(problem, method, 20_000, 2, engine=engine) for engine in ("c", "xla"))
    np.testing.assert_allclose(c.theta, xla.theta, rtol=1e-8, atol=1e-12)
    mean = c.history.groupby("step")["exploitability"].mean()
    assert mean.iloc[-1] < 0.3 * mean.iloc[0]
