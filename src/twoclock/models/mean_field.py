"""Mean fields with exact answers, linear-quadratic or finite: the Nash equilibrium and the social optimum."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from twoclock.models.average_reward import AverageReward
from twoclock.models.mdp import Mdp, check_mdp
from twoclock.models.soft_mdp import SoftMdp
from twoclock.protocols import InputError, checked, pytree
from twoclock.validation import number
from twoclock.validation.arrays import Number, finite_number, positive, shaped

Real = Annotated[Any, Number]  # a plain number; an array where the model is part of a program
Pair = tuple[Number, Number]
Law = Float[np.ndarray, " s"]
_LARGEST_CROWD = 1e100
_RESIDUAL = 1e-9  # of the fixed point, as a sum of absolute values


@pytree
class LinearQuadraticField:
    """A linear-quadratic mean field: the cost of an agent depends on its place and on the mean m of all.

        x' = x + a·dt + σ√dt·N(0, 1)
        cost of a step: dt·(½a² + f(x, m)),    f = c₁(x − c₂m)² + c₃(x − c₄)² + c₅m²,    discount ρ = exp(−rate·dt)

    Policies are linear, a = b − Kx. *Nash equilibrium*: no agent gains by another policy while m stays, and m is the
    mean that the policy leads to, b/K. *Social optimum*: the steady state of the planner who minimises the discounted
    cost of all agents and moves m with their policy. In both the gain is that of the scalar Riccati equation,

        V = px² + …,   p = dt(c₁ + c₃) + ρp/(1 + 2ρp·dt),   K = 2ρp/(1 + 2ρp·dt)

    and the mean has a closed form without dt, rate or σ. As dt → 0 and at rate 1, K → 2γ with 2γ² + γ = c₁ + c₃.

    Args:
        c1, c2: weight of the distance to c₂ times the mean.
        c3, c4: weight of the distance to the place c₄.
        c5: weight of the square of the mean, which no agent alone can change.
        sigma: standard deviation of the noise in a unit of time.
        dt: length of a step.
        rate: discount rate in a unit of time.
        explore: standard deviation of the noise that agents add to their action; the answers do not depend on it.
        spread: standard deviation of the states that samples come from, N(m, spread²); nor on this.

    >>> field = LinearQuadraticField()
    >>> round(float(field.mean("population")), 12), round(float(field.mean("policy")), 12)
    (0.8, 0.192)

    Reference: Angiuli, Fouque & Laurière, *Unified reinforcement Q-learning for mean field game and control problems*,
    2022.
    """

    c1: Real = checked(finite_number, 0, default=0.25)
    c2: Real = checked(finite_number, default=1.5)
    c3: Real = checked(finite_number, 0, default=0.5)
    c4: Real = checked(finite_number, default=0.6)
    c5: Real = checked(finite_number, default=1.0)
    sigma: Real = checked(finite_number, 0, default=0.3)
    dt: Real = checked(positive, default=0.1)
    rate: Real = checked(positive, default=1.0)
    explore: Real = checked(positive, default=1.0)
    spread: Real = checked(positive, default=1.0)

    def __post_init__(self) -> None:
        if not self.c1 + self.c3 > 0:
            raise InputError("`c1`, `c3` must not both be 0: an agent's own state would cost nothing; raise one")

    @property
    def rho(self) -> Number:
        """The discount of a step."""
        # Powers, here and below, are NumPy's in float64 for plain numbers and JAX's within a program.
        rho: Number = math.e ** (-self.rate * self.dt)
        return rho

    @property
    def gain(self) -> Number:
        """K of both answers; the Riccati equation is 2ρdt·p² + (1 − ρ − 2ρdt²·c)p − dt·c = 0 with c = c₁ + c₃."""
        c, dt, rho = self.c1 + self.c3, self.dt, self.rho
        half = (1 - rho - 2 * rho * dt**2 * c) / 2
        p = ((half**2 + 2 * rho * dt**2 * c) ** 0.5 - half) / (2 * rho * dt)
        K: Number = 2 * rho * p / (1 + 2 * rho * p * dt)
        return K

    def pull(self, slow: str) -> Number:
        """The slope of the cost of deviating in the mean; the answer is unique and stable where it is > 0."""
        nash: Number = self.c1 + self.c3 - self.c1 * self.c2
        social: Number = self.c1 * (1 - self.c2) ** 2 + self.c3 + self.c5
        return nash if slow == "population" else social

    def mean(self, slow: str) -> Number:
        """The mean of the Nash equilibrium (``slow="population"``) or of the social optimum (``slow="policy"``)."""
        m: Number = self.c3 * self.c4 / self.pull(slow)
        return m

    def best_response(self, m: Number) -> Pair:
        """K and b of the best policy of one agent where the mean stays at m: towards the minimum of f(·, m)."""
        target = (self.c1 * self.c2 * m + self.c3 * self.c4) / (self.c1 + self.c3)
        return self.gain, self.gain * target

    def answer(self, slow: str) -> Pair:
        """K and b of the Nash equilibrium or of the social optimum."""
        return self.gain, self.gain * self.mean(slow)

    def cost(self, x: Number, m: Number) -> Number:
        """The cost f(x, m) of an agent.

        Args:
            x: the state of the agent.
            m: the mean of the population.
        """
        f: Number = self.c1 * (x - self.c2 * m) ** 2 + self.c3 * (x - self.c4) ** 2 + self.c5 * m**2
        return f

    def toll(self, x: Number, m: Number) -> Number:
        """∂f/∂m: the cost of a larger mean to an agent at x.

        Args:
            x: the state of the agent.
            m: the mean of the population.
        """
        slope: Number = -2 * self.c1 * self.c2 * (x - self.c2 * m) + 2 * self.c5 * m
        return slope

    def critic(self, m: Number, policy: Pair, slow: str) -> Pair:
        """The weights of He₁(z) and He₂(z)/√2, z = (x − m)/spread, in V of a policy where the mean is m.

        V = c + ρE V(x') for the cost c of a step; for the planner x times the mean toll is part of it.

        Args:
            m: the mean of the population.
            policy: its K and b.
            slow: "population" for the Nash equilibrium, "policy" for the social optimum.
        """
        K, b = policy
        s, dt, rho, root = self.spread, self.dt, self.rho, math.sqrt(2)
        drift, keep = b - K * m, 1 - dt * K
        linear = s * (2 * self.c1 * (1 - self.c2) * m + 2 * self.c3 * (m - self.c4) - K * drift)
        if slow == "policy":
            linear = linear + s * self.toll(m, m)
        w2 = dt * root * s**2 * (self.c1 + self.c3 + K**2 / 2) / (1 - rho * keep**2)
        w1 = (dt * linear + rho * w2 * root * keep * dt * drift / s) / (1 - rho * keep)
        return w1, w2


class FieldAnswer(NamedTuple):
    """A distribution μ that is stationary under the policy that responds to it, and that policy as
    log-probabilities."""

    law: Annotated[Any, Law]
    log_pi: Annotated[Any, Float[np.ndarray, "s a"]]


class FiniteField:
    """A mean field on a finite MDP: an agent earns r(s, a) − (Cμ)(s), where μ is the distribution of all agents.

        Nash equilibrium    π maximises the reward per step, bonus −τ log π included, while μ stays;
                            μ is stationary under π
        social optimum      max over π of Σ_s μ_π(s)(r_π(s) − (Cμ_π)(s) + τ·entropy of π(·|s))

    The optimum is the equilibrium of agents who also pay their cost to the others, (C + Cᵀ)μ instead of Cμ. Where
    C + Cᵀ is positive semidefinite both are unique (over distributions of pairs the social return is concave, and so is
    the potential of the game if C is symmetric) and are found as a root of μ ↦ distribution of the best response − μ.

    Args:
        mdp: the decision process; every state must reach every other, and its discount plays no part.
        crowd: C[s, s'], the cost to an agent in s of one unit of the population in s'.
        temp: the temperature τ, above 0, so that the best response is unique.

    Two equally good places; in one of them a crowd costs twice as much:

    >>> import numpy as np
    >>> move = np.zeros((2, 2, 2)); move[:, 0, 0] = move[:, 1, 1] = 1
    >>> field = FiniteField(Mdp(move, np.zeros((2, 2)), 0.0), crowd=np.diag([2.0, 1.0]), temp=0.1)
    >>> field.solve("population").law.round(3).tolist(), field.solve("policy").law.round(3).tolist()
    ([0.353, 0.647], [0.344, 0.656])

    Reference: Lasry & Lions, *Mean field games*, 2007; Perrin et al., *Fictitious play for mean field games*, 2020.
    """

    def __init__(self, mdp: Mdp, crowd: ArrayLike, temp: float = 0.1) -> None:
        self.mdp, self.temp = check_mdp(mdp), number("temp", temp, 0, above=True)
        self.crowd = shaped("crowd", crowd, (mdp.states, mdp.states))
        largest = np.abs(self.crowd).max()
        if largest > _LARGEST_CROWD:
            raise InputError(f"`crowd` must be at most {_LARGEST_CROWD:g} in size, got {largest:.3g}; change its unit")
        lowest = float(np.linalg.eigvalsh(self.crowd + self.crowd.T)[0])
        if lowest < -1e-9 * max(1.0, largest):
            raise InputError(
                f"`crowd` must have C + Cᵀ positive semidefinite, got the eigenvalue {lowest:.3g}: "
                "agents who like a crowd have several equilibria; raise its diagonal"
            )
        self.exact: AverageReward = mdp.average_reward(self.temp)  # without the crowd

    def price(self, slow: str) -> Float[np.ndarray, "s s"]:
        """The price of a crowd: C to an agent (``slow="population"``), C + Cᵀ by a planner."""
        return self.crowd if slow == "population" else self.crowd + self.crowd.T

    def with_crowd(self, law: Law, slow: str) -> AverageReward:
        """The average-reward MDP of one agent for a fixed distribution of the population.

        Args:
            law: the share of the population in each state.
            slow: "population" for the Nash equilibrium, "policy" for the social optimum.
        """
        soft = self.exact.soft
        charged = np.asarray(soft.r) - (self.price(slow) @ law)[:, None]
        return AverageReward(SoftMdp(soft.P, charged, soft.temp, soft.start, soft.successors))

    def respond(self, law: Law, slow: str) -> FieldAnswer:
        """The best response to a distribution, and the stationary distribution that it leads to.

        Args:
            law: the share of the population in each state.
            slow: "population" for the Nash equilibrium, "policy" for the social optimum.
        """
        log_pi = self.with_crowd(law, slow).solve().log_pi
        return FieldAnswer(self.exact.evaluate(log_pi).law, np.asarray(log_pi))

    def solve(self, slow: str) -> FieldAnswer:
        """The Nash equilibrium (``slow="population"``) or the social optimum (``slow="policy"``)."""
        from scipy.optimize import root  # slow to load, and seldom needed

        even = np.full(self.mdp.states, 1 / self.mdp.states)

        def off_by(law: Law) -> Law:
            return np.asarray(self.respond(law, slow).law) - law

        found: Any = root(off_by, even, tol=1e-13)
        answer = self.respond(found.x, slow)
        off = float(np.abs(answer.law - found.x).sum())
        if not off <= _RESIDUAL:
            raise InputError(
                f"`crowd` is too strong against `temp`: the distribution of the best response is off by "
                f"{off:.2g}; raise temp"
            )
        return answer

    def social_return(self, log_pi: Float[np.ndarray, "s a"]) -> float:
        """The mean reward of a step of all agents who play one policy, with its bonus."""
        known = self.exact.evaluate(log_pi)
        return float(known.gain - known.law @ self.crowd @ known.law)
