"""Certainty equivalence: the optimal regulator of a plant fitted to samples."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Float

from twoclock.models.float64 import not_negative, positive
from twoclock.models.lqr import MatrixLike, riccati, square_matrix
from twoclock.protocols import Scalar, checked, pytree
from twoclock.validation.arrays import Array

Moments = Float[Array, "p p"]  # the mean of (x, u, x')(x, u, x')ᵀ, p = 2n + m


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
    sigma: Scalar = checked(not_negative, default=1.0)
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
