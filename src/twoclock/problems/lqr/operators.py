"""The two operators of the LQR actor-critic. They see samples and no plant, so any source of samples will do."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Float

from twoclock.protocols import Scalar, pytree, static
from twoclock.validation.arrays import Array, Number

__all__ = ["ActorCritic"]

Gain = Float[Array, "m n"]
Critic = dict[str, Number | Array]
"""``J``, the mean cost, and ``Omega``[z, z]."""
Sample = dict[str, Array]
"""``z``, ``next`` and ``c``; a guard adds ``held`` and ``share``."""


@pytree
class ActorCritic:
    """The two operators of the actor-critic. They see samples and no plant.

        F = Ω²²K − Ω²¹                                     half the natural gradient of J, once Ω = Ω_K
        G = (κ(J − c),  zzᵀ(zᵀΩz − z'ᵀΩz' + J − c))        z = (x, u), z' = (x', u'), c the cost of z

    A sample is a dict with ``z``, ``next`` (z') and ``c``. With ``expected_action`` the mean over u' ~ N(−Kx', σ²I) is
    taken in closed form: z' is then (x', −Kx') and G subtracts σ² tr Ω²² more.

    Args:
        kappa: the weight κ of the J row.
        sigma: the exploration σ; only ``expected_action`` needs to know it.
        expected_action: whether the next action is a mean rather than a draw.

    >>> import numpy as np
    >>> ActorCritic().F(np.ones((1, 2)), ActorCritic().start(np.ones((1, 2)))[1], None).tolist()
    [[0.0, 0.0]]

    Reference: Zeng & Doan, Algorithm 2, with the sign and the missing z' of its critic put right.
    """

    kappa: Scalar = 2.0
    sigma: Scalar = 1.0
    expected_action: bool = static(default=False)

    def start(self, K: Gain) -> tuple[Gain, Critic]:
        """θ₀ = K and the ignorant critic, all zero."""
        K = jnp.asarray(K)
        d = sum(K.shape)
        return K, {"J": jnp.zeros((), K.dtype), "Omega": jnp.zeros((d, d), K.dtype)}

    def F(self, theta: Gain, omega: Critic, x: Sample | None) -> Gain:
        """Half the natural gradient of J once the critic is right."""
        n = theta.shape[1]
        rows = omega["Omega"][n:]
        # A broadcast sum rather than `@`: with a seed axis in front, tiny products fuse and batched ones do not.
        return jnp.sum(rows[:, n:, None] * theta[None, :, :], axis=1) - rows[:, :n]

    def G(self, theta: Gain, omega: Critic, x: Sample) -> Critic:
        """The critic of Q and of the mean cost."""
        Omega, zz = omega["Omega"], outer(x["z"])
        excess = omega["J"] - x["c"]
        delta = jnp.sum(Omega * (zz - outer(x["next"]))) + excess
        if self.expected_action:
            n = theta.shape[1]
            delta = delta - self.sigma**2 * jnp.trace(Omega[n:, n:])
        return {"J": self.kappa * excess, "Omega": delta * zz}


def outer(v: Float[Array, " z"]) -> Float[Array, "z z"]:
    """vvᵀ."""
    return v[:, None] * v[None, :]


def product(M: Float[Array, "p q"], v: Float[Array, " q"]) -> Float[Array, " p"]:
    """Mv as a broadcast sum, which fuses under vmap."""
    return jnp.sum(M * v[None, :], axis=1)


def quadratic(M: Float[Array, "p p"], v: Float[Array, " p"]) -> Number:
    """vᵀMv."""
    return jnp.sum(product(jnp.asarray(M), v) * v)
