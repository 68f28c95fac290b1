"""Confidence intervals of θ from one run of ``Zap``, by batch means of F and G at its frozen estimate."""

from __future__ import annotations

import numpy as np

from twoclock.intervals import batch_means
from twoclock.intervals.batch_means import BlockStatistics, Intervals
from twoclock.methods import frozen_check
from twoclock.methods.zap import Zap, ZapState, as_vector

# Where F or G is curved, samples weigh i^¼: the variance of such a mean is that of (1 + ¼)²/(1 + ½) times fewer.
_WEIGHTED = 1.25**2 / 1.5


def intervals(state: ZapState, level: float) -> Intervals:
    """An interval for each entry of θ on every lane, from NumPy's arrays with leading axes.

    The estimate is a root of the mean of n samples, so that its error is D·(mean of F and G at the solution) with the
    Newton gain D of the run's own model. The variance of that mean, on chains too, is the one between batches:

        se² = (length of a batch/n)·Σ_b (D(m_b − m̄))²/(B − 1),        θ̂ ± t·se,    t of Student with B − 1

    where m_b are means over samples after the estimate was frozen. ``n`` is the model's effective number of samples.
    """
    z, slow, _ = as_vector(state)
    with np.errstate(all="ignore"):
        zap = Zap()
        to = zap.root(state, z, slow, lately=True)
        best = np.asarray(zap.best(state, z, to, slow))[..., :slow]
        frozen = frozen_check.batches(state.check)
        weights = np.asarray(frozen.weights)[..., None]
        steps = np.asarray(frozen.means @ to.gain.mT)
        number = weights.sum(axis=-2)
        off = weights * (steps - (weights * steps).sum(axis=-2, keepdims=True) / np.maximum(number, 1)[..., None, :])
        squares = (off**2).sum(axis=-2)
        n = state.model.count / np.where(state.curved > 0, _WEIGHTED, 1.0)
        error = np.sqrt(squares / np.maximum(number - 1, 1) * (frozen.length / np.maximum(n, 1))[..., None])
        lagged = (off[..., 1:, :] * off[..., :-1, :]).sum(axis=-2)
        correlation = np.where(squares > 0, lagged / np.where(squares > 0, squares, 1.0), 0.0)
        shift = z[..., :slow] - to.slow - best
    blocks = number[..., 0]
    return batch_means.intervals(best, BlockStatistics(error, correlation, shift, blocks - 1, blocks), level)
