"""Riccati and Lyapunov equations, and the regulator of a plant fitted to samples.

Gains have the sign u = −Kx everywhere. All functions are differentiable.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Float

from twoclock.protocols import Scalar, checked, pytree
from twoclock.validation.arrays import Array, MatrixLike, finite_number, positive, square_matrix

Matrix = jax.Array
Series = tuple[Matrix, Matrix, jax.Array]
Doubling = tuple[Matrix, Matrix, Matrix, Matrix, jax.Array]
_DOUBLINGS = 50  # 2⁵⁰ terms of the series: a spectral radius of 1 − 1e-14 still converges
Moments = Float[Array, "p p"]  # the mean of (x, u, x')(x, u, x')ᵀ, p = 2n + m


@jax.jit
def lyapunov(a: Float[Array, "n n"], q: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The X with X = aᵀXa + q, by doubling of Σ (aᵀ)ⁱ q aⁱ; a matrix that is not finite where a is not stable."""

    def series(a: Matrix, q: Matrix) -> Matrix:
        def more(carry: Series) -> jax.Array:
            power, _, i = carry
            return (i < _DOUBLINGS) & (jnp.max(jnp.abs(power)) > jnp.finfo(power.dtype).eps)

        def double(carry: Series) -> Series:
            power, x, i = carry
            return power @ power, x + power.T @ x @ power, i + 1

        power, x, _ = jax.lax.while_loop(more, double, (a, q, jnp.zeros((), jnp.int32)))
        small = jnp.max(jnp.abs(power)) <= jnp.finfo(power.dtype).eps
        return jnp.where(small, x, jnp.full_like(x, jnp.inf))

    a, q = jnp.asarray(a), jnp.asarray(q)
    return jax.lax.custom_linear_solve(
        lambda x: x - a.T @ x @ a, q, lambda _, b: series(a, b), lambda _, b: series(a.T, b)
    )


@jax.jit
def spectral_radius(a: Float[Array, "n n"]) -> Float[Array, ""]:
    """The largest modulus of an eigenvalue, ρ = lim ‖aᴺ‖^(1/N) at N = 2⁵⁰ (Gelfand), by squaring, which also runs on
    GPUs."""

    def square(j: jax.Array, carry: tuple[Matrix, jax.Array]) -> tuple[Matrix, jax.Array]:
        power, log = carry
        size = jnp.linalg.norm(power)
        power = power / jnp.where(size > 0, size, 1.0)
        return power @ power, log + jnp.log(size) * jnp.exp2(-j.astype(a.dtype))

    a = jnp.asarray(a)
    _, log = jax.lax.fori_loop(0, _DOUBLINGS, square, (a, jnp.zeros((), a.dtype)))
    return jnp.exp(log)


@jax.jit
def riccati(
    A: Float[Array, "n n"], B: Float[Array, "n m"], Q: Float[Array, "n n"], R: Float[Array, "m m"]
) -> tuple[Float[Array, "m n"], Float[Array, "n n"]]:
    """The optimal gain K* and value P* of (A, B, Q, R), by structure-preserving doubling and one step of Hewer's.

    The last step polishes, and it carries the derivative: ∂P_K/∂K vanishes at K*, so K* may be held fixed in P_K.

    Reference: Chu, Fan & Lin, *A structure-preserving doubling algorithm*, 2005; Hewer, 1971.
    """
    A, B, Q, R = map(jnp.asarray, (A, B, Q, R))
    eye = jnp.eye(A.shape[0], dtype=A.dtype)

    def more(carry: Doubling) -> jax.Array:
        _, _, H, old, i = carry
        return (i < _DOUBLINGS) & (jnp.max(jnp.abs(H - old)) > 4 * jnp.finfo(H.dtype).eps * jnp.max(jnp.abs(H)))

    def double(carry: Doubling) -> Doubling:
        a, G, H, _, i = carry
        w = jnp.linalg.solve(eye + G @ H, jnp.concatenate([a, G], axis=1))
        wa, wg = w[:, : a.shape[1]], w[:, a.shape[1] :]
        return a @ wa, G + a @ wg @ a.T, H + a.T @ H @ wa, H, i + 1

    def gain(P: Matrix) -> Matrix:
        return jnp.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)

    start = jax.lax.stop_gradient((A, B @ jnp.linalg.solve(R, B.T), Q, jnp.zeros_like(Q), jnp.zeros((), jnp.int32)))
    K = jax.lax.stop_gradient(gain(jax.lax.while_loop(more, double, start)[2]))
    P = lyapunov(A - B @ K, Q + K.T @ R @ K)
    return gain(P), P


@pytree
class CertaintyEquivalence:
    """The gain and the critic that a model fitted to the samples would give.

        [Â B̂] = E[x'zᵀ] E[zzᵀ]⁻¹,     Ψ̂ = E[x'x'ᵀ] − [Â B̂] E[zx'ᵀ],     K̂, P̂ = Riccati(Â, B̂, Q, R)

    with E the mean over the samples seen and z = (x, u). `PlugIn` computes the means. Their prior, ``ridge`` on the
    diagonal as one sample, is the usual start of recursive least squares. It knows Q, R and σ, and not A, B or Ψ.

    Args:
        Q, R: the cost.
        sigma: the exploration, which enters the mean cost.
        ridge: the weight of the prior [Â B̂] = 0.

    >>> import numpy as np, twoclock as tc
    >>> rival = tc.PlugIn(tc.Fast(), CertaintyEquivalence(Q=np.eye(3), R=np.eye(2)))

    Reference: Mania, Tu & Recht, *Certainty equivalence is efficient for linear quadratic control*, 2019.
    """

    Q: MatrixLike = checked(square_matrix)
    R: MatrixLike = checked(square_matrix)
    sigma: Scalar = checked(finite_number, 0, default=1.0)
    ridge: Scalar = checked(positive, default=1e-6)

    @property
    def prior(self) -> Moments:
        """The statistic before the first sample."""
        Q = jnp.asarray(self.Q)
        return self.ridge * jnp.eye(2 * len(Q) + len(self.R), dtype=Q.dtype)

    def statistic(self, x: Mapping[str, jax.Array]) -> Moments:
        """The outer product of (z, x') with itself."""
        v = jnp.concatenate([x["z"], x["next"][: len(self.Q)]])
        return v[:, None] * v[None, :]

    def solve(self, mean: Moments) -> tuple[Float[Array, "m n"], dict[str, jax.Array]]:
        """The θ and ω of the mean statistic."""
        n, m = len(self.Q), len(self.R)
        d = n + m
        AB = jnp.linalg.solve(mean[:d, :d], mean[:d, d:]).T
        B = AB[:, n:]
        K, P = riccati(AB[:, :n], B, self.Q, self.R)
        noise = mean[d:, d:] - AB @ mean[:d, d:]
        J = jnp.sum(P * (noise + self.sigma**2 * B @ B.T)) + self.sigma**2 * jnp.trace(jnp.asarray(self.R))
        return K, {"J": J, "Omega": jax.scipy.linalg.block_diag(self.Q, self.R) + AB.T @ P @ AB}
