"""Chains that mix slowly, for policy evaluation from their own steps."""

from __future__ import annotations

import numpy as np

from twoclock.models.mdp import Mdp
from twoclock.problems.policy_evaluation.linear import PolicyEvaluation, policy_evaluation
from twoclock.validation import whole

# No __all__, so they are not in the catalogue: two more chains there would be two more for every contract test to run.


def ring(operator: str = "tdc", sampling: str = "markov", states: int = 40, waves: int = 4) -> PolicyEvaluation:
    """A lazy fair walk round a ring, a reward of 1 in one state, γ = 0.9, and waves of the place as features.

    The features are 1 and the cosines and sines of the first ``waves`` frequencies: orthogonal, and unable to represent
    V. The walk stays where it is with probability ½ and forgets where it was after some (n/π)² steps: 162 for 40.
    """
    states, waves = whole("states", states, 3), whole("waves", waves)
    s = np.arange(states)
    P = np.zeros((states, 1, states))
    P[s, 0, s] = 0.5
    P[s, 0, (s + 1) % states] = P[s, 0, (s - 1) % states] = 0.25
    angles = 2 * np.pi * np.outer(s, np.arange(1, waves + 1)) / states
    features = np.concatenate([np.ones((states, 1)), np.cos(angles), np.sin(angles)], axis=1)
    reward = np.where(s == 0, 1.0, 0.0)[:, None]
    return policy_evaluation(Mdp(P, reward, 0.9), features, np.ones((states, 1)), operator=operator, sampling=sampling)


def long_walk(operator: str = "tdc", sampling: str = "markov", states: int = 19) -> PolicyEvaluation:
    """The walk of Sutton and Barto: from the middle a fair step left or right, −1 off the left end, +1 off the right.

    One feature a state, γ = 1 until the walk leaves and begins again in the middle; a walk takes some ((n+1)/2)² steps.

    Reference: Sutton & Barto, *Reinforcement Learning*, 2nd ed., Example 7.1.
    """
    states = whole("states", states, 3)
    middle = states // 2
    P, r, gamma = np.zeros((states, 2, states)), np.zeros((states, 2)), np.ones((states, 2, 1))
    for s in range(states):
        P[s, 0, s - 1 if s > 0 else middle] = 1
        P[s, 1, s + 1 if s < states - 1 else middle] = 1
    r[0, 0], r[-1, 1] = -1, 1
    gamma[0, 0] = gamma[-1, 1] = 0
    fair = np.full((states, 2), 0.5)
    return policy_evaluation(Mdp(P, r, gamma), np.eye(states), fair, operator=operator, sampling=sampling)
