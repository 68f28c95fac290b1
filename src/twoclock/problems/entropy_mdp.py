"""Entropy-regularised MDPs: the actor-critic with a softmax policy and a critic of its soft value."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt32
from numpy.typing import ArrayLike

from twoclock.models.mdp import Mdp
from twoclock.models.soft_mdp import Pairs, SoftTruth, States, soft_truth
from twoclock.protocols import InputError, Key, Problem, Scalar, pytree, static
from twoclock.sampling.alias import choose, lookup, numpy_alias_table, unit_point
from twoclock.sampling.transitions import entry
from twoclock.tree_math import sqnorm
from twoclock.validation import choice
from twoclock.validation.arrays import Array, Number, State, Words, as_array

__all__ = ["EntropyMdp", "SoftOperators", "entropy_mdp"]

Theta = Float[Array, "s a"] | Float[Array, " d"]  # logits, or the weights of policy features
Critic = Float[Array, " c"]  # values of the states, or the weights of features
Env = tuple[State, tuple[State, Number] | None] | None
"""The state of the chain, with the length of this episode and the mean length so far; None where there is no chain."""
SAMPLINGS = ("restart", "stationary", "iid")
# The mean length of an episode is kept over about this many of the last ones.
_EPISODES = 8


class Step(NamedTuple):
    """One sample: the state, action and next state, the reward, and the discount and horizon where they vary."""

    s: State
    a: State
    next_state: State
    r: Number
    gamma: Number | None  # None where the discount is one number for all
    horizon: Number | None  # None where the horizon is one number for all


@pytree
class SoftOperators:
    """The operators of an actor with a softmax policy and a critic of its soft value.

        δ = r − τ log π(a|s) + γV(s') − V(s),        F = −H·δ·∇log π(a|s),        G = −δ·∇V(s)

    Args:
        temp: the temperature τ of each state.
        gamma: the discount of samples that do not bring their own.
        scale: the horizon H of samples that do not bring their own.
        features: φ, one row per state, for V = φᵀω instead of a table.
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
        psi = self.policy_features
        return theta if psi is None else jnp.tensordot(jnp.asarray(psi), theta, axes=1)

    def values(self, omega: Critic) -> States:
        """V in every state."""
        return omega if self.features is None else jnp.asarray(self.features) @ omega


def feature_table(
    value: ArrayLike | None, name: str, leading: tuple[int, ...]
) -> Float[np.ndarray, "*leading d"] | None:
    """Features as an array with one vector per state, or per state and action; None where there are none."""
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


@pytree
class EntropyMdp(Problem):
    """Maximise J_τ(π_θ) = E Σ γ^k (r − τ log π_θ) over softmax policies, from samples of the policy itself.

        δ = r − τ log π(a|s) + γV(s') − V(s),        F = −H·δ·∇log π(a|s),        G = −δ·∇V(s)

    θ[s, a] are the logits and ω[s] = V, unless features make the policy log-linear, π ∝ exp ψ(s, a)ᵀθ, or the critic
    linear, V = φ(s)ᵀω. H = 1/(1 − γ) is the discounted number of steps from a start. Where the discount varies (where
    episodes end) that number depends on the policy; H is then the mean length of the episodes *before* this one, which
    is independent of this one's samples and right on average.

    ``restart`` goes from s to s' with probability γ and to a fresh start with 1 − γ; δ always sees s' itself. The chain
    has the discounted visitation law, and the mean of F at V_θ is exactly ∇h, h = −J. ``stationary`` follows P alone
    and ``iid`` draws every s from the start law: the same gradient with other weights on the states, and the same
    zeros.

    Metrics: ``gap`` J* − J(θ); ``error``, the squared distance of π_θ(·|s) to the nearest optimal policy, averaged over
    the states that the optimal policy visits; ``gradient`` ‖∇J‖²; ``tracking``; ``least_probability``, the smallest
    π_θ(a|s) over states where a choice matters.

    Reference: Zeng & Doan, Section 4.3, which leaves the algorithm out; Mei et al. 2020.
    """

    theta0: Theta
    temp: Float[Array, " s"]
    start: UInt32[Array, " s"]
    next: UInt32[Array, "s a s"]
    r: Float[Array, "#s #a #s"]
    gamma: Float[Array, "#s #a #s"]
    scale: Scalar
    truth: SoftTruth
    features: Float[Array, "s c"] | None = None
    policy_features: Float[Array, "s a d"] | None = None
    sampling: str = static(default="restart")

    def init(self, key: Key) -> tuple[Theta, Critic, Env]:
        theta = jnp.asarray(self.theta0)
        size = len(self.temp) if self.features is None else self.features.shape[1]
        if self.sampling == "iid":
            return theta, jnp.zeros(size, theta.dtype), None
        s = lookup(jnp.asarray(self.start), (), jax.random.bits(key, (), jnp.uint32))
        restarts = self.sampling == "restart" and self.gamma.size > 1  # the horizon then depends on the policy
        episode = (jnp.zeros((), jnp.int32), jnp.asarray(self.scale)) if restarts else None
        return theta, jnp.zeros(size, theta.dtype), (s, episode)

    def noise(self, key: Key) -> Words:
        """A word of random bits for each choice: the action, s', and a start or whether to start anew or both."""
        words = {"restart": 4, "stationary": 2, "iid": 3}[self.sampling]
        return jax.random.bits(key, (words,), jnp.uint32)

    def draw(self, u: Words, theta: Theta, env: Env) -> tuple[Step, Env]:
        s, episode = (lookup(jnp.asarray(self.start), (), u[2]), None) if env is None else env
        a = choose(jnp.exp(self.operators.log_pi(theta, s)), u[0])
        t = lookup(jnp.asarray(self.next), (s, a), u[1])
        gamma = entry(self.gamma, s, a, t)
        horizon = None if episode is None else episode[1]
        x = Step(s, a, t, entry(self.r, s, a, t), None if self.gamma.size == 1 else gamma, horizon)
        if env is None:
            return x, None
        if self.sampling == "stationary":
            return x, (t, None)
        over = unit_point(u[2], gamma.dtype) >= gamma
        if episode is not None:
            length, mean = episode[0] + 1, episode[1]
            mean = jnp.where(over, mean + (length.astype(mean.dtype) - mean) / _EPISODES, mean)
            episode = jnp.where(over, 0, length), mean
        return x, (jnp.where(over, lookup(jnp.asarray(self.start), (), u[3]), t), episode)

    def F(self, theta: Theta, omega: Critic, x: Step) -> Theta:
        return self.operators.F(theta, omega, x)

    def G(self, theta: Theta, omega: Critic, x: Step) -> Critic:
        return self.operators.G(theta, omega, x)

    @property
    def operators(self) -> SoftOperators:
        """F and G, which see samples and no tables."""
        return SoftOperators(self.temp, self.gamma, self.scale, self.features, self.policy_features)

    def policy(self, theta: Theta) -> Pairs:
        """π_θ[s, a]."""
        return jax.nn.softmax(self.operators.logits(theta))

    def h(self, theta: Theta) -> Number:
        """−J_τ(π_θ)."""
        return -self.truth.soft.J(self.operators.logits(theta))

    def field(self, theta: Theta) -> Theta:
        """What F averages to at ω*(θ): ∇h itself for a tabular critic and restarts."""
        if self.sampling == "restart" and self.features is None:
            return jax.grad(self.h)(theta)
        return self.mean_F(theta, self.omega_star(theta))

    def omega_star(self, theta: Theta) -> Critic:
        """V_θ or, with features, the fixed point of TD under the law of the samples."""
        return self.truth.critic(self.operators.logits(theta), self.features, self.sampling)

    def mean_F(self, theta: Theta, omega: Critic) -> Theta:
        visits, _, advantage = self.truth.means(
            self.operators.logits(theta), self.operators.values(omega), self.sampling
        )
        if self.sampling != "restart":
            visits = visits * jnp.asarray(self.scale)
        rows = -visits[:, None] * advantage
        return rows if self.policy_features is None else jnp.tensordot(rows, jnp.asarray(self.policy_features), axes=2)

    def mean_G(self, theta: Theta, omega: Critic) -> Critic:
        visits, delta, _ = self.truth.means(self.operators.logits(theta), self.operators.values(omega), self.sampling)
        pull = -visits / jnp.sum(visits) * delta
        return pull if self.features is None else pull @ jnp.asarray(self.features)

    def measure(self, theta: Theta, omega: Critic) -> dict[str, Number]:
        metrics, slope = self.truth.measure(self.operators.logits(theta))
        if self.policy_features is not None:
            slope = jnp.tensordot(slope, jnp.asarray(self.policy_features), axes=2)
        return metrics | {"gradient": sqnorm(slope), "tracking": sqnorm(omega - self.omega_star(theta))}


def entropy_mdp(
    mdp: Mdp,
    temp: float = 0.1,
    start: ArrayLike | None = None,
    sampling: str = "restart",
    *,
    features: ArrayLike | None = None,
    policy_features: ArrayLike | None = None,
    theta0: ArrayLike | None = None,
) -> EntropyMdp:
    """Learn the optimal policy of a finite MDP whose return has an entropy bonus, as an actor and a critic.

    Args:
        mdp: the decision process; its discount must be below 1, and is 0 where an episode ends.
        temp: the temperature τ of the bonus −τ log π(a|s); 0 is the ordinary MDP.
        start: the law ρ of the first state, or one state's number; uniform by default.
        sampling: "restart" (the discounted visitation law, the exact gradient), "stationary" (one chain that is never
            restarted) or "iid" (every s from ``start``, which must then have every state).
        features: φ, one row per state, for a linear critic V = φᵀω instead of a table.
        policy_features: ψ[s, a], a vector each, for a log-linear policy instead of a table.
        theta0: where θ starts; 0, the uniform policy, by default.

    >>> import numpy as np, twoclock as tc
    >>> bandit = tc.models.Mdp(P=np.ones((1, 2, 1)), r=[[1.0, 0.0]], gamma=0.5)
    >>> problem = tc.problems.entropy_mdp(bandit, temp=1.0)
    >>> result = tc.solve(problem, tc.Fast(0.02, 0.05, 0.1), steps=5_000, seeds=4)
    >>> bool(result.history.gap.iloc[-1] < 0.1)
    True

    Reference: Zeng & Doan, Section 4.3; Mei et al., *On the global convergence rates of softmax policy gradient
    methods*, 2020.
    """
    if not isinstance(mdp, Mdp):
        raise InputError(f"`mdp` must be a `tc.models.Mdp(P, r, gamma)`, got {type(mdp).__name__}")
    if mdp.gamma.max() >= 1:
        raise InputError(
            f"`mdp` must have gamma < 1 everywhere, got {mdp.gamma.max():g}: a bonus that is never discounted adds up "
            "for ever; take a gamma such as 0.99"
        )
    choice("sampling", sampling, SAMPLINGS)
    soft = mdp.soft(temp, start)
    if sampling == "iid" and (soft.start == 0).any():
        raise InputError(
            f"`start` must give every state some weight where sampling is 'iid', got none for state "
            f"{int(np.argmin(soft.start))}; leave it out for the uniform law, or sample by 'restart'"
        )
    if sampling == "stationary":
        mdp.stationary(np.full((mdp.states, mdp.actions), 1 / mdp.actions))  # or a complaint that there is no such law
    Phi = feature_table(features, "features", (mdp.states,))
    Psi = feature_table(policy_features, "policy_features", (mdp.states, mdp.actions))
    shape = (mdp.states, mdp.actions) if Psi is None else Psi.shape[2:]
    theta = np.zeros(shape) if theta0 is None else as_array("theta0", theta0)
    if theta.shape != shape:
        what = "one entry a policy feature" if Psi is not None else "(states, actions)"
        raise InputError(f"`theta0` must have the shape {shape}, {what}, got {theta.shape}")
    constant = np.ptp(mdp.gamma) == 0
    axes = (1, 1, 1) if constant else (1,) * (3 - mdp.gamma.ndim) + mdp.gamma.shape
    gamma = mdp.gamma.ravel()[: np.prod(axes)].reshape(axes)
    return EntropyMdp(
        theta0=theta,
        temp=soft.temp,
        start=numpy_alias_table(np.asarray(soft.start)),
        next=numpy_alias_table(mdp.P),
        r=mdp.r if mdp.r.ndim == 3 else mdp.r[:, :, None],
        gamma=gamma,
        scale=1 / (1 - gamma.max()),
        truth=soft_truth(soft, mdp.P),
        features=Phi,
        policy_features=Psi,
        sampling=sampling,
    )
