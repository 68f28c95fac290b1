"""The last move of ``Zap``, the samples that judge it, and lengths of moves of θ and ω.

All but ``add_sample`` take one lane in JAX, or many lanes at once as NumPy's arrays, with leading axes.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Bool, Float

from twoclock.methods.local_model import LinearModel
from twoclock.protocols import pytree
from twoclock.validation.arrays import Array

# A move went too far if the slope along it is so steep at its end, by this many standard errors. A move from the wrong
# side of a minimum always seems too far: after this many that were undone, the model trusts new samples.
_OVERSHOT, _SURE, _UNDONE = 0.1, 3.0, 3.0
# A move also went too far if single slopes along it, noise included, are this many times larger at its end: steep
# operators, such as exponentials, have samples there that say nothing.
_BURST = 10.0


@pytree
class Trial:
    """The last move, and the samples after it, which judge it; the first entry of a pair is for θ, the second for ω."""

    base: Float[Array, "*lanes n"]  # the iterate before it
    step: Float[Array, "*lanes n"]
    along: Float[Array, "*lanes 2 n"]  # along @ (F, G) is the slope of the objective along the move
    slope: Float[Array, "*lanes 2"]  # that at the base, negative where the move goes downhill
    mean: Float[Array, "*lanes 2"]  # and its mean over the samples after the move,
    square: Float[Array, "*lanes 2"]  # with its mean square
    count: Float[Array, "*lanes"]
    lost: Float[Array, "*lanes"]  # samples that were not finite
    undone: Float[Array, "*lanes"]  # moves in a row that were taken back
    expected: Float[Array, "*lanes n"]  # the earlier model's prediction of (F, G) at the new iterate,
    seen: Float[Array, "*lanes n"]  # and their mean there since then
    model: LinearModel  # that model


def add_sample(trial: Trial, f: Array, fine: Array) -> Trial:
    count = trial.count + 1
    slope = trial.along @ f
    mean, square = (old + (new - old) / count for old, new in ((trial.mean, slope), (trial.square, slope**2)))
    seen, lost = trial.seen + (f - trial.seen) / count, trial.lost + (1 - fine.astype(f.dtype))
    return replace(trial, mean=mean, square=square, count=count, lost=lost, seen=seen)


def overshot(trial: Trial) -> tuple[Bool[Array, "*lanes 2"], Float[Array, "*lanes 2"]]:
    """Whether the last move went too far, of θ and of ω, and the share of it to take instead.

    The slope along a move is negative at its base. Where it is surely positive at its end, and half as large, the
    objective has its minimum in between, about where a secant is zero.
    """
    xp = trial.count.__array_namespace__()
    # A few samples may be alike by chance, and the model has more of them.
    known = ((trial.along @ trial.model.cov) * trial.along).sum(axis=-1)
    variance = xp.maximum(trial.square - trial.mean**2, known) / xp.maximum(trial.count, 1)[..., None]
    over = trial.mean > _OVERSHOT * xp.abs(trial.slope) + _SURE * xp.maximum(variance, 0) ** 0.5
    burst = (trial.square > _BURST**2 * (known + trial.slope**2)) & (trial.model.count > 0)[..., None]
    lost = (trial.lost > 0)[..., None]
    downhill = -trial.slope
    share = xp.clip(ratio(downhill, downhill + trial.mean), 0.1, 0.5)
    return ((over | burst) & (trial.undone < _UNDONE)[..., None]) | lost, xp.where(lost | burst, 0.1, share)


def share_beyond_noise(step: Float[Array, "*lanes n"], most: Float[Array, "*lanes"]) -> Float[Array, "*lanes"]:
    """The share of a step that exceeds the noise; the noise's square is at most ``most``."""
    xp = step.__array_namespace__()
    return xp.maximum(1 - ratio(most, squared_norm(step)), 0).astype(step.dtype)


def share_within(radius: Float[Array, "*lanes"], step: Array) -> Float[Array, "*lanes"]:
    """The part of a step that stays within a radius."""
    return step.__array_namespace__().minimum(ratio(radius, squared_norm(step) ** 0.5), 1).astype(step.dtype)


def expand_axes(flags: Bool[Array, "*lanes"], like: Array) -> Array:
    return flags.reshape(flags.shape + (1,) * (like.ndim - flags.ndim))


def by_entry(pair: Array, z: Float[Array, "*lanes n"], slow: int) -> Array:
    """A pair of values for θ and ω, one for each entry."""
    xp, lanes = z.__array_namespace__(), z.shape[:-1]
    sizes = slow, z.shape[-1] - slow
    parts = [xp.broadcast_to(pair[..., i : i + 1], (*lanes, size)) for i, size in enumerate(sizes)]
    return xp.concatenate(parts, axis=-1)


def lengths_of(way: Float[Array, "*lanes n"], slow: int) -> Float[Array, "*lanes 2"]:
    """The lengths of the parts of θ and of ω."""
    squares = [squared_norm(part) for part in (way[..., :slow], way[..., slow:])]
    return way.__array_namespace__().stack(squares, axis=-1) ** 0.5


def squared_shares(way: Float[Array, "*lanes n"], sizes: Float[Array, "*lanes 2"], slow: int) -> Float[Array, "*lanes"]:
    return ratio(lengths_of(way, slow) ** 2, sizes**2).sum(axis=-1)


def squared_norm(v: Array) -> Float[Array, "*lanes"]:
    return (v**2).sum(axis=-1)


def ratio(a: Array, b: Array) -> Array:
    return a / (b + float(jnp.finfo(a.dtype).tiny))
