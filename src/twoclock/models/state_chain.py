"""State chains of a policy in jnp, dense or sparse, and linear equations with them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from twoclock.models.successors import LOST, SMALL, Successors
from twoclock.protocols import pytree
from twoclock.validation.arrays import Array

Map = Callable[[jax.Array], jax.Array]
Refined = tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # x, b − Ax, its previous size, and the number of rounds
States = Float[Array, " s"]
Pairs = Float[Array, "s a"]

_ROUNDS, _ITERATIONS = 60, 100  # of refinement, and of BiCGSTAB in each


@pytree
class StateChain:
    """The state chain of a policy, a matrix or weights of successors, and equations with it.

    Args:
        weights: P_π[s, s'], or π(a|s)P(s'|s, a) of the listed successors.
        successors: the states that the weights lead to; None for a matrix.
    """

    weights: Float[Array, "s s"] | Float[Array, "s a k"]
    successors: Successors | None = None

    @classmethod
    def of_policy(cls, pi: jax.Array, P: Float[Array, "s a k"], successors: Successors | None) -> StateChain:
        if successors is None:
            return cls(jnp.einsum("sa,sat->st", pi, P))
        return cls(pi[:, :, None] * jnp.asarray(P), successors)

    def __matmul__(self, values: Float[Array, "s ..."]) -> Float[jax.Array, "s ..."]:
        """P_πv for one function of the states, or one in each column."""
        if self.successors is None:
            return jnp.asarray(self.weights) @ values
        if values.ndim == 2:
            return jax.lax.map(self.__matmul__, values.T).T
        return jnp.sum(ahead(self.weights, self.successors, values), axis=1)

    def potential(self, reward: States) -> States:
        """(I − P_π)⁻¹r of a chain with a discount in it."""
        return solve_krylov(lambda v: v - self @ v, lambda d: d - self._flow(d), reward, largest)

    def visits(self, start: States) -> States:
        """ρ(I − P_π)⁻¹ of a chain with a discount in it."""
        return solve_krylov(lambda d: d - self._flow(d), lambda v: v - self @ v, start, total)

    def bias(self, reward: States) -> States:
        """(I − P_π + 11ᵀ/n)⁻¹r: the bias of a chain without a discount, and its gain on top of every entry."""
        return solve_krylov(self._deflated, self._deflated_flow, reward, largest)

    def law(self) -> States:
        """The stationary distribution of a chain without a discount, given by successors."""
        n = self.weights.shape[0]
        return solve_krylov(self._deflated_flow, self._deflated, jnp.full(n, 1 / n, self.weights.dtype), total)

    def _flow(self, d: jax.Array) -> jax.Array:
        assert self.successors is not None
        return flow(self.weights, self.successors, d)

    def _deflated(self, v: jax.Array) -> jax.Array:
        return v - self @ v + jnp.mean(v)

    def _deflated_flow(self, d: jax.Array) -> jax.Array:
        return d - self._flow(d) + jnp.mean(d)


def largest(v: jax.Array) -> jax.Array:
    """The norm in which P_π is a contraction."""
    return jnp.max(jnp.abs(v))


def total(d: jax.Array) -> jax.Array:
    """The norm in which the transposed P_π is a contraction."""
    return jnp.sum(jnp.abs(d))


def ahead(table: Float[Array, "s a k"], successors: Int[Array, "s a k"], v: States) -> Float[jax.Array, "s a"]:
    """Σ_k table[s, a, k]·v(s'), the expectation of v at the next state."""
    return jnp.sum(jnp.asarray(table) * jnp.asarray(v)[jnp.asarray(successors)], axis=2)


def flow(table: Float[Array, "s a k"], successors: Int[Array, "s a k"], d: States) -> Float[jax.Array, " s"]:
    """Σ_{s, a} d(s)·table[s, a, k] gathered at s': the distribution d of the states after a step."""
    mass = jnp.asarray(table) * d[:, None, None]
    return jnp.zeros(d.shape, d.dtype).at[jnp.asarray(successors).reshape(-1)].add(mass.reshape(-1))


def solve_krylov(matvec: Map, transposed: Map, right: States, size: Map) -> jax.Array:
    """x with Ax = b in jnp, by refined BiCGSTAB; NaN if it does not converge. Derivatives solve with Aᵀ and A.

    ``size`` is the norm in which I − A is a contraction, and the transposed equation uses the other of the two norms.
    """

    def solve(apply: Map, b: jax.Array, size: Map) -> jax.Array:
        eps = jnp.finfo(b.dtype).eps

        def more(carry: Refined) -> jax.Array:
            x, left, before, i = carry
            rough = size(left) > SMALL * eps * (size(x) + size(b))
            # BiCGSTAB may stall, but the sweep below is a contraction: without progress the residual is at rounding
            # error.
            return rough & (i < _ROUNDS) & (size(left) < before)

        def refine(carry: Refined) -> Refined:
            x, left, _, i = carry
            step, _ = jax.scipy.sparse.linalg.bicgstab(apply, left, tol=1e-6, maxiter=_ITERATIONS)
            x = jnp.where(size(left - apply(step)) < size(left), x + step, x)
            x = x + (b - apply(x))
            return x, b - apply(x), size(left), i + 1

        begin = jnp.zeros_like(b), b, size(b) + jnp.inf, jnp.int32(0)
        x, left, _, _ = jax.lax.while_loop(more, refine, begin)
        return jnp.where(size(left) <= LOST * eps * (size(x) + size(b)), x, jnp.nan)

    other = total if size is largest else largest
    answer: jax.Array = jax.lax.custom_linear_solve(
        matvec,
        jnp.asarray(right),
        lambda apply, b: solve(apply, b, size),
        lambda _, b: solve(transposed, b, other),
    )
    return answer
