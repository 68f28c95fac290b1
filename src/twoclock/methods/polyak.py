"""Averaging of the iterates around any method."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from twoclock.core import InputError, Operator, PyTree, pytree
from twoclock.methods.fast import Fast
from twoclock.schedules import as_number
from twoclock.trees import add, blend, residue


@pytree
class PolyakState:
    inner: Any
    mean_theta: PyTree
    mean_omega: PyTree
    weight: Any
    low: tuple[PyTree, PyTree, PyTree]

    @property
    def theta(self) -> PyTree:
        return self.inner.theta

    @property
    def omega(self) -> PyTree:
        return self.inner.omega


@pytree
class Polyak:
    """Run a method as it is and report a weighted mean of its iterates.

        θ̄_n = Σ_{k=1..n} k^power θ_k / Σ_{k=1..n} k^power        and the same for ω

    The inner method's trajectory does not change by a bit. Power 0 is the plain mean; a larger power forgets the start
    sooner and costs a factor (1+power)²/(1+2·power) in variance against it.

    Args:
        method: any method; its own estimate is what gets averaged.
        power: the exponent of the weights, not negative.

    >>> import twoclock as tc
    >>> method = tc.Polyak(tc.Fast(alpha=0.01, beta=0.02, lam=0.1), power=2)

    Reference: Polyak & Juditsky, *Acceleration of stochastic approximation by averaging*, 1992; Shamir & Zhang, 2013.
    """

    method: Any = Fast()
    power: Any = 0.5

    def __post_init__(self) -> None:
        if not hasattr(self.method, "step"):
            raise InputError(f"`Polyak(method=…)` must be a method, got {type(self.method).__name__}; try `Fast(…)`")
        as_number("Polyak(power=…)", self.power, lambda v: v >= 0, "be a finite number that is not negative")

    def init(self, theta: PyTree, omega: PyTree) -> PolyakState:
        inner = self.method.init(theta, omega)
        weight = jnp.zeros_like(jnp.asarray(self.power, float))
        theta, omega = self.method.estimate(inner)
        return PolyakState(inner, theta, omega, weight, residue(theta, omega, weight))

    def step(self, F: Operator, G: Operator, state: PolyakState, x: PyTree, k: Any) -> PolyakState:
        low_theta, low_omega, low_weight = state.low
        inner = self.method.step(F, G, state.inner, x, k)
        theta, omega = self.method.estimate(inner)
        new = (jnp.asarray(k, float) + 1) ** self.power
        weight, low_weight = add(state.weight, new, low_weight)
        theta, low_theta = blend(state.mean_theta, new / weight, theta, low_theta)
        omega, low_omega = blend(state.mean_omega, new / weight, omega, low_omega)
        return PolyakState(inner, theta, omega, weight, (low_theta, low_omega, low_weight))

    def estimate(self, state: PolyakState) -> tuple[PyTree, PyTree]:
        return state.mean_theta, state.mean_omega

    def report(self, state: PolyakState) -> dict[str, Any]:
        report = getattr(self.method, "report", None)
        return report(state.inner) if report else {}
