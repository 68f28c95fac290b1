"""The linear-quadratic mean field in closed form: its Nash equilibrium and its social optimum."""

from __future__ import annotations

import math
from typing import Annotated, Any

from twoclock.models.float64 import finite, not_negative, positive
from twoclock.protocols import InputError, checked, pytree
from twoclock.validation.arrays import Number

Real = Annotated[Any, Number]  # a plain number; an array where the model is part of a program
Pair = tuple[Number, Number]


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

    c1: Real = checked(not_negative, default=0.25)
    c2: Real = checked(finite, default=1.5)
    c3: Real = checked(not_negative, default=0.5)
    c4: Real = checked(finite, default=0.6)
    c5: Real = checked(finite, default=1.0)
    sigma: Real = checked(not_negative, default=0.3)
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
        """f(x, m)."""
        f: Number = self.c1 * (x - self.c2 * m) ** 2 + self.c3 * (x - self.c4) ** 2 + self.c5 * m**2
        return f

    def toll(self, x: Number, m: Number) -> Number:
        """∂f/∂m: the cost of a larger mean to an agent at x."""
        slope: Number = -2 * self.c1 * self.c2 * (x - self.c2 * m) + 2 * self.c5 * m
        return slope

    def critic(self, m: Number, policy: Pair, slow: str) -> Pair:
        """The weights of He₁(z) and He₂(z)/√2, z = (x − m)/spread, in V of a policy where the mean is m.

        V = c + ρE V(x') for the cost c of a step; for the planner x times the mean toll is part of it.
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
