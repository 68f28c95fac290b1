"""Estimates of the distance to a solution from the means and slopes of F and G on fresh samples."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float

from twoclock.intervals import arrival
from twoclock.tuning.fresh_samples import FreshMeans

# Singular values below these shares of the largest count as zero: of ∂G/∂ω, and of the curvature; and those of the
# curvature below this many of their standard errors are not known.
_CUT, _ZERO, _UNSURE = 1e-6, 1e-9, 3.0


class Square(NamedTuple):
    """An estimate of a squared norm per setting and seed, infinite where the lane diverged, and its standard error.

    The error is the jackknife's over batches. It does not contain the error of the slopes; the spread over seeds
    contains both.
    """

    value: Float[np.ndarray, "settings seeds"]
    se: Float[np.ndarray, "settings seeds"]


class LocalModel(NamedTuple):
    """The slopes of E F and E G at estimates, in the forms that are needed.

        E F − B·E G,    B = F_ω G_ω⁺             is E F after one Newton step of ω: ∇h(θ) to first order
        S⁺(E F − B·E G),    S = F_θ − B·G_θ      is the Newton step of θ: θ − θ* to first order

    both exactly where F and G are affine. A singular value of S that is zero within its error is replaced by its upper
    bound, so that a mean in such a direction counts as the least possible distance.

    Attributes:
        back, B, G_omega, gain: G_ω⁺, B, G_ω and the inverse of S, each transposed, for rows times matrix; no gain where
            there are too many entries.
        unit: ‖F_ω‖²/‖G_ω‖², which turns a square of G into one of F.
        flat: the number of directions of θ without curvature; all points along them are equally good.
        unsure: the number of directions that the samples do not determine; the error of θ along them is unknown.
    """

    back: Float[np.ndarray, "settings seeds fast directions"]
    B: Float[np.ndarray, "settings seeds fast slow"]
    gain: Float[np.ndarray, "settings seeds slow slow"] | None
    G_omega: Float[np.ndarray, "settings seeds directions fast"]
    unit: Float[np.ndarray, "settings seeds"]
    flat: Float[np.ndarray, "settings seeds"]
    unsure: Float[np.ndarray, "settings seeds"]

    @classmethod
    def of(cls, means: FreshMeans) -> LocalModel:
        """Invert the slopes from the samples."""
        whole = bool(means.whole.all())
        split = means.F.shape[-1] if whole else 0
        pieces = means.J_F.shape[2]
        J_F, J_G = (part.mean(axis=2) for part in (means.J_F, means.J_G))
        F_omega, G_omega = J_F[..., split:, :], J_G[..., split:, :]
        back = np.linalg.pinv(G_omega, rcond=_CUT)
        size_F, size_G = (np.sum(J**2, axis=(-2, -1)) for J in (F_omega, G_omega))
        unit = np.divide(size_F, size_G, out=np.zeros_like(size_F), where=size_G > 0)
        nothing = np.zeros(size_F.shape)
        if not whole:
            return cls(back, back @ F_omega, None, G_omega, unit, nothing, nothing)
        S = _curvature(J_F, J_G, split)
        left, sizes, right = np.linalg.svd(S)
        se = np.full(sizes.shape, np.inf)
        if pieces > 1:  # the jackknife, along each singular direction
            without_F, without_G = (
                (part.sum(axis=2, keepdims=True) - part) / (pieces - 1) for part in (means.J_F, means.J_G)
            )
            rest = [_curvature(without_F[:, :, i], without_G[:, :, i], split) for i in range(pieces)]
            along = np.stack([np.einsum("...ji,...jk,...ik->...i", left, one, right) for one in rest])
            se = np.sqrt((pieces - 1) * np.mean((along - along.mean(axis=0)) ** 2, axis=0))
        least = _ZERO * sizes[..., :1]
        flat, unsure = sizes <= least, sizes <= _UNSURE * se
        floor = np.maximum(np.maximum(sizes, _UNSURE * np.where(np.isfinite(se), se, sizes)), np.maximum(least, 1e-300))
        gain = np.einsum("...ij,...i,...ki->...jk", right, 1 / floor, left)
        counts = (np.sum(which, axis=-1).astype(float) for which in (flat & (se <= least), unsure & (se > least)))
        return cls(back, back @ F_omega, gain, G_omega, unit, *counts)

    def slow(self, F: np.ndarray, G: np.ndarray) -> np.ndarray:
        """E F − B·E G of batch means."""
        return F - G @ self.B

    def rest(self, G: np.ndarray) -> np.ndarray:
        """The part of E G outside the range on which B acts."""
        return G - G @ self.back @ self.G_omega

    def step(self, F: np.ndarray, G: np.ndarray) -> np.ndarray:
        """The Newton step of θ, from batch means; the slow mean if there are too many entries."""
        return self.slow(F, G) if self.gain is None else self.slow(F, G) @ self.gain


def _curvature(J_F: np.ndarray, J_G: np.ndarray, split: int) -> np.ndarray:
    """The transpose of S, from slopes along all entries, the first ``split`` of them of θ."""
    back = np.linalg.pinv(J_G[..., split:, :], rcond=_CUT)
    return J_F[..., :split, :] - J_G[..., :split, :] @ back @ J_F[..., split:, :]


class ResidualEstimates(NamedTuple):
    """Residuals of the estimates of a run on fresh samples.

    Attributes:
        distance: ‖S⁺(E F − B·E G)‖², see ``LocalModel``; NaN where θ and ω are too large for it.
        slow: ‖E F − B·E G‖²; like the others unbiased except for the error of the slopes, and possibly negative.
        rest: the part of ‖E G‖² on which B does not act; 0 unless ω is large.
        F, G: ‖E F‖² and ‖E G‖².
        start: for the start, the same as ``distance`` or else ``slow``: by the means of F and G there, or by the
            distance from there to the solution as the slopes predict it, whichever is less.
        unit: ‖J_F‖²/‖J_G‖², which converts a square of G to one of F.
        flat, unsure: as in ``LocalModel``.
        arrived: whether E F and E G are within their noise, that noise is small compared with the start, and no
            direction of θ is unsure.
    """

    distance: Square
    slow: Square
    rest: Square
    F: Square
    G: Square
    start: Square
    unit: Float[np.ndarray, "settings seeds"]
    flat: Float[np.ndarray, "settings seeds"]
    unsure: Float[np.ndarray, "settings seeds"]
    arrived: Bool[np.ndarray, "settings seeds"]

    def median_unit(self) -> float:
        """The usual unit, over the lanes that did not diverge."""
        finite = self.unit[np.isfinite(self.unit)]
        return float(np.median(finite)) if finite.size else 0.0

    def best(self, unit: float) -> Square:
        """The squared distance, or the squared gradient if there are too many entries."""
        if np.isnan(self.distance.value).any():
            return Square(*(slow + unit * rest for slow, rest in zip(self.slow, self.rest, strict=True)))
        return self.distance


def estimate_residuals(means: FreshMeans, model: LocalModel | None = None) -> ResidualEstimates:
    """Estimate the squared means of F and G at the estimates of a run, and the distance that they imply.

        (1/#pairs) Σ ⟨m_i, m_j⟩   over the pairs of batch means that are neither the same nor neighbours

    Where samples are independent the estimate is unbiased; on a chain its bias falls geometrically with the length of a
    batch.

    Args:
        model: the slopes to judge by; by default those at each estimate.
    """
    model = LocalModel.of(means) if model is None else model
    F, G = means.F, means.G
    step, start = model.step(F, G), model.step(means.F_start, means.G_start)
    distance = _squared_mean(step)
    if model.gain is None:
        distance = Square(*(np.full_like(part, np.nan) for part in distance))
    slow_sq, rest_sq, F_sq, G_sq, start_sq = map(_squared_mean, (model.slow(F, G), model.rest(G), F, G, start))
    if model.gain is not None:
        by_way = _squared_mean(step - means.moved[:, :, None])
        less = by_way.value < start_sq.value
        start_sq = Square(*(np.where(less, one, two) for one, two in zip(by_way, start_sq, strict=True)))
    weights = np.ones(F.shape[2])
    with np.errstate(over="ignore", invalid="ignore"):
        near, at, of_G = (arrival.squared_mean(part, weights) for part in (step, start, G))
        slow = arrival.judge(near, at.value)
        known = near.noise <= arrival.SMALL * means.way if model.gain is not None else True
        fits = of_G.value <= arrival.WITHIN * of_G.noise + 1e-20 * np.sum(means.G_start.mean(axis=2) ** 2, axis=-1)
        closer = near.value < at.value
    arrived = slow.within_noise & slow.tells_from_start & known & fits & closer & (model.unsure == 0)
    unit, flat, unsure = (np.broadcast_to(part, means.alive.shape) for part in (model.unit, model.flat, model.unsure))
    found = ResidualEstimates(distance, slow_sq, rest_sq, F_sq, G_sq, start_sq, unit, flat, unsure, arrived)
    kept = jax.tree.map(lambda part: np.where(means.alive, part, np.inf), found)
    return kept._replace(arrived=arrived & means.alive)


def _squared_mean(means: Float[np.ndarray, "settings seeds batches n"]) -> Square:
    """The squared mean from all pairs of batch means except equal and neighbouring ones, with its jackknife standard
    error.

    An overflow gives infinity: a lane about to diverge.
    """
    count = means.shape[2]
    at = np.arange(count)
    pairs = (np.abs(at[:, None] - at) > 1).astype(float)
    with np.errstate(over="ignore", invalid="ignore"):
        products = (means @ np.swapaxes(means, -1, -2)) * pairs
        total, number = products.sum(axis=(-2, -1)), pairs.sum()
        without = (total[..., None] - 2 * products.sum(axis=-1)) / (number - 2 * pairs.sum(axis=1))
        spread = np.sum((without - without.mean(axis=-1, keepdims=True)) ** 2, axis=-1)
        return Square(total / number, np.sqrt((count - 1) / count * spread))
