"""TD(λ) without a step size to tune: bounded steps, intended steps, and step sizes that are learnt per feature.

All of them read TD(λ) from its two operators, F = −δe and G = ω − e with e = cω + φ, the form of `problems.with_trace`
and `problems.trace_operators`. Here δ is the TD error, ω the eligibility trace before a sample and e after it, and c is
γλ inside an episode and 0 at its first step. Their steps need not fall, so θ ends in a neighbourhood.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from twoclock import tree_math
from twoclock.protocols import InputError, Method, Operator, PyTree, Scalar, checked, pytree
from twoclock.schedules import StepSize, as_schedule, step_size
from twoclock.tree_math import Sum, absolute, difference
from twoclock.validation import BELOW_ONE, NOT_NEGATIVE, POSITIVE, POSITIVE_FRACTION, check_number

Vector = Float[Array, " n"]
_TINY = 1e-8


@pytree
class ObGDState:
    """θ, and ω, the eligibility trace."""

    slow: Sum
    omega: PyTree

    @property
    def theta(self) -> PyTree:
        return self.slow.value


@pytree
class ObGD(Method):
    """Overshooting-bounded gradient descent, for an error times a trace.

        e = ω − G(θ, ω, X),        α' = α_k / max(1, α_k·κ·max(|δ|, 1)·‖e‖₁)
        θ ← θ − α'·F(θ, ω, X)
        ω ← e                                                   where F = −δe and G = ω − e

    A step is short enough that the error of the sample, once learnt from, keeps its sign; α = 1 and κ = 2 are meant for
    all tasks, with rewards such that values are of order 1.

    Args:
        alpha: the longest step.
        kappa: how much shorter a step is than the bound; above 1.

    >>> import twoclock as tc
    >>> tc.methods.ObGD()
    ObGD(α=1)

    Reference: Elsayed, Vasan & Mahmood, *Streaming deep reinforcement learning finally works*, 2024, Algorithm 3.
    """

    alpha: StepSize = step_size("1")
    kappa: Scalar = checked(check_number, *POSITIVE, "the literature takes 2", default=2.0)

    def init(self, theta: PyTree, omega: PyTree) -> ObGDState:
        return ObGDState(tree_math.start(theta, "theta"), tree_math.as_floats("omega", omega))

    def step(self, F: Operator, G: Operator, state: ObGDState, x: PyTree, k: Scalar) -> ObGDState:
        f, g = F(state.theta, state.omega, x), G(state.theta, state.omega, x)
        trace = difference(state.omega, g)
        # ‖f‖₁ = |δ|‖e‖₁, so δ itself need not be known.
        size = absolute(f)
        size = jnp.maximum(size, absolute(trace).astype(size.dtype))
        alpha = jnp.asarray(self.alpha(k), size.dtype)
        bounded = alpha / jnp.maximum(1, alpha * jnp.asarray(self.kappa, size.dtype) * size)
        return ObGDState(tree_math.descend(state.slow, bounded, f), trace)


@pytree
class IntentionalState(ObGDState):
    squares: PyTree  # the mean of g² by entry
    energy: Float[Array, ""]  # the sum of ‖g‖²/√v along the trace
    weight: Float[Array, ""]  # the sum of its weights
    error: Float[Array, ""]  # the mean of δ²


@pytree
class Intentional(Method):
    """Steps that change the prediction by a fixed fraction η of the error, for an error times a trace.

        z = ω − G(θ, ω, X),    g = −G(θ, 0, X),    v ← β₂v + (1 − β₂)g²,    D = diag(v̂)^−½
        α' = η / √(σ·zᵀDz),    σ = the mean of gᵀDg along the trace
        θ ← θ − α'·D·F(θ, ω, X), with |δ| at most C times its root mean square
        ω ← z                                                   where F = −δz, G = ω − z and z = cω + g

    Without a trace, c = 0, one step moves V(s) by ηδ to first order. σ starts again with the trace; in the published
    program it continues from one episode to the next. Where ω does not have the form of θ, D is 1.

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

    # Not an averaging weight, though it is at most 1: with ``most`` it would count as one, and intervals would not tell
    # of constant steps.
    eta: StepSize = checked(lambda what, value: as_schedule(value, "eta", most=1.0), default="0.5")
    decay: Scalar = checked(check_number, *BELOW_ONE, default=0.999)
    clip: Scalar = checked(check_number, *POSITIVE, default=20.0)
    clip_decay: Scalar = checked(check_number, *BELOW_ONE, default=0.9998)

    def init(self, theta: PyTree, omega: PyTree) -> IntentionalState:
        slow, omega = tree_math.start(theta, "theta"), tree_math.as_floats("omega", omega)
        zero = jnp.zeros((), _dtype(omega))
        return IntentionalState(slow, omega, jax.tree.map(jnp.zeros_like, omega), zero, zero, zero + 1)

    def step(self, F: Operator, G: Operator, state: IntentionalState, x: PyTree, k: Scalar) -> IntentionalState:
        theta, omega = state.theta, state.omega
        f = F(theta, omega, x)
        g = jax.tree.map(jnp.negative, G(theta, jax.tree.map(jnp.zeros_like, omega), x))
        trace = difference(omega, G(theta, omega, x))
        dtype = state.energy.dtype
        decay, clip, clip_decay = (jnp.asarray(value, dtype) for value in (self.decay, self.clip, self.clip_decay))
        count = jnp.asarray(k, dtype) + 1

        squares = jax.tree.map(lambda v, g: decay * v + (1 - decay) * jnp.square(g), state.squares, g)
        scale = jax.tree.map(lambda v: jnp.sqrt(v / (1 - decay**count)) + _TINY, squares)
        alike = _same_form(f, scale)
        scale = scale if alike else jax.tree.map(jnp.ones_like, trace)
        direction = jax.tree.map(jnp.divide, f, scale) if alike else f
        kept = jnp.clip(_divide(_product(difference(trace, g), omega), _product(omega, omega)), 0, 1)
        energy = kept * state.energy + _product(jax.tree.map(jnp.divide, g, scale), g)
        weight = kept * state.weight + 1
        size = jnp.sqrt(energy / weight * _product(jax.tree.map(jnp.divide, trace, scale), trace))

        square = _divide(_product(f, f).astype(dtype), _product(trace, trace))  # δ², for f = −δz
        error = clip_decay * state.error + (1 - clip_decay) * square
        most = clip * jnp.sqrt(error / (1 - clip_decay**count))
        share = jnp.where(square > 0, jnp.minimum(1, _divide(most, jnp.sqrt(square))), 1)
        alpha = jnp.asarray(self.eta(k), dtype) * share / jnp.maximum(size, _TINY)
        return IntentionalState(tree_math.descend(state.slow, alpha, direction), trace, squares, energy, weight, error)


@pytree
class TIDBDState(ObGDState):
    log_steps: Vector
    memory: Vector  # h, how θ has changed with the logarithms of its step sizes


@pytree
class TIDBD(Method):
    """A step size for each feature of on-policy TD(λ), adapted by meta-descent on the squared TD error.

        β ← β + μ·δ·φ·h,        α = e^β
        θ ← θ + α·δ·e
        h ← h·max(0, 1 − α·φ·e) + α·δ·e        entry by entry

    for the operators of `problems.with_trace` and `problems.trace_operators`: the semi-gradient form, which does not
    differentiate the target of the TD error. Steps are not bounded: a μ too large for the rewards' units makes them
    explode.

    Args:
        alpha: the first step size of every feature.
        meta: the step size μ of the logarithms of the step sizes.

    >>> import twoclock as tc
    >>> problem = tc.problems.with_trace(tc.problems.boyan("td", "markov", lam=0.5))
    >>> result = tc.solve(problem, tc.methods.TIDBD(alpha=0.05), steps=2000, seeds=2)

    Reference: Kearney, Veeriah, Travnik, Sutton & Pilarski, *TIDBD: adapting temporal-difference step-sizes through
    stochastic meta-descent*, 2018, Algorithm 1.
    """

    alpha: Scalar = checked(check_number, *POSITIVE, "it is where the step sizes start", default=0.01)
    meta: Scalar = checked(check_number, *NOT_NEGATIVE, "0 keeps the step sizes as they are", default=0.001)

    def init(self, theta: PyTree, omega: PyTree) -> TIDBDState:
        return TIDBDState(*_start(self, theta, omega))

    def step(self, F: Operator, G: Operator, state: TIDBDState, x: PyTree, k: Scalar) -> TIDBDState:
        _, back = ravel_pytree(state.theta)
        delta, phi, _, trace, flat = _read_sample(F, G, state.theta, state.omega, x)
        log_steps = state.log_steps + jnp.asarray(self.meta, phi.dtype) * delta * phi * state.memory
        steps = jnp.exp(log_steps)
        change = steps * delta * flat
        memory = state.memory * jnp.maximum(1 - steps * phi * flat, 0) + change
        return TIDBDState(tree_math.add(state.slow, back(change)), trace, log_steps, memory)


@pytree
class SwiftTDState(ObGDState):
    log_steps: Vector  # β
    change: Vector  # θ − θ_old
    dutch: Vector  # z
    slope: Vector  # z̄ = ∂z/∂β
    memory: Vector  # h = ∂θ/∂β
    memory_before: Vector  # h_old
    credit: Vector  # p, the trace of φ·h


@pytree
class SwiftTD(Method):
    """On-policy true online TD(λ) with a learnt step size for each feature and a bound η on the rate of learning.

        τ = Σ e^β·φ²,    s = min(1, η/τ)·e^β·φ,    v = φᵀ(θ − θ_old)
        z ← cz + s(1 − (cz)ᵀφ),        p ← cp + h_old·φ,        z̄ ← cz̄ + s(1 − (cz)ᵀφ − cz̄·φ)
        θ ← θ + (δ + v)z − sv
        β ← min(β + μ·δ·p/e^β, ln η)
        h ← h − h_old·φ(z − s) − h·s·φ + (δ + v)z̄ − sv

    and where τ > η the features that are present forget h and z̄, and β falls by φ²·ln(1/decay). For the operators of
    `problems.with_trace` and `problems.trace_operators`, and ρ = 1 alone. Of the authors' programs, which differ, this
    is the one for dense features, but h and z̄ of absent features stay as in those for sparse ones.

    Args:
        alpha: the first step size of every feature.
        meta: the step size μ of the logarithms of the step sizes.
        eta: the bound η on the rate of learning τ, at most 1: the share of a sample's error that its step may remove.
        decay: how fast step sizes fall where they ask for more, in (0, 1].

    >>> import twoclock as tc
    >>> problem = tc.problems.with_trace(tc.problems.boyan("td", "markov", lam=0.5))
    >>> result = tc.solve(problem, tc.methods.SwiftTD(), steps=2000, seeds=2)

    Reference: Javed, Sharifnassab & Sutton, *SwiftTD: a fast and robust algorithm for temporal difference learning*,
    2024, and its authors' program.
    """

    alpha: Scalar = checked(check_number, *POSITIVE, "it is where the step sizes start", default=0.01)
    meta: Scalar = checked(check_number, *NOT_NEGATIVE, "0 learns no step sizes", default=0.001)
    eta: Scalar = checked(check_number, *POSITIVE_FRACTION, default=0.1)
    decay: Scalar = checked(check_number, *POSITIVE_FRACTION, default=0.999)

    def init(self, theta: PyTree, omega: PyTree) -> SwiftTDState:
        *start, zeros = _start(self, theta, omega)
        return SwiftTDState(*start, *[zeros] * 6)

    def step(self, F: Operator, G: Operator, state: SwiftTDState, x: PyTree, k: Scalar) -> SwiftTDState:
        flat, back = ravel_pytree(state.theta)
        meta, eta, decay = (jnp.asarray(value, flat.dtype) for value in (self.meta, self.eta, self.decay))
        delta, phi, kept, trace, _ = _read_sample(F, G, state.theta, state.omega, x)

        rate = jnp.sum(jnp.exp(state.log_steps) * phi**2)
        bounded = jnp.where(rate > eta, eta / jnp.maximum(rate, eta), 1) * jnp.exp(state.log_steps) * phi
        before, slope = kept * state.dutch, kept * state.slope
        fresh = 1 - before @ phi
        dutch, slope = before + bounded * fresh, slope + bounded * (fresh - slope * phi)
        credit = kept * state.credit + state.memory_before * phi
        stale = state.memory - state.memory_before * phi * (dutch - bounded) - state.memory * bounded * phi
        too_fast = (rate > eta) & (phi != 0)
        stale, slope, memory = (jnp.where(too_fast, 0, old) for old in (stale, slope, state.memory))
        log_steps = state.log_steps + jnp.where(too_fast, jnp.log(decay) * phi**2, 0)

        moved = phi @ state.change  # v, so that δ + v has the value of s before its last correction
        change = (delta + moved) * dutch - bounded * moved
        log_steps = jnp.minimum(log_steps + meta * delta * credit / (jnp.exp(log_steps) + _TINY), jnp.log(eta))
        grown = stale + (delta + moved) * slope - bounded * moved
        slow = tree_math.add(state.slow, back(change))
        return SwiftTDState(slow, trace, log_steps, change, dutch, slope, grown, memory, credit)


def _read_sample(
    F: Operator, G: Operator, theta: PyTree, omega: PyTree, x: PyTree
) -> tuple[Float[Array, ""], Vector, Float[Array, ""], PyTree, Vector]:
    """Read δ, φ, c and e, in the form of ω and flat. δ and c are of the longest direction, and 0 where e or ω is."""
    before, back = ravel_pytree(omega)
    f, _ = ravel_pytree(F(theta, omega, x))
    change, _ = ravel_pytree(G(theta, omega, x))
    phi = -ravel_pytree(G(theta, back(jnp.zeros_like(before)), x))[0]
    trace = before - change
    kept = jnp.clip(_divide((trace - phi) @ before, before @ before), 0, 1)
    return -_divide(f @ trace, trace @ trace), phi, kept, back(trace), trace


def _start(method: TIDBD | SwiftTD, theta: PyTree, omega: PyTree) -> tuple[Sum, PyTree, Vector, Vector]:
    """θ, ω, which must have the form of its trace, the logarithms of the first step sizes, and as many zeros."""
    if not _same_form(theta, omega):
        raise InputError(
            f"`{type(method).__name__}` needs an ω of the form of θ, for it is the trace of TD(λ); take "
            "`tc.problems.with_trace(problem)`, or `tc.problems.trace_operators(value)` for samples of your own"
        )
    slow = tree_math.start(theta, "theta")
    flat, _ = ravel_pytree(slow.value)
    log_steps = jnp.full_like(flat, jnp.log(jnp.asarray(method.alpha, flat.dtype)))
    return slow, tree_math.as_floats("omega", omega), log_steps, jnp.zeros_like(flat)


def _divide(a: Float[Array, ""], b: Float[Array, ""]) -> Float[Array, ""]:
    """Divide a by b; 0 where b is."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)


def _dtype(tree: PyTree) -> jnp.dtype:
    return jnp.result_type(*jax.tree.leaves(tree)) if jax.tree.leaves(tree) else jnp.result_type(float)


def _same_form(a: PyTree, b: PyTree) -> bool:
    structure: object = jax.tree.structure(a)
    return structure == jax.tree.structure(b) and bool(jax.tree.map(jnp.shape, a) == jax.tree.map(jnp.shape, b))


def _product(a: PyTree, b: PyTree) -> Float[Array, ""]:
    total = sum(jnp.sum(x * y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    return jnp.asarray(total, _dtype(a))
