"""How many samples a linear model of curved operators may count: those that later samples do not contradict.

A tangent taken far from the present iterate has its root elsewhere. The bias that follows is measured: later samples
are compared with what the model of the earlier ones predicts. If v is the variance of a sample and b the bias, then n
earlier samples are worth as much as n′ without a bias, v/n′ = v/n + b², and are counted so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Float

from twoclock.intervals.arrival import squared_mean
from twoclock.methods import frozen_check
from twoclock.methods.frozen_check import FrozenCheck, is_power
from twoclock.methods.local_model import LinearModel, squared_error, times
from twoclock.protocols import pytree
from twoclock.validation.arrays import Array

# What the square of a difference must exceed to be a bias: its mean by noise, and this many times √(tr C²). The samples
# since the last move are few, and are compared sixteen times while their number doubles.
_SINCE_MOVE, _SINCE_POWER = 8.0, 2.0
# How much noisier than of independent samples the mean of a chain may be at most.
_CHAIN = 100.0
# The samples since the last power of two are compared once they are this share of those before.
_ENOUGH = 0.6


@pytree
class Older:
    """The model when the number of samples was a power of two, with which the samples since then are compared."""

    J: Float[Array, "*lanes n n"]
    c: Float[Array, "*lanes n"]
    count: Float[Array, "*lanes"]
    share: Float[Array, "*lanes"]  # its weight in the present model


def begin(model: LinearModel) -> Older:
    return Older(model.J.value, model.c.value, model.count, 0 * model.count + 1)


# All that follows takes one lane in JAX, and many lanes at once as NumPy's arrays, with leading axes.


def begin_at_powers(older: Older, model: LinearModel, k: Any) -> Older:
    """The model of now if the number of samples after step k is a power of two; else the same as before."""
    now = is_power(k + 1)
    xp = model.count.__array_namespace__()
    return replace(
        older,
        J=xp.where(now, model.J.value, older.J),
        c=xp.where(now, model.c.value, older.c),
        count=xp.where(now, model.count, older.count),
        share=xp.where(now, 1.0, older.share).astype(model.count.dtype),
    )


def grown(older: Older, before: Array, now: Array, power: Array) -> Older:
    """The same with the share that is left of it when the model counts ``now`` samples, and no longer ``before``.

    That is the product of 1 − (1 + p)/(i + p) over these counts i, nearly ((before + p/2)/(now + p/2))^(1 + p).
    """
    xp = now.__array_namespace__()
    left = ((before + power / 2) / xp.maximum(now + power / 2, 1)) ** (1 + power)
    return replace(older, share=(older.share * xp.minimum(left, 1)).astype(now.dtype))


def without_bias(
    model: LinearModel, older: Older, check: FrozenCheck, z: Float[Array, "*lanes n"], gains: tuple[Array, ...]
) -> tuple[LinearModel, Older]:
    """The model with as much of its older part as the samples since then do not contradict.

    Args:
        model: of all samples.
        older: its older part.
        check: batches of samples at a frozen point, which show what noise a chain adds.
        z: where the two parts are compared, the present iterate.
        gains: matrices from an error of (F, G) to the Newton steps of θ and of ω; the larger bias counts.
    """
    xp = z.__array_namespace__()
    late = xp.maximum(1 - older.share, 1e-3)  # model = share·older + late·(the samples since then)
    off = (model.at(z) - older.c - times(older.J, z)) / late[..., None]
    early, lately = xp.maximum(older.share * model.count, 1), xp.maximum(late * model.count, 1)
    ratio = _bias(off, 1 / early + 1 / lately, model, check, z, gains, _SINCE_POWER)
    wrong = (ratio > 0) & (older.count > 0) & (lately > _ENOUGH * early)
    left = early / (1 + early * ratio)
    share = xp.where(wrong, left / (left + lately), older.share)
    more = (older.share - share) / late

    def shifted(mean: Array, part: Array) -> Array:
        return mean + more.reshape(more.shape + (1,) * (mean.ndim - more.ndim)) * (mean - part)

    revised = replace(
        model,
        J=replace(model.J, value=shifted(model.J.value, older.J)),
        c=replace(model.c, value=shifted(model.c.value, older.c)),
        late_J=shifted(model.late_J, older.J),
        late_c=shifted(model.late_c, older.c),
        count=xp.where(wrong, left + lately, model.count),
    )
    return revised, replace(older, share=share)


def worth(
    count: Array,
    off: Float[Array, "*lanes n"],
    since: Array,
    before: Array,
    model: LinearModel,
    check: FrozenCheck,
    place: Float[Array, "*lanes n"],
    gains: tuple[Array, ...],
) -> Float[Array, "*lanes"]:
    """How many samples the model is worth if it was wrong by ``off`` at the last iterate.

    Args:
        count: the samples it counts so far.
        off: the mean of (F, G) since the last move, less the prediction of the model of that time.
        since, before: the number of samples of the two.
        model: the model.
        check: as above.
        place: the last iterate.
        gains: as above.
    """
    xp = count.__array_namespace__()
    per = 1 / xp.maximum(since, 1) + 1 / xp.maximum(before, 1)
    ratio = _bias(off, per, model, check, place, gains, _SINCE_MOVE)
    return xp.where((before > 0) & (since > 0), count / (1 + count * ratio), count)


def _bias(
    off: Array,
    per: Array,
    model: LinearModel,
    check: FrozenCheck,
    z: Array,
    gains: tuple[Array, ...],
    beyond: float,
) -> Float[Array, "*lanes"]:
    """b²/v of the Newton step for which it is larger. So an F without noise has a noise too, that of G through ω.

    ``per`` times v is what noise explains of b².
    """
    xp, least = per.__array_namespace__(), jnp.finfo(off.dtype)
    rounding = float(least.eps) * times(xp.abs(model.J.value), xp.abs(z)) ** 2
    worst, batches = xp.zeros_like(per), frozen_check.batches(check)
    for D in gains:
        mean, spread = squared_error(D, model.cov)
        # Means over samples of a chain vary more than those of as many independent ones.
        of_mean = squared_mean(batches.means @ D.mT, batches.weights).noise
        of_mean = xp.where(xp.isfinite(of_mean), of_mean, 0.0)
        of_sample = of_mean * batches.length * batches.weights.sum(axis=-1)
        chain = xp.clip(of_sample / (mean + float(least.tiny)), 1.0, _CHAIN)
        mean, spread = mean * chain, spread * chain
        at_least = times(D**2, rounding).sum(axis=-1)
        beyond_noise = (times(D, off) ** 2).sum(axis=-1) - (mean + beyond * spread) * per - at_least
        worst = xp.maximum(worst, xp.maximum(beyond_noise, 0) / (mean + at_least + float(least.tiny)))
    return worst
