"""TD(λ) with any differentiable value function: the eligibility trace is the fast variable."""

from __future__ import annotations

from collections.abc import Mapping

import jax

from twoclock.problems.policy_evaluation.nonlinear import Value, td_error
from twoclock.protocols import InputError, Operator, PyTree, Scalar
from twoclock.sampling.transitions import Transition
from twoclock.validation import function

__all__ = ["trace_operators"]


def trace_operators(value: Value) -> tuple[Operator, Operator]:
    """F and G of TD(λ) with a value function V_θ, for samples from anywhere.

        δ = r + γV_θ(s') − V_θ(s),   e = ρ(cω + ∇V_θ(s)),        F = −δe,   G = ω − e

    ω is the trace of the samples before, and a whole step along G makes it e: for `Standard` and its kin take β = 1;
    `methods.ObGD` and `methods.Intentional` do so by themselves, and need no step size. Samples are as for
    `value_operators`, with one number more: ``keep``, the share c of the trace that is kept, γλ, and 0 at the first
    step of an episode.

    Args:
        value: V(params, state) -> scalar, with params any pytree.

    >>> import jax.numpy as jnp, twoclock as tc
    >>> F, G = tc.problems.trace_operators(lambda theta, phi: phi @ theta)
    >>> x = {"s": jnp.array([1.0, 0.0]), "next_state": jnp.array([0.0, 1.0]), "rho": 1.0, "r": 3.0, "gamma": 0.5}
    >>> F(jnp.zeros(2), jnp.ones(2), x | {"keep": 0.25}).tolist()  # δ = 3, e = (1.25, 0.25)
    [-3.75, -0.75]

    Reference: Sutton, *Learning to predict by the methods of temporal differences*, 1988; Sutton & Barto, 2nd ed.,
    Sections 12.2 and 12.9.
    """
    function("value", value, "params", "state")
    slope = jax.grad(value)

    def trace(theta: PyTree, omega: PyTree, sample: PyTree) -> PyTree:
        x = Transition.read(sample)
        keep = _keep(sample)
        return jax.tree.map(lambda w, p: x.rho * (keep * w + p), omega, slope(theta, x.s))

    def F(theta: PyTree, omega: PyTree, sample: PyTree) -> PyTree:
        delta = td_error(value, theta, Transition.read(sample))
        return jax.tree.map(lambda e: -delta * e, trace(theta, omega, sample))

    def G(theta: PyTree, omega: PyTree, sample: PyTree) -> PyTree:
        return jax.tree.map(lambda w, e: w - e, omega, trace(theta, omega, sample))

    return F, G


def _keep(sample: PyTree) -> Scalar:
    found = sample.get("keep") if isinstance(sample, Mapping) else getattr(sample, "keep", None)
    if found is None:
        raise InputError("`x` must be a sample with `keep`, the share of the trace that is kept: γλ, or 0 at a start")
    return found
