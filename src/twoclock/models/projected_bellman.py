"""The projected Bellman equation of linear policy evaluation, in closed form."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Float

from twoclock.protocols import pytree
from twoclock.validation.arrays import Array, Number, Vector

Matrix = Float[Array, "d d"]


@pytree
class ProjectedBellman:
    """A θ = b with features Φ and state weights D, and how far a θ is from solving it.

        A = ΦᵀD(I − (γP)_π)Φ        b = ΦᵀD r_π        C = ΦᵀDΦ
        MSPBE(θ) = (b − Aθ)ᵀ C⁺ (b − Aθ) = ‖Φθ − ΠT_π Φθ‖²_D        RMSVE(θ) = ‖Φθ − V_π‖_D

    θ* is the minimiser of the MSPBE, the shortest one where there are several: A⁻¹b where A has an inverse. ``nearest``
    projects a difference of two θ on the directions that matter, so that ``distance`` is to the nearest minimiser.

    Reference: Sutton et al., *Fast gradient-descent methods for temporal-difference learning*, 2009.
    """

    features: Float[Array, "s d"]
    weights: Float[Array, " s"]
    values: Float[Array, " s"]
    A: Float[Array, "d d"]
    b: Float[Array, " d"]
    C: Float[Array, "d d"]
    whiten: Float[Array, "d d"]  # W with WWᵀ = C⁺
    theta_star: Float[Array, " d"]
    nearest: Float[Array, "d d"]

    def inverse(self, ridge: float = 0.0) -> Matrix:
        """(C + ridge·I)⁺, which takes b − Aθ to ω*(θ)."""
        xp = self.C.__array_namespace__()
        return self.whiten @ self.whiten.T if ridge == 0 else xp.linalg.inv(self.C + ridge * xp.eye(len(self.C)))

    def residual(self, theta: Vector) -> Vector:
        """b − Aθ, the mean of ρδφ."""
        return jnp.asarray(self.b) - jnp.asarray(self.A) @ theta

    def mspbe(self, theta: Vector) -> Number:
        return jnp.sum(jnp.square(jnp.asarray(self.whiten).T @ self.residual(theta)))

    def half_gradient(self, theta: Vector) -> Vector:
        """−AᵀC⁺(b − Aθ), half the gradient of the MSPBE."""
        W = jnp.asarray(self.whiten)
        return -(jnp.asarray(self.A).T @ (W @ (W.T @ self.residual(theta))))

    def rmsve(self, theta: Vector) -> Number:
        wrong = jnp.asarray(self.features) @ theta - jnp.asarray(self.values)
        return jnp.sqrt(jnp.sum(jnp.asarray(self.weights) * jnp.square(wrong)))

    def distance(self, theta: Vector) -> Number:
        """The squared distance to the nearest minimiser of the MSPBE."""
        return jnp.sum(jnp.square(jnp.asarray(self.nearest) @ (theta - jnp.asarray(self.theta_star))))


def projected_bellman(
    features: Float[Array, "s d"],
    weights: Float[Array, " s"],
    chain: Float[Array, "s s"],
    reward: Float[Array, " s"],
    values: Float[Array, " s"],
) -> ProjectedBellman:
    """The equation for features Φ, state weights D, the discounted chain (γP)_π, r_π and V_π.

    In NumPy or in JAX, whichever the arrays are of.
    """
    xp = features.__array_namespace__()
    weighted = features.T * weights[None, :]
    A, b, C = weighted @ (features - chain @ features), weighted @ reward, weighted @ features
    small = 10 * len(C) * xp.finfo(C.dtype).eps
    size, axes = xp.linalg.eigh(C)
    kept = size > small * xp.max(size)
    whiten = axes * xp.where(kept, xp.where(kept, size, 1.0) ** -0.5, 0.0)[None, :]
    inverse = xp.linalg.pinv(whiten.T @ A, rtol=10 * small)
    return ProjectedBellman(
        features, weights, values, A, b, C, whiten, inverse @ (whiten.T @ b), inverse @ (whiten.T @ A)
    )


def traced(
    weights: Float[Array, " s"],
    chain: Float[Array, "s s"],
    reward: Float[Array, " s"],
    lam: float,
    emphatic: bool = False,
) -> tuple[Float[Array, " s"], Float[Array, "s s"], Float[Array, " s"]]:
    """Weights, chain and reward with which ``projected_bellman`` gives the equation of TD(λ), or of emphatic TD(λ).

        T^(λ)V = (I − λP)⁻¹(r + (1 − λ)PV)        P = (γP)_π
        m = λd + (1 − λ)(I − Pᵀ)⁻¹d                the emphasis, in place of the state weights d

    Reference: Tsitsiklis & Van Roy 1997; Sutton, Mahmood & White, *An emphatic approach to the problem of off-policy
    temporal-difference learning*, 2016.
    """
    xp = chain.__array_namespace__()
    one = xp.eye(len(chain))
    resolvent = xp.linalg.inv(one - lam * chain)
    if emphatic:
        weights = lam * weights + (1 - lam) * xp.linalg.solve(one - chain.T, weights)
    return weights, (1 - lam) * (resolvent @ chain), resolvent @ reward
