"""Variance reduction for both variables: steps are corrected by a batch's mean at an anchor."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from twoclock import tree_math
from twoclock.methods.svrg_correction import corrected
from twoclock.methods.update_rule import Both
from twoclock.protocols import Method, Operator, PyTree, Scalar, pytree
from twoclock.schedules import StepSize, read_step_sizes, step_size
from twoclock.tree_math import Sum, blend
from twoclock.validation import check_number


@pytree
class VRTDCState(Both):
    """``anchor``: (θ̃, ω̃). ``field``: the batch's mean of (F, G) there. ``mean``: of the iterates of this epoch's steps.
    ``count``: the samples of this epoch so far.
    """

    slow: Sum
    fast: Sum
    anchor: tuple[PyTree, PyTree]
    field: Sum
    mean: Sum
    count: Int[Array, ""]
    epochs: Int[Array, ""]


@pytree
class VRTDC(Method):
    """Variance-reduced TDC, and the same for any two operators: epochs of a batch at an anchor and as many steps.

        gather:  F̃ = mean of F(θ̃, ω̃, X),  G̃ = mean of G(θ̃, ω̃, X)        over ``batch`` samples
        move:    θ ← θ − α_k[F(θ, ω, X) − F(θ̃, ω̃, X) + F̃]
                 ω ← ω − β_k[G(θ, ω, X) − G(θ̃, ω̃, X) + G̃]                 on ``batch`` samples more
        anchor:  (θ̃, ω̃) = (θ, ω) = the mean of the iterates of these steps

    The estimate is the anchor. Every sample counts: a step of the run is a draw, whether gathered or moved on, so that
    half the steps do not move; the published method moves on draws from the batch again while it gathers the next,
    which a stream does not keep. ``evaluations`` is recorded beside the metrics: how often F and G were needed, once
    for a sample that is gathered and twice for one that is moved on. The batch has a fixed size, so the error ends
    where its mean's does.
    No projection.

    Args:
        alpha: step size of the slow variable θ.
        beta: step size of the fast variable ω.
        batch: samples in a batch, at least 1; a fraction counts as one more.

    >>> import twoclock as tc
    >>> result = tc.solve(tc.problems.boyan(), tc.methods.VRTDC(0.1, 0.1, batch=100), steps=1000, seeds=2)
    >>> result.history["evaluations"].iloc[-1].item()
    1500.0

    Reference: Ma, Zhou & Zou, *Variance-reduced off-policy TDC learning: non-asymptotic convergence analysis*, 2020;
    with fresh samples as in Frostig, Ge, Kakade & Sidford, *Competing with the empirical risk minimizer in a single
    pass*, 2015.
    """

    alpha: StepSize = step_size("0.01")
    beta: StepSize = step_size("0.02")
    batch: Scalar = 500.0

    def __post_init__(self) -> None:
        read_step_sizes(self)
        check_number("VRTDC(batch=…)", self.batch, lambda v: v >= 1, "be at least 1", "it counts samples")

    def init(self, theta: PyTree, omega: PyTree) -> VRTDCState:
        slow, fast = tree_math.start(theta, "theta"), tree_math.start(omega, "omega")
        anchor = slow.value, fast.value
        nothing = tree_math.start(jax.tree.map(jnp.zeros_like, anchor))
        zero = jnp.zeros((), jnp.int32)
        return VRTDCState(slow, fast, anchor, nothing, nothing, zero, zero)

    def step(self, F: Operator, G: Operator, state: VRTDCState, x: PyTree, k: Scalar) -> VRTDCState:
        size, here = jnp.ceil(jnp.asarray(self.batch, float)), (state.theta, state.omega)
        done = jnp.asarray(state.count, float)
        gathers, last = done < size, done + 1 >= 2 * size
        (f, g), field = corrected(F, G, x, here, state.anchor, state.field, done, gathers)
        slow, fast = tree_math.descend(state.slow, self.alpha(k), f), tree_math.descend(state.fast, self.beta(k), g)
        moved = jnp.maximum(done + 1 - size, 1)
        mean = blend(state.mean, jnp.where(gathers, 0, 1 / moved), (slow.value, fast.value))

        anchor = jax.tree.map(lambda new, old: jnp.where(last, new, old), mean.value, state.anchor)
        slow, fast = (
            jax.tree.map(lambda new, old: jnp.where(last, new, old), tree_math.start(new), old)
            for new, old in zip(anchor, (slow, fast), strict=True)
        )
        count = jnp.where(last, 0, state.count + 1)
        return VRTDCState(slow, fast, anchor, field, mean, count, state.epochs + jnp.asarray(last, jnp.int32))

    def estimate(self, state: VRTDCState) -> tuple[PyTree, PyTree]:
        return state.anchor

    def report(self, state: VRTDCState) -> Mapping[str, Scalar]:
        size = jnp.ceil(jnp.asarray(self.batch, float))
        done, epochs = (jnp.asarray(count, float) for count in (state.count, state.epochs))
        return {"evaluations": 3 * size * epochs + done + jnp.maximum(done - size, 0)}
