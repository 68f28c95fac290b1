"""Small dense equations by elimination written as loops, which every engine can compile: no library call inside."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def spd_inverse(M: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
    """The inverse of a symmetric positive definite matrix, and whether it is one: every pivot was positive.

    Gauss–Jordan in place without exchanges (the sweep operator), one rank-one update a pivot:

        for each j:    M ← M − M_:j M_j: / M_jj    outside row and column j,    the rest ± M_:j / M_jj and 1 / M_jj
    """
    n = M.shape[0]
    if n == 0:
        return M, jnp.asarray(True)
    entries = jnp.arange(n)

    def sweep(j: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        M, positive = carry
        here = entries == j
        row = jax.lax.dynamic_index_in_dim(M, j, 0, keepdims=False)
        pivot = jax.lax.dynamic_index_in_dim(row, j, 0, keepdims=False)
        scaled = jnp.where(here, -1.0, row) / pivot
        rest = jnp.where(here[:, None] | here[None, :], 0.0, M)
        column = jnp.where(here, -1.0, row)
        return rest - column[:, None] * scaled[None, :], positive & (pivot > 0)

    swept, positive = jax.lax.fori_loop(0, n, sweep, (M, jnp.asarray(True)))
    return -swept, positive


def inverse(A: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """A⁻¹ by normal equations, Aᵀ(AAᵀ)⁻¹; where A is singular to rounding, nearly its pseudo-inverse."""
    return posterior_gain(A, jnp.zeros_like(A))


def posterior_gain(A: Float[Array, "n n"], noise: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Aᵀ(AAᵀ + noise)⁻¹: the mean of x given A x + e = y is this times y, where x ~ N(0, I) and e ~ N(0, noise)."""
    least = jnp.finfo(A.dtype)
    M = A @ A.T + noise
    one = jnp.eye(len(A), dtype=A.dtype)
    scale = jax.lax.rsqrt(
        jnp.sum(M * one, axis=1) + least.eps * jnp.sum(A**2) + least.tiny
    )  # unit diagonal, for the pivots
    # A singular A is common (a softmax has as many flat directions as states): what rounding leaves of them must stay
    # well below the ridge, or the pivots are made of nothing else.
    ridge = float(least.eps) ** (2 / 3)
    both = scale[:, None] * scale[None, :]
    scaled, _ = spd_inverse(M * both + ridge * one)
    return A.T @ (scaled * both)


def is_positive_definite(M: Float[Array, "n n"]) -> Bool[Array, ""]:
    """Whether xᵀMx > 0 for every x: all pivots of the symmetric part are positive."""
    return spd_inverse((M + M.T) / 2)[1]
