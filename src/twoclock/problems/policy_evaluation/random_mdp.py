"""The random MDPs of the paper's Figure 1, one for each seed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt32

from twoclock.problems.policy_evaluation.linear import PolicyEvaluation, check_settings, eligibility, equation
from twoclock.protocols import InputError, Key
from twoclock.sampling.alias import alias_table
from twoclock.sampling.transitions import Transitions
from twoclock.validation import check_key, check_size, number, shown, whole
from twoclock.validation.arrays import Array, State

__all__ = ["random_policy_evaluation"]


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

    The transitions are kept as alias tables alone, four bytes an entry: 100 instances of 100 states and 100 actions
    take 0.4 GB. They are made a state at a time, so that making them takes little more.

    Args:
        key: draws the instance; a solver that gets this function hands each seed its own.
        states, actions, features: the sizes |S|, |A| and d ≤ |S|.
        gamma: the discount, in [0, 1).
        operator, sampling, ridge, factor, lam: as for ``policy_evaluation``.
        spread: the scale of the first feature over that of the last, evenly in the logarithm between; the first is 1.
        reward_noise: the scale of the noise that is added to every reward, a draw of Student's t.
        nu: its degrees of freedom, above 2 so that it has a variance, reward_noise²·nu/(nu − 2).

    >>> import jax
    >>> from functools import partial
    >>> draw = partial(random_policy_evaluation, states=5, actions=3, features=2)
    >>> jax.eval_shape(draw, jax.random.key(0)).truth.A.shape  # to have numbers, call jax.jit(draw)
    (2, 2)

    Reference: Zeng & Doan, appendix "Simulations Details".
    """
    states, actions, features = whole("states", states), whole("actions", actions), whole("features", features)
    check_size("`states`, `actions`", states * states * actions)
    if features > states:
        raise InputError(
            f"`features` must not exceed the {states} states, got {shown(features)}: they would be dependent"
        )
    number("gamma", gamma, 0, 1, below=True, remedy="a random MDP has no end")
    number("spread", spread, 1, remedy="it is the largest scale over the smallest")
    number("reward_noise", reward_noise, 0)
    number("nu", nu, 2, above=True, remedy="with 2 or less the noise has no variance")
    ridge, traces = check_settings(operator, sampling, ridge, factor), eligibility(operator, lam, sampling)

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
    D = _stationary(chain_b)
    values = Phi @ theta
    reward = values - gamma * (chain_pi @ values)
    truth = equation(Phi, D, gamma * chain_pi, reward, values, traces)
    sampler = Transitions(
        start=alias_table(D),
        action=alias_table(jnp.full((states, actions), 1 / actions)),
        next=table,
        rho=pi * actions,
        r=reward[:, None, None],
        gamma=jnp.full((1, 1, 1), gamma),
        markov=sampling == "markov",
        reward_noise=reward_noise or None,
        nu=nu if reward_noise else None,
    )
    inverse = truth.inverse(ridge)
    return PolicyEvaluation(Phi, jnp.zeros(features), sampler, truth, inverse, factor, ridge, operator, traces)


def _stationary(chain: Float[Array, "s s"]) -> Float[Array, " s"]:
    """μ with μP = μ, Σμ = 1: every entry of this chain is positive, so the system (I − Pᵀ + 11ᵀ)μ = 1 is regular."""
    n = len(chain)
    return jnp.linalg.solve(jnp.eye(n) - chain.T + jnp.ones((n, n)), jnp.ones(n))
