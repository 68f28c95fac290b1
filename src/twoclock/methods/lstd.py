"""Least squares for an affine slow operator: the statistical yardstick of linear policy evaluation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from twoclock.core import Operator, PyTree, pytree
from twoclock.trees import add, pinv, residue


@pytree
class LstdState:
    theta: PyTree
    omega: PyTree
    jacobian: Any
    offset: Any
    low: tuple[Any, Any]


@pytree
class Lstd:
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
        flat, _ = ravel_pytree(theta)
        jacobian, offset = jnp.zeros((flat.size, flat.size), flat.dtype), jnp.zeros_like(flat)
        return LstdState(theta, omega, jacobian, offset, residue(jacobian, offset))

    def step(self, F: Operator, G: Operator, state: LstdState, x: PyTree, k: Any) -> LstdState:
        _, back = ravel_pytree(state.theta)
        c, linear = jax.linearize(
            lambda flat: ravel_pytree(F(back(flat), state.omega, x))[0], jnp.zeros_like(state.offset)
        )
        J = jax.vmap(linear, out_axes=1)(jnp.eye(c.size, dtype=c.dtype))
        jacobian, low_jacobian = add(state.jacobian, J, state.low[0])
        offset, low_offset = add(state.offset, c, state.low[1])
        return LstdState(state.theta, state.omega, jacobian, offset, (low_jacobian, low_offset))

    def estimate(self, state: LstdState) -> tuple[PyTree, PyTree]:
        _, back = ravel_pytree(state.theta)
        return back(-(pinv(state.jacobian) @ state.offset)), state.omega
