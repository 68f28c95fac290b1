"""TD(λ) whose step sizes, one a feature, are learnt by stochastic meta-descent."""

from __future__ import annotations

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from twoclock import tree_math
from twoclock.methods.td_lambda_form import Vector, check_form, read
from twoclock.methods.update_rule import Slow
from twoclock.protocols import Method, Operator, PyTree, Scalar, pytree
from twoclock.tree_math import Sum
from twoclock.validation import check_number


@pytree
class TIDBDState(Slow):
    slow: Sum
    omega: PyTree
    log_steps: Vector
    memory: Vector  # h, how θ has changed with the logarithms of its step sizes


@pytree
class TIDBD(Method):
    """A step size for each feature of on-policy TD(λ), adapted by meta-descent on the squared TD error.

        β ← β + μ·δ·φ·h,        α = e^β
        θ ← θ + α·δ·e
        h ← h·max(0, 1 − α·φ·e) + α·δ·e        entry by entry

    where F = −δe, G = ω − e and e = cω + φ: the form of `problems.with_trace` and `problems.trace_operators`. This is
    the semi-gradient form, in which the target of the TD error is not differentiated. The steps need not fall, so θ
    ends in a neighbourhood; nor are they bounded: a μ too large for the rewards' units makes them explode.

    Args:
        alpha: the first step size of every feature.
        meta: the step size μ of the logarithms of the step sizes.

    >>> import twoclock as tc
    >>> problem = tc.problems.with_trace(tc.problems.boyan("td", "markov", lam=0.5))
    >>> result = tc.solve(problem, tc.methods.TIDBD(alpha=0.05), steps=2000, seeds=2)

    Reference: Kearney, Veeriah, Travnik, Sutton & Pilarski, *TIDBD: adapting temporal-difference step-sizes through
    stochastic meta-descent*, 2018, Algorithm 1.
    """

    alpha: Scalar = 0.01
    meta: Scalar = 0.001

    def __post_init__(self) -> None:
        check_number("TIDBD(alpha=…)", self.alpha, lambda v: v > 0, "be positive", "it is where the step sizes start")
        check_number(
            "TIDBD(meta=…)", self.meta, lambda v: v >= 0, "not be negative", "0 keeps the step sizes as they are"
        )

    def init(self, theta: PyTree, omega: PyTree) -> TIDBDState:
        check_form("TIDBD", theta, omega)
        slow = tree_math.start(theta, "theta")
        flat, _ = ravel_pytree(slow.value)
        log_steps = jnp.full_like(flat, jnp.log(jnp.asarray(self.alpha, flat.dtype)))
        return TIDBDState(slow, tree_math.as_floats("omega", omega), log_steps, jnp.zeros_like(flat))

    def step(self, F: Operator, G: Operator, state: TIDBDState, x: PyTree, k: Scalar) -> TIDBDState:
        _, back = ravel_pytree(state.theta)
        seen = read(F, G, state.theta, state.omega, x)
        log_steps = state.log_steps + jnp.asarray(self.meta, seen.phi.dtype) * seen.delta * seen.phi * state.memory
        steps = jnp.exp(log_steps)
        change = steps * seen.delta * seen.flat
        memory = state.memory * jnp.maximum(1 - steps * seen.phi * seen.flat, 0) + change
        return TIDBDState(tree_math.add(state.slow, back(change)), seen.trace, log_steps, memory)

    def estimate(self, state: TIDBDState) -> tuple[PyTree, PyTree]:
        return state.theta, state.omega
