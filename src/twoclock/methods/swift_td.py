"""True online TD(λ) whose step sizes are learnt, one a feature, under a bound on how much one step may learn."""

from __future__ import annotations

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from twoclock import tree_math
from twoclock.methods.td_lambda_form import Vector, check_form, read
from twoclock.methods.update_rule import Slow
from twoclock.protocols import Method, Operator, PyTree, Scalar, pytree
from twoclock.tree_math import Sum
from twoclock.validation import check_number

_TINY = 1e-8


@pytree
class SwiftTDState(Slow):
    """Vectors of the length of θ: ``log_steps`` β, ``change`` θ − θ_old, ``dutch`` z, ``slope`` z̄ = ∂z/∂β, ``memory``
    h = ∂θ/∂β and its value a step before, and ``credit`` p, the trace of φ·h.
    """

    slow: Sum
    omega: PyTree
    log_steps: Vector
    change: Vector
    dutch: Vector
    slope: Vector
    memory: Vector
    memory_before: Vector
    credit: Vector


@pytree
class SwiftTD(Method):
    """On-policy true online TD(λ) with a learnt step size for each feature and a bound η on the rate of learning.

        τ = Σ e^β·φ²,    s = min(1, η/τ)·e^β·φ,    v = φᵀ(θ − θ_old)
        z ← cz + s(1 − (cz)ᵀφ),        p ← cp + h_old·φ,        z̄ ← cz̄ + s(1 − (cz)ᵀφ − cz̄·φ)
        θ ← θ + (δ + v)z − sv
        β ← min(β + μ·δ·p/e^β, ln η)
        h ← h − h_old·φ(z − s) − h·s·φ + (δ + v)z̄ − sv

    and where τ > η the features that are present forget h and z̄, and β falls by φ²·ln(1/decay). F = −δe, G = ω − e
    with e = cω + φ, the form of `problems.with_trace` and `problems.trace_operators`; ω is the plain trace e. The
    steps need not fall, so θ ends in a neighbourhood. For ρ = 1 alone.

    The authors' programs differ from one another; this is the one for dense features, h and z̄ of absent features kept
    as in the ones for sparse. No lower bound on the step sizes.

    Args:
        alpha: the first step size of every feature.
        meta: the step size μ of the logarithms of the step sizes.
        eta: the bound η on the rate of learning τ, at most 1: what one step may take of the error of its own sample.
        decay: how fast step sizes fall where they ask for more, in (0, 1].

    >>> import twoclock as tc
    >>> problem = tc.problems.with_trace(tc.problems.boyan("td", "markov", lam=0.5))
    >>> result = tc.solve(problem, tc.methods.SwiftTD(), steps=2000, seeds=2)

    Reference: Javed, Sharifnassab & Sutton, *SwiftTD: a fast and robust algorithm for temporal difference learning*,
    2024, and its authors' program.
    """

    alpha: Scalar = 0.01
    meta: Scalar = 0.001
    eta: Scalar = 0.1
    decay: Scalar = 0.999

    def __post_init__(self) -> None:
        check_number("SwiftTD(alpha=…)", self.alpha, lambda v: v > 0, "be positive", "it is where the step sizes start")
        check_number("SwiftTD(meta=…)", self.meta, lambda v: v >= 0, "not be negative", "0 learns no step sizes")
        for name in ("eta", "decay"):
            check_number(f"SwiftTD({name}=…)", getattr(self, name), lambda v: 0 < v <= 1, "lie in (0, 1]")

    def init(self, theta: PyTree, omega: PyTree) -> SwiftTDState:
        check_form("SwiftTD", theta, omega)
        slow = tree_math.start(theta, "theta")
        flat, _ = ravel_pytree(slow.value)
        log_steps = jnp.full_like(flat, jnp.log(jnp.asarray(self.alpha, flat.dtype)))
        return SwiftTDState(slow, tree_math.as_floats("omega", omega), log_steps, *[jnp.zeros_like(flat)] * 6)

    def step(self, F: Operator, G: Operator, state: SwiftTDState, x: PyTree, k: Scalar) -> SwiftTDState:
        flat, back = ravel_pytree(state.theta)
        meta, eta, decay = (jnp.asarray(value, flat.dtype) for value in (self.meta, self.eta, self.decay))
        delta, phi, kept, trace, _ = read(F, G, state.theta, state.omega, x)

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

    def estimate(self, state: SwiftTDState) -> tuple[PyTree, PyTree]:
        return state.theta, state.omega
