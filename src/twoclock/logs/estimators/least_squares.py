"""LSTD-Q and the estimators that share its sums: fitted Q-evaluation, the counted MDP, the doubly robust estimate."""

from __future__ import annotations

import numpy as np

from twoclock.logs.estimators import FOLDS, DoesNotApply, EstimatorContext, ValueEstimate, estimator
from twoclock.logs.features import Matrix, table_of, without_alike
from twoclock.logs.sufficient_stats import Estimand

_TOLERANCE, _MOST_ITERATIONS = 1e-12, 200_000


@estimator("least squares for Q (LSTD-Q)")
def lstdq(context: EstimatorContext) -> ValueEstimate:
    """v̂ = φ̄₀ᵀθ, Aθ = b: the linear fixed point, without propensities.

    Its influence on the error, episode by episode, is Σwδ with w = φ̄₀ᵀA⁻¹φ, and the sampling of the starts.

    Reference: Lagoudakis & Parr, *Least-squares policy iteration*, 2003; the interval: Hao et al., *Bootstrapping
    fitted Q-evaluation for off-policy inference*, 2021.
    """
    context.require_matrix()
    return context.fixed_point_estimate(float(context.moments.total()[2] @ context.solution.theta))


@estimator("fitted Q-evaluation, linear (FQE)")
def fqe(context: EstimatorContext) -> ValueEstimate:
    """θ ← C⁻¹(b + γE[φφ̄'ᵀ]θ) until convergence; v̂ = φ̄₀ᵀθ.

    Its fixed point is LSTD-Q's, and so are its influence and its interval. It diverges iff ρ(γC⁻¹E[φφ̄'ᵀ]) ≥ 1, and is
    then refused.

    Reference: Ernst, Geurts & Wehenkel, *Tree-based batch mode reinforcement learning*, 2005.
    """
    context.require_matrix()
    if not context.radius < 1:
        raise DoesNotApply(f"it diverges, the spectral radius of its step is {context.radius:.4g}; take LSTD-Q")
    (A, b, phi0), basis = context.moments.total(), context.basis
    step, target = basis.matrix(A), basis.down(b)
    factors: Matrix = None  # C = I in a dense basis
    if not isinstance(step, np.ndarray):
        from scipy.sparse.linalg import splu

        counts = basis.matrix(context.moments.C)
        factors = splu(counts if basis.overlap is None else (counts + basis.ridge).tocsc())
    theta = np.zeros(basis.rank)
    for count in range(1, _MOST_ITERATIONS + 1):
        old, residual = theta, target - step @ theta
        theta = theta + (residual if factors is None else factors.solve(residual))
        if np.abs(theta - old).max(initial=0.0) <= _TOLERANCE * max(np.abs(theta).max(initial=0.0), 1e-300):
            return context.fixed_point_estimate(float(basis.down(phi0) @ theta), f"{count:,} iterations")
    raise DoesNotApply(f"it has not settled after {_MOST_ITERATIONS:,} iterations; LSTD-Q has the same fixed point")


@estimator("the MDP of the counted transitions")
def model(context: EstimatorContext) -> ValueEstimate:
    """V = r̂_π + γP̂_πV with r̂ and P̂ the log's averages; a pair without data has the mean of its substitutes.

    On a table this equals LSTD-Q up to rounding, and its influence is the same.
    """
    estimand = context.estimand
    table = table_of(estimand.features)
    if table is None:
        raise DoesNotApply("it counts states, so it needs features='onehot'")
    from scipy.sparse import csr_array, diags_array
    from scipy.sparse.linalg import spsolve

    S, pairs = table.size, estimand.features.size
    visits, earned = context.moments.C.diagonal(), context.moments.b.sum(axis=0)
    moves = sum(context.map_parts(_count_moves), start=csr_array((pairs, S)))
    states, features = table.rows(), estimand.features
    each = np.divide(1.0, visits, out=np.zeros(pairs), where=visits > 0)
    gather = (features.mean(features.encode(states), estimand.policy.acts(states, (0, 0))) @ diags_array(each)).tocsr()
    V = np.atleast_1d(spsolve((diags_array(np.ones(S)) - estimand.gamma * (gather @ moves)).tocsc(), gather @ earned))
    phi0 = without_alike(features, context.moments.total()[2])  # V includes the substitutes of pairs without data
    return context.fixed_point_estimate(float(phi0.reshape(S, -1).sum(axis=1) @ V))


def _count_moves(estimand: Estimand, part: int) -> Matrix:
    """How often each pair led to each next state that is not terminal."""
    moves: Matrix = 0
    for batch in estimand.log.batches(part):
        on = ~batch.terminated
        pairs = estimand.features.pairs(estimand.features.encode(batch.state[on]), batch.action[on])
        moves = moves + pairs.T @ estimand.features.encode(batch.next_state[on])
    return moves


@estimator("doubly robust, cross-fitted")
def dr(context: EstimatorContext) -> ValueEstimate:
    """v̂ = mean φ̄₀ᵀθ₋ₖ + mean w₋ₖδ(θ₋ₖ), where θ₋ₖ and w₋ₖ come from the log without the fold k on which they are
    used.

    It is right to first order if either θ or w is, and its scores are those of episodes that were not fitted to.

    Reference: Kallus & Uehara, *Double reinforcement learning*, 2020.
    """
    context.require_matrix()
    if not context.fold_solutions:
        raise DoesNotApply(f"cross-fitting needs {2 * FOLDS} groups of episodes or more")
    groups, clusters = context.estimand.groups, context.estimand.clusters
    fold = context.fold[np.arange(clusters) * groups // clusters]
    pick = np.arange(clusters), 1 + fold
    # The weights were scaled for sums over the other folds' rows.
    rows = np.bincount(context.fold, context.moments.rows)
    share = (rows.sum() - rows) / rows.sum()
    score = context.scores.score[pick] * share[fold]
    start, starts = context.scores.start[pick], context.scores.starts.sum()
    if starts:
        base = float(start.sum() / starts)
    else:
        thetas = np.stack([solution.theta for solution in context.fold_solutions])
        base = float(thetas @ context.moments.total()[2] @ (rows / rows.sum()))
    value = base + float(score.sum())
    influence = score - score.sum() / len(score) + context.start_influence(start, base)
    return ValueEstimate(value, influence, fixed_point=True)
