"""Policy evaluation: the cases of the literature, by name."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from twoclock.models.mdp import Mdp
from twoclock.problems.policy_evaluation.linear import PolicyEvaluation, policy_evaluation
from twoclock.problems.policy_evaluation.nonlinear import NonlinearPolicyEvaluation, nonlinear_policy_evaluation
from twoclock.validation.arrays import Number

__all__ = ["baird", "boyan", "spiral", "tsitsiklis_van_roy", "walk_dependent", "walk_inverted", "walk_tabular"]


def baird(
    operator: str = "tdc", sampling: str = "iid", ridge: float | None = None, lam: float | None = None
) -> PolicyEvaluation:
    """Baird's star: seven states, eight dependent features, and off-policy TD(0) diverges.

    The behaviour dashes to one of the six upper states with probability 6/7, the target always goes to the lower one.

    Reference: Baird, *Residual algorithms*, 1995; the form of Sutton & Barto, 2nd ed., Example 11.1.
    """
    P = np.zeros((7, 2, 7))
    P[:, 0, :6] = 1 / 6
    P[:, 1, 6] = 1
    features = np.zeros((7, 8))
    features[np.arange(6), 1 + np.arange(6)] = 2
    features[:6, 0], features[6, 0], features[6, 7] = 1, 2, 1
    return policy_evaluation(
        Mdp(P, np.zeros((7, 2)), 0.99),
        features,
        target=np.tile([0.0, 1.0], (7, 1)),
        behaviour=np.tile([6 / 7, 1 / 7], (7, 1)),
        operator=operator,
        sampling=sampling,
        ridge=ridge,
        theta0=[1, 1, 1, 1, 1, 1, 1, 10],
        lam=lam,
    )


def boyan(
    operator: str = "tdc", sampling: str = "iid", ridge: float | None = None, lam: float | None = None
) -> PolicyEvaluation:
    """Boyan's chain: thirteen states counting down, four features that interpolate, V(s) = −2s.

    Reference: Boyan, *Technical update: least-squares temporal difference learning*, 2002.
    """
    P, r, gamma = np.zeros((13, 1, 13)), np.full((13, 1), -3.0), np.ones((13, 1, 1))
    for s in range(2, 13):
        P[s, 0, s - 1] = P[s, 0, s - 2] = 0.5
    P[1, 0, 0], r[1] = 1, -2
    P[0, 0, 12], r[0], gamma[0] = 1, 0, 0
    anchors = np.array([12, 8, 4, 0])
    features = np.maximum(0, 1 - np.abs(np.arange(13)[:, None] - anchors[None, :]) / 4)
    return policy_evaluation(
        Mdp(P, r, gamma), features, np.ones((13, 1)), operator=operator, sampling=sampling, ridge=ridge, lam=lam
    )


def walk_tabular(
    operator: str = "tdc", sampling: str = "iid", ridge: float | None = None, lam: float | None = None
) -> PolicyEvaluation:
    """The five-state walk, off-policy, with one feature a state.

    Start in the middle; leaving on the left earns −1, on the right +1; γ = 1. The behaviour is a fair coin, the target
    goes right with probability 0.6.

    Reference: Sutton et al., *Fast gradient-descent methods for temporal-difference learning*, 2009, Section 7.
    """
    return _walk(np.eye(5), operator, sampling, ridge, lam)


def walk_inverted(
    operator: str = "tdc", sampling: str = "iid", ridge: float | None = None, lam: float | None = None
) -> PolicyEvaluation:
    """The five-state walk with features that generalise wrongly: φ_i = (1 − e_i)/2."""
    return _walk((1 - np.eye(5)) / 2, operator, sampling, ridge, lam)


def walk_dependent(
    operator: str = "tdc", sampling: str = "iid", ridge: float | None = None, lam: float | None = None
) -> PolicyEvaluation:
    """The five-state walk with three features for five states: V is out of their reach."""
    rows = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 0, 1]], float)
    return _walk(rows / np.linalg.norm(rows, axis=1, keepdims=True), operator, sampling, ridge, lam)


def tsitsiklis_van_roy(gamma: float = 0.9, operator: str = "tdc", ridge: float | None = None) -> PolicyEvaluation:
    """Two states with features 1 and 2 and no reward: all mass moves to the second, and only the first is updated.

    The TD matrix is 1 − 2γ, so TD(0) diverges if and only if γ > ½.

    Reference: Tsitsiklis & Van Roy 1996; Sutton & Barto, 2nd ed., Section 11.2.
    """
    P = np.zeros((2, 1, 2))
    P[:, 0, 1] = 1
    return policy_evaluation(
        Mdp(P, np.zeros((2, 1)), gamma),
        [[1.0], [2.0]],
        np.ones((2, 1)),
        operator=operator,
        ridge=ridge,
        weights=[1.0, 0.0],
        theta0=[1.0],
    )


def spiral(operator: str = "tdc", sampling: str = "iid", ridge: float | None = None) -> NonlinearPolicyEvaluation:
    """Three states and one parameter whose values spiral outwards: nonlinear TD(0) diverges, even on-policy.

        V_θ(s) = e^{εθ}(a_s cos λθ + b_s sin λθ),   ε = 0.05, λ = √3/2

    No reward, so V_π = 0, which V_θ approaches as θ → −∞.

    Reference: Tsitsiklis & Van Roy, *An analysis of temporal-difference learning with function approximation*, 1997,
    with the numbers of Bhatnagar et al. 2009.
    """
    P = np.array([[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]])[:, None, :]
    return nonlinear_policy_evaluation(
        Mdp(P, np.zeros((3, 1)), 0.9),
        value=_spiral_value,
        params=0.0,
        target=np.ones((3, 1)),
        operator=operator,
        sampling=sampling,
        states={"a": np.array([100.0, -70.0, -30.0]), "b": np.array([23.094, 75.056, -98.15])},
        ridge=ridge,
    )


def _spiral_value(theta: Number, state: dict[str, Number]) -> Number:
    turn = 0.75**0.5 * theta
    return jnp.exp(0.05 * theta) * (state["a"] * jnp.cos(turn) + state["b"] * jnp.sin(turn))


def _walk(
    features: Float[np.ndarray, "s d"], operator: str, sampling: str, ridge: float | None, lam: float | None
) -> PolicyEvaluation:
    P, r, gamma = np.zeros((5, 2, 5)), np.zeros((5, 2)), np.ones((5, 2, 1))
    for s in range(5):
        P[s, 0, s - 1 if s > 0 else 2] = 1
        P[s, 1, s + 1 if s < 4 else 2] = 1
    r[0, 0], r[4, 1] = -1, 1
    gamma[0, 0] = gamma[4, 1] = 0
    return policy_evaluation(
        Mdp(P, r, gamma),
        features,
        target=np.tile([0.4, 0.6], (5, 1)),
        behaviour=np.full((5, 2), 0.5),
        operator=operator,
        sampling=sampling,
        ridge=ridge,
        lam=lam,
    )
