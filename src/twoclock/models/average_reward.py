"""Average-reward MDPs in closed form: the gain, the bias and the stationary distribution of a policy, and the
optimum."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from twoclock.models.float64 import in_float64
from twoclock.models.soft_mdp import LEAST, Pairs, SoftMdp, States
from twoclock.models.state_chain import StateChain
from twoclock.protocols import InputError, pytree
from twoclock.validation import short_repr
from twoclock.validation.arrays import Number

Iterate = tuple[jax.Array, jax.Array]  # V, and the number of iterations

_ITERATIONS = 1_000_000
_WIDTH = 1e-12  # of the bounds on the best gain, relative to its size
_TIE = 1e-9  # actions this close to the best, relative to the size of the bias, are also best at temperature 0


class GainEvaluation(NamedTuple):
    """The evaluation of a policy: the gain J, the bias V with mean 0 over the states, the stationary distribution μ."""

    gain: Number
    bias: States
    law: States


class BestGain(NamedTuple):
    """The optimum: the gain J*, the bias V* with mean 0, log π*, and how far apart the bounds on J* are."""

    gain: Number
    bias: States
    log_pi: Pairs
    width: Number


@pytree
class AverageReward:
    """The long-run reward per step, with the bonus −τ log π(a|s), and its exact answers.

        V(s) = Σ_a π(a|s)(r(s, a) − τ log π(a|s) − J + Σ P(s'|s, a)V(s')),     Σ_s V(s) = 0         for a policy π
        J* + V*(s) = τ log Σ_a exp((r(s, a) + Σ P(s'|s, a)V*(s'))/τ)                                for the best one
        ∂J/∂θ(s, a) = μ(s)π(a|s)(Q(s, a) − τ log π(a|s) − V(s)),     Q = r − J + PV,     π = softmax θ

    Temperature 0 is the ordinary MDP. Policies come as logits or log-probabilities. All computations are in jnp, so
    they can be traced; plain arrays are computed in float64. ``Mdp.average_reward(temp)`` makes one, and checks that
    every state reaches every other, so that one gain holds for all of them.

    Args:
        soft: P[s, a, s'] *without* a discount, the mean rewards r[s, a] and the temperature of each state.

    >>> import twoclock as tc
    >>> shop = tc.models.Mdp(P=[[[1, 0], [0, 1]], [[1, 0], [1, 0]]], r=[[1, 0], [3, 3]], gamma=0)
    >>> best = shop.average_reward().solve()  # stay for 1 a step, or go and come back for 3 every other step
    >>> float(best.gain.round(6)), best.bias.round(6).tolist()
    (1.5, [-0.75, 0.75])

    Reference: Puterman, *Markov decision processes*, 1994, chapter 8.
    """

    soft: SoftMdp

    def __post_init__(self) -> None:
        if not isinstance(self.soft, SoftMdp):
            raise InputError(
                f"`soft` must be a SoftMdp, got {short_repr(self.soft)}; `mdp.average_reward()` makes one from an Mdp"
            )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of its methods' arguments."""
        return self.soft.shapes

    @in_float64
    @jax.jit
    def evaluate(self, logits: Pairs) -> GainEvaluation:
        """Gain, bias and stationary distribution of softmax(logits), from one factorisation of I − P_π + 11ᵀ/n."""
        log_pi = jax.nn.log_softmax(logits)
        pi = jnp.exp(log_pi)
        n = len(pi)
        if self.soft.successors is not None:
            sparse = self.chain(logits)
            V = sparse.bias(jnp.sum(pi * (self.soft.r - jnp.asarray(self.soft.temp)[:, None] * log_pi), axis=1))
            return GainEvaluation(jnp.mean(V), V - jnp.mean(V), sparse.law())
        chain = jnp.einsum("sa,sat->st", pi, self.soft.P)
        reward = jnp.sum(pi * (self.soft.r - jnp.asarray(self.soft.temp)[:, None] * log_pi), axis=1)
        factors = jax.scipy.linalg.lu_factor(jnp.eye(n, dtype=pi.dtype) - chain + 1 / n)
        V = jax.scipy.linalg.lu_solve(factors, reward)  # the bias, and the gain on top of every entry
        gain = jnp.mean(V)
        return GainEvaluation(gain, V - gain, jax.scipy.linalg.lu_solve(factors, jnp.full(n, 1 / n, pi.dtype), trans=1))

    def chain(self, logits: Pairs) -> StateChain:
        """The state chain of softmax(logits)."""
        return StateChain.of_policy(jax.nn.softmax(logits), self.soft.P, self.soft.successors)

    @in_float64
    @jax.jit
    def gradient(self, logits: Pairs) -> Pairs:
        """∂J/∂θ at θ = logits."""
        known = self.evaluate(logits)
        return known.law[:, None] * self.soft.advantage(logits, self.soft.q(known.bias), known.bias)

    @in_float64
    @jax.jit
    def solve(self) -> BestGain:
        """The best policy, by relative value iteration with half steps, which periodic chains need.

        For any V the best gain lies between the least and the largest entry of TV − V, so the answer has bounds.
        """

        def bounds(V: States) -> tuple[Number, Number]:
            step = self.soft.improve(self.soft.q(V))[1] - V
            return jnp.min(step), jnp.max(step)

        def more(carry: Iterate) -> jax.Array:
            low, high = bounds(carry[0])
            wide = jnp.asarray(high - low > _WIDTH * (1 + jnp.max(jnp.abs(carry[0]))))
            return wide & (carry[1] < _ITERATIONS)

        def iterate(carry: Iterate) -> Iterate:
            V = (carry[0] + jnp.asarray(self.soft.improve(self.soft.q(carry[0]))[1])) / 2
            return V - jnp.mean(V), carry[1] + 1

        zero = jnp.zeros_like(jnp.asarray(self.soft.start))
        V, _ = jax.lax.while_loop(more, iterate, (zero, jnp.zeros((), jnp.int32)))
        low, high = bounds(V)
        Q = self.soft.q(V)
        tied = jnp.max(Q, axis=1, keepdims=True) - _TIE * (1 + jnp.max(jnp.abs(V)))
        cold = jax.nn.log_softmax(jnp.where(tied <= Q, 0.0, LEAST))
        hot = jnp.asarray(self.soft.temp)[:, None] > 0
        log_pi = jnp.where(hot, self.soft.improve(Q)[0], cold)
        return BestGain(self.evaluate(log_pi).gain, V, log_pi, high - low)
