"""A linear model of the mean operators near an iterate, with its sampling noise, and Newton's step to its root.

Each sample is linearised where it was taken, z ↦ f_i + J_i (z − z_i) with z = (θ, ω) and f = (F, G), and the model is
their weighted mean J z + c. Where F and G are affine that is exact wherever z_i was, and its root is the least-squares
estimate of the samples (LSTD, in policy evaluation).
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from twoclock.protocols import Scalar, pytree
from twoclock.tree_math import Sum, blend, start

_LATE = 20.0


@pytree
class LinearModel:
    """The mean of linearised samples."""

    J: Sum  # the mean Jacobian
    c: Sum  # the mean of f_i − J_i z_i
    spread: Float[Array, "n n"]  # the variance of each entry of a sample's Jacobian
    cov: Float[Array, "n n"]  # the covariance of a sample's f about the model
    place: Float[Array, " n"]  # the mean of the iterates that the samples were taken at
    count: Float[Array, ""]  # how many samples the mean is worth
    # Running means of J and c over the last twentieth of their samples. Samples that come in epochs cancel over each,
    # and a mean that ends within one is off by its part; these are not.
    late_J: Float[Array, "n n"]
    late_c: Float[Array, " n"]

    def at(self, z: Float[Array, " n"]) -> Float[Array, " n"]:
        return self.c.value + self.J.value @ z


@pytree
class Root:
    """The way to the root of a model, the slow block first."""

    slow: Float[Array, " slow"]  # S⁻¹(f − B g), the Newton step of θ with ω at its best: B = F_ω G_ω⁻¹, S = F_θ − B G_θ
    slow_noise: Float[Array, ""]  # E‖·‖² of its sampling error
    slow_most: Float[Array, ""]  # what ‖·‖² of its sampling error seldom exceeds
    fast_noise: Float[Array, ""]  # those of G_ω⁻¹ g
    fast_most: Float[Array, ""]
    fast_inverse: Float[Array, "fast fast"]  # with g and G_theta: the step of ω once θ has moved
    g: Float[Array, " fast"]
    G_theta: Float[Array, "fast slow"]
    u: Float[Array, " slow"]  # f − B g
    u_most: Float[Array, ""]  # what ‖·‖² of its sampling error seldom exceeds
    flat: Float[Array, " slow"]  # what of u is left at the root: no step to be seen makes it smaller
    scale: Float[
        Array, ""
    ]  # ‖u‖√d/‖S‖, a length of θ that needs no inverse; 0 where S does not stand out from its noise
    fast_scale: Float[Array, ""]
    reduce: Float[Array, "slow n"]  # u = reduce @ (F, G)
    gain: Float[Array, "slow n"]  # slow = gain @ (F, G), but for the prior
    S: Float[Array, "slow slow"]
    reduced_gain: Float[Array, "slow slow"]  # slow = reduced_gain @ u, but for the prior
    likely: Float[Array, ""]  # the standard deviation of the prior

    def loose(self) -> Float[Array, ""]:
        """E‖·‖² of the error in directions of which the samples say little, by the prior."""
        # Directions in which no sample has a slope at all, as a softmax has, are no loss: any answer is one.
        seen = inverse(self.S) @ self.S
        return self.likely**2 * jnp.sum((seen - self.reduced_gain @ self.S @ seen) ** 2)

    def fast(self, moved: Float[Array, " slow"]) -> Float[Array, " fast"]:
        """The Newton step of ω where θ steps by ``moved``."""
        return self.fast_inverse @ (self.g - self.G_theta @ moved)


def empty(z: Float[Array, " n"]) -> LinearModel:
    square = jnp.zeros((z.size, z.size), z.dtype)
    zero = jnp.zeros_like(z)
    return LinearModel(start(square), start(zero), square, square, zero, jnp.zeros((), z.dtype), square, zero)


def learn(
    model: LinearModel, z: Array, f: Array, J: Array, power: Scalar, fine: Bool[Array, ""] | bool = True
) -> LinearModel:
    """One more sample, with weights that grow like i^power over the samples counted; none where it is not fine."""
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


def lately(model: LinearModel) -> LinearModel:
    """The model with its running means instead of its means."""
    return replace(model, J=start(model.late_J), c=start(model.late_c))


def root(model: LinearModel, z: Array, origin: Float[Array, " slow"], size: Float[Array, ""]) -> Root:
    """Newton's step from z to the root of the model, by blocks.

    The root in θ is that of u + S·(step) = 0 seen through the sampling noise of u, with a normal prior for the way from
    ``origin``, θ at the start: of a standard deviation of ``size``/√d in each of its d coordinates. So directions
    of which the samples say nothing stay where they began. Where S is surely not positive definite it is shifted, so
    that θ goes downhill and not to a saddle.
    """
    slow = origin.size
    J, m = model.J.value, model.at(z)
    (F_theta, F_omega), (G_theta, G_omega) = ((rows[:, :slow], rows[:, slow:]) for rows in (J[:slow], J[slow:]))
    count = jnp.maximum(model.count, 1)
    fast_inverse = inverse(G_omega)
    B = F_omega @ fast_inverse
    u, S = m[:slow] - B @ m[slow:], F_theta - B @ G_theta
    spread = jnp.sum(model.spread[:slow, :slow]) + jnp.sum(B**2 @ model.spread[slow:, :slow])
    unsure, steep = jnp.sqrt(spread / count), jnp.sqrt(jnp.sum(S**2))
    S = S + _shift(S, unsure) * jnp.eye(slow, dtype=z.dtype)
    reduce = jnp.concatenate([jnp.eye(slow, dtype=z.dtype), -B], axis=1)
    cov = model.cov / count
    likely = size / max(slow, 1) ** 0.5
    gain = likely * posterior_gain(likely * S, reduce @ cov @ reduce.T)
    gain = 2 * gain - gain @ S @ gain  # twice, so that what the prior takes off the way is of second order
    way = z[:slow] - origin
    step = way + gain @ (u - S @ way)
    steep_omega = jnp.sqrt(jnp.sum(G_omega**2))
    unsure_omega = jnp.sqrt(jnp.sum(model.spread[slow:, slow:]) / count)
    return Root(
        step,
        *_noise(gain @ reduce, cov),
        *_noise(fast_inverse, cov[slow:, slow:]),
        fast_inverse,
        m[slow:],
        G_theta,
        u,
        _noise(reduce, cov)[1],
        u - S @ step,
        _length(u, steep, unsure),
        _length(m[slow:], steep_omega, unsure_omega),
        reduce,
        gain @ reduce,
        S,
        gain,
        likely,
    )


def _length(u: Array, steep: Array, unsure: Array) -> Float[Array, ""]:
    """‖u‖√d/‖S‖ where S stands out from its noise, else 0."""
    tiny = jnp.finfo(u.dtype).tiny
    return jnp.where(steep > 2 * unsure, jnp.sqrt(jnp.sum(u**2) * u.size) / (steep + tiny), 0)


def _noise(D: Float[Array, "m n"], cov: Float[Array, "n n"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean and upper end of ‖e‖², e ~ N(0, C), C = D cov Dᵀ: tr C, and three times √tr C² more.

    The standard deviation is √(2 tr C²). So the upper end is four times the mean in one dimension, and near the mean
    where many share the noise.
    """
    C = D @ cov @ D.T
    mean = jnp.trace(C)
    return mean, mean + 3 * jnp.sqrt(jnp.sum(C**2))


def _shift(S: Float[Array, "n n"], unsure: Float[Array, ""]) -> Float[Array, ""]:
    """0 where sym S + unsure·I is positive definite, else about twice what makes it so: λ becomes |λ|."""
    size = jnp.sqrt(jnp.sum(S**2))
    one = jnp.eye(len(S), dtype=S.dtype)
    least = unsure + jnp.finfo(S.dtype).eps * size

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


def inverse(A: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """A⁻¹ by normal equations, Aᵀ(AAᵀ)⁻¹; where A is singular to rounding, nearly its pseudo-inverse."""
    return posterior_gain(A, jnp.zeros_like(A))


def posterior_gain(A: Float[Array, "n n"], noise: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Aᵀ(AAᵀ + noise)⁻¹: the mean of x given A x + e = y is this times y, where x ~ N(0, I) and e ~ N(0, noise)."""
    least = jnp.finfo(A.dtype)
    M = A @ A.T + noise
    one = jnp.eye(len(A), dtype=A.dtype)
    # Unit diagonal, for the pivots.
    scale = jax.lax.rsqrt(jnp.sum(M * one, axis=1) + least.eps * jnp.sum(A**2) + least.tiny)
    # A singular A is common (a softmax has as many flat directions as states): what rounding leaves of them must stay
    # well below the ridge, or the pivots are made of nothing else.
    ridge = float(least.eps) ** (2 / 3)
    both = scale[:, None] * scale[None, :]
    scaled, _ = spd_inverse(M * both + ridge * one)
    return A.T @ (scaled * both)


def is_positive_definite(M: Float[Array, "n n"]) -> Bool[Array, ""]:
    """Whether xᵀMx > 0 for every x: all pivots of the symmetric part are positive."""
    return spd_inverse((M + M.T) / 2)[1]
