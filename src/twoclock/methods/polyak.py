"""Averaging of the iterates around any method."""

from __future__ import annotations

from typing import Generic

import jax.numpy as jnp

from twoclock import trees
from twoclock.core import Given, Method, Operator, PyTree, S, Scalar, pytree
from twoclock.inputs import check_method, check_number
from twoclock.methods.fast import Fast
from twoclock.trees import Sum, add, blend


@pytree
class PolyakState(Generic[S]):
    inner: S
    mean_theta: Sum
    mean_omega: Sum
    weights: Sum

    @property
    def theta(self) -> PyTree:
        return self.inner.theta

    @property
    def omega(self) -> PyTree:
        return self.inner.omega


@pytree
class Polyak(Generic[S]):
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

    method: Given[Method[S]] = Fast()  # type: ignore[assignment]  # a default binds S
    power: Given[Scalar] = 0.5

    def __post_init__(self) -> None:
        check_method(self.method, "Polyak(method=…)")
        check_number("Polyak(power=…)", self.power, lambda v: v >= 0, "be a finite number that is not negative")

    def init(self, theta: PyTree, omega: PyTree) -> PolyakState[S]:
        inner = self.method.init(theta, omega)
        theta, omega = self.method.estimate(inner)
        nothing = jnp.zeros_like(jnp.asarray(self.power, float))
        return PolyakState(inner, trees.start(theta), trees.start(omega), trees.start(nothing))

    def step(self, F: Operator, G: Operator, state: PolyakState[S], x: PyTree, k: Scalar) -> PolyakState[S]:
        inner = self.method.step(F, G, state.inner, x, k)
        theta, omega = self.method.estimate(inner)
        # Counted in units of the newest weight, Σ_{k≤n} (k/n)^power lies in [1, n] and no power overflows. From n−1 to
        # n all older weights shrink by a share 1 − (1 − 1/n)^power; at n = 1 there are none.
        n = jnp.asarray(k, float) + 1
        shrink = -jnp.expm1(self.power * jnp.log1p(-1 / jnp.maximum(n, 2)))
        weights = add(state.weights, 1 - shrink * state.weights.value)
        newest = 1 / weights.value
        mean_theta = blend(state.mean_theta, newest, theta)
        mean_omega = blend(state.mean_omega, newest, omega)
        return PolyakState(inner, mean_theta, mean_omega, weights)

    def estimate(self, state: PolyakState[S]) -> tuple[PyTree, PyTree]:
        return state.mean_theta.value, state.mean_omega.value

    def report(self, state: PolyakState[S]) -> dict[str, Scalar]:
        report = getattr(self.method, "report", None)
        return report(state.inner) if report else {}
