"""A linear model of the mean operators near an iterate, with its sampling noise, and Newton's step to its root.

Each sample is linearised where it was taken, z ↦ f_i + J_i (z − z_i) with z = (θ, ω) and f = (F, G), and the model is
their weighted mean J z + c. For affine F and G the model is exact for any z_i, and its root is the least-squares
estimate from the samples (LSTD, in policy evaluation).
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from twoclock.protocols import Scalar, pytree
from twoclock.tree_math import Sum, blend, start
from twoclock.validation.arrays import Array

_LATE = 20.0


@pytree
class LinearModel:
    """The mean of linearised samples."""

    J: Sum  # the mean Jacobian
    c: Sum  # the mean of f_i − J_i z_i
    spread: Float[Array, "*lanes n n"]  # the variance of each entry of a sample's Jacobian
    cov: Float[Array, "*lanes n n"]  # the covariance of a sample's f about the model
    place: Float[Array, "*lanes n"]  # the mean of the iterates that the samples were taken at
    count: Float[Array, "*lanes"]  # the effective number of samples in the mean
    # Running means of J and c over the last twentieth of their samples. With samples in epochs, the errors cancel over
    # each epoch; a plain mean that ends within one is off by the rest, and these are not.
    late_J: Float[Array, "*lanes n n"]
    late_c: Float[Array, "*lanes n"]

    def at(self, z: Float[Array, "*lanes n"]) -> Float[Array, "*lanes n"]:
        return self.c.value + times(self.J.value, z)


@pytree
class Root:
    """Newton's step to the root of a model, the slow block first."""

    # S⁻¹(f − B g), the Newton step of θ with ω at its best: B = F_ω G_ω⁻¹, S = F_θ − B G_θ
    slow: Float[Array, "*lanes slow"]
    slow_noise: Float[Array, "*lanes"]  # E‖·‖² of its sampling error
    slow_most: Float[Array, "*lanes"]  # what ‖·‖² of its sampling error seldom exceeds
    fast_noise: Float[Array, "*lanes"]  # those of G_ω⁻¹ g
    fast_most: Float[Array, "*lanes"]
    fast_inverse: Float[Array, "*lanes fast fast"]  # with g and G_theta: the step of ω once θ has moved
    g: Float[Array, "*lanes fast"]
    G_theta: Float[Array, "*lanes fast slow"]
    u: Float[Array, "*lanes slow"]  # f − B g
    u_most: Float[Array, "*lanes"]  # what ‖·‖² of its sampling error seldom exceeds
    flat: Float[Array, "*lanes slow"]  # the part of u that remains at the root: no visible step reduces it
    # ‖u‖√d/‖S‖, a length of θ that needs no inverse; 0 where S is within its noise
    scale: Float[Array, "*lanes"]
    fast_scale: Float[Array, "*lanes"]
    reduce: Float[Array, "*lanes slow n"]  # u = reduce @ (F, G)
    gain: Float[Array, "*lanes slow n"]  # slow = gain @ (F, G), but for the prior
    S: Float[Array, "*lanes slow slow"]
    reduced_gain: Float[Array, "*lanes slow slow"]  # slow = reduced_gain @ u, but for the prior
    likely: Float[Array, "*lanes"]  # the standard deviation of the prior

    def loose(self) -> Float[Array, "*lanes"]:
        """E‖·‖² of the error in directions with little data, by the prior."""
        # Directions without any slope, as in a softmax, are no loss: any value is a solution.
        seen = inverse(self.S) @ self.S
        lost = seen - self.reduced_gain @ self.S @ seen
        return self.likely**2 * (lost**2).sum(axis=(-2, -1))

    def fast(self, moved: Float[Array, "*lanes slow"]) -> Float[Array, "*lanes fast"]:
        """The Newton step of ω where θ steps by ``moved``."""
        return times(self.fast_inverse, self.g - times(self.G_theta, moved))


def empty(z: Float[Array, " n"]) -> LinearModel:
    square = jnp.zeros((z.size, z.size), z.dtype)
    zero = jnp.zeros_like(z)
    return LinearModel(start(square), start(zero), square, square, zero, jnp.zeros((), z.dtype), square, zero)


def learn(
    model: LinearModel, z: Array, f: Array, J: Array, power: Scalar, fine: Bool[Array, ""] | bool = True
) -> LinearModel:
    """Add a sample, with weights that grow like i^power over the counted samples; ignore one that is not fine."""
    one = jnp.asarray(fine, z.dtype)
    count = model.count + one
    weight = one * (1 + jnp.asarray(power, z.dtype)) / (jnp.maximum(count, 1) + power)
    off, apart = f - model.at(z), J - model.J.value
    mean_J, mean_c, late = (
        blend(model.J, weight, J),
        blend(model.c, weight, f - J @ z),
        _LATE / (jnp.maximum(count, 1) - 1 + _LATE),
    )
    return LinearModel(
        mean_J,
        mean_c,
        model.spread + weight * (apart**2 - model.spread),
        model.cov + weight * (off[:, None] * off[None, :] - model.cov),
        model.place + weight * (z - model.place),
        count.astype(z.dtype),
        model.late_J + late * (mean_J.value - model.late_J),
        model.late_c + late * (mean_c.value - model.late_c),
    )


def learn_offset(model: LinearModel, z: Array, offset: Array, fine: Bool[Array, ""]) -> LinearModel:
    """Add the offset f − J z of a sample whose Jacobian is the model's, as are those of all samples."""
    one = jnp.asarray(fine, z.dtype)
    count = model.count + one
    most = jnp.maximum(count, 1)
    weight, late = one / most, _LATE / (most - 1 + _LATE)
    off, mean = offset - model.c.value, blend(model.c, weight, offset)
    return replace(
        model,
        c=mean,
        cov=model.cov + weight * ((1 - weight) * off[:, None] * off[None, :] - model.cov),
        place=model.place + weight * (z - model.place),
        count=count.astype(z.dtype),
        late_c=model.late_c + late * (mean.value - model.late_c),
    )


def lately(model: LinearModel) -> LinearModel:
    """The model with its running means instead of its means."""
    return replace(model, J=Sum(model.late_J, None), c=Sum(model.late_c, None))


def root(
    model: LinearModel,
    z: Float[Array, "*lanes n"],
    origin: Float[Array, "*lanes slow"],
    size: Float[Array, "*lanes"],
) -> Root:
    """Newton's step from z to the root of the model, by blocks: of one lane in JAX, or of many in NumPy.

    The root in θ solves u + S·(step) = 0 given the sampling noise of u, with a normal prior for the distance from
    ``origin``, θ at the start: its standard deviation is ``size``/√d in each of the d coordinates. So directions
    without data stay where they began. Where S is surely not positive definite it is shifted, so that θ goes downhill
    and not to a saddle.
    """
    slow, xp = origin.shape[-1], z.__array_namespace__()
    J, m = model.J.value, model.at(z)
    F_theta, F_omega = J[..., :slow, :slow], J[..., :slow, slow:]
    G_theta, G_omega = J[..., slow:, :slow], J[..., slow:, slow:]
    count = xp.maximum(model.count, 1)
    fast_inverse = inverse(G_omega)
    B = F_omega @ fast_inverse
    g = m[..., slow:]
    u, S = m[..., :slow] - times(B, g), F_theta - B @ G_theta
    spread_F, spread_G = model.spread[..., :slow, :slow], model.spread[..., slow:, :slow]
    unsure = xp.sqrt((total(spread_F) + total(B**2 @ spread_G)) / count)
    steep = xp.sqrt(total(S**2))
    one = xp.eye(slow, dtype=z.dtype)
    S = S + _shift(S, unsure)[..., None, None] * one
    reduce = xp.concatenate([xp.broadcast_to(one, S.shape), -B], axis=-1)
    cov = model.cov / count[..., None, None]
    likely = size / max(slow, 1) ** 0.5
    width = likely[..., None, None]
    gain = width * posterior_gain(width * S, reduce @ cov @ reduce.mT)
    gain = 2 * gain - gain @ S @ gain  # twice, so that the shrinkage by the prior is of second order
    way = z[..., :slow] - origin
    step = way + times(gain, u - times(S, way))
    unsure_omega = xp.sqrt(total(model.spread[..., slow:, slow:]) / count)
    return Root(
        step,
        *_noise(gain @ reduce, cov),
        *_noise(fast_inverse, cov[..., slow:, slow:]),
        fast_inverse,
        g,
        G_theta,
        u,
        _noise(reduce, cov)[1],
        u - times(S, step),
        _length(u, steep, unsure),
        _length(g, xp.sqrt(total(G_omega**2)), unsure_omega),
        reduce,
        gain @ reduce,
        S,
        gain,
        likely,
    )


def times(M: Float[Array, "*lanes m n"], v: Float[Array, "*lanes n"]) -> Float[Array, "*lanes m"]:
    return (M @ v[..., None])[..., 0]


def total(M: Float[Array, "*lanes m n"]) -> Float[Array, "*lanes"]:
    return M.sum(axis=(-2, -1))


def _length(u: Array, steep: Array, unsure: Array) -> Float[Array, "*lanes"]:
    """‖u‖√d/‖S‖ where S exceeds its noise, else 0."""
    xp = u.__array_namespace__()
    tiny = float(xp.finfo(u.dtype).tiny)
    return xp.where(steep > 2 * unsure, xp.sqrt((u**2).sum(axis=-1) * u.shape[-1]) / (steep + tiny), 0.0)


def _noise(
    D: Float[Array, "*lanes m n"], cov: Float[Array, "*lanes n n"]
) -> tuple[Float[Array, "*lanes"], Float[Array, "*lanes"]]:
    """Mean and upper end of ‖e‖², e ~ N(0, C), C = D cov Dᵀ: tr C, and three times √tr C² more.

    The standard deviation is √(2 tr C²). So the upper end is four times the mean in one dimension, and near the mean
    where many share the noise.
    """
    mean, spread = squared_error(D, cov)
    return mean, mean + 3 * spread


def squared_error(
    D: Float[Array, "*lanes m n"], cov: Float[Array, "*lanes n n"]
) -> tuple[Float[Array, "*lanes"], Float[Array, "*lanes"]]:
    """tr C and √tr C², C = D cov Dᵀ: the mean of ‖e‖², e ~ N(0, C), and its standard deviation over √2."""
    C = D @ cov @ D.mT
    mean = (C * C.__array_namespace__().eye(C.shape[-1], dtype=C.dtype)).sum(axis=(-2, -1))
    return mean, total(C**2) ** 0.5


def _shift(S: Float[Array, "*lanes n n"], unsure: Float[Array, "*lanes"]) -> Float[Array, "*lanes"]:
    """0 where sym S + unsure·I is positive definite, else about twice what makes it so: λ becomes |λ|."""
    size = total(S**2) ** 0.5
    least = unsure + float(jnp.finfo(S.dtype).eps) * size
    if isinstance(S, np.ndarray):
        known = np.asarray(np.isfinite(S).all(axis=(-2, -1)))
        lowest = np.linalg.eigvalsh(np.where(known[..., None, None], (S + S.mT) / 2, np.eye(S.shape[-1]))).min(-1)
        needed = np.where(known, -(lowest + least), np.inf) if S.shape[-1] else np.zeros_like(size)
        shift = np.zeros_like(size)
        while (low := (shift < needed) & (shift < size)).any():
            shift = np.where(low, np.maximum(2 * shift, 1e-5 * size), shift)
        return 2 * shift
    one = jnp.eye(len(S), dtype=S.dtype)

    def flat(shift: Array) -> Array:
        return ~is_positive_definite(S + (shift + least) * one) & (shift < size)

    return 2 * jax.lax.while_loop(flat, lambda shift: jnp.maximum(2 * shift, 1e-5 * size), jnp.zeros_like(size))


# Small dense equations by elimination, written as loops that every engine can compile: no library call inside.


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


def inverse(A: Float[Array, "*lanes n n"]) -> Float[Array, "*lanes n n"]:
    """A⁻¹ by normal equations, Aᵀ(AAᵀ)⁻¹; where A is singular to rounding, nearly its pseudo-inverse."""
    return posterior_gain(A, A.__array_namespace__().zeros_like(A))


def posterior_gain(A: Float[Array, "*lanes n n"], noise: Float[Array, "*lanes n n"]) -> Float[Array, "*lanes n n"]:
    """Aᵀ(AAᵀ + noise)⁻¹: the mean of x given A x + e = y is this times y, where x ~ N(0, I) and e ~ N(0, noise)."""
    xp, least = A.__array_namespace__(), jnp.finfo(A.dtype)
    M = A @ A.mT + noise
    one = xp.eye(A.shape[-1], dtype=A.dtype)
    # Unit diagonal, for the pivots.
    scale = ((M * one).sum(axis=-1) + (least.eps * total(A**2) + float(least.tiny) ** 0.75)[..., None]) ** -0.5
    # A singular A is common (a softmax has as many flat directions as states). Their rounding errors must stay well
    # below the ridge, or they would dominate the pivots.
    ridge = float(least.eps) ** (2 / 3)
    both = scale[..., :, None] * scale[..., None, :]
    scaled = M * both + ridge * one
    if isinstance(scaled, np.ndarray):
        known = np.asarray(np.isfinite(scaled).all(axis=(-2, -1)))[..., None, None]
        return A.mT @ (np.where(known, np.linalg.inv(np.where(known, scaled, one)), np.nan) * both)
    return A.mT @ (spd_inverse(scaled)[0] * both)


def is_positive_definite(M: Float[Array, "n n"]) -> Bool[Array, ""]:
    """Whether xᵀMx > 0 for every x: all pivots of the symmetric part are positive."""
    return spd_inverse((M + M.T) / 2)[1]
