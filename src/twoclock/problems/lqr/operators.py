"""The two operators of the LQR actor-critic. They see samples and no plant, so any source of samples will do."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from twoclock.core import PyTree, pytree, static

__all__ = ["ActorCritic"]

Array = Any


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

    kappa: Any = 2.0
    sigma: Any = 1.0
    expected_action: bool = static(default=False)

    def start(self, K: Array) -> tuple[Array, PyTree]:
        """θ₀ = K and the ignorant critic, all zero."""
        K = jnp.asarray(K)
        d = sum(K.shape)
        return K, {"J": jnp.zeros((), K.dtype), "Omega": jnp.zeros((d, d), K.dtype)}

    def F(self, theta: Array, omega: PyTree, x: PyTree) -> Array:
        n = theta.shape[1]
        rows = omega["Omega"][n:]
        # A broadcast sum rather than `@`: with a seed axis in front, tiny products fuse and batched ones do not.
        return jnp.sum(rows[:, n:, None] * theta[None, :, :], axis=1) - rows[:, :n]

    def G(self, theta: Array, omega: PyTree, x: PyTree) -> PyTree:
        Omega, zz = omega["Omega"], outer(x["z"])
        surprise = omega["J"] - x["c"]
        delta = jnp.sum(Omega * (zz - outer(x["next"]))) + surprise
        if self.expected_action:
            n = theta.shape[1]
            delta = delta - self.sigma**2 * jnp.trace(Omega[n:, n:])
        return {"J": self.kappa * surprise, "Omega": delta * zz}


def outer(v: Array) -> Array:
    """vvᵀ."""
    return v[:, None] * v[None, :]


def product(M: Array, v: Array) -> Array:
    """Mv as a broadcast sum, which fuses under vmap."""
    return jnp.sum(M * v[None, :], axis=1)


def quadratic(M: Array, v: Array) -> Array:
    """vᵀMv."""
    return jnp.sum(product(jnp.asarray(M), v) * v)
