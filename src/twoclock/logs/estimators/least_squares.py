"""LSTD-Q and the estimators that share its sums: fitted Q-evaluation, the counted MDP, the doubly robust estimate.

A table lacks pairs. Otherwise an unknown Q would be 0 in the fixed point, and that depends on the zero of the rewards.
So a pair without data is replaced by the mean of the state's other pairs, weighted by their visits; a state without
data by the pairs that led there. The share of the policy's path that leads to such pairs tells how much this matters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from twoclock.logs.dataset import Log, encode_labels, rows_as_labels
from twoclock.logs.estimators import FOLDS, DoesNotApply, EstimatorContext, ValueEstimate, estimator
from twoclock.logs.features import Crossed, Matrix, PairFeatures, table_of, without_alike
from twoclock.logs.linear_systems import solve_lstd
from twoclock.logs.sufficient_stats import Estimand

Counts = tuple[np.ndarray, np.ndarray]
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


def with_alike(features: PairFeatures, log: Log, passes: Callable[..., Iterator[Counts]]) -> PairFeatures:
    """Give a table the substitutes of pairs without data; ``passes`` maps a function over parts of the log."""
    from scipy.sparse import csr_array  # slow to load

    table = table_of(features)
    if table is None or not isinstance(features, Crossed):
        return features
    size, A = features.size, features.actions
    counts = list(passes(count_pairs, (features, log), range(len(log.parts))))
    visits, cut = np.sum([one for one, _ in counts], axis=0), np.hstack([ends for _, ends in counts])
    known: np.ndarray = visits.reshape(-1, A).sum(axis=1) > 0
    lone = cut[:, ~known[cut[1]]]  # pair → state without data, of cut-off episodes
    weights = np.ones(lone.shape[1]) / np.maximum(np.bincount(lone[1], minlength=len(known)), 1)[lone[1]]
    missing = np.flatnonzero((visits == 0) & np.repeat(known, A))
    siblings = missing[:, None] // A * A + np.arange(A)
    shares = visits[siblings] / visits[siblings].sum(axis=1, keepdims=True)
    row = np.concatenate([np.repeat(missing, A), (lone[1][:, None] * A + np.arange(A)).ravel()])
    if not len(row):
        return features
    column = np.concatenate([siblings.ravel(), np.repeat(lone[0], A)])
    alike: Matrix = csr_array((np.concatenate([shares.ravel(), np.repeat(weights, A)]), (row, column)), (size, size))
    alike.eliminate_zeros()
    return dataclasses.replace(features, alike=alike)


def count_pairs(features: Crossed, log: Log, part: int) -> Counts:
    """Count the visits of each pair in a part, and collect (pair, next state) of rows that end without termination."""
    table, visits, cut = table_of(features), np.zeros(features.size), [np.zeros((2, 0), int)]
    assert table is not None
    for batch in log.batches(part):
        pair = encode_labels(rows_as_labels(batch.state), table.states) * features.actions + batch.action
        visits += np.bincount(pair, minlength=features.size)
        last = ~batch.follows & ~batch.terminated
        cut.append(np.stack([pair[last], encode_labels(rows_as_labels(batch.next_state[last]), table.states)]))
    return visits, np.hstack(cut)


def unseen_share(context: EstimatorContext) -> float:
    """The share of the policy's discounted path that leads to pairs without data.

    For a table it is E[γ^τ], τ the first time that the policy takes an unseen action. For other features it is the part
    of the policy's features outside the span of the log's, relative to that of the start.
    """
    features = context.estimand.features
    A, b, phi0 = context.moments.total()
    x = context.solution.x
    if isinstance(features, Crossed) and table_of(features) is not None:
        unseen = context.moments.C.diagonal() == 0
        if features.alike is not None:  # at first no pair without data has a substitute
            A, phi0 = A - A @ features.alike, phi0 - features.alike.T @ phi0
            x = solve_lstd(A, b, phi0, context.basis).x
        # A state that the table lacks has no feature at all, and is missing from the start's mass.
        share = float((phi0 - A.T @ x)[unseen].sum() + max(0.0, 1.0 - phi0.sum()))
    else:
        share = float(np.linalg.norm(phi0 - A.T @ x) / max(float(np.linalg.norm(phi0)), 1e-300))
    return 0.0 if abs(share) < 1e-9 else min(share, 1.0)
