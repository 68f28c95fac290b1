"""Exact answers of a finite MDP: stationary distributions, values, and what it refuses."""

import numpy as np
import pytest

from twoclock.models import Mdp
from twoclock.models.state_chain import recurrent_classes
from twoclock.protocols import InputError


def one_action(chain, r=0.0, gamma=0.9):
    P = np.asarray(chain, float)[:, None, :]
    return Mdp(P, np.broadcast_to(r, P.shape[:2]), gamma), np.ones(P.shape[:2])


def random_mdp(seed, states=6, actions=3, gamma=0.8):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(states), (states, actions))
    return Mdp(P, rng.normal(size=P.shape), gamma), rng.dirichlet(np.ones(actions), states)


def test_stationary_law_is_left_fixed_and_is_the_share_of_time():
    mdp, pi = random_mdp(0)
    law = mdp.stationary(pi)
    np.testing.assert_allclose(law @ mdp.chain(pi), law, atol=1e-15)
    np.testing.assert_allclose(np.linalg.matrix_power(mdp.chain(pi), 200)[0], law, atol=1e-12)


def test_stationary_law_of_a_periodic_chain():
    mdp, pi = one_action([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    np.testing.assert_allclose(mdp.stationary(pi), np.ones(3) / 3, rtol=1e-15)


@pytest.mark.parametrize("leak", [1e-3, 1e-9, 1e-14])
def test_stationary_law_of_a_slowly_mixing_chain_keeps_full_relative_precision(leak):
    mdp, pi = one_action([[1 - leak, leak, 0], [3 * leak, 1 - 4 * leak, leak], [0, leak, 1 - leak]])
    # Detailed balance: μ₀·leak = μ₁·3leak and μ₁·leak = μ₂·leak, whatever the leak.
    np.testing.assert_allclose(mdp.stationary(pi), [0.6, 0.2, 0.2], rtol=1e-12)


def test_transient_states_have_no_weight():
    mdp, pi = one_action([[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]])
    np.testing.assert_allclose(mdp.stationary(pi), [0, 0.5, 0.5], atol=1e-15)
    assert [c.tolist() for c in recurrent_classes(mdp.chain(pi))] == [[1, 2]]


def test_several_recurrent_classes_are_refused():
    mdp, pi = one_action([[1, 0, 0], [0.5, 0, 0.5], [0, 0, 1]])
    with pytest.raises(InputError, match=r"2 recurrent classes \(states 0 and 2 never meet\)"):
        mdp.stationary(pi)
    assert np.isfinite(mdp.values(pi)).all()


def test_values_solve_the_bellman_equation_by_enumeration():
    mdp, pi = random_mdp(1)
    V = mdp.values(pi)
    for s in range(mdp.states):
        backup = sum(
            pi[s, a] * mdp.P[s, a, t] * (mdp.r[s, a, t] + 0.8 * V[t])
            for a in range(mdp.actions)
            for t in range(mdp.states)
        )
        assert backup == pytest.approx(V[s], abs=1e-12)


def test_rewards_of_the_pair_and_of_the_transition_agree():
    mdp, pi = random_mdp(2)
    pair = Mdp(mdp.P, np.einsum("sat,sat->sa", mdp.P, mdp.r), 0.8)
    np.testing.assert_allclose(pair.values(pi), mdp.values(pi), rtol=1e-13)


def test_a_discount_of_one_that_ends_somewhere_is_an_episode():
    # 0 → 1 → end, one point a step; the end restarts in 0.
    gamma = np.array([[[1.0, 1.0]], [[0.0, 1.0]]])
    mdp, pi = one_action([[0, 1], [1, 0]], r=1.0, gamma=gamma)
    np.testing.assert_allclose(mdp.values(pi), [2, 1])


def test_rows_within_rounding_are_scaled():
    P = np.full((3, 1, 3), 1 / 3, dtype=np.float32)
    np.testing.assert_allclose(Mdp(P, np.zeros((3, 1)), 0.5).P.sum(axis=-1), 1, rtol=1e-15)


GOOD = np.full((2, 2, 2), 0.5)


@pytest.mark.parametrize(
    ("P", "r", "gamma", "message"),
    [
        (np.ones((2, 3)), np.zeros((2, 3)), 0.9, r"`P` must have the shape \(states, actions, states\), got \(2, 3\)"),
        ([[[0.5, 0.5], [0.5, 0.4]]] * 2, np.zeros((2, 2)), 0.9, r"`P\[0, 1\]` must sum to 1, got 0\.9"),
        (
            [[[0.5, 0.5], [1.5, -0.5]]] * 2,
            np.zeros((2, 2)),
            0.9,
            r"`P` must hold probabilities, got -0\.5 at \[0, 1, 1\]",
        ),
        (GOOD * np.nan, np.zeros((2, 2)), 0.9, r"`P` must be finite, got nan"),
        ("no", np.zeros((2, 2)), 0.9, r"`P` must be an array of numbers, got str"),
        (GOOD, np.zeros((2, 2)), "0.9", r"`gamma` must be an array of numbers, got str"),
        (GOOD, [["0", "0"], ["0", "0"]], 0.9, r"`r` must be an array of numbers, got list"),
        (GOOD, 1j * np.ones((2, 2)), 0.9, r"`r` must be an array of numbers, got ndarray"),
        (GOOD, np.zeros(2), 0.9, r"`r` must have the shape \(2, 2\) or \(2, 2, 2\) to go with `P`, got \(2,\)"),
        (GOOD, np.zeros((2, 2)), 1.1, r"`gamma` must lie in \[0, 1\], got 1\.1"),
        (GOOD, np.zeros((2, 2)), -0.1, r"`gamma` must lie in \[0, 1\], got -0\.1"),
        (
            GOOD,
            np.zeros((2, 2)),
            np.ones(3),
            r"`gamma` must be a number or broadcast to P's shape \(2, 2, 2\), got .*\(3,\)",
        ),
        (GOOD, np.zeros((2, 2)), 1.0, r"`gamma` is 1 and no end is in reach from state 0; take gamma < 1"),
    ],
)
def test_bad_input_gets_one_line(P, r, gamma, message):
    with pytest.raises(InputError, match=message) as caught:
        Mdp(P, r, gamma)
    assert "\n" not in str(caught.value)


def test_a_policy_that_never_ends_is_named():
    # Action 0 stays, action 1 moves on; only leaving state 1 ends the episode.
    P = np.array([[[1, 0], [0, 1]], [[0, 1], [1, 0]]], float)
    gamma = np.ones((2, 2, 2))
    gamma[1, 1, 0] = 0
    mdp = Mdp(P, np.zeros((2, 2)), gamma)
    with pytest.raises(InputError, match="no end is in reach from state 0 under `policy`"):
        mdp.values(np.array([[1.0, 0.0], [0.0, 1.0]]))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ([[0.5, 0.5], [0.5, 0.6]], r"`policy\[1\]` must sum to 1, got 1\.1"),
        (np.ones((2, 3)) / 3, r"`policy` must have the shape \(2, 2\) \(states, actions\), got \(2, 3\)"),
    ],
)
def test_bad_policies_get_one_line(policy, message):
    with pytest.raises(InputError, match=message):
        Mdp(GOOD, np.zeros((2, 2)), 0.9).stationary(policy)
