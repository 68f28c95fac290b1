"""Steps that cut the error by a fixed fraction: for networks, without a step size to tune."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twoclock import tree_math
from twoclock.methods.update_rule import Slow
from twoclock.protocols import Method, Operator, PyTree, Scalar, pytree
from twoclock.schedules import StepSize, as_schedule, step_size
from twoclock.tree_math import Sum
from twoclock.validation import check_number

_TINY = 1e-8


@pytree
class IntentionalState(Slow):
    """``squares``: the mean of g² by entry. ``energy``, ``weight``: the sum of ‖g‖²/√v along the trace, and of its
    weights. ``error``: the mean of δ².
    """

    slow: Sum
    omega: PyTree
    squares: PyTree
    energy: Float[Array, ""]
    weight: Float[Array, ""]
    error: Float[Array, ""]


@pytree
class Intentional(Method):
    """Steps that change what is predicted by a fixed fraction η of the error, for an error times a trace.

        z = ω − G(θ, ω, X),    g = −G(θ, 0, X),    v ← β₂v + (1 − β₂)g²,    D = diag(v̂)^−½
        α' = η / √(σ·zᵀDz),    σ = the mean of gᵀDg along the trace
        θ ← θ − α'·D·F(θ, ω, X), with |δ| at most C times its root mean square
        ω ← z                                                   where F = −δz, G = ω − z and z = cω + g

    That is the form of `problems.trace_operators`: ω is the eligibility trace of TD(λ), g = ∇V(s), δ the TD error.
    Without a trace, c = 0, one step moves V(s) by ηδ to first order. σ weighs the gradients as the trace does, and
    starts anew with it; in the published program it goes on from one episode to the next. Where ω does not have the
    form of θ, D is 1. The steps never fall, so θ ends in a neighbourhood.

    Args:
        eta: the fraction η of the error that a step is to take away, at most 1.
        decay: β₂, of the mean squares of gradients.
        clip: the bound C on an error, in units of its root mean square.
        clip_decay: of the mean square of errors.

    >>> import twoclock as tc
    >>> tc.methods.Intentional()
    Intentional(eta=0.5)

    Reference: Sharifnassab, Elsayed, De Asis, Mahmood & Sutton, *Intentional updates for streaming reinforcement
    learning*, 2026, Algorithm 1 as its authors' program has it.
    """

    eta: StepSize = step_size("0.5")
    decay: Scalar = 0.999
    clip: Scalar = 20.0
    clip_decay: Scalar = 0.9998

    def __post_init__(self) -> None:
        # Not an averaging weight, though it is at most 1: its field has no bound, and intervals tell of constant steps.
        object.__setattr__(self, "eta", as_schedule(self.eta, "eta", most=1.0))
        for name in ("decay", "clip_decay"):
            check_number(f"Intentional({name}=…)", getattr(self, name), lambda v: 0 <= v < 1, "lie in [0, 1)")
        check_number("Intentional(clip=…)", self.clip, lambda v: v > 0, "be positive")

    def init(self, theta: PyTree, omega: PyTree) -> IntentionalState:
        slow, omega = tree_math.start(theta, "theta"), tree_math.as_floats("omega", omega)
        zero = jnp.zeros((), _dtype(omega))
        return IntentionalState(slow, omega, jax.tree.map(jnp.zeros_like, omega), zero, zero, zero + 1)

    def step(self, F: Operator, G: Operator, state: IntentionalState, x: PyTree, k: Scalar) -> IntentionalState:
        theta, omega = state.theta, state.omega
        f = F(theta, omega, x)
        g = jax.tree.map(jnp.negative, G(theta, jax.tree.map(jnp.zeros_like, omega), x))
        trace = jax.tree.map(lambda w, new: w - new, omega, G(theta, omega, x))
        dtype = state.energy.dtype
        decay, clip, clip_decay = (jnp.asarray(value, dtype) for value in (self.decay, self.clip, self.clip_decay))
        count = jnp.asarray(k, dtype) + 1

        squares = jax.tree.map(lambda v, g: decay * v + (1 - decay) * jnp.square(g), state.squares, g)
        scale = jax.tree.map(lambda v: jnp.sqrt(v / (1 - decay**count)) + _TINY, squares)
        alike = _form(f) == _form(scale)
        scale = scale if alike else jax.tree.map(jnp.ones_like, trace)
        direction = _over(f, scale) if alike else f
        kept = jnp.clip(_ratio(_product(_minus(trace, g), omega), _product(omega, omega)), 0, 1)
        energy = kept * state.energy + _product(_over(g, scale), g)
        weight = kept * state.weight + 1
        size = jnp.sqrt(energy / weight * _product(_over(trace, scale), trace))

        square = _ratio(_product(f, f).astype(dtype), _product(trace, trace))  # δ², for f = −δz
        error = clip_decay * state.error + (1 - clip_decay) * square
        most = clip * jnp.sqrt(error / (1 - clip_decay**count))
        share = jnp.where(square > 0, jnp.minimum(1, _ratio(most, jnp.sqrt(square))), 1)
        alpha = jnp.asarray(self.eta(k), dtype) * share / jnp.maximum(size, _TINY)
        return IntentionalState(tree_math.descend(state.slow, alpha, direction), trace, squares, energy, weight, error)

    def estimate(self, state: IntentionalState) -> tuple[PyTree, PyTree]:
        return state.theta, state.omega


def _dtype(tree: PyTree) -> jnp.dtype:
    return jnp.result_type(*jax.tree.leaves(tree)) if jax.tree.leaves(tree) else jnp.result_type(float)


def _form(tree: PyTree) -> tuple[object, list[tuple[int, ...]]]:
    return jax.tree.structure(tree), [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]


def _minus(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.subtract, a, b)


def _over(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.divide, a, b)


def _product(a: PyTree, b: PyTree) -> Float[Array, ""]:
    found = sum(jnp.sum(x * y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    return jnp.asarray(found, _dtype(a))


def _ratio(a: Float[Array, ""], b: Float[Array, ""]) -> Float[Array, ""]:
    """a/b, and 0 where b is."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)
