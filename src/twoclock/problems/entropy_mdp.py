"""Entropy-regularised MDPs: the actor-critic with a softmax policy and a critic of its soft value, and known cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt32
from numpy.typing import ArrayLike

from twoclock.models.mdp import Mdp, check_dense, check_mdp, read_features
from twoclock.models.soft_mdp import Pairs, SoftMdp, SoftTruth, States, soft_truth
from twoclock.protocols import InputError, Key, Problem, Scalar, forwarded, pytree, static
from twoclock.sampling.alias import alias_table, choose, lookup, numpy_alias_table, unit_point
from twoclock.sampling.transitions import entry, next_state
from twoclock.tree_math import sqnorm
from twoclock.validation import check_key, check_size, choice, flag, number, short_repr, whole
from twoclock.validation.arrays import Array, Number, State, Words, shaped

__all__ = ["EntropyMdp", "SoftOperators", "entropy_mdp", "forest", "frozen_lake", "random_entropy_mdp"]

Theta = Float[Array, "s a"] | Float[Array, " d"]  # logits, or the weights of policy features
Critic = Float[Array, " c"]  # values of the states, or the weights of features
# The state of the chain, with the length of this episode and the mean length so far; None where there is no chain.
Env = tuple[State, tuple[State, Number] | None] | None
SAMPLINGS = {"restart": 4, "stationary": 2, "iid": 3}  # with the random words that a step takes
_EPISODES = 8  # the mean episode length is over about this many recent episodes
_LAKES = {4: "SFFFFHFHFFFHHFFG", 8: "SFFFFFFFFFFFFFFFFFFHFFFFFFFFFHFFFFFHFFFFFHHFFFHFFHFFHFHFFFFHFFFG"}


class Step(NamedTuple):
    """One sample: state, action, next state and reward; discount and horizon are None where they are constant."""

    s: State
    a: State
    next_state: State
    r: Number
    gamma: Number | None
    horizon: Number | None


def _one_hot(i: State, size: int, dtype: jnp.dtype) -> Float[jax.Array, " size"]:
    return (jnp.arange(size, dtype=jnp.int32) == i).astype(dtype)


@pytree
class SoftOperators:
    """The operators of an actor with a softmax policy and a critic of its soft value.

        δ = r − τ log π(a|s) + γV(s') − V(s),        F = −H·δ·∇log π(a|s),        G = −δ·∇V(s)

    Args:
        temp: the temperature τ of each state.
        gamma: the discount of samples without their own.
        scale: the horizon H of samples without their own.
        features: φ, one row per state, for V = φᵀω instead of a table.
        policy_features: ψ[s, a], a vector for each pair, for π ∝ exp ψᵀθ instead of a table of logits.

    >>> import numpy as np
    >>> operators = SoftOperators(temp=np.full(2, 0.1), gamma=np.full((1, 1, 1), 0.9), scale=10.0)
    >>> operators.log_pi(np.zeros((2, 4)), jnp.int32(0)).shape
    (4,)

    Reference: Zeng & Doan, Section 4.3; Mei et al., *On the global convergence rates of softmax policy gradient
    methods*, 2020.
    """

    temp: Float[Array, " s"]
    gamma: Float[Array, "#s #a #k"]
    scale: Scalar
    features: Float[Array, "s c"] | None = None
    policy_features: Float[Array, "s a d"] | None = None

    def F(self, theta: Theta, omega: Critic, x: Step) -> Theta:
        log_pi = self.log_pi(theta, x.s)
        score = _one_hot(x.a, len(log_pi), log_pi.dtype) - jnp.exp(log_pi)
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
        """log π_θ(·|s).

        Args:
            theta: θ.
            s: the state.
        """
        if self.policy_features is None:
            return jax.nn.log_softmax(theta[s])
        return jax.nn.log_softmax(jnp.sum(jnp.asarray(self.policy_features)[s] * theta[None, :], axis=1))

    def logits(self, theta: Theta) -> Pairs:
        """The logits of π_θ(·|s) in every state."""
        psi = self.policy_features
        return theta if psi is None else jnp.tensordot(jnp.asarray(psi), theta, axes=1)

    def values(self, omega: Critic) -> States:
        """V in every state."""
        return omega if self.features is None else jnp.asarray(self.features) @ omega


@pytree
class EntropyMdp(Problem):
    """The actor-critic on an MDP with its exact answers; see `entropy_mdp`."""

    theta0: Theta
    temp: Float[Array, " s"]
    start: UInt32[Array, " s"]
    next: UInt32[Array, "s a k"]
    r: Float[Array, "#s #a #k"]
    gamma: Float[Array, "#s #a #k"]
    scale: Scalar
    truth: SoftTruth
    features: Float[Array, "s c"] | None = None
    policy_features: Float[Array, "s a d"] | None = None
    sampling: str = static(default="restart")
    F, G = forwarded("operators", "F", "G")

    def init(self, key: Key) -> tuple[Theta, Critic, Env]:
        theta = jnp.asarray(self.theta0)
        size = len(self.temp) if self.features is None else self.features.shape[1]
        episode = None
        if self.sampling == "iid":
            return theta, jnp.zeros(size, theta.dtype), None
        s = lookup(jnp.asarray(self.start), (), jax.random.bits(key, (), jnp.uint32))
        if self.sampling == "restart" and self.gamma.size > 1:  # the horizon then depends on the policy
            episode = jnp.zeros((), jnp.int32), jnp.asarray(self.scale)
        return theta, jnp.zeros(size, theta.dtype), (s, episode)

    def noise(self, key: Key) -> Words:
        """A word of random bits for each choice: the action, s', and a start or whether to restart or both."""
        return jax.random.bits(key, (SAMPLINGS[self.sampling],), jnp.uint32)

    def draw(self, u: Words, theta: Theta, env: Env) -> tuple[Step, Env]:
        s, episode = (lookup(jnp.asarray(self.start), (), u[2]), None) if env is None else env
        a = choose(jnp.exp(self.operators.log_pi(theta, s)), u[0])
        k = lookup(jnp.asarray(self.next), (s, a), u[1])
        t = next_state(self.truth.soft.successors, s, a, k)
        gamma = entry(self.gamma, s, a, k)
        horizon = None if episode is None else episode[1]
        x = Step(s, a, t, entry(self.r, s, a, k), None if self.gamma.size == 1 else gamma, horizon)
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
        """The mean of F at ω*(θ): ∇h itself for a tabular critic and restarts."""
        if self.sampling == "restart" and self.features is None:
            return jax.grad(self.h)(theta)
        return self.mean_F(theta, self.omega_star(theta))

    def omega_star(self, theta: Theta) -> Critic:
        """V_θ or, with features, the fixed point of TD under the distribution of the samples."""
        return self.truth.critic(self.operators.logits(theta), self.features, self.sampling)

    def mean_F(self, theta: Theta, omega: Critic) -> Theta:
        operators = self.operators
        visits, _, advantage = self.truth.means(operators.logits(theta), operators.values(omega), self.sampling)
        if self.sampling != "restart":
            visits = visits * jnp.asarray(self.scale)
        rows = -visits[:, None] * advantage
        return rows if self.policy_features is None else jnp.tensordot(rows, jnp.asarray(self.policy_features), axes=2)

    def mean_G(self, theta: Theta, omega: Critic) -> Critic:
        visits, delta, _ = self.truth.means(self.operators.logits(theta), self.operators.values(omega), self.sampling)
        pull = -visits / jnp.sum(visits) * delta
        return pull if self.features is None else pull @ jnp.asarray(self.features)

    def pl_constants(self, thetas: Sequence[Theta]) -> dict[str, Any]:
        """½‖∇J‖² ≥ μ(J* − J) with μ = min_s τη(s)²·min_a π(a|s)²/η*(s), the least at these points and the best policy.

        η are discounted visits. It is the inequality of Mei et al. 2020, Lemma 15, without its factor 1/S: there Σ_s is
        bounded by Cauchy-Schwarz, here state by state. There is no μ for all θ, as min π may be anything above 0.
        """
        if self.sampling != "restart" or self.features is not None or self.policy_features is not None:
            return {}
        soft = self.truth.soft
        temp, best = np.asarray(soft.temp), np.asarray(self.truth.pi_star)
        at_best = np.asarray(soft.evaluate(np.log(np.maximum(best, 1e-300))).visits)
        hot = (temp > 0) & (at_best > 0)
        if not hot.any():
            return {"mu_h": 0.0}
        found = []
        for logits in [*(np.asarray(theta, float) for theta in thetas), np.log(np.maximum(best, 1e-300))]:
            visits, pi = np.asarray(soft.evaluate(logits).visits), np.asarray(jax.nn.softmax(logits))
            found.append(np.min((temp * visits**2 * pi.min(axis=1) ** 2)[hot] / at_best[hot]))
        return {"mu_h": float(min(found))}

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

    Maximise J_τ(π_θ) = E Σ γ^k (r − τ log π_θ) over softmax policies, by `SoftOperators` on samples of the policy
    itself. H is the discounted number of steps from a start, 1/(1 − γ); where the discount varies, the mean length of
    the *earlier* episodes, which is independent of the present samples and unbiased.

    Metrics: ``gap`` J* − J(θ); ``error``, the squared distance of π_θ(·|s) to the nearest optimal policy, averaged over
    the states that the optimal policy visits; ``gradient`` ‖∇J‖²; ``tracking``; ``least_probability``, the smallest
    π_θ(a|s) over states where a choice matters.

    Args:
        mdp: the decision process; its discount must be below 1, and is 0 where an episode ends.
        temp: the temperature τ of the bonus −τ log π(a|s); 0 is the ordinary MDP.
        start: the distribution ρ of the first state, or the number of one state; uniform by default.
        sampling: "restart" goes from s to s' with probability γ and to a fresh start with 1 − γ, while δ always uses s'
            itself: states have the discounted visitation distribution, and the mean of F at V_θ is exactly ∇h, h = −J.
            "stationary" follows P alone, "iid" draws every s from ``start``, which must then have every state. These
            weigh the states differently, with the same zeros.
        features: φ, one row per state, for a linear critic V = φᵀω instead of a table.
        policy_features: ψ[s, a], a vector for each pair, for a log-linear policy instead of a table.
        theta0: the start of θ; 0, the uniform policy, by default.

    >>> import numpy as np, twoclock as tc
    >>> bandit = tc.models.Mdp(P=np.ones((1, 2, 1)), r=[[1.0, 0.0]], gamma=0.5)
    >>> problem = tc.problems.entropy_mdp(bandit, temp=1.0)
    >>> result = tc.solve(problem, tc.Fast(0.02, 0.05, 0.1), steps=5_000, seeds=4)
    >>> bool(result.history.gap.iloc[-1] < 0.1)
    True

    Reference: Zeng & Doan, Section 4.3; Mei et al. 2020.
    """
    check_dense(check_mdp(mdp))
    if mdp.gamma.max() >= 1:
        raise InputError(
            f"`mdp` must have gamma < 1 everywhere, got {mdp.gamma.max():g}: a bonus that is never discounted adds up "
            "without end; take a gamma such as 0.99"
        )
    return actor_critic(mdp, mdp.soft(temp, start), sampling, features, policy_features, theta0)


def actor_critic(
    mdp: Mdp,
    soft: SoftMdp,
    sampling: str,
    features: ArrayLike | None = None,
    policy_features: ArrayLike | None = None,
    theta0: ArrayLike | None = None,
) -> EntropyMdp:
    """The same where the temperature of each state and the start are known: those of ``soft``."""
    check_sampling(sampling, SAMPLINGS, np.asarray(soft.start))
    if sampling == "stationary":  # raises an error if there is no unique stationary distribution
        mdp.stationary(np.full((mdp.states, mdp.actions), 1 / mdp.actions))
    Phi, Psi, theta = read_actor(mdp, features, policy_features, theta0)
    gamma = mdp.gamma[(None,) * (3 - mdp.gamma.ndim)]
    gamma = gamma[:1, :1, :1] if np.ptp(gamma) == 0 else gamma
    first, after = numpy_alias_table(np.asarray(soft.start)), numpy_alias_table(mdp.P)
    r, scale, truth = mdp.r if mdp.r.ndim == 3 else mdp.r[:, :, None], 1 / (1 - gamma.max()), soft_truth(soft, mdp.P)
    return EntropyMdp(theta, soft.temp, first, after, r, gamma, scale, truth, Phi, Psi, sampling)


def check_sampling(sampling: str, options: Iterable[str], start: Float[np.ndarray, " s"]) -> None:
    """Refuse an unknown way to draw states, and independent draws from a start distribution without some of them."""
    choice("sampling", sampling, options)
    if sampling == "iid" and (start == 0).any():
        raise InputError(
            f"`start` must give every state some weight where sampling is 'iid', got none for state "
            f"{int(np.argmin(start))}; leave it out for the uniform distribution, or sample by 'restart'"
        )


def read_actor(
    mdp: Mdp, features: ArrayLike | None, policy_features: ArrayLike | None, theta0: ArrayLike | None
) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray]:
    """The features of the critic and of the policy, None for a table, and the start of θ, 0 by default."""
    shape, which = (mdp.states, mdp.actions), ", (states, actions)"
    Phi = None if features is None else read_features("features", features, mdp.states)
    Psi = None if policy_features is None else read_features("policy_features", policy_features, *shape)
    if Psi is not None:
        shape, which = Psi.shape[2:], ", one entry per policy feature"
    return Phi, Psi, np.zeros(shape) if theta0 is None else shaped("theta0", theta0, shape, which=which)


def forest(temp: float = 0.1, gamma: float = 0.9, sampling: str = "restart") -> EntropyMdp:
    """Forest management: wait for an old forest that a fire may burn, or cut it now.

    Three ages. Waiting earns 4 in the oldest and a fire sets it back with probability 0.1; cutting earns 0, 1 or 2.

    Args:
        temp: the temperature of the entropy bonus.
        sampling: "restart", "stationary" or "iid".
        gamma: the discount.

    >>> forest().truth.pi_star.shape
    (3, 2)

    Reference: Chadès et al., *MDPtoolbox*, 2014.
    """
    P = np.zeros((3, 2, 3))
    P[:, 0] = [[0.1, 0.9, 0.0], [0.1, 0.0, 0.9], [0.1, 0.0, 0.9]]
    P[:, 1, 0] = 1
    return entropy_mdp(Mdp(P, [[0.0, 0.0], [0.0, 1.0], [4.0, 2.0]], gamma), temp, sampling=sampling)


def frozen_lake(
    temp: float = 0.01, size: int = 4, gamma: float = 0.95, slippery: bool = True, sampling: str = "restart"
) -> EntropyMdp:
    """Gymnasium's FrozenLake on its 4×4 or 8×8 map: reach the goal over slippery ice, past the holes.

    Left, down, right and up; on slippery ice a step goes where it aims or to either side, a third of the time each.
    Episodes end in a hole or at the goal, which alone earns 1; there is no limit on the number of steps.

    Args:
        temp: the temperature of the entropy bonus.
        sampling: "restart", "stationary" or "iid".
        size: 4 or 8, the cells along each side.
        gamma: the discount.
        slippery: whether a step may go to either side.

    >>> frozen_lake().truth.pi_star.shape
    (16, 4)

    Reference: Towers et al., *Gymnasium*, 2024; the table is the same as ``from_gymnasium`` reads there.
    """
    return entropy_mdp(frozen_lake_mdp(size, gamma, slippery)[0], temp, 0, sampling)


def frozen_lake_mdp(size: int, gamma: float, slippery: bool) -> tuple[Mdp, Float[np.ndarray, "s a s"]]:
    """The lake, and which of its transitions end in a hole: 1 there, 0 elsewhere."""
    if not isinstance(size, int) or size not in _LAKES:
        raise InputError(f"`size` must be 4 or 8, the maps that Gymnasium names, got {short_repr(size)}")
    gamma, slippery = number("gamma", gamma, 0, 1), flag("slippery", slippery)
    letters = _LAKES[size]
    P, r, falls, discount = (np.full((size**2, 4, size**2), value) for value in (0.0, 0.0, 0.0, gamma))
    for s, a in np.ndindex(size**2, 4):
        for turn in (-1, 0, 1) if slippery else (0,):
            step = ((0, -1), (1, 0), (0, 1), (-1, 0))[(a + turn) % 4]
            row, column = np.clip(np.add(divmod(s, size), step), 0, size - 1)
            t = row * size + column
            P[s, a, t] += 1 / 3 if slippery else 1
            r[s, a, t], falls[s, a, t] = letters[t] == "G", letters[t] == "H"
            discount[s, a, t] = 0 if letters[t] in "GH" else gamma
    ends = [s for s, letter in enumerate(letters) if letter in "GH"]
    P[ends], r[ends], falls[ends], discount[ends] = np.eye(size**2)[0], 0, 0, 0
    return Mdp(P, r, discount), falls


def random_entropy_mdp(
    key: Key, states: int = 10, actions: int = 4, gamma: float = 0.9, temp: float = 0.1, sampling: str = "restart"
) -> EntropyMdp:
    """A random MDP: P(·|s, a) ∝ Unif(0, 1)ˢ, r ~ Unif(0, 1), and a uniform start.

    Args:
        key: draws the instance; given this function, ``solve`` draws one per seed.
        states, actions: the sizes |S| and |A|.
        gamma: the discount, in [0, 1).
        temp, sampling: as for ``entropy_mdp``.

    >>> import functools, jax
    >>> draw = functools.partial(random_entropy_mdp, states=5, actions=3)
    >>> jax.eval_shape(draw, jax.random.key(0)).truth.pi_star.shape  # to have numbers, call jax.jit(draw)
    (5, 3)
    """
    states, actions = whole("states", states), whole("actions", actions)
    check_size("`states`, `actions`", 3 * states * states * actions)
    number("gamma", gamma, 0, 1, below=True, remedy="a random MDP has no end")
    choice("sampling", sampling, SAMPLINGS)
    check_key(key)
    key_P, key_r = jax.random.split(key)
    P = jax.random.uniform(key_P, (states, actions, states))
    P = P / P.sum(axis=-1, keepdims=True)
    r = jax.random.uniform(key_r, (states, actions))
    start, tau = jnp.full(states, 1 / states), jnp.full(states, number("temp", temp, 0))
    theta, first, after = jnp.zeros((states, actions)), alias_table(start), alias_table(P)
    rewards, discount, scale = r[:, :, None], jnp.full((1, 1, 1), gamma), jnp.asarray(1 / (1 - gamma))
    truth = soft_truth(SoftMdp(gamma * P, r, tau, start), P)
    return EntropyMdp(theta, tau, first, after, rewards, discount, scale, truth, sampling=sampling)
