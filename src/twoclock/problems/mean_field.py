"""Mean fields: a population, its policy and a critic on three clocks; the slow one determines whose optimum is
found."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from twoclock.models.average_reward import AverageReward
from twoclock.models.mdp import Mdp
from twoclock.models.mean_field import FiniteField, LinearQuadraticField
from twoclock.models.soft_mdp import Pairs, States
from twoclock.problems.average_reward import AverageRewardProblem, average_reward
from twoclock.problems.entropy_mdp import Step
from twoclock.protocols import InputError, Key, Problem, PyTree, forwarded, pytree, static
from twoclock.tree_math import sqnorm
from twoclock.validation import check_size, choice, number, short_repr, whole
from twoclock.validation.arrays import Array, Number, State, Vector, Words

__all__ = ["FiniteMeanField", "LinearQuadraticMeanField", "beach_bar", "linear_quadratic_field", "mean_field"]

FiniteLevels = tuple[States, Pairs, Number, States]  # the distribution μ, logits, J and V
LinearLevels = tuple[Number, Vector, Vector]  # the mean m, (K, b) and (w₁, w₂)
_SLOW = {"population": ("Nash equilibrium", "c1 + c3 − c1·c2"), "policy": ("social optimum", "c1(1 − c2)² + c3 + c5")}


class MeanField(Problem):
    """A field whose operators are computed together, on a sample or as means."""

    @abstractmethod
    def operators(self, theta: PyTree, omega: PyTree, x: PyTree) -> tuple[PyTree, PyTree]:
        """F and G on a sample; for None their means."""

    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self.operators(theta, omega, x)[0]

    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self.operators(theta, omega, x)[1]

    def mean_F(self, theta: PyTree, omega: PyTree) -> PyTree:
        return self.operators(theta, omega, None)[0]

    def mean_G(self, theta: PyTree, omega: PyTree) -> PyTree:
        return self.operators(theta, omega, None)[1]

    def field(self, theta: PyTree) -> PyTree:
        """The mean of F at ω*(θ); K(m − target of the best response to m) for a slow linear-quadratic population."""
        return self.mean_F(theta, self.omega_star(theta))


@pytree
class FiniteMeanField(MeanField):
    """Agents on a finite MDP whose rewards depend on the population; see `mean_field`.

    Args:
        agent: the average-reward problem of one agent without a crowd.
        price: the cost in s of a unit of population in s': C, or C + Cᵀ for the planner.
        crowd: C.
        law: the population of the exact answer.
        log_pi: its policy.
        slow: "population" or "policy".
    """

    agent: AverageRewardProblem
    price: Float[Array, "s s"]
    crowd: Float[Array, "s s"]
    law: Float[Array, " s"]
    log_pi: Float[Array, "s a"]
    slow: str = static(default="population")
    (noise,) = forwarded("agent", "noise")

    # A sample's derivatives omit that another policy visits other states: on the beach Zap ended far from the answer
    # and reported every seed as arrived.
    instead_of_roots = "steps for each level, tc.Standard(alpha, (beta_1, beta_gain, beta_critic)); see mean_field.md"

    def init(self, key: Key) -> tuple[PyTree, PyTree, State | None]:
        logits, (gain, values), env = self.agent.init(key)
        even = jnp.full(values.shape, 1 / len(values), values.dtype)
        return *self._pack((even, logits, gain, values)), env

    def draw(self, u: Words, theta: PyTree, omega: PyTree, env: State | None) -> tuple[Step, State | None]:  # type: ignore[override]
        law, logits, _, _ = self._unpack(theta, omega)
        x, env = self.agent.draw(u, logits, env)
        return x._replace(r=x.r - jnp.sum(jnp.asarray(self.price)[x.s] * law)), env

    def operators(self, theta: PyTree, omega: PyTree, x: Step | None) -> tuple[PyTree, PyTree]:
        law, logits, gain, values = self._unpack(theta, omega)
        if x is None:
            agent = self._beside(law)
            settled = self.agent.truth.evaluate(logits).law
            of_gain, critic = agent.mean_G(logits, (gain, values))
            return self._pack((law - settled, agent.mean_F(logits, (gain, values)), of_gain, critic))
        here = (jnp.arange(len(law), dtype=jnp.int32) == x.s).astype(law.dtype)
        of_gain, critic = self.agent.G(logits, (gain, values), x)
        return self._pack((law - here, self.agent.F(logits, (gain, values), x), of_gain, critic))

    def _beside(self, law: States) -> AverageRewardProblem:
        """The problem of one agent for a fixed distribution of the population."""
        return dataclasses.replace(self.agent, truth=self._charged(law, jnp.asarray(self.price)))

    def _charged(self, law: States, price: Float[Array, "s s"]) -> AverageReward:
        soft = self.agent.truth.soft
        return AverageReward(dataclasses.replace(soft, r=jnp.asarray(soft.r) - (price @ law)[:, None]))

    def omega_star(self, theta: PyTree) -> PyTree:
        """The faster variables at a fixed θ: the best response to a population, or the population of a policy."""
        if self.slow == "population":
            log_pi = jnp.asarray(self._beside(theta).truth.solve().log_pi)
            return log_pi - jnp.mean(log_pi, axis=1, keepdims=True), *self._beside(theta).omega_star(log_pi)
        law = self.agent.truth.evaluate(theta).law
        return law, *self._beside(law).omega_star(theta)

    def policy(self, theta: PyTree, omega: PyTree) -> Pairs:
        """π[s, a]."""
        return jax.nn.softmax(self._unpack(theta, omega)[1])

    def measure(self, theta: PyTree, omega: PyTree) -> dict[str, Number]:
        law, logits, gain, values = self._unpack(theta, omega)
        settled = self.agent.truth.evaluate(logits).law
        pi, best = jax.nn.softmax(logits), jnp.exp(jnp.asarray(self.log_pi))
        off = jnp.sum(jnp.asarray(self.law) * jnp.sum(jnp.square(pi - best), axis=1))
        # Relative to the population of the policy: an agent's gain by deviating, and the loss of all.
        alone = self._charged(settled, jnp.asarray(self.crowd))
        return {
            "error": sqnorm(law - self.law) if self.slow == "population" else off,
            "population_error": sqnorm(settled - self.law),
            "exploitability": alone.solve().gain - alone.evaluate(logits).gain,
            "social_return": alone.evaluate(logits).gain,
            "consistency": sqnorm(law - settled),
            "tracking": sqnorm(values - self._beside(law).critic(logits, gain)),
        }

    def _unpack(self, theta: PyTree, omega: PyTree) -> FiniteLevels:
        return (theta, *omega) if self.slow == "population" else (omega[0], theta, *omega[1:])

    def _pack(self, levels: FiniteLevels) -> tuple[PyTree, PyTree]:
        law, logits, gain, values = levels
        return (law, (logits, gain, values)) if self.slow == "population" else (logits, (law, gain, values))


def _finite_problem(model: FiniteField, slow: str) -> FiniteMeanField:
    """The problem of a finite field; `mean_field` checks the arguments and documents it."""
    answer = model.solve(slow)
    agent = average_reward(model.mdp, model.temp)
    return FiniteMeanField(agent, model.price(slow), model.crowd, answer.law, answer.log_pi, slow)


class FieldStep(NamedTuple):
    """One sample: an agent's state, action and next state, and the state of another agent."""

    x: Number
    a: Number
    next_state: Number
    other: Number
    mean: Number  # the population and the policy that they were drawn from
    policy: Vector


@pytree
class LinearQuadraticMeanField(MeanField):
    """Agents drawn from the population, whose mean is one of the levels; see `mean_field`.

    Args:
        model: the agents and their costs.
        slow: "population" or "policy".
    """

    model: LinearQuadraticField
    slow: str = static(default="population")

    def init(self, key: Key) -> tuple[PyTree, PyTree, None]:
        one = jnp.ones_like(jnp.asarray(self.model.c1))
        return *self._pack(0 * one, jnp.stack([one, 0 * one]), jnp.stack([0 * one, 0 * one])), None

    def noise(self, key: Key) -> Vector:
        """For the state, the action, the next state, and the state of another agent."""
        return jax.random.normal(key, (4,))

    def draw(self, u: Vector, theta: PyTree, omega: PyTree, env: None) -> tuple[FieldStep, None]:  # type: ignore[override]
        model, (m, policy, _) = self.model, self._unpack(theta, omega)
        x = m + model.spread * u[0]
        a = policy[1] - policy[0] * x + model.explore * u[1]
        next_state = x + model.dt * a + model.sigma * jnp.sqrt(model.dt) * u[2]
        return FieldStep(x, a, next_state, m + model.spread * u[3], m, policy), env

    def operators(self, theta: PyTree, omega: PyTree, x: FieldStep | None) -> tuple[PyTree, PyTree]:
        return self._pack(*(self._means(theta, omega) if x is None else self._on_sample(theta, omega, x)))

    def _on_sample(self, theta: PyTree, omega: PyTree, sample: FieldStep) -> LinearLevels:
        model, (m, policy, w) = self.model, self._unpack(theta, omega)
        # Samples move with the population and the policy, so that methods with slopes see how their distribution
        # changes.
        x, other = sample.x + (m - sample.mean), sample.other + (m - sample.mean)
        a = sample.a + (policy[1] - policy[0] * x) - (sample.policy[1] - sample.policy[0] * sample.x)
        next_state = sample.next_state + (x + model.dt * a) - (sample.x + model.dt * sample.a)
        cost = a**2 / 2 + model.cost(x, m)
        if self.slow == "policy":
            cost = cost + (x - m) * model.toll(other, m)
        here, there = (_hermite((state - m) / model.spread) for state in (x, next_state))
        delta = cost + (model.rho * jnp.sum(w * there) - jnp.sum(w * here)) / model.dt
        score = (a - policy[1] + policy[0] * x) / model.explore**2
        slope = jnp.stack([-x, jnp.ones_like(x)])
        return (x - next_state) / model.dt, delta * score * slope, -delta * here

    def _means(self, theta: PyTree, omega: PyTree) -> LinearLevels:
        model, (m, policy, w) = self.model, self._unpack(theta, omega)
        K, drift, s, root = policy[0], policy[1] - policy[0] * m, model.spread, jnp.sqrt(2.0)
        keep, move = 1 - model.dt * K, model.dt * drift / s
        # The mean of V(x') has the coefficients (keep·w₁ + √2·keep·move·w₂, keep²·w₂); V of the policy is the critic's
        # fixed point.
        off = w - self._critic(m, policy)
        critic = off - model.rho * jnp.stack([keep * off[0] + root * keep * move * off[1], keep**2 * off[1]])
        # ∂/∂a of cost + ρV(x')/dt at the mean action, which is linear in z.
        level = drift + model.rho / s * (w[0] + root * w[1] * move)
        slope = -K * s + model.rho / s * root * w[1] * keep
        return -drift, jnp.stack([-(level * m + slope * s), level]), critic / model.dt

    def omega_star(self, theta: PyTree) -> PyTree:
        """The best response to the population and its critic; or the mean that the policy leads to and its critic."""
        if self.slow == "population":
            policy = jnp.stack(self.model.best_response(theta))
            return policy, self._critic(theta, policy)
        m = theta[1] / theta[0]
        return m, self._critic(m, theta)

    def _critic(self, m: Number, policy: Vector) -> Vector:
        return jnp.stack(self.model.critic(m, (policy[0], policy[1]), self.slow))

    def measure(self, theta: PyTree, omega: PyTree) -> dict[str, Number]:
        m, policy, _ = self._unpack(theta, omega)
        best = self.model.mean(self.slow) if self.slow == "population" else jnp.stack(self.model.answer(self.slow))
        off = jax.tree.map(jnp.subtract, omega, self.omega_star(theta))
        return {
            "error": sqnorm(theta - best),
            "tracking": sqnorm(off),
            "consistency": jnp.square(policy[1] - policy[0] * m),
            "mean": m,
        }

    def _unpack(self, theta: PyTree, omega: PyTree) -> LinearLevels:
        return (theta, *omega) if self.slow == "population" else (omega[0], theta, omega[1])

    def _pack(self, m: Number, policy: Vector, critic: Vector) -> tuple[PyTree, PyTree]:
        return (m, (policy, critic)) if self.slow == "population" else (policy, (m, critic))


def _hermite(z: Number) -> Vector:
    """He₁ and He₂/√2: orthonormal under N(0, 1), and to the constant too, which V therefore need not have."""
    return jnp.stack([z, (z**2 - 1) / jnp.sqrt(2.0)])


def mean_field(
    model: LinearQuadraticField | FiniteField, slow: str = "population"
) -> LinearQuadraticMeanField | FiniteMeanField:
    """Learn the Nash equilibrium of a mean field, or its social optimum, from samples of agents.

    For a linear-quadratic field three levels: the mean m of the population, the policy a ~ N(b − Kx, explore²), and a
    critic V of it. An agent x and another one y are drawn from N(m, spread²), so the samples depend on m; with
    z = (x − m)/spread,

        δ = ½a² + f(x, m) + [slow="policy": (x − m)·∂f(y, m)/∂m] + (ρV(x') − V(x))/dt
        V = w₁He₁(z) + w₂He₂(z)/√2
        population  (x − x')/dt
        policy      δ·∇log π(a|x)
        critic      −δ·(He₁(z), He₂(z)/√2)

    If the population is slow, the policy is the best response to it, and the population moves until this response
    leaves it unchanged: the Nash equilibrium. If the policy is slow, the population follows it, and its effect on the
    mean is part of its cost: the term in brackets, which one agent alone would not pay. This gives the social optimum.

    A finite field has four levels, learnt from the trajectory of one agent: the distribution μ of the population, the
    logits of the policy, the gain J and the differential values V. With δ and the last two operators as in
    `average_reward` and rewards r(s, a) − (Cμ)(s), for the planner r(s, a) − ((C + Cᵀ)μ)(s),

        population  μ − e_s             policy      −δ·∇log π(a|s)

    Metrics: ``error`` ‖θ − θ*‖² to the exact answer, for a finite policy the squared distance of the probabilities,
    weighed by the exact population; ``tracking`` ‖ω − ω*(θ)‖²; ``consistency`` (b − Km)², the squared
    speed at which the policy moves the mean, 0 where the population is that of the policy, or ‖μ − distribution of π‖²;
    ``mean`` m. A finite field also has ``population_error``, the squared distance of the distribution of π to the exact
    one, ``exploitability``, an agent's possible gain by another policy, and ``social_return``, the mean reward of all;
    there ``tracking`` concerns the critic alone.

    Args:
        model: the agents and their costs.
        slow: "population", θ = m and ω = ((K, b), (w₁, w₂)), for the Nash equilibrium; "policy", θ = (K, b) and
            ω = (m, (w₁, w₂)), for the social optimum. Finite: θ = μ and ω = (logits, J, V), or the other way round.

    >>> import twoclock as tc
    >>> crowd = tc.models.LinearQuadraticField(c1=0.25, c2=1.5, c3=0.5, c4=0.6, c5=1.0)
    >>> method = tc.Standard("4/(k+400)", ("40/(k+4000)", "80/(k+4000)"))
    >>> result = tc.solve(tc.problems.mean_field(crowd, slow="policy"), method, steps=20_000, seeds=4)
    >>> bool(abs(result.omega[0].mean() - crowd.mean("policy")) < 0.05)
    True

    Reference: Angiuli, Fouque & Laurière, *Unified reinforcement Q-learning for mean field game and control problems*,
    2022; Carmona & Delarue, *Probabilistic theory of mean field games*, 2018, for the term in brackets.
    """
    answer, rule = _SLOW[choice("slow", slow, _SLOW)]
    if isinstance(model, FiniteField):
        return _finite_problem(model, slow)
    if not isinstance(model, LinearQuadraticField):
        raise InputError(
            f"`model` must be a `tc.models.LinearQuadraticField(…)` or a `FiniteField(…)`, got {short_repr(model)}"
        )
    if not model.pull(slow) > 0:
        raise InputError(
            f"`model` must have {rule} > 0 for a {answer} that a population settles at, got {model.pull(slow):g}; "
            "lower c2 or raise c3"
        )
    return LinearQuadraticMeanField(model, slow)


def linear_quadratic_field(slow: str = "population", dt: float = 0.1) -> LinearQuadraticMeanField:
    """Agents whose Nash equilibrium has the mean 0.8, and whose social optimum has the mean 0.192.

    Args:
        slow: as for ``mean_field``.
        dt: length of a step; the means do not depend on it, the gain K tends to 0.822876 as it tends to 0.

    >>> import twoclock as tc
    >>> result = tc.solve(linear_quadratic_field(), tc.Standard("4/(k+400)", "40/(k+4000)"), steps=100, seeds=2)

    Reference: Angiuli, Fouque & Laurière, 2022, Section 5.
    """
    return mean_field(LinearQuadraticField(dt=dt), slow)  # type: ignore[return-value]


def beach_bar(slow: str = "population", places: int = 7, crowd: float = 3.0, temp: float = 0.3) -> FiniteMeanField:
    """A beach with a bar in the middle: places near the bar earn more, crowded places earn less.

    Places in a row; agents go left, stay or go right, and are carried a place to either side with 0.1 each. A place
    earns 1 less its distance to the bar, the farthest at distance 1, and costs ``crowd`` times the share of people in
    it.

    Args:
        slow: as for ``mean_field``.
        places: the number of places.
        crowd: the cost of a place if all are in it.
        temp: the temperature.

    >>> import jax
    >>> beach_bar("population").init(jax.random.key(0))[0].shape  # the share of people in each place
    (7,)

    Reference: Perrin et al., *Fictitious play for mean field games*, 2020.
    """
    places, crowd = whole("places", places, 3), number("crowd", crowd, 0)
    check_size("`places`", 9 * places**2)
    P = np.zeros((places, 3, places))
    for s, a in np.ndindex(places, 3):
        for carried, chance in ((-1, 0.1), (0, 0.8), (1, 0.1)):
            P[s, a, min(max(s + a - 1 + carried, 0), places - 1)] += chance
    middle = (places - 1) / 2
    likes = 1 - np.abs(np.arange(places) - middle) / middle
    mdp = Mdp(P, np.repeat(likes[:, None], 3, axis=1), 0.0)
    choice("slow", slow, _SLOW)
    return _finite_problem(FiniteField(mdp, crowd * np.eye(places), temp), slow)
