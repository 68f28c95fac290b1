"""Exact answers for the average reward: against linear programs, the numbers of the literature, and each other."""

import numpy as np
import pytest
from scipy.optimize import linprog

import twoclock as tc
from tests.models.test_mdp import one_action, random_mdp
from twoclock.models import Mdp
from twoclock.protocols import InputError


def table(problem):
    """The MDP of a named case, from its exact half."""
    return Mdp(problem.truth.soft.P, problem.truth.soft.r, 0.0)


def best_by_program(mdp):
    """max Σ d(s, a)r(s, a) over laws d of pairs whose state marginal P leaves fixed."""
    r = mdp.r if mdp.r.ndim == 2 else np.einsum("sat,sat->sa", mdp.P, mdp.r)
    flow = np.repeat(np.eye(mdp.states), mdp.actions, axis=1) - mdp.P.reshape(-1, mdp.states).T
    rows, right = np.vstack([flow, np.ones(r.size)]), np.append(np.zeros(mdp.states), 1)
    return -linprog(-r.ravel(), A_eq=rows, b_eq=right).fun


CASES = {
    "access control": lambda: table(tc.problems.access_control()),
    "river swim": lambda: table(tc.problems.river_swim()),
    "long river": lambda: table(tc.problems.river_swim(states=12)),
    "few servers": lambda: table(tc.problems.access_control(servers=3, free=0.3)),
    "random": lambda: random_mdp(4, states=9)[0],
    "frozen lake": lambda: tc.models.from_gymnasium("FrozenLake-v1")[0],
    "periodic": lambda: Mdp(np.roll(np.eye(4), 1, axis=1)[:, None, :].repeat(2, axis=1), np.eye(4)[:, :2], 0.0),
}


@pytest.mark.parametrize("name", CASES)
def test_relative_value_iteration_agrees_with_the_linear_program(name):
    mdp = CASES[name]()
    exact = mdp.average_reward()
    best = exact.solve()
    assert best.gain == pytest.approx(best_by_program(mdp), abs=1e-6)
    assert best.width < 1e-9
    assert mdp.gain(np.exp(best.log_pi)) == pytest.approx(best.gain, abs=1e-9)
    behind = exact.soft.q(best.bias).max(axis=1) - best.bias - best.gain
    np.testing.assert_allclose(behind, 0, atol=1e-9)


def test_the_numbers_of_the_literature():
    queue, river = table(tc.problems.access_control()), table(tc.problems.river_swim())
    best = queue.average_reward().solve()
    assert best.gain == pytest.approx(2.747642, abs=5e-7)
    assert river.average_reward().solve().gain == pytest.approx(0.428622, abs=5e-7)
    pi = np.exp(best.log_pi)
    assert queue.gain(0.9 * pi + 0.05) == pytest.approx(2.646894, abs=5e-7)
    assert queue.gain(np.tile([0.0, 1.0], (44, 1))) == pytest.approx(2.181413, abs=5e-7)
    taken = pi[4:, 1].reshape(10, 4).round(9)  # by free servers, from 1 on, and by what the customer pays
    np.testing.assert_array_equal(taken[:, 1], np.arange(1, 11) >= 4)
    np.testing.assert_array_equal(taken[:, [0, 2, 3]], np.tile([0, 1, 1], (10, 1)))


@pytest.mark.parametrize("temp", [0.0, 0.05, 1.0])
def test_evaluation_solves_the_poisson_equation_and_the_gradient_is_its_slope(temp):
    mdp, pi = random_mdp(2)
    exact = mdp.average_reward(temp)
    logits = np.log(pi)
    gain, bias, law = exact.evaluate(logits)
    reward = mdp.reward(pi) - temp * (pi * logits).sum(axis=1)
    np.testing.assert_allclose(reward - gain + mdp.chain(pi) @ bias, bias, atol=1e-12)
    np.testing.assert_allclose(law, mdp.stationary(pi), atol=1e-14)
    assert bias.sum() == pytest.approx(0, abs=1e-12)
    assert law @ reward == pytest.approx(gain, abs=1e-13)
    slope, step = exact.gradient(logits), 1e-6
    for s, a in ((0, 0), (3, 2)):
        move = np.zeros_like(logits)
        move[s, a] = step
        rise = exact.evaluate(logits + move).gain - exact.evaluate(logits - move).gain
        assert slope[s, a] == pytest.approx(rise / (2 * step), abs=1e-8)


@pytest.mark.parametrize("temp", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("name", ["access control", "river swim", "random"])
def test_the_soft_optimum_is_a_zero_of_the_gradient_and_the_best(name, temp):
    mdp = CASES[name]()
    exact = mdp.average_reward(temp)
    best = exact.solve()
    np.testing.assert_allclose(exact.gradient(best.log_pi), 0, atol=1e-9)
    assert exact.evaluate(best.log_pi).gain == pytest.approx(best.gain, abs=1e-9)
    rng = np.random.default_rng(0)
    near = [exact.evaluate(best.log_pi + 0.3 * rng.standard_normal(best.log_pi.shape)).gain for _ in range(5)]
    assert max(near) < best.gain + 1e-12  # equal to rounding where the temperature leaves no choice


def test_a_state_that_is_left_for_good_is_refused():
    mdp, _ = one_action([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.5, 0.0, 0.5]])
    with pytest.raises(InputError, match="state 2 cannot be reached from state 0; leave such states out"):
        mdp.average_reward()
    apart, _ = one_action(np.eye(2))
    with pytest.raises(InputError, match="state 1 cannot be reached from state 0"):
        apart.average_reward()


@pytest.mark.parametrize("temp", [0.0, 0.3])
def test_policies_with_several_recurrent_classes_on_the_way_to_a_sparse_optimum(temp):
    """To stay is best in one state, so that policy iteration meets policies that stay in many."""
    states, rng = 30, np.random.default_rng(7)
    here = np.arange(states)
    successors = np.stack([here, (here + 1) % states], axis=1)[:, :, None].astype(np.int32)
    r = 1e6 * rng.normal(size=(states, 2))
    sparse = tc.models.Mdp(np.ones((states, 2, 1)), r, 0.9, successors).average_reward(temp)
    best = sparse.solve()
    assert float(best.gain) == pytest.approx(r[:, 0].max(), rel=1e-9)
    assert float(best.width) < 1e-9 * abs(float(best.gain))
    stay = np.stack([np.zeros(states), np.full(states, -1e30)], axis=1)
    with pytest.raises(InputError, match="parts that do not reach each other"):
        sparse.evaluate(stay)
