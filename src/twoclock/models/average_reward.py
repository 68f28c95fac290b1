"""Average-reward MDPs in closed form: the gain, the bias and the stationary distribution of a policy, and the
optimum."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.models.float64 import in_float64, read_argument, traced
from twoclock.models.soft_mdp import LEAST, Pairs, SoftMdp, States, log_softmax
from twoclock.models.state_chain import StateChain
from twoclock.models.successors import SparseEquations, identity, sparse_chain
from twoclock.protocols import InputError, pytree
from twoclock.validation import short_repr
from twoclock.validation.arrays import Number

Iterate = tuple[jax.Array, jax.Array]  # V, and the number of iterations

_ITERATIONS = 1_000_000
_POLICIES = 100
_WIDTH = 1e-12  # of the bounds on the best gain, relative to the size of the bias
_ROUNDED = 1e-9  # the width from which policy iteration may stop where it gets no narrower
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

    def evaluate(self, logits: Pairs) -> GainEvaluation:
        """Gain, bias and stationary distribution of softmax(logits), from one factorisation of I − P_π + 11ᵀ/n."""
        if self.soft.successors is None or traced(self, logits):
            return self._evaluate(logits)
        log_pi = log_softmax(read_argument("logits", logits, self.shapes["logits"]))
        pi = np.exp(log_pi)
        equations, matrix = SparseEquations("the gain"), _bordered(pi, self.soft)
        reward = np.sum(pi * (np.asarray(self.soft.r) - np.asarray(self.soft.temp)[:, None] * log_pi), axis=1)
        *V, gain = equations.solve(matrix, np.append(reward, 0.0))
        *law, _ = equations.solve(matrix, np.append(np.zeros(len(pi)), 1.0), transposed=True)
        return GainEvaluation(gain, np.asarray(V), np.asarray(law))

    @in_float64
    @jax.jit
    def _evaluate(self, logits: Pairs) -> GainEvaluation:
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

    def solve(self) -> BestGain:
        """The best policy.

        For any V the best gain lies between the least and the largest entry of TV − V, so the answer has bounds. A
        sparse table is solved by policy iteration, since chains that mix slowly need many sweeps.
        """
        if self.soft.successors is not None and not traced(self):
            with suppress(InputError):  # at temperature 0 a policy on the way may have several recurrent classes
                return self._iterate_policies()
        return self._iterate_values()

    def _iterate_policies(self) -> BestGain:
        """By Howard's method: T_πV − V = J + (I − P_π)(step) is solved for the step and the gain of each policy."""
        soft, equations, V = self.soft, SparseEquations("the gain"), np.zeros(len(self.soft.start))
        narrowest = np.inf
        for _ in range(_POLICIES):
            Q = np.asarray(soft.q(V))
            log_pi, better = (np.asarray(leaf) for leaf in soft.improve(Q))
            width, scale = np.ptp(better - V), 1 + np.abs(V).max()
            if width <= _WIDTH * scale or (width >= narrowest / 2 and width <= _ROUNDED * scale):
                gain = (np.max(better - V) + np.min(better - V)) / 2
                tied = Q.max(axis=1, keepdims=True) - _TIE * scale
                even = np.where(tied <= Q, 0.0, LEAST) - np.log(np.sum(tied <= Q, axis=1, keepdims=True))
                log_pi = np.where(np.asarray(soft.temp)[:, None] > 0, log_pi, even)
                return BestGain(np.asarray(gain), V, log_pi, np.asarray(width))
            narrowest = min(narrowest, width)
            V = V + equations.solve(_bordered(np.exp(log_pi), soft), np.append(better - V, 0.0))[:-1]
        raise InputError(f"`mdp` has no best gain that {_POLICIES} policy iterations find")

    @in_float64
    @jax.jit
    def _iterate_values(self) -> BestGain:
        """By relative value iteration with half steps, which periodic chains need."""

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


def _bordered(pi: np.ndarray, soft: SoftMdp) -> Any:
    """The matrix of (I − P_π)V + J = b and mean V = 0, for the unknowns (V, J)."""
    from scipy.sparse import block_array  # slow to load, and seldom needed

    n = len(pi)
    chain = sparse_chain(pi[:, :, None] * np.asarray(soft.P), np.asarray(soft.successors))
    blocks: Any = [[identity(n) - chain, np.ones((n, 1))], [np.full((1, n), 1 / n), None]]
    return block_array(blocks, format="csr")
