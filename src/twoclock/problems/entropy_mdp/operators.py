"""The two operators of the soft actor-critic. They see samples and no tables, so any source of samples will do."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from twoclock.models.soft_mdp import Pairs, States
from twoclock.protocols import InputError, Scalar, pytree
from twoclock.validation.arrays import Array, Number, State, as_array

__all__ = ["SoftOperators"]

Theta = Float[Array, "s a"] | Float[Array, " d"]  # logits, or the weights of policy features
Critic = Float[Array, " c"]  # values of the states, or the weights of features


class Step(NamedTuple):
    """One sample: the state, action and next state, the reward, and the discount and horizon where they vary."""

    s: State
    a: State
    next_state: State
    r: Number
    gamma: Number | None  # None where the discount is one number for all
    horizon: Number | None  # None where the horizon is one number for all

    @property
    def t(self) -> Array:
        """The old name of ``next_state``."""
        return self.next_state


@pytree
class SoftOperators:
    """The operators of an actor with a softmax policy and a critic of its soft value.

        δ = r − τ log π(a|s) + γV(s') − V(s),        F = −H·δ·∇log π(a|s),        G = −δ·∇V(s)

    Args:
        temp: the temperature τ of each state.
        gamma: the discount of samples that do not bring their own.
        scale: the horizon H of samples that do not bring their own.
        features: φ, one row a state, for V = φᵀω instead of a table.
        policy_features: ψ[s, a], a vector each, for π ∝ exp ψᵀθ instead of a table of logits.

    Reference: Zeng & Doan, Section 4.3; Mei et al. 2020.
    """

    temp: Float[Array, " s"]
    gamma: Float[Array, "#s #a #s"]
    scale: Scalar
    features: Float[Array, "s c"] | None = None
    policy_features: Float[Array, "s a d"] | None = None

    def F(self, theta: Theta, omega: Critic, x: Step) -> Theta:
        log_pi = self.log_pi(theta, x.s)
        actions = jnp.arange(log_pi.shape[0], dtype=jnp.int32)
        score = (actions == x.a).astype(log_pi.dtype) - jnp.exp(log_pi)
        scale = jnp.asarray(self.scale) if x.horizon is None else x.horizon
        row = -(scale * self._delta(theta, omega, x)) * score
        if self.policy_features is not None:
            return jnp.sum(row[:, None] * jnp.asarray(self.policy_features)[x.s], axis=0)
        return _one_hot(x.s, theta.shape[0], row.dtype)[:, None] * row[None, :]

    def G(self, theta: Theta, omega: Critic, x: Step) -> Critic:
        phi = _one_hot(x.s, len(omega), omega.dtype) if self.features is None else jnp.asarray(self.features)[x.s]
        return -self._delta(theta, omega, x) * phi

    def _delta(self, theta: Theta, omega: Critic, x: Step) -> Number:
        if self.features is None:
            here, there = omega[x.s], omega[x.next_state]
        else:
            Phi = jnp.asarray(self.features)
            here, there = jnp.sum(Phi[x.s] * omega), jnp.sum(Phi[x.next_state] * omega)
        gamma = jnp.asarray(self.gamma).reshape(()) if x.gamma is None else x.gamma
        bonus = jnp.asarray(self.temp)[x.s] * self.log_pi(theta, x.s)[x.a]
        return x.r - bonus + gamma * there - here

    def log_pi(self, theta: Theta, s: State) -> Float[Array, " actions"]:
        """log π_θ(·|s)."""
        if self.policy_features is None:
            return jax.nn.log_softmax(theta[s])
        return jax.nn.log_softmax(jnp.sum(jnp.asarray(self.policy_features)[s] * theta[None, :], axis=1))

    def logits(self, theta: Theta) -> Pairs:
        """What π_θ(·|s) is the softmax of, in every state."""
        return (
            theta if self.policy_features is None else jnp.tensordot(jnp.asarray(self.policy_features), theta, axes=1)
        )

    def values(self, omega: Critic) -> States:
        """V in every state."""
        return omega if self.features is None else jnp.asarray(self.features) @ omega


def feature_table(
    value: ArrayLike | None, name: str, leading: tuple[int, ...]
) -> Float[np.ndarray, "*leading d"] | None:
    """Features as an array with one vector a state, or a state and action; None where there are none."""
    if value is None:
        return None
    table = as_array(name, value)
    what = "state" if len(leading) == 1 else "state and action"
    if table.ndim != len(leading) + 1 or table.shape[:-1] != leading or not table.shape[-1]:
        raise InputError(f"`{name}` must have one vector a {what}, the shape {(*leading, 'd')}, got {table.shape}")
    if not table.any():
        raise InputError(f"`{name}` must not all be zero: they would tell no {what} from another")
    return table


def _one_hot(i: State, size: int, dtype: jnp.dtype) -> Float[jax.Array, " size"]:
    return (jnp.arange(size, dtype=jnp.int32) == i).astype(dtype)
