"""Certainty equivalence: least squares for the plant, then the Riccati equation as if the estimate were the truth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from twoclock.models.riccati_lyapunov import riccati
from twoclock.protocols import InputError, Scalar, pytree
from twoclock.validation import number
from twoclock.validation.arrays import Array, matrix

Moments = Float[Array, "p p"]
"""The mean of (x, u, x')(x, u, x')ᵀ, p = 2n + m."""


@pytree
class CertaintyEquivalence:
    """The gain and the critic that a model fitted to the samples would give.

        [Â B̂] = E[x'zᵀ] E[zzᵀ]⁻¹,     Ψ̂ = E[x'x'ᵀ] − [Â B̂] E[zx'ᵀ],     K̂, P̂ = Riccati(Â, B̂, Q, R)

    with E the mean over the samples seen and z = (x, u). `PlugIn` keeps the means, sample by sample; their
    prior, ``ridge`` on the diagonal as if it were one sample, is the usual start of recursive least squares. It
    knows Q, R and its own σ, and not A, B or Ψ.

    Args:
        Q, R: the cost.
        sigma: the exploration, which enters the mean cost.
        ridge: the weight of the prior [Â B̂] = 0.

    Reference: Mania, Tu & Recht, *Certainty equivalence is efficient for linear quadratic control*, 2019.
    """

    Q: Annotated[Any, Float[np.ndarray, "n n"]]
    R: Annotated[Any, Float[np.ndarray, "m m"]]
    sigma: Scalar = 1.0
    ridge: Scalar = 1e-6

    def __post_init__(self) -> None:
        Q, R = matrix("Q", self.Q), matrix("R", self.R)
        for name, value in (("Q", Q), ("R", R)):
            if value.shape[0] != value.shape[1]:
                raise InputError(f"`{name}` must be square, got shape {value.shape}")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "sigma", np.float64(number("sigma", self.sigma, 0)))
        object.__setattr__(self, "ridge", np.float64(number("ridge", self.ridge, 0, above=True)))

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
        """The θ and ω that the mean statistic implies."""
        n, m = len(self.Q), len(self.R)
        d = n + m
        AB = jnp.linalg.solve(mean[:d, :d], mean[:d, d:]).T
        B = AB[:, n:]
        K, P = riccati(AB[:, :n], B, self.Q, self.R)
        noise = mean[d:, d:] - AB @ mean[:d, d:]
        J = jnp.sum(P * (noise + self.sigma**2 * B @ B.T)) + self.sigma**2 * jnp.trace(jnp.asarray(self.R))
        return K, {"J": J, "Omega": jax.scipy.linalg.block_diag(self.Q, self.R) + AB.T @ P @ AB}
