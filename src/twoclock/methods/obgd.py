"""Steps that are bounded so that none overshoots: for networks, without a step size to tune."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from twoclock import tree_math
from twoclock.methods.update_rule import Slow
from twoclock.protocols import Method, Operator, PyTree, Scalar, pytree
from twoclock.schedules import StepSize, read_step_sizes, step_size
from twoclock.tree_math import Sum, absolute
from twoclock.validation import check_number


@pytree
class ObGDState(Slow):
    slow: Sum
    omega: PyTree


@pytree
class ObGD(Method):
    """Overshooting-bounded gradient descent, for an error times a trace.

        e = ω − G(θ, ω, X),        α' = α_k / max(1, α_k·κ·max(|δ|, 1)·‖e‖₁)
        θ ← θ − α'·F(θ, ω, X)
        ω ← e                                                   where F = −δe and G = ω − e

    That is the form of `problems.trace_operators`: ω is the eligibility trace of TD(λ), δ the TD error. The step is
    short enough that the error of the sample, once learnt from, keeps its sign; α = 1 and κ = 2 are meant for all
    tasks, with rewards such that values are of order 1. The steps never fall, so θ ends in a neighbourhood.

    Args:
        alpha: the longest step.
        kappa: how much shorter a step is than the bound; above 1.

    >>> import twoclock as tc
    >>> tc.methods.ObGD()
    ObGD(α=1)

    Reference: Elsayed, Vasan & Mahmood, *Streaming deep reinforcement learning finally works*, 2024, Algorithm 3.
    """

    alpha: StepSize = step_size("1")
    kappa: Scalar = 2.0

    def __post_init__(self) -> None:
        read_step_sizes(self)
        check_number("ObGD(kappa=…)", self.kappa, lambda v: v > 0, "be positive", "the literature takes 2")

    def init(self, theta: PyTree, omega: PyTree) -> ObGDState:
        return ObGDState(tree_math.start(theta, "theta"), tree_math.as_floats("omega", omega))

    def step(self, F: Operator, G: Operator, state: ObGDState, x: PyTree, k: Scalar) -> ObGDState:
        f, g = F(state.theta, state.omega, x), G(state.theta, state.omega, x)
        trace = jax.tree.map(lambda w, g: w - g, state.omega, g)
        # ‖f‖₁ = |δ|‖e‖₁, so δ itself need not be known.
        size = absolute(f)
        size = jnp.maximum(size, absolute(trace).astype(size.dtype))
        alpha = jnp.asarray(self.alpha(k), size.dtype)
        bounded = alpha / jnp.maximum(1, alpha * jnp.asarray(self.kappa, size.dtype) * size)
        return ObGDState(tree_math.descend(state.slow, bounded, f), trace)

    def estimate(self, state: ObGDState) -> tuple[PyTree, PyTree]:
        return state.theta, state.omega
