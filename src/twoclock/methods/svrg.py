"""Variance reduction by anchors: a pass over finite data at one point, then steps corrected by it."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from twoclock import tree_math
from twoclock.indexed_batch import parts_of
from twoclock.methods.svrg_correction import corrected
from twoclock.methods.update_rule import Both
from twoclock.protocols import InputError, Method, Operator, PyTree, Scalar, pytree
from twoclock.schedules import StepSize, read_step_sizes, step_size
from twoclock.tree_math import Sum
from twoclock.validation import check_number


@pytree
class SVRGState(Both):
    """``anchor``: (θ̃, ω̃). ``field``: the mean of (F, G) there. ``count``: the steps since the last pass began."""

    slow: Sum
    fast: Sum
    anchor: tuple[PyTree, PyTree]
    field: Sum
    count: Int[Array, ""]


@pytree
class SVRG(Method):
    """SVRG for both variables: a pass over the data at an anchor, then some passes of corrected steps.

        gather:  F̃ = mean of F(θ̃, ω̃, X),  G̃ = mean of G(θ̃, ω̃, X)        over one pass, at (θ̃, ω̃) = (θ, ω)
        move:    θ ← θ − α_k[F(θ, ω, X) − F(θ̃, ω̃, X) + F̃]
                 ω ← ω − β_k[G(θ, ω, X) − G(θ̃, ω̃, X) + G̃]                 over ``moves`` passes more

    The noise vanishes where the iterates settle, so that constant steps converge linearly to the exact solution, with
    no memory of single items. Every sample counts: a step of the run is a draw, also in a pass that moves nothing. On
    `bilevel` these are the directions of SOBA. For `bilevel` and `minimax` with finite data drawn without replacement
    (`sampling.Minibatches`): a pass then holds every item equally often, and the mean is exact.

    Args:
        alpha: step size of the slow variable θ; a constant suits.
        beta: step size of the fast variable ω.
        moves: passes that move, for each that gathers; at least 1, a fraction counts as one more.

    >>> import twoclock as tc
    >>> problem = tc.problems.quadratic_bilevel(samples=64)
    >>> result = tc.solve(problem, tc.methods.SVRG(0.2, 0.2), steps=8000, seeds=2)
    >>> bool(result.summary("error")["mean"].iloc[-1] < 1e-20)
    True

    Reference: Johnson & Zhang, *Accelerating stochastic gradient descent using predictive variance reduction*, 2013;
    with the directions of Dagréou, Ablin, Vaiter & Moreau, *A framework for bilevel optimization that enables
    stochastic and global variance reduction algorithms*, 2022.
    """

    alpha: StepSize = step_size("0.05")
    beta: StepSize = step_size("0.1")
    moves: Scalar = 2.0

    def __post_init__(self) -> None:
        read_step_sizes(self)
        check_number("SVRG(moves=…)", self.moves, lambda v: v >= 1, "be at least 1", "it counts passes over the data")

    def init(self, theta: PyTree, omega: PyTree) -> SVRGState:
        slow, fast = tree_math.start(theta, "theta"), tree_math.start(omega, "omega")
        anchor = slow.value, fast.value
        nothing = tree_math.start(jax.tree.map(jnp.zeros_like, anchor))
        return SVRGState(slow, fast, anchor, nothing, jnp.zeros((), jnp.int32))

    def step(self, F: Operator, G: Operator, state: SVRGState, x: PyTree, k: Scalar) -> SVRGState:
        one_pass, here = _steps_of_a_pass(x), (state.theta, state.omega)
        gathers = state.count < one_pass
        theta, omega = jax.tree.map(lambda new, old: jnp.where(state.count == 0, new, old), here, state.anchor)
        done = jnp.asarray(state.count, float)
        (f, g), field = corrected(F, G, x, here, (theta, omega), state.field, done, gathers)
        slow, fast = tree_math.descend(state.slow, self.alpha(k), f), tree_math.descend(state.fast, self.beta(k), g)
        length = one_pass * (1 + jnp.asarray(jnp.ceil(jnp.asarray(self.moves, float)), jnp.int32))
        count = jnp.where(state.count + 1 >= length, 0, state.count + 1)
        return SVRGState(slow, fast, (theta, omega), field, count)

    def estimate(self, state: SVRGState) -> tuple[PyTree, PyTree]:
        return state.theta, state.omega


def _steps_of_a_pass(x: PyTree) -> int:
    """The fewest batches that hold every item equally often, at both levels."""
    parts = parts_of(x)
    if parts is None or any(part.replace for part in parts):
        why = "this problem has no finite data" if parts is None else "here the same item may come twice"
        raise InputError(
            f"`SVRG` must pass over the data, and {why}; take `bilevel` or `minimax` with `sampling.Minibatches` "
            "without replacement, or tc.methods.VRTDC()"
        )
    return math.lcm(*(part.items // math.gcd(part.items, len(jnp.asarray(part.index))) for part in parts))
