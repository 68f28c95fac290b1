"""Finite mean fields on four clocks: the distribution of a population, its policy, the gain and a critic."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Float

from twoclock.models.average_reward import AverageReward
from twoclock.models.mean_field import FiniteField
from twoclock.models.soft_mdp import Pairs, States
from twoclock.problems.average_reward import AverageRewardProblem, average_reward
from twoclock.problems.entropy_mdp import Step
from twoclock.protocols import Key, Problem, PyTree, pytree, static
from twoclock.tree_math import sqnorm
from twoclock.validation.arrays import Array, Number, State, Words

__all__ = ["FiniteMeanField", "finite_mean_field"]

Levels = tuple[States, Pairs, Number, States]  # the distribution μ, logits, J and V


@pytree
class FiniteMeanField(Problem):
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

    # A sample's derivatives omit that another policy visits other states: on the beach Zap ended far from the answer
    # and reported every seed as arrived.
    instead_of_roots = "steps for each level, tc.Standard(alpha, (beta_1, beta_gain, beta_critic)); see mean_field.md"

    def init(self, key: Key) -> tuple[PyTree, PyTree, State | None]:
        logits, (gain, values), env = self.agent.init(key)
        even = jnp.full(values.shape, 1 / len(values), values.dtype)
        return *self._pack((even, logits, gain, values)), env

    def noise(self, key: Key) -> Words:
        return self.agent.noise(key)

    def draw(self, u: Words, theta: PyTree, omega: PyTree, env: State | None) -> tuple[Step, State | None]:  # type: ignore[override]
        law, logits, _, _ = self._unpack(theta, omega)
        x, env = self.agent.draw(u, logits, env)
        return x._replace(r=x.r - jnp.sum(jnp.asarray(self.price)[x.s] * law)), env

    def F(self, theta: PyTree, omega: PyTree, x: Step) -> PyTree:
        return self._operators(theta, omega, x)[0]

    def G(self, theta: PyTree, omega: PyTree, x: Step) -> PyTree:
        return self._operators(theta, omega, x)[1]

    def _operators(self, theta: PyTree, omega: PyTree, x: Step) -> tuple[PyTree, PyTree]:
        law, logits, gain, values = self._unpack(theta, omega)
        here = (jnp.arange(len(law), dtype=jnp.int32) == x.s).astype(law.dtype)
        of_gain, critic = self.agent.G(logits, (gain, values), x)
        return self._pack((law - here, self.agent.F(logits, (gain, values), x), of_gain, critic))

    def mean_F(self, theta: PyTree, omega: PyTree) -> PyTree:
        return self._means(theta, omega)[0]

    def mean_G(self, theta: PyTree, omega: PyTree) -> PyTree:
        return self._means(theta, omega)[1]

    def _means(self, theta: PyTree, omega: PyTree) -> tuple[PyTree, PyTree]:
        law, logits, gain, values = self._unpack(theta, omega)
        agent = self._beside(law)
        settled = self.agent.truth.evaluate(logits).law
        of_gain, critic = agent.mean_G(logits, (gain, values))
        return self._pack((law - settled, agent.mean_F(logits, (gain, values)), of_gain, critic))

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

    def field(self, theta: PyTree) -> PyTree:
        """The mean of F at ω*(θ)."""
        return self.mean_F(theta, self.omega_star(theta))

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

    def _unpack(self, theta: PyTree, omega: PyTree) -> Levels:
        return (theta, *omega) if self.slow == "population" else (omega[0], theta, *omega[1:])

    def _pack(self, levels: Levels) -> tuple[PyTree, PyTree]:
        law, logits, gain, values = levels
        return (law, (logits, gain, values)) if self.slow == "population" else (logits, (law, gain, values))


def finite_mean_field(model: FiniteField, slow: str) -> FiniteMeanField:
    """The problem of a finite field; `mean_field` checks the arguments and documents it."""
    answer = model.solve(slow)
    agent = average_reward(model.mdp, model.temp)
    return FiniteMeanField(agent, model.price(slow), model.crowd, answer.law, answer.log_pi, slow)
