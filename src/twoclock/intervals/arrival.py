"""The test for arrival: are the means of the operators at an estimate zero, as far as fresh samples can tell?

An estimate is frozen, and F and G are averaged there over batches of fresh samples. It has arrived if

    ‖mean‖² ≤ 12·noise        the mean is within its sampling error
    noise ≤ start/10          and the square of that error is small against the squared mean at the start

The second rule excludes estimates at which the noise hides the mean: a start with noisy samples and nearly flat
operators passes the first rule and fails the second.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

from jaxtyping import Bool, Float

from twoclock.validation.arrays import Array

# The estimate itself has errors. In one dimension, with as many samples for it as for its test, it passes 99 times in
# 100: its mean is normal with twice the variance of the noise, and the noise is subtracted from the value.
WITHIN, SMALL = 12.0, 0.1
# The probability that chance objects to any seed of a run, and the number of scores that are compared in each.
BY_CHANCE, SCORES = 0.02, 3


def score_limit(seeds: int) -> float:
    """The limit of a score: chance objects to a run of this many right seeds once in fifty runs (Bonferroni)."""
    return NormalDist().inv_cdf(1 - BY_CHANCE / (SCORES * max(seeds, 1)))


ONE_SEED = score_limit(1)


class SquaredMean(NamedTuple):
    """The squared norm of a mean, estimated from batches of samples."""

    value: Float[Array, "*lanes"]  # unbiased, so that it may be negative near zero
    noise: Float[Array, "*lanes"]  # E‖·‖² of the sampling error of the mean; infinite from fewer than three batches


class Surprise(NamedTuple):
    """How far a mean is from zero, on the scale of a standard normal variable."""

    score: Float[Array, "*lanes"]
    noise: Float[Array, "*lanes"]  # as in ``SquaredMean``


class Arrival(NamedTuple):
    """The mean of an operator at an estimate, judged by fresh samples."""

    within_noise: Bool[Array, "*lanes"]
    tells_from_start: Bool[Array, "*lanes"]  # whether the noise is small against the mean at the start


def squared_mean(means: Float[Array, "*lanes batches n"], weights: Float[Array, "... batches"]) -> SquaredMean:
    """Square a mean without the bias of its noise, in NumPy or in JAX.

        value = Σ w_a w_b ⟨m_a, m_b⟩ / Σ w_a w_b     over pairs of batches that are neither the same nor neighbours
        noise = Σ w_a² ‖m_a − m̄‖² / ((Σ w_a)² (1 − 1/B)),    B = (Σ w_a)²/Σ w_a²

    Neighbours are left out for Markov samples: the bias then falls geometrically with the length of a batch.

    Args:
        means: the mean of each batch.
        weights: how much each batch counts, the number of its samples, 0 where there are none.

    >>> import numpy as np
    >>> found = squared_mean(np.asarray([[3.0], [5.0], [3.0], [5.0]]), np.ones(4))
    >>> round(float(found.value), 2), round(float(found.noise), 3)
    (16.33, 0.333)
    """
    xp = means.__array_namespace__()
    at = xp.arange(means.shape[-2])
    pairs = weights[..., :, None] * weights[..., None, :] * xp.where(xp.abs(at[:, None] - at[None, :]) > 1, 1.0, 0.0)
    number, total, squares = xp.sum(pairs, axis=(-2, -1)), xp.sum(weights, axis=-1), xp.sum(weights**2, axis=-1)
    enough = xp.sum(xp.where(weights > 0, 1, 0), axis=-1) > 2
    safe_total = xp.where(enough, total, 1.0)
    centre = xp.sum(weights[..., None] * means, axis=-2, keepdims=True) / safe_total[..., None, None]
    spread = xp.sum(weights**2 * xp.sum((means - centre) ** 2, axis=-1), axis=-1)
    share = xp.where(enough, 1 - squares / safe_total**2, 1.0)
    products = xp.sum(pairs * (means @ xp.swapaxes(means, -1, -2)), axis=(-2, -1))
    noise = xp.where(enough, spread / (safe_total**2 * share), xp.inf)
    return SquaredMean(products / xp.where(enough, number, 1.0), noise)


def surprise(
    means: Float[Array, "*lanes batches n"], weights: Float[Array, "... batches"], floor: Float[Array, "*lanes"]
) -> Surprise:
    """Compare the mean at an estimate with zero, in as many directions as share its noise.

    The estimate has an error of its own, of a variance up to that of the noise. So half of (value + noise)/noise has an
    F law if the mean is zero, with d and (B − 1)d degrees of freedom, d = (tr C)²/tr C² for the covariance C of the B
    batches. Paulson's formula turns its cube root into a standard normal variable.

    Args:
        means, weights: as of ``squared_mean``.
        floor: what counts as zero beside the noise, in the square.
    """
    xp = means.__array_namespace__()
    value, noise = squared_mean(means, weights)
    known = xp.isfinite(noise)
    number = xp.maximum(xp.sum(xp.where(weights > 0, 1.0, 0.0), axis=-1), 3.0)
    kept = xp.where(weights > 0, 1.0, 0.0)[..., None]
    off = kept * (means - xp.sum(kept * means, axis=-2, keepdims=True) / number[..., None, None])
    gram = off @ xp.swapaxes(off, -1, -2)
    tiny = float(xp.finfo(means.dtype).tiny) ** 0.5
    scale = xp.sum(off**2, axis=(-2, -1))[..., None, None] + tiny
    # 1/d, which B batches overestimate by 1/(B − 1).
    shared = xp.sum((gram / scale) ** 2, axis=(-2, -1)) - 1 / (number - 1)
    d = 1 / xp.clip(shared, 1 / max(means.shape[-1], 1), 1.0)
    ratio = xp.maximum(1 + value / (xp.where(known, noise, 1.0) + floor + tiny), 0.0) / 2
    root, over, under = ratio ** (1 / 3), 2 / (9 * d), 2 / (9 * (number - 1) * d)
    score = ((1 - under) * root - (1 - over)) / (under * root**2 + over) ** 0.5
    return Surprise(xp.where(known, score, xp.inf), noise)


def judge(here: SquaredMean, start: Float[Array, "*lanes"]) -> Arrival:
    """Judge a mean at an estimate by its noise and by the squared mean at the start.

    Of several operators, all must be within their noise, and the slow one must differ clearly from the start.

    Args:
        here: the squared mean of the samples after the estimate was frozen.
        start: the squared mean at the start, without the bias of its noise.
    """
    return Arrival(here.value <= WITHIN * here.noise, here.noise <= SMALL * start)
