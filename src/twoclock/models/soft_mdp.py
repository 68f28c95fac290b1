"""Entropy-regularised MDPs in closed form: soft Bellman equations, visitation distributions, gradients and the
optimum."""

from __future__ import annotations

import math
from types import NoneType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from twoclock.models.float64 import in_float64, read_argument, traced
from twoclock.models.state_chain import StateChain, ahead
from twoclock.models.successors import LOST, SMALL, PolicyEquations, Successors
from twoclock.protocols import InputError, PyTree, Scalar, checked, pytree
from twoclock.tree_math import pinv
from twoclock.validation import check_size, number, short_repr, whole
from twoclock.validation.arrays import Array, Number, State, Vector, as_array, finite_number

States = Float[Array, " s"]
Pairs = Float[Array, "s a"]
# Means over the samples: ``visits`` and ``reward`` of each pair, ``next`` states with their discount.
Counts = dict[str, Float[Array, "s a"] | Float[Array, "s a s"]]
Newton = tuple[jax.Array, jax.Array, jax.Array]  # V, the V before it, and the number of steps

# A logit this low stands for −∞: its exp is 0 in float64, and unlike −∞ it causes no NaN.
LEAST = -1e3
_ITERATIONS = 200
_INEXACT = 1e-3  # a step of policy iteration leaves this share of its residual
_SWEEPS = 30  # of value iteration after a step that brought little
_NEAR = 1e-8  # relative residual below which the policy is known
_PATIENCE = 3  # steps without progress, after which the residual is rounding error

# How far rounding separates equally good actions, in units of the last place of the largest Q: in Gymnasium's tables at
# most two, while all other actions are 10¹⁰ away.
_ROUNDINGS = 32
_TIE = 1e-9  # actions this close to the best value, relative to its size, are also best at temperature 0


class Evaluation(NamedTuple):
    """The evaluation of a policy: V and Q, and the discounted visits of each state, η = ρ(I − (γP)_π)⁻¹."""

    V: States
    Q: Pairs
    visits: States


@pytree
class SoftMdp:
    """A finite MDP whose return has the bonus −τ log π(a|s) added to every reward, and its exact answers.

        Q = r + (γP)V                         V(s) = Σ_a π(a|s)(Q(s, a) − τ log π(a|s))          for a policy π
        V*(s) = τ log Σ_a exp(Q*(s, a)/τ)     π*(a|s) = exp((Q*(s, a) − V*(s))/τ)                for the best one
        J = Σ_s ρ(s)V(s)                      ∂J/∂θ(s, a) = η(s)π(a|s)(Q(s, a) − τ log π(a|s) − V(s))

    with π(·|s) = softmax θ(s, ·). Temperature 0 is the ordinary MDP. Policies come as logits or log-probabilities. All
    computations are in jnp, so they can be traced; plain arrays are computed in float64.

    Args:
        P: transition probabilities times the discount, P[s, a, s']γ(s, a, s'), or those of the listed successors.
        r: the mean reward r[s, a].
        temp: the temperature τ of each state, 0 where an episode is over.
        start: the distribution ρ of the first state.
        successors: the states that P[s, a, k] lead to, where P is a list of successors; equations are then solved by
            iteration. An answer that does not reach rounding error is refused or, in a trace, NaN.

    >>> import numpy as np
    >>> bandit = SoftMdp(P=0.5 * np.ones((1, 2, 1)), r=[[1.0, 0.0]], temp=[1.0], start=[1.0])
    >>> np.exp(bandit.solve()[0]).round(3).tolist()
    [[0.731, 0.269]]

    Reference: Geist, Scherrer & Pietquin, *A theory of regularized Markov decision processes*, 2019; Mei et al., *On
    the global convergence rates of softmax policy gradient methods*, 2020.
    """

    P: Float[Array, "s a k"]
    r: Float[Array, "s a"]
    temp: Float[Array, " s"]
    start: Float[Array, " s"]
    successors: Successors | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.successors, (jax.Array, np.ndarray, NoneType)):
            raise InputError(
                f"`successors` must be an array of states, one for each entry of P, got {short_repr(self.successors)}"
            )
        for name in ("r", "P", "temp", "start"):
            if not isinstance(getattr(self, name), jax.Array):  # one of JAX may be part of a trace
                object.__setattr__(self, name, as_array(name, getattr(self, name)))
            shape = jnp.shape(getattr(self, name))
            if jnp.ndim(self.r) != 2 or shape != self.shapes[name]:
                raise InputError(f"`{name}` must fit P[s, a, s'], r[s, a], temp[s] and start[s], got the shape {shape}")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of its fields and of its methods' arguments."""
        s, a = jnp.shape(self.r)
        pairs, states = dict.fromkeys(("r", "Q", "logits"), (s, a)), dict.fromkeys(("temp", "start", "V"), (s,))
        return {"P": (s, a, s) if self.successors is None else jnp.shape(self.successors), **pairs, **states}

    @in_float64
    @jax.jit
    def q(self, V: States) -> Pairs:
        """r + (γP)V."""
        if self.successors is not None:
            return jnp.asarray(self.r) + ahead(self.P, self.successors, V)
        return jnp.asarray(self.r) + jnp.tensordot(jnp.asarray(self.P), V, axes=1)

    @in_float64
    @jax.jit
    def improve(self, Q: Pairs) -> tuple[Pairs, States]:
        """One soft Bellman step: log π of the best response to Q, and τ log Σ_a exp(Q/τ)."""
        # The largest exponent is 0 and none is below `LEAST`, so nothing over- or underflows at any temperature. At
        # temperature 0 actions that differ by rounding alone count as equally good; else the last bit would choose.
        best = jnp.max(Q, axis=1)
        behind, temp = Q - best[:, None], jnp.asarray(self.temp)
        rounding = _ROUNDINGS * jnp.finfo(Q.dtype).eps * (1 + jnp.max(jnp.abs(Q)))
        cold = jnp.where(behind < -rounding, LEAST, 0.0)
        z = jnp.where(temp[:, None] > 0, behind / jnp.where(temp > 0, temp, 1.0)[:, None], cold)
        z = jnp.maximum(z, LEAST)
        log_sum = jnp.log(jnp.sum(jnp.exp(z), axis=1))
        return z - log_sum[:, None], best + temp * log_sum

    def evaluate(self, logits: Pairs) -> Evaluation:
        """Soft policy evaluation of softmax(logits), one factorisation for V, Q and the visits.

        Args:
            logits: θ(s, a).
        """
        if self.successors is None or traced(self, logits):
            return self._evaluate(logits)
        log_pi = log_softmax(read_argument("logits", logits, self.shapes["logits"]))
        equations, pi = PolicyEquations(np.asarray(self.P), np.asarray(self.successors)), np.exp(log_pi)
        reward = np.sum(pi * (np.asarray(self.r) - np.asarray(self.temp)[:, None] * log_pi), axis=1)
        V = equations.potential(pi, reward)
        return Evaluation(V, np.asarray(self.r) + equations.ahead(V), equations.visits(pi, np.asarray(self.start)))

    @in_float64
    @jax.jit
    def _evaluate(self, logits: Pairs) -> Evaluation:
        log_pi = jax.nn.log_softmax(logits)
        pi = jnp.exp(log_pi)
        if self.successors is not None:
            chain = StateChain.of_policy(pi, self.P, self.successors)
            V = chain.potential(jnp.sum(pi * (self.r - jnp.asarray(self.temp)[:, None] * log_pi), axis=1))
            return Evaluation(V, self.q(V), chain.visits(jnp.asarray(self.start)))
        leave = jnp.eye(len(pi), dtype=pi.dtype) - jnp.einsum("sa,sat->st", pi, self.P)
        reward = jnp.sum(pi * (self.r - jnp.asarray(self.temp)[:, None] * log_pi), axis=1)
        factors = jax.scipy.linalg.lu_factor(leave)
        V = jax.scipy.linalg.lu_solve(factors, reward)
        return Evaluation(V, self.q(V), jax.scipy.linalg.lu_solve(factors, jnp.asarray(self.start), trans=1))

    def solve(self) -> tuple[Pairs, States]:
        """log π* and V*, by Newton's steps, which are policy iteration: near V* each step squares the error."""
        if self.successors is None or traced(self):
            return self._solve()
        return self.iterate_policies(PolicyEquations(np.asarray(self.P), np.asarray(self.successors)))

    @in_float64
    @jax.jit
    def _solve(self) -> tuple[Pairs, States]:
        def more(carry: Newton) -> jax.Array:
            V, old, i = carry
            scale = 1 + jnp.max(jnp.abs(V))
            return (i < _ITERATIONS) & (jnp.max(jnp.abs(V - old)) > 8 * jnp.finfo(V.dtype).eps * scale)

        def newton(carry: Newton) -> Newton:
            V, _, i = carry
            return jnp.asarray(self.evaluate(self.improve(self.q(V))[0]).V), V, i + 1

        def correct(carry: Newton) -> Newton:
            V, _, i = carry
            log_pi, better = self.improve(self.q(V))
            chain = StateChain.of_policy(jnp.exp(jnp.asarray(log_pi)), self.P, self.successors)
            return V + chain.potential(better - V), V, i + 1

        zero = jnp.zeros_like(jnp.asarray(self.start))
        step = newton if self.successors is None else correct
        V, _, _ = jax.lax.while_loop(more, step, (zero, zero + jnp.inf, jnp.zeros((), jnp.int32)))
        return self.improve(self.q(V))

    def iterate_policies(
        self, equations: PolicyEquations, V: Float[np.ndarray, " s"] | None = None
    ) -> tuple[Float[np.ndarray, "s a"], Float[np.ndarray, " s"]]:
        """log π* and V* of a sparse table in NumPy; no step is solved more exactly than the policy deserves.

        Args:
            equations: those of its table, also for other rewards.
            V: where to start.
        """
        V, eps, r = np.zeros(len(self.start)) if V is None else V, np.finfo(float).eps, np.asarray(self.r)
        least, waited = np.inf, 0
        for _ in range(_ITERATIONS):
            log_pi, better = (np.asarray(leaf) for leaf in self.improve(r + equations.ahead(V)))
            left, scale = better - V, 1 + np.abs(V).max()
            size = np.abs(left).max()
            waited = 0 if size < least / 4 else waited + 1
            least = min(least, size)
            if size <= SMALL * eps * scale or (waited > _PATIENCE and size <= LOST * eps * scale):
                return log_pi, better
            V = V + equations.potential(np.exp(log_pi), left, accuracy=_INEXACT)
            for _ in range(
                _SWEEPS if waited and size > _NEAR * scale else 0
            ):  # news of a better way travels a state in each improvement
                V = np.asarray(self.improve(r + equations.ahead(V))[1])
        raise InputError(f"`mdp` has no optimum that {_ITERATIONS} policy iterations find; take a smaller discount")

    @in_float64
    @jax.jit
    def J(self, logits: Pairs) -> Number:
        """The return Σ_s ρ(s)V(s) of softmax(logits)."""
        return jnp.sum(self.start * self.evaluate(logits).V)

    @in_float64
    @jax.jit
    def gradient(self, logits: Pairs) -> Pairs:
        """∂J/∂θ at θ = logits."""
        return self.slope(logits, self.evaluate(logits))

    def slope(self, logits: Pairs, known: Evaluation) -> Pairs:
        """∂J/∂θ where the evaluation is known already.

        Args:
            logits: θ(s, a).
            known: the evaluation of softmax(logits), from ``evaluate``.
        """
        return known.visits[:, None] * self.advantage(logits, known.Q, known.V)

    def advantage(self, logits: Pairs, Q: Pairs, V: States) -> Pairs:
        """π(a|s)(Q(s, a) − τ log π(a|s) − V(s)), with its mean over actions removed, so that V is arbitrary.

        Args:
            logits: θ(s, a).
            Q: the value of each pair.
            V: the value of each state.
        """
        log_pi = jax.nn.log_softmax(logits)
        pi = jnp.exp(log_pi)
        weighted = pi * (Q - jnp.asarray(self.temp)[:, None] * log_pi - V[:, None])
        return weighted - pi * jnp.sum(weighted, axis=1, keepdims=True)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    behind = np.maximum(logits - logits.max(axis=1, keepdims=True), LEAST)
    return behind - np.log(np.exp(behind).sum(axis=1, keepdims=True))


@pytree
class SoftTruth:
    """An entropy-regularised MDP with its optimum.

    Args:
        soft: the MDP.
        P: its transition probabilities without the discount.
        J_star: the best return.
        pi_star: the optimal policy; even among the best actions where the temperature is 0.
        d_star: its visitation distribution.
    """

    soft: SoftMdp
    P: Float[Array, "s a k"]
    J_star: Number
    pi_star: Float[Array, "s a"]
    d_star: Float[Array, " s"]

    def measure(self, logits: Pairs) -> tuple[dict[str, Number], Pairs]:
        """gap, error and the least probability of a policy, and ∂J/∂logits."""
        known = self.soft.evaluate(logits)
        pi = jax.nn.softmax(logits)
        hot = jnp.asarray(self.soft.temp) > 0
        gap = self.J_star - jnp.sum(self.soft.start * known.V)
        # ‖π(·|s) − π*(·|s)‖² to the nearest optimal policy: at temperature 0 any distribution over the best actions is
        # one.
        best = (jnp.asarray(self.pi_star) > 0).astype(pi.dtype)
        off = pi * (1 - best)
        cold = jnp.sum(jnp.square(off), axis=1) + jnp.square(jnp.sum(off, axis=1)) / jnp.sum(best, axis=1)
        error = jnp.sum(self.d_star * jnp.where(hot, jnp.sum(jnp.square(pi - self.pi_star), axis=1), cold))
        # The choice of action matters where an episode is not over.
        matters = jnp.any(jnp.asarray(self.soft.P) > 0, axis=(1, 2)) | jnp.any(jnp.asarray(self.soft.r) != 0, axis=1)
        least = jnp.min(jnp.where(matters[:, None], pi, 1.0))
        return {"gap": gap, "error": error, "least_probability": least}, self.soft.slope(logits, known)

    def weights(self, logits: Pairs, visits: States, sampling: str) -> States:
        """The weights of the states in samples: the discounted visits, the stationary distribution, or the start
        distribution."""
        if sampling == "restart":
            return visits
        if sampling == "iid":
            return jnp.asarray(self.soft.start)
        if self.soft.successors is not None:
            return StateChain.of_policy(jax.nn.softmax(logits), self.P, self.soft.successors).law()
        chain = jnp.einsum("sa,sat->st", jax.nn.softmax(logits), self.P)
        n = len(chain)
        one = jnp.ones(n, chain.dtype)
        return jnp.linalg.solve(jnp.eye(n, dtype=chain.dtype) - chain.T + jnp.ones((n, n), chain.dtype), one)

    def means(self, logits: Pairs, V: States, sampling: str) -> tuple[States, States, Pairs]:
        """The weights of the states, the mean of δ in each, and that of δ·∇log π, where V is any critic's."""
        weights = self.weights(logits, self.soft.evaluate(logits).visits, sampling)
        log_pi = jax.nn.log_softmax(logits)
        Q = self.soft.q(V)
        delta = jnp.sum(jnp.exp(log_pi) * (Q - jnp.asarray(self.soft.temp)[:, None] * log_pi), axis=1) - V
        return weights, delta, self.soft.advantage(logits, Q, V)

    def critic(self, logits: Pairs, features: Float[Array, "s d"] | None, sampling: str) -> Vector:
        """V of the policy or, with features Φ and state weights D, the ω with ΦᵀD(r + (γP)Φω − Φω) = 0."""
        known = self.soft.evaluate(logits)
        if features is None:
            return known.V
        Phi, pi = jnp.asarray(features), jax.nn.softmax(logits)
        weighted = Phi.T * self.weights(logits, known.visits, sampling)[None, :]
        chain = StateChain.of_policy(pi, self.soft.P, self.soft.successors)
        step = Phi - chain @ Phi
        reward = known.V - chain @ known.V
        return pinv(weighted @ step) @ (weighted @ reward)


def soft_truth(soft: SoftMdp, P: Float[Array, "s a k"]) -> SoftTruth:
    """The optimum of an MDP whose transition probabilities without the discount are P."""
    if soft.successors is None or traced(soft, P):
        return _soft_truth(soft, P)
    equations = PolicyEquations(np.asarray(soft.P), np.asarray(soft.successors))
    log_pi, V = soft.iterate_policies(equations)
    return sparse_truth(soft, P, equations, log_pi, V)


def sparse_truth(
    soft: SoftMdp, P: Float[Array, "s a k"], equations: PolicyEquations, log_pi: Pairs, V: States
) -> SoftTruth:
    """The same of a sparse table whose solution is known."""
    visits = equations.visits(np.exp(log_pi), np.asarray(soft.start))
    return _truth(soft, P, log_pi, V, np.asarray(soft.r) + equations.ahead(np.asarray(V)), visits)


@in_float64
@jax.jit
def _soft_truth(soft: SoftMdp, P: Float[Array, "s a k"]) -> SoftTruth:
    log_pi, V = soft.solve()
    return _truth(soft, P, log_pi, V, soft.q(V), soft.evaluate(log_pi).visits)


@in_float64
@jax.jit
def _truth(soft: SoftMdp, P: Float[Array, "s a k"], log_pi: Pairs, V: States, Q: Pairs, visits: States) -> SoftTruth:
    """The optimum from its solution."""
    temp = jnp.asarray(soft.temp)
    tied = jnp.max(Q, axis=1, keepdims=True) - _TIE * (1 + jnp.max(jnp.abs(V)))
    best = (tied <= Q).astype(V.dtype)
    pi = jnp.where(temp[:, None] > 0, jnp.exp(log_pi), best / jnp.sum(best, axis=1, keepdims=True))
    return SoftTruth(soft, P, jnp.sum(soft.start * V), pi, visits / jnp.sum(visits))


@pytree
class EmpiricalMdp:
    """The optimal policy and values of the MDP with the observed frequencies.

        r̂(s, a) = Σ r / n(s, a),     (γP)^(s'|s, a) = Σ γ1{s'} / n(s, a),     π̂, V̂ = soft value iteration

    with the sums over the visits of (s, a), which `PlugIn` computes. Its prior counts as one sample, spread evenly over
    all pairs, with reward 0 and a uniform next state. The model knows γ and τ, and estimates P and r. Every sample
    updates S·A·S numbers.

    Args:
        states, actions: the sizes |S| and |A|.
        gamma: the discount of samples without their own.
        temp: the temperature τ.

    >>> import twoclock as tc
    >>> rival = tc.PlugIn(tc.Fast(), tc.models.EmpiricalMdp(states=10, actions=4, gamma=0.9, temp=0.1))
    """

    states: int = checked(whole, static=True)
    actions: int = checked(whole, static=True)
    gamma: Scalar = checked(lambda what, value: np.float64(number(what, value, 0, 1, below=True)), default=0.9)
    temp: Scalar = checked(finite_number, 0, default=0.1)

    def __post_init__(self) -> None:
        check_size("`states`, `actions`", self.states * self.states * self.actions)

    @property
    def prior(self) -> Counts:
        """The statistic before the first sample."""
        gamma = jnp.asarray(self.gamma)
        pairs = jnp.full((self.states, self.actions), 1 / (self.states * self.actions), gamma.dtype)
        following = jnp.broadcast_to(gamma * pairs[:, :, None] / self.states, (*pairs.shape, self.states))
        return {"visits": pairs, "reward": jnp.zeros_like(pairs), "next": following}

    def statistic(self, x: PyTree) -> Counts:
        """The contribution of one sample to the sums."""
        gamma = jnp.asarray(self.gamma) if x.gamma is None else x.gamma
        pair = x.s * self.actions + x.a
        visits = _one_at(pair, jnp.ones_like(gamma), (self.states, self.actions))
        following = _one_at(pair * self.states + x.next_state, gamma, (self.states, self.actions, self.states))
        return {"visits": visits, "reward": x.r * visits, "next": following}

    def solve(self, mean: Counts) -> tuple[Float[Array, "s a"], Float[Array, " s"]]:
        """The θ and ω of the mean statistic."""
        visits = mean["visits"]
        temp = jnp.full(self.states, self.temp, visits.dtype)
        start = jnp.full(self.states, 1 / self.states, visits.dtype)
        return SoftMdp(mean["next"] / visits[:, :, None], mean["reward"] / visits, temp, start).solve()


def _one_at(place: State, value: Number, shape: tuple[int, ...]) -> Array:
    """Zeros except for one value, by one comparison per entry, since every sample needs it."""
    entries = jnp.arange(math.prod(shape), dtype=jnp.int32)
    return jnp.where(entries == place, value, jnp.zeros_like(value)).reshape(shape)
