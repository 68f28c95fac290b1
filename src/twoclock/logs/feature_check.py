"""Two checks of the features: whether the Bellman residual vanishes on richer features, and on earlier rows.

    g = Σ w⁺δ,   w⁺ = x⁺ᵀz,   A⁺ᵀx⁺ = φ̄₀⁺,   A⁺ = Σ z(φ⁺ − γφ̄'⁺)ᵀ

If the features hold the policy's Q, the residual δ has mean 0 given the state, the action and the past, so every
projection of it is noise. With richer features φ⁺ = z the projection g is how far the value moves with them, which is
the bias if they do hold Q. With traces z of the features, sums over the last eight rows of the episode, g is how far
the value moves if returns are over several steps: states that the features do not separate may differ in their past.
The weights are from a part of a long log, the projection is on all of it. So more data always sharpen the checks, and
the second pass needs no products of matrices.

Reference: Sargan, *The estimation of economic relationships using instrumental variables*, 1958, for such tests.
"""

from __future__ import annotations

import numpy as np

from twoclock.logs.dataset import Log, rows_as_labels
from twoclock.logs.estimators import EstimatorContext, Influence
from twoclock.logs.features import (
    Crossed,
    Joint,
    OneHot,
    PairFeatures,
    Rbf,
    build,
    table_of,
    to_dense,
    vectors,
)
from twoclock.logs.linear_systems import Basis, solve_lstd
from twoclock.logs.sufficient_stats import MOST_DENSE, Estimand, Moments, part_moments, run_starts
from twoclock.protocols import InputError

_ROWS = 150_000  # rows for the weights; of a longer log, parts that are spread over it
_CENTRES, _WIDTHS = 20, (1.0, 1 / 3)  # a kink is narrower than the median distance of states
_MOST_STATES, _COME_BACK = 20_000, 3.0


def richer_features(features: PairFeatures, log: Log, others: np.ndarray | None = None) -> PairFeatures | None:
    """Features that represent more functions: a table where states recur, else radial features beside the given ones.

    None where there are no richer ones: for a table, and for states that are text and do not recur.
    """
    if table_of(features) is not None:
        return None
    states, _ = log.sample
    labels = rows_as_labels(states)
    if log.actions is not None and len(labels) >= _COME_BACK * len(np.unique(labels)):
        table = OneHot.of(log, others)
        if table.size <= _MOST_STATES:
            return Crossed(table, len(log.actions), labels=True)
    try:
        spread = Rbf(1).fit(vectors(states)).width or 1.0
        added = [build(Rbf(_CENTRES, share * spread, seed), log) for seed, share in enumerate(_WIDTHS, 1)]
    except InputError:  # states that are text
        return None
    # Beside very many features, the new ones alone: a matrix of all would be too large.
    parts = added if features.size > MOST_DENSE // 2 else [features, *added]

    def side_by_side(state: np.ndarray, action: np.ndarray) -> np.ndarray:
        return np.hstack([to_dense(part.pairs(part.encode(state), action)) for part in parts])

    numbers = None if log.actions is None else np.arange(len(log.actions))
    return Joint(side_by_side, sum(part.size for part in parts), numbers)


def value_shift(context: EstimatorContext, richer: Estimand) -> tuple[float, Influence]:
    """How far the value of the linear fixed point moves, and the contribution of each cluster to its error.

    Args:
        context: of the estimate.
        richer: the same estimand with richer features, or with traces.
    """
    parts, log = range(len(richer.log.parts)), richer.log
    some = parts[:: max(1, -(-log.rows // _ROWS))]
    sums = Moments.zeros(richer, range(richer.groups))
    for part in context.mapper(part_moments, (richer,), some):
        sums.add(part)
    basis = Basis.of(sums.C)
    x = solve_lstd(*sums.total(), basis).x * float(sums.rows.sum()) / log.rows
    solution = context.solution
    passes = context.mapper(part_projection, (context.estimand, richer, solution.theta, solution.x, x), parts)
    found = np.zeros((context.estimand.clusters, 2))
    for first, projections in passes:
        found[first : first + len(projections)] += projections
    gap = float(found[:, 0].sum())
    return gap, found[:, 0] - found[:, 1] - gap / len(found)


def part_projection(
    estimand: Estimand, richer: Estimand, theta: np.ndarray, x: np.ndarray, x_richer: np.ndarray, part: int
) -> tuple[int, np.ndarray]:
    """Σw⁺δ and Σwδ of each cluster of a part, and the number of its first cluster."""
    span = estimand.span(part, estimand.clusters)
    sums = np.zeros((len(span), 2))
    for batch in estimand.log.batches(part):
        phi, after = estimand.rows(batch)
        delta = batch.reward + estimand.gamma * (after @ theta) - phi @ theta
        added = phi if richer.traced else richer.features.pairs(richer.features.encode(batch.state), batch.action)
        weights = richer.instruments(added, batch) @ x_richer, phi @ x
        at = estimand.index(batch, estimand.clusters) - span.start
        runs = run_starts(at)
        sums[at[runs]] += np.add.reduceat(np.column_stack(weights) * delta[:, None], runs, axis=0)
    return span.start, sums
