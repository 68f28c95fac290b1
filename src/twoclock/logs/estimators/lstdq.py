"""Least-squares temporal differences of Q: the linear fixed point, without propensities."""

from __future__ import annotations

import numpy as np

from twoclock.logs.estimator_context import DoesNotApply, Estimated, EstimatorContext
from twoclock.logs.intervals import multinomial_weights
from twoclock.logs.lstd_solve import solve, with_ones
from twoclock.logs.sufficient_stats import entries_of_a_row

TITLE = "least squares for Q (LSTD-Q)"
MOST_FEATURES = 4_000
_AT_ONCE = 1 << 23  # numbers


def estimate(work: EstimatorContext) -> Estimated:
    """v̂ = φ̄₀ᵀθ, Aθ = b.

    Its influence on the error, episode by episode, is Σwδ with w = φ̄₀ᵀA⁻¹φ, and the sampling of the starts.

    Reference: Lagoudakis & Parr, *Least-squares policy iteration*, 2003; the interval: Hao et al., *Bootstrapping
    fitted Q-evaluation for off-policy inference*, 2021.
    """
    check(work)
    value = float(work.moments.total()[2] @ work.main.theta)
    influence = work.scores.score[:, 0] + work.start_influence(work.scores.start[:, 0], value)
    return Estimated(value, influence, resampled(work))


def check(work: EstimatorContext) -> None:
    size = work.target.features.size
    if size > MOST_FEATURES and entries_of_a_row(work.target.features, work.target.log) is None:
        raise DoesNotApply(f"{size:,} dense features make a matrix of {size:,}²; take fewer, or estimator='dice'")


def resampled(work: EstimatorContext) -> np.ndarray | None:
    """The estimate on resamples of whole groups of episodes: a solve each."""
    groups = work.target.groups
    if not work.resamples or groups < 2 * 10:
        return None
    counts, moments, basis = multinomial_weights(groups, work.resamples), work.moments, work.basis
    if moments.is_sparse:
        found = []
        for weights in counts:
            A, b, phi0 = moments.total(weights)
            found.append(phi0 @ solve(A, b, phi0, basis).theta)
        return np.array(found)
    A = np.stack([basis.matrix(one) for one in moments.A])
    b, phi0 = basis.down(moments.b), basis.down(moments.phi0)
    values, r = [], basis.rank
    for some in np.array_split(counts, -(-len(counts) * r * r // _AT_ONCE)):
        theta = np.linalg.solve(with_ones(np.tensordot(some, A, 1)), (some @ b)[..., None])[..., 0]
        starts = some @ moments.starts
        start = (
            np.broadcast_to(basis.down(moments.start), theta.shape)
            if moments.start is not None
            else some @ phi0 / np.maximum(starts, 1)[:, None]
        )
        values.append((start * theta).sum(axis=1))
    return np.concatenate(values)
