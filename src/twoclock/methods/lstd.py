"""Least squares for an affine slow operator: the statistical yardstick of linear policy evaluation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from twoclock import tree_math
from twoclock.protocols import Method, Operator, PyTree, Scalar, pytree
from twoclock.tree_math import Sum, add, pinv


@pytree
class LstdState:
    theta: PyTree
    omega: PyTree
    jacobian: Sum
    offset: Sum


@pytree
class Lstd(Method):
    """Average the slow operator as an affine map and solve the average.

        F(θ, X) = J(X)θ + c(X):        θ̂ = −(Σ J)⁺ Σ c

    On policy evaluation with ``operator="td"`` this is LSTD, −ΣJ = Σρφ(γφ' − φ)ᵀ: no method that steps through the same
    samples has a smaller error in the long run. It costs O(d²) a step; the equation is solved only where an estimate is
    asked for. θ must be one vector, F affine in it and free of ω.

    >>> import twoclock as tc
    >>> method = tc.methods.Lstd()

    Reference: Bradtke & Barto, *Linear least-squares algorithms for temporal difference learning*, 1996.
    """

    def init(self, theta: PyTree, omega: PyTree) -> LstdState:
        theta, omega = tree_math.as_floats("theta", theta), tree_math.as_floats("omega", omega)
        flat, _ = ravel_pytree(theta)
        jacobian = jnp.zeros((flat.size, flat.size), flat.dtype)
        return LstdState(theta, omega, tree_math.start(jacobian), tree_math.start(jnp.zeros_like(flat)))

    def step(self, F: Operator, G: Operator, state: LstdState, x: PyTree, k: Scalar) -> LstdState:
        flat, back = ravel_pytree(state.theta)
        c, J_times = jax.linearize(lambda v: ravel_pytree(F(back(v), state.omega, x))[0], jnp.zeros_like(flat))
        J = jax.vmap(J_times, out_axes=1)(jnp.eye(flat.size, dtype=flat.dtype))
        return LstdState(state.theta, state.omega, add(state.jacobian, J), add(state.offset, c))

    def estimate(self, state: LstdState) -> tuple[PyTree, PyTree]:
        _, back = ravel_pytree(state.theta)
        return back(-(pinv(state.jacobian.value) @ state.offset.value)), state.omega
