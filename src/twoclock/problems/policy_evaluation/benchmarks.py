"""Policy evaluation: the cases of the literature, by name, chains that mix slowly, and the paper's random MDPs."""

from __future__ import annotations

from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt32

from twoclock.models.linear_evaluation import projected_bellman
from twoclock.models.mdp import Mdp, Policy
from twoclock.problems.policy_evaluation.linear import PolicyEvaluation, check_settings, policy_evaluation
from twoclock.problems.policy_evaluation.nonlinear import NonlinearPolicyEvaluation, nonlinear_policy_evaluation
from twoclock.protocols import InputError, Key
from twoclock.sampling.alias import alias_table
from twoclock.sampling.transitions import Transitions
from twoclock.validation import check_key, check_size, number, short_repr, whole
from twoclock.validation.arrays import Array, Number, State

# Further chains are not in the catalogue, since every contract test runs each entry of it.
__all__ = ["baird", "boyan", "random_policy_evaluation", "spiral", "tsitsiklis_van_roy"]
__all__ += ["walk_dependent", "walk_inverted", "walk_tabular"]


def baird(
    operator: str = "tdc", sampling: str = "iid", ridge: float | None = None, lam: float | None = None
) -> PolicyEvaluation:
    """Baird's star: seven states, eight dependent features, and off-policy TD(0) diverges.

    The behaviour dashes to one of the six upper states with probability 6/7, the target always goes to the lower one.

    Args:
        operator, sampling, ridge, lam: as for `policy_evaluation`.

    >>> baird().truth.theta_star.shape
    (8,)

    Reference: Baird, *Residual algorithms*, 1995; the form of Sutton & Barto, 2nd ed., Example 11.1.
    """
    P = np.zeros((7, 2, 7))
    P[:, 0, :6] = 1 / 6
    P[:, 1, 6] = 1
    features = np.zeros((7, 8))
    features[np.arange(6), 1 + np.arange(6)] = 2
    features[:6, 0], features[6, 0], features[6, 7] = 1, 2, 1
    mdp, theta0 = Mdp(P, np.zeros((7, 2)), 0.99), [1, 1, 1, 1, 1, 1, 1, 10]
    target, behaviour = np.tile([0.0, 1.0], (7, 1)), np.tile([6 / 7, 1 / 7], (7, 1))
    return policy_evaluation(mdp, features, target, behaviour, operator, sampling, ridge=ridge, theta0=theta0, lam=lam)


def boyan(
    operator: str = "tdc", sampling: str = "iid", ridge: float | None = None, lam: float | None = None
) -> PolicyEvaluation:
    """Boyan's chain: thirteen states counting down, four features that interpolate, V(s) = −2s.

    Args:
        operator, sampling, ridge, lam: as for `policy_evaluation`.

    >>> boyan().truth.theta_star.round(6).tolist()
    [-24.0, -16.0, -8.0, 0.0]

    Reference: Boyan, *Technical update: least-squares temporal difference learning*, 2002.
    """
    P, r, gamma = np.zeros((13, 1, 13)), np.full((13, 1), -3.0), np.ones((13, 1, 1))
    for s in range(2, 13):
        P[s, 0, s - 1] = P[s, 0, s - 2] = 0.5
    P[1, 0, 0], r[1] = 1, -2
    P[0, 0, 12], r[0], gamma[0] = 1, 0, 0
    anchors = np.array([12, 8, 4, 0])
    features = np.maximum(0, 1 - np.abs(np.arange(13)[:, None] - anchors[None, :]) / 4)
    mdp, target = Mdp(P, r, gamma), np.ones((13, 1))
    return policy_evaluation(mdp, features, target, None, operator, sampling, ridge=ridge, lam=lam)


def walk_tabular(
    operator: str = "tdc", sampling: str = "iid", ridge: float | None = None, lam: float | None = None
) -> PolicyEvaluation:
    """The five-state random walk, off-policy, with one feature per state.

    Start in the middle; leaving on the left earns −1, on the right +1; γ = 1. The behaviour is a fair coin, the target
    goes right with probability 0.6.

    Args:
        operator, sampling, ridge, lam: as for `policy_evaluation`.

    >>> walk_tabular().truth.theta_star.shape
    (5,)

    Reference: Sutton et al., *Fast gradient-descent methods for temporal-difference learning*, 2009, Section 7.
    """
    return _walk(np.eye(5), operator, sampling, ridge, lam)


def walk_inverted(
    operator: str = "tdc", sampling: str = "iid", ridge: float | None = None, lam: float | None = None
) -> PolicyEvaluation:
    """The five-state random walk, with features that generalise wrongly: φ_i = (1 − e_i)/2.

    Args:
        operator, sampling, ridge, lam: as for `policy_evaluation`.

    >>> walk_inverted().truth.theta_star.shape
    (5,)
    """
    return _walk((1 - np.eye(5)) / 2, operator, sampling, ridge, lam)


def walk_dependent(
    operator: str = "tdc", sampling: str = "iid", ridge: float | None = None, lam: float | None = None
) -> PolicyEvaluation:
    """The five-state random walk, with three features that cannot represent V.

    Args:
        operator, sampling, ridge, lam: as for `policy_evaluation`.

    >>> walk_dependent().truth.theta_star.shape
    (3,)
    """
    rows = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 0, 1]], float)
    return _walk(rows / np.linalg.norm(rows, axis=1, keepdims=True), operator, sampling, ridge, lam)


def tsitsiklis_van_roy(gamma: float = 0.9, operator: str = "tdc", ridge: float | None = None) -> PolicyEvaluation:
    """Two states with features 1 and 2 and no reward: all mass moves to the second, and only the first is updated.

    The TD matrix is 1 − 2γ, so TD(0) diverges if and only if γ > ½.

    Args:
        gamma: the discount.
        operator: "td", "tdc", "gtd2", "tdrc" or "etd".
        ridge: the ridge of "tdrc"; 1 if None.

    >>> round(float(tsitsiklis_van_roy(gamma=0.9, operator="td").truth.A[0, 0]), 6)
    -0.8

    Reference: Tsitsiklis & Van Roy 1996; Sutton & Barto, 2nd ed., Section 11.2.
    """
    P = np.zeros((2, 1, 2))
    P[:, 0, 1] = 1
    mdp, features, target, first = Mdp(P, np.zeros((2, 1)), gamma), [[1.0], [2.0]], np.ones((2, 1)), [1.0, 0.0]
    return policy_evaluation(mdp, features, target, None, operator, ridge=ridge, weights=first, theta0=[1.0])


def spiral(operator: str = "tdc", sampling: str = "iid", ridge: float | None = None) -> NonlinearPolicyEvaluation:
    """Three states and one parameter whose values spiral outwards: nonlinear TD(0) diverges, even on-policy.

        V_θ(s) = e^{εθ}(a_s cos λθ + b_s sin λθ),   ε = 0.05, λ = √3/2

    No reward, so V_π = 0, which V_θ approaches as θ → −∞.

    Args:
        operator: "td", "tdc", "gtd2" or "tdrc".
        sampling: "iid" or "markov".
        ridge: the ridge of "tdrc"; 1 if None.

    >>> import twoclock as tc
    >>> result = tc.solve(spiral(), tc.Standard(0.001, 0.01), steps=100, seeds=2)

    Reference: Tsitsiklis & Van Roy, *An analysis of temporal-difference learning with function approximation*, 1997,
    with the numbers of Bhatnagar et al. 2009.
    """
    P = np.array([[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]])[:, None, :]
    mdp = Mdp(P, np.zeros((3, 1)), 0.9)
    states = {"a": np.array([100.0, -70.0, -30.0]), "b": np.array([23.094, 75.056, -98.15])}
    return nonlinear_policy_evaluation(
        mdp, _spiral_value, 0.0, np.ones((3, 1)), None, operator, sampling, states=states, ridge=ridge
    )


def _spiral_value(theta: Number, state: dict[str, Number]) -> Number:
    turn = 0.75**0.5 * theta
    return jnp.exp(0.05 * theta) * (state["a"] * jnp.cos(turn) + state["b"] * jnp.sin(turn))


def _walk(
    features: np.ndarray, operator: str, sampling: str, ridge: float | None, lam: float | None
) -> PolicyEvaluation:
    target, behaviour = np.tile([0.4, 0.6], (5, 1)), np.full((5, 2), 0.5)
    return policy_evaluation(_walk_mdp(5), features, target, behaviour, operator, sampling, ridge=ridge, lam=lam)


def ring(operator: str = "tdc", sampling: str = "markov", states: int = 40, waves: int = 4) -> PolicyEvaluation:
    """A lazy fair walk round a ring, with a reward of 1 in one state, γ = 0.9, and waves as features.

    The features are 1 and the cosines and sines of the first ``waves`` frequencies: orthogonal, and unable to represent
    V. The walk stays in place with probability ½ and forgets its start after some (n/π)² steps: 162 for 40.

    Args:
        operator: "td", "tdc", "gtd2", "tdrc" or "etd".
        sampling: "iid" or "markov".
        states: the number of states.
        waves: the number of frequencies.

    >>> ring().truth.theta_star.shape
    (9,)
    """
    states, waves = whole("states", states, 3), whole("waves", waves)
    check_size("`states`, `waves`", 4 * states * (states + waves))
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

    One feature per state, γ = 1 until the walk leaves and begins again in the middle; a walk takes about
    ((n+1)/2)² steps.

    Args:
        operator: "td", "tdc", "gtd2", "tdrc" or "etd".
        sampling: "iid" or "markov".
        states: the number of states; an odd number has a middle.

    >>> long_walk().truth.theta_star.shape
    (19,)

    Reference: Sutton & Barto, *Reinforcement Learning*, 2nd ed., Example 7.1.
    """
    states = whole("states", states, 3)
    check_size("`states`", 8 * states**2)
    fair = np.full((states, 2), 0.5)
    return policy_evaluation(_walk_mdp(states), np.eye(states), fair, operator=operator, sampling=sampling)


def _walk_mdp(states: int) -> Mdp:
    """Steps left or right: −1 off the left end, +1 off the right; after either the next walk begins in the middle."""
    middle = states // 2
    P, r, gamma = np.zeros((states, 2, states)), np.zeros((states, 2)), np.ones((states, 2, 1))
    for s in range(states):
        P[s, 0, s - 1 if s > 0 else middle] = 1
        P[s, 1, s + 1 if s < states - 1 else middle] = 1
    r[0, 0], r[-1, 1] = -1, 1
    gamma[0, 0] = gamma[-1, 1] = 0
    return Mdp(P, r, gamma)


class SlowWalkSetting(TypedDict):
    """The common arguments of ``policy_evaluation`` and ``models.limit_law``.

    `slow_walk_setting` makes it.

    Attributes:
        mdp: the walk.
        features: Φ, one row per state.
        target: the policy to evaluate, π[s, a].
        behaviour: the policy that acts.
    """

    mdp: Mdp
    features: Float[np.ndarray, "s d"]
    target: Policy
    behaviour: Policy


def slow_walk_setting(right: float = 0.6) -> SlowWalkSetting:
    """The walk's parts, for a target that goes right with this probability.

    Args:
        right: the probability that the target goes right; the behaviour is a fair coin.

    >>> slow_walk_setting()["features"].shape
    (20, 3)
    """
    number("right", right, 0, 1)
    s, P = np.arange(20), np.zeros((20, 2, 20))
    P[s, 0, np.maximum(s - 1, 0)] = P[s, 1, np.minimum(s + 1, 19)] = 1
    return {
        "mdp": Mdp(P, np.tile(np.linspace(0, 1, 20)[:, None], 2), 0.5),
        "features": np.eye(3)[s * 3 // 20],
        "target": np.tile([1 - right, right], (20, 1)),
        "behaviour": np.full((20, 2), 0.5),
    }


def slow_walk(
    operator: str = "tdc",
    sampling: str = "markov",
    ridge: float | None = None,
    right: float = 0.6,
    lam: float | None = None,
) -> PolicyEvaluation:
    """Twenty states on a line with walls, a fair walk, and three features that each cover a third of the line.

    The reward grows from 0 on the left to 1 on the right, γ = ½. The walk takes some 80 steps to leave a third. A 95 %
    interval that treats steps as independent covers .41 at the median state (``models.limit_law`` gives the exact
    number). On-policy with ``right=0.5``.

    Args:
        operator, sampling, ridge, lam: as for `policy_evaluation`.
        right: the probability that the target goes right.

    >>> slow_walk().truth.theta_star.shape
    (3,)
    """
    return policy_evaluation(**slow_walk_setting(right), operator=operator, sampling=sampling, ridge=ridge, lam=lam)


def random_policy_evaluation(
    key: Key,
    states: int = 50,
    actions: int = 50,
    features: int = 10,
    gamma: float = 0.5,
    operator: str = "tdc",
    sampling: str = "iid",
    *,
    ridge: float | None = None,
    factor: float = 2.0,
    lam: float | None = None,
    spread: float = 1.0,
    reward_noise: float = 0.0,
    nu: float = 3.0,
) -> PolicyEvaluation:
    """Evaluate a random policy in a random MDP whose value lies in the span of the features.

        P(·|s, a) ∝ Unif(0, 1)ˢ,   b uniform,   π(·|s) = softmax ψ_s,   ψ, Φ, θ* ∼ N(0, 1),   r = (I − γP_π)Φθ*

    The transitions are alias tables, four bytes per entry: 100 instances of 100 states and 100 actions take 0.4 GB.

    Args:
        key: draws the instance; given this function, ``solve`` draws one per seed.
        states, actions, features: the sizes |S|, |A| and d ≤ |S|.
        gamma: the discount, in [0, 1).
        operator, sampling, ridge, factor, lam: as for ``policy_evaluation``.
        spread: the ratio of the first feature's scale, 1, to the last one's; evenly spaced in the logarithm between.
        reward_noise: the scale of the noise that is added to every reward, a draw of Student's t.
        nu: its degrees of freedom, above 2 so that it has a variance, reward_noise²·nu/(nu − 2).

    >>> import functools, jax
    >>> draw = functools.partial(random_policy_evaluation, states=5, actions=3, features=2)
    >>> jax.eval_shape(draw, jax.random.key(0)).truth.A.shape  # to have numbers, call jax.jit(draw)
    (2, 2)

    Reference: Zeng & Doan, appendix "Simulations Details".
    """
    states, actions, features = whole("states", states), whole("actions", actions), whole("features", features)
    check_size("`states`, `actions`", states * states * actions)
    if features > states:
        raise InputError(
            f"`features` must not exceed the {states} states, got {short_repr(features)}: they would be dependent"
        )
    number("gamma", gamma, 0, 1, below=True, remedy="a random MDP has no end")
    number("spread", spread, 1, remedy="it is the largest scale over the smallest")
    number("reward_noise", reward_noise, 0)
    number("nu", nu, 2, above=True, remedy="with 2 or less the noise has no variance")
    ridge, traces = check_settings(operator, sampling, ridge, factor, lam)

    check_key(key)
    key_P, key_policy, key_features, key_theta = jax.random.split(key, 4)
    pi = jax.nn.softmax(jax.random.normal(key_policy, (states, actions)))
    Phi = jax.random.normal(key_features, (states, features))
    if spread > 1:
        Phi = Phi * np.geomspace(1.0, 1 / spread, features)[None]
    theta = jax.random.normal(key_theta, (features,))

    def one_state(s: State) -> tuple[UInt32[Array, "a s"], Float[Array, " s"], Float[Array, " s"]]:
        P = jax.random.uniform(jax.random.fold_in(key_P, s), (actions, states))
        P = P / P.sum(axis=-1, keepdims=True)
        return alias_table(P), P.mean(axis=0), pi[s] @ P

    table, chain_b, chain_pi = jax.lax.map(one_state, jnp.arange(states))
    # Every entry of the chain is positive, so μP = μ, Σμ = 1 is the regular system (I − Pᵀ + 11ᵀ)μ = 1.
    D = jnp.linalg.solve(jnp.eye(states) - chain_b.T + jnp.ones((states, states)), jnp.ones(states))
    values = Phi @ theta
    reward = values - gamma * (chain_pi @ values)
    chain, weight = gamma * chain_pi, traces.lam if traces else None
    truth = projected_bellman(Phi, D, chain, reward, values, weight, operator == "etd")
    start, action = alias_table(D), alias_table(jnp.full((states, actions), 1 / actions))
    rho, rewards, discount = pi * actions, reward[:, None, None], jnp.full((1, 1, 1), gamma)
    noise, freedom = (reward_noise, nu) if reward_noise else (None, None)
    sampler = Transitions(start, action, table, rho, rewards, discount, sampling == "markov", noise, freedom)
    inverse = truth.inverse(ridge)
    return PolicyEvaluation(Phi, jnp.zeros(features), sampler, truth, inverse, factor, ridge, operator, traces)
