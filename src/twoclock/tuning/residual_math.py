"""Squared distances from batch means and slopes: the arithmetic behind the residuals, with their standard errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

# Singular values below these shares of the largest count as zero: of ∂G/∂ω, and of the curvature, where a direction so
# flat would show nothing but noise.
_CUT, _FLAT = 1e-6, 1e-3


@dataclass(frozen=True)
class Residuals:
    """One entry a setting and seed; infinite where a lane had diverged, or does so while it is looked at.

    Attributes:
        distance: an estimate of ‖S⁺(E F − B·E G)‖², see ``residuals``; NaN where θ and ω are too large for it.
        slow: that of ‖E F − B·E G‖²; like the others unbiased, but for the error of the slopes, and maybe negative.
        rest: that of the part of ‖E G‖² which B does not act on; 0 but for a large ω.
        unit: ‖J_F‖²/‖J_G‖², which turns a square of G into one of F.
        F: that of ‖E F‖².
        G: that of ‖E G‖².
        distance_se, slow_se, rest_se, F_se, G_se: their standard errors, by the jackknife over batches. That of the
            slopes is not in them; the spread over seeds has it all.
        flat: how many directions of θ have no curvature that could be told from noise, and are not in the distance.
    """

    distance: Float[np.ndarray, "settings seeds"]
    slow: Float[np.ndarray, "settings seeds"]
    rest: Float[np.ndarray, "settings seeds"]
    unit: Float[np.ndarray, "settings seeds"]
    F: Float[np.ndarray, "settings seeds"]
    G: Float[np.ndarray, "settings seeds"]
    distance_se: Float[np.ndarray, "settings seeds"]
    slow_se: Float[np.ndarray, "settings seeds"]
    rest_se: Float[np.ndarray, "settings seeds"]
    F_se: Float[np.ndarray, "settings seeds"]
    G_se: Float[np.ndarray, "settings seeds"]
    flat: Float[np.ndarray, "settings seeds"]


def squares(
    J_F: Float[np.ndarray, "settings seeds directions slow"],
    J_G: Float[np.ndarray, "settings seeds directions fast"],
    F: Float[np.ndarray, "batches settings seeds slow"],
    G: Float[np.ndarray, "batches settings seeds fast"],
    whole: bool,
    alive: Bool[np.ndarray, "settings seeds"],
) -> Residuals:
    """The residuals from slopes along directions and from batch means.

    Args:
        J_F, J_G: the mean derivatives of F and G, a row for each direction of (θ, ω).
        F, G: the means over each batch.
        whole: whether the directions are all of (θ, ω), and not some of ω alone.
        alive: which lanes have not diverged.
    """
    split = F.shape[-1] if whole else 0
    (F_theta, F_omega), (G_theta, G_omega) = ((J[..., :split, :], J[..., split:, :]) for J in (J_F, J_G))
    back = np.linalg.pinv(G_omega, rcond=_CUT)
    slow, rest = F - _times(_times(G, back), F_omega), G - _times(_times(G, back), G_omega)
    size_F, size_G = (np.sum(J**2, axis=(-2, -1)) for J in (F_omega, G_omega))
    unit = np.divide(size_F, size_G, out=np.zeros_like(size_F), where=size_G > 0)
    nothing = np.full(size_F.shape, np.nan)
    distance, flat = (nothing, nothing), nothing
    if whole:
        S = F_theta - G_theta @ back @ F_omega
        sizes = np.linalg.svd(S, compute_uv=False)
        flat = np.sum(sizes <= _FLAT * sizes[..., :1], axis=-1).astype(float)
        distance = _squared_mean(_times(slow, np.linalg.pinv(S, rcond=_FLAT)))
    squares = [distance, *(_squared_mean(means) for means in (slow, rest, F, G))]
    (distance_sq, slow_sq, rest_sq, F_sq, G_sq), errors = zip(*squares, strict=True)
    parts = (distance_sq, slow_sq, rest_sq, unit, F_sq, G_sq, *errors, flat)
    return Residuals(*(np.where(alive, part, np.inf) for part in parts))


def _times(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Row vectors (batches × …) times one matrix for each lane."""
    return np.einsum("...d,...de->...e", rows, matrix)


def _squared_mean(means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """From batch means: over all pairs, less each with itself and with the next; and its jackknife standard error.

    What overflows comes out infinite: a lane about to diverge.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return _pairs(means)


def _pairs(means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    count = len(means)
    at = np.arange(count)
    pairs = (np.abs(at[:, None] - at) > 1).astype(float)
    products = np.einsum("i...d,j...d->ij...", means, means) * pairs.reshape(count, count, *[1] * (means.ndim - 2))
    total, number = products.sum(axis=(0, 1)), pairs.sum()
    without = (total - 2 * products.sum(axis=1)) / (number - 2 * pairs.sum(axis=1)).reshape(-1, *[1] * total.ndim)
    spread = np.sum((without - without.mean(axis=0)) ** 2, axis=0)
    return total / number, np.sqrt((count - 1) / count * spread)
