"""Average-reward MDPs on three clocks: a softmax actor, the gain and a differential critic; and known cases."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt32
from numpy.typing import ArrayLike

from twoclock.models.average_reward import AverageReward
from twoclock.models.mdp import Mdp, check_dense, check_mdp
from twoclock.models.soft_mdp import Pairs
from twoclock.problems.entropy_mdp import Critic, SoftOperators, Step, Theta, read_actor
from twoclock.protocols import InputError, Key, Problem, forwarded, pytree, static
from twoclock.sampling.alias import choose, lookup, numpy_alias_table
from twoclock.sampling.transitions import entry, next_state
from twoclock.tree_math import sqnorm
from twoclock.validation import check_size, choice, number, whole
from twoclock.validation.arrays import Array, Number, State, Words

__all__ = ["AverageRewardProblem", "access_control", "average_reward", "river_swim"]

Levels = tuple[Number, Critic]  # the gain, and values of the states or the weights of features
SAMPLINGS = {"markov": 2, "iid": 3}  # with the random words that a step takes


@pytree
class GainOperators:
    """The operators of an actor, the gain and a differential critic, which see samples and no tables.

        δ = r − τ log π(a|s) − J + V(s') − V(s)
        F = −δ·∇log π(a|s),     G = (J − r + τ log π(a|s),   −(δ − V̄)·∇V(s))

    Args:
        actor: the actor and the critic without a discount, for rewards minus the gain.
    """

    actor: SoftOperators

    def F(self, theta: Theta, omega: Levels, x: Step) -> Theta:
        gain, values = omega
        return self.actor.F(theta, values, x._replace(r=x.r - gain))

    def G(self, theta: Theta, omega: Levels, x: Step) -> Levels:
        gain, values = omega
        earned = x.r - jnp.asarray(self.actor.temp)[x.s] * self.actor.log_pi(theta, x.s)[x.a]
        return gain - earned, self.actor.G(theta, values, x._replace(r=x.r - gain - self.level(values)))

    def level(self, values: Critic) -> Number:
        """The mean of a table of values, which determines their constant; features cannot express a constant."""
        return jnp.mean(values) if self.actor.features is None else jnp.zeros((), values.dtype)


@pytree
class AverageRewardProblem(Problem):
    """The actor-critic for the average reward, with its exact answers; see `average_reward`."""

    instead_of_roots = "steps for each level, tc.Standard(alpha, (beta_gain, beta_critic)); see average_reward.md"

    theta0: Theta
    start: UInt32[Array, " s"]
    next: UInt32[Array, "s a k"]
    r: Float[Array, "#s #a #k"]
    truth: AverageReward
    best: Number
    features: Float[Array, "s c"] | None = None
    policy_features: Float[Array, "s a d"] | None = None
    sampling: str = static(default="markov")
    F, G = forwarded("gain_operators", "F", "G")

    def init(self, key: Key) -> tuple[Theta, Levels, State | None]:
        theta = jnp.asarray(self.theta0)
        size = self.r.shape[0] if self.features is None else self.features.shape[1]
        s = lookup(jnp.asarray(self.start), (), jax.random.bits(key, (), jnp.uint32))
        env = None if self.sampling == "iid" else s
        return theta, (jnp.zeros((), theta.dtype), jnp.zeros(size, theta.dtype)), env

    def noise(self, key: Key) -> Words:
        """A word of random bits for each choice: the action, s' and, for independent samples, s."""
        return jax.random.bits(key, (SAMPLINGS[self.sampling],), jnp.uint32)

    def draw(self, u: Words, theta: Theta, env: State | None) -> tuple[Step, State | None]:
        operators = self.operators
        s = choose(jnp.asarray(self.truth.evaluate(operators.logits(theta)).law), u[2]) if env is None else env
        a = choose(jnp.exp(operators.log_pi(theta, s)), u[0])
        k = lookup(jnp.asarray(self.next), (s, a), u[1])
        t = next_state(self.truth.soft.successors, s, a, k)
        return Step(s, a, t, entry(self.r, s, a, k), None, None), None if env is None else t

    @property
    def gain_operators(self) -> GainOperators:
        """F and G, which see samples and no tables."""
        return GainOperators(self.operators)

    @property
    def operators(self) -> SoftOperators:
        """The operators of an actor and a critic without a discount, for rewards minus the gain."""
        one = jnp.ones((1, 1, 1), jnp.asarray(self.theta0).dtype)
        return SoftOperators(self.truth.soft.temp, one, 1.0, self.features, self.policy_features)

    def policy(self, theta: Theta) -> Pairs:
        """π_θ[s, a]."""
        return jax.nn.softmax(self.operators.logits(theta))

    def h(self, theta: Theta) -> Number:
        """−J_τ(π_θ)."""
        return -self.truth.evaluate(self.operators.logits(theta)).gain

    def field(self, theta: Theta) -> Theta:
        """The mean of F at ω*(θ): ∇h itself if the critic is a table."""
        return jax.grad(self.h)(theta) if self.features is None else self.mean_F(theta, self.omega_star(theta))

    def omega_star(self, theta: Theta) -> Levels:
        """J_θ and V_θ or, with features, the fixed point of TD under the stationary distribution."""
        gain = self.truth.evaluate(self.operators.logits(theta)).gain
        return gain, self.critic(theta, gain)

    def critic(self, theta: Theta, gain: Number) -> Critic:
        """The root of the critic's level at any gain: for a table V_θ + J_θ − gain, so an error of the gain only shifts
        it."""
        logits = self.operators.logits(theta)
        known = self.truth.evaluate(logits)
        if self.features is None:
            return known.bias + (known.gain - gain)
        Phi, chain = jnp.asarray(self.features), self.truth.chain(logits)
        reward = known.gain + known.bias - chain @ known.bias
        weighted = Phi.T * known.law[None, :]
        return jnp.linalg.solve(weighted @ (Phi - chain @ Phi), weighted @ (reward - gain))

    def mean_F(self, theta: Theta, omega: Levels) -> Theta:
        operators = self.operators
        logits, V = operators.logits(theta), operators.values(omega[1])
        law = self.truth.evaluate(logits).law
        rows = -law[:, None] * self.truth.soft.advantage(logits, self.truth.soft.q(V), V)
        return rows if self.policy_features is None else jnp.tensordot(rows, jnp.asarray(self.policy_features), axes=2)

    def mean_G(self, theta: Theta, omega: Levels) -> Levels:
        (gain, values), logits = omega, self.operators.logits(theta)
        known, V = self.truth.evaluate(logits), self.operators.values(values)
        off = V - known.bias  # δ is the error of V: the true values would leave J_θ − gain
        ahead = self.truth.chain(logits) @ off
        pull = -known.law * (known.gain - gain - self.gain_operators.level(values) + ahead - off)
        return gain - known.gain, pull if self.features is None else pull @ jnp.asarray(self.features)

    def measure(self, theta: Theta, omega: Levels) -> dict[str, Number]:
        gain, values = omega
        logits = self.operators.logits(theta)
        known, pi = self.truth.evaluate(logits), jax.nn.softmax(logits)
        return {
            "gap": self.best - known.gain,
            "gain": jnp.sum(known.law * jnp.sum(pi * self.truth.soft.r, axis=1)),
            "tracking_1": jnp.square(gain - known.gain),
            "tracking_2": sqnorm(values - self.critic(theta, gain)),
        }


def average_reward(
    mdp: Mdp,
    temp: float = 0.0,
    sampling: str = "markov",
    *,
    start: ArrayLike | None = None,
    features: ArrayLike | None = None,
    policy_features: ArrayLike | None = None,
    theta0: ArrayLike | None = None,
) -> AverageRewardProblem:
    """Learn the policy of a finite MDP with the largest reward per step: actor, gain and differential critic.

        δ = r − τ log π(a|s) − J + V(s') − V(s)
        F = −δ·∇log π(a|s),     G = (J − r + τ log π(a|s),   −(δ − V̄)·e_s)

    on ω = (J, V). With a tuple of step sizes each level has one. The values are unique up to a
    constant only; V̄, their mean over the states, is driven to 0, as in relative value iteration.

    Metrics: ``gap`` J* − J(θ), bonus included; ``gain``, the policy's exact average reward without the bonus;
    ``tracking_1`` (J − J_θ)²; ``tracking_2`` ‖V − V(θ, J)‖².

    Args:
        mdp: the decision process, in which every state reaches every other. Its discount is ignored: where an episode
            ends the next one begins.
        temp: the temperature τ of the bonus; 0 is the ordinary average reward, whose best policy is deterministic, so
            that logits grow without end.
        sampling: "markov" follows the policy along one trajectory; "iid" draws every s from the stationary distribution
            of the current policy, which costs a linear solve per sample.
        start: the distribution of the first state, or its number; uniform by default.
        features: φ, one row per state, for V = φᵀω instead of a table; no combination of them may be constant.
        policy_features: ψ[s, a], a vector for each pair, for a log-linear policy instead of a table.
        theta0: the start of θ; 0, the uniform policy, by default. With α = 0 it stays, so that its policy is evaluated.

    >>> import twoclock as tc
    >>> shop = tc.models.Mdp(P=[[[1, 0], [0, 1]], [[1, 0], [1, 0]]], r=[[1, 0], [3, 3]], gamma=0)
    >>> result = tc.solve(tc.problems.average_reward(shop), tc.Standard(0.1, (0.01, 0.1)), steps=5_000, seeds=4)
    >>> bool((result.history.gain.iloc[-1] > 1.4) and (result.history.gap.iloc[-1] < 0.1))
    True

    Reference: Sutton & Barto, *Reinforcement learning*, 2018, sections 10.3 and 13.6; Abounadi, Bertsekas & Borkar,
    *Learning algorithms for Markov decision processes with average cost*, 2001.
    """
    check_dense(check_mdp(mdp))
    truth = mdp.average_reward(temp)
    choice("sampling", sampling, SAMPLINGS)
    best = truth.solve()
    if best.width > 1e-6 * (1 + abs(float(best.gain))):
        raise InputError(
            f"`mdp` mixes too slowly: the best gain is known to ±{best.width / 2:.1g} only after a million iterations; "
            "check P for probabilities that are almost 0"
        )
    Phi, Psi, theta = read_actor(mdp, features, policy_features, theta0)
    if Phi is not None and np.linalg.matrix_rank(np.column_stack([Phi, np.ones(mdp.states)])) <= Phi.shape[1]:
        raise InputError(
            "`features` must be independent of each other and of the constant, which differential values leave open; "
            "leave one out, or take each less its value in one state and drop those that are then zero"
        )
    first, after = numpy_alias_table(mdp.start_law(start)), numpy_alias_table(mdp.P)
    r = mdp.r if mdp.r.ndim == 3 else mdp.r[:, :, None]
    return AverageRewardProblem(theta, first, after, r, truth, best.gain, Phi, Psi, sampling)


def access_control(
    temp: float = 0.0, servers: int = 10, free: float = 0.06, sampling: str = "markov"
) -> AverageRewardProblem:
    """Access-control queuing: take or refuse the customer at the head of the queue, with few servers.

    Customers pay 1, 2, 4 or 8, equally likely; a refused one does not return. State 4n + i: n free servers, a customer
    who pays 2ⁱ; action 0 refuses, action 1 takes where a server is free. The best gain is 2.747642.

    Args:
        temp: the temperature of the entropy bonus.
        sampling: "markov" or "iid".
        servers: the number of servers.
        free: the probability that a busy server, including one just taken, is free again after the step.

    >>> import jax
    >>> access_control(servers=2).init(jax.random.key(0))[0].shape  # logits of 3 × 4 states and 2 actions
    (12, 2)

    Reference: Sutton & Barto 2018, example 10.2.
    """
    servers, free = whole("servers", servers), number("free", free, 0, 1, above=True, below=True)
    check_size("`servers`", 128 * (servers + 1) ** 2)
    P, r = np.zeros((servers + 1, 4, 2, servers + 1, 4)), np.zeros((servers + 1, 4, 2))
    for n, i, a in np.ndindex(r.shape):
        taken = a if n else 0
        busy = servers - n + taken
        r[n, i, a] = taken * 2**i
        for back in range(busy + 1):
            chance = math.comb(busy, back) * free**back * (1 - free) ** (busy - back)
            P[n, i, a, n - taken + back] = chance / 4
    states = 4 * (servers + 1)
    return average_reward(Mdp(P.reshape(states, 2, states), r.reshape(states, 2), 0.0), temp, sampling)


def river_swim(temp: float = 0.0, states: int = 6, sampling: str = "markov") -> AverageRewardProblem:
    """RiverSwim: swim against the current for a reward of 1, or drift for 0.005.

    Action 0 drifts to the left; action 1 swims: to the right with 0.35, back with 0.05, at the left bank to the right
    with 0.6, and at the right bank it stays with 0.6. Drifting at the left bank earns 0.005, swimming at the right one
    1. The best gain of six states is 0.428622.

    Args:
        temp: the temperature of the entropy bonus.
        sampling: "markov" or "iid".
        states: the number of states, 2 or more.

    >>> import jax
    >>> river_swim().init(jax.random.key(0))[0].shape
    (6, 2)

    Reference: Strehl & Littman, *An analysis of model-based interval estimation for Markov decision processes*, 2008.
    """
    last = whole("states", states, least=2) - 1
    check_size("`states`", 6 * states**2)
    P, r = np.zeros((states, 2, states)), np.zeros((states, 2))
    for s in range(states):
        P[s, 0, max(s - 1, 0)] = 1
        P[s, 1, max(s - 1, 0)] += 0.05 if s else 0.4
        P[s, 1, s] += 0.6 if s else 0
        P[s, 1, min(s + 1, last)] += 0.35 if s else 0.6
    P[last, 1] = 0
    P[last, 1, [last - 1, last]] = 0.4, 0.6
    r[0, 0], r[last, 1] = 0.005, 1
    return average_reward(Mdp(P, r, 0.0), temp, sampling)
