"""Doubly robust, cross-fitted: a value and weights that other episodes were used for."""

from __future__ import annotations

import numpy as np

from twoclock.logs.estimator_context import FOLDS, DoesNotApply, Estimated, EstimatorContext
from twoclock.logs.estimators.lstdq import check

TITLE = "doubly robust, cross-fitted"


def estimate(work: EstimatorContext) -> Estimated:
    """v̂ = mean φ̄₀ᵀθ₋ₖ + mean w₋ₖδ(θ₋ₖ), where θ₋ₖ and w₋ₖ come from the log without the fold k that they are used on.

    It is right to first order if either θ or w is, and its scores are those of episodes that were not fitted to.

    Reference: Kallus & Uehara, *Double reinforcement learning*, 2020.
    """
    check(work)
    if not work.without:
        raise DoesNotApply(f"cross-fitting needs {2 * FOLDS} groups of episodes or more")
    fold = work.of_cluster(work.fold)
    pick = np.arange(work.target.clusters), 1 + fold
    # The weights were scaled for sums over the other folds' rows.
    rows = np.bincount(work.fold, work.moments.rows)
    share = (rows.sum() - rows) / rows.sum()
    score = work.scores.score[pick] * share[fold]
    start, starts = work.scores.start[pick], work.scores.starts.sum()
    if starts:
        base = float(start.sum() / starts)
    else:
        thetas = np.stack([solved.theta for solved in work.without])
        base = float(thetas @ work.moments.total()[2] @ (rows / rows.sum()))
    value = base + float(score.sum())
    return Estimated(value, score - score.sum() / len(score) + work.start_influence(start, base))
