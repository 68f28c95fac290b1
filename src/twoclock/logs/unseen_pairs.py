"""Pairs of a table without data in the log: the pairs that replace them, and their share of the policy's path.

Otherwise an unknown Q would be 0 in the fixed point, and that depends on the zero of the rewards. A pair without data
is replaced by the mean of the state's other pairs, weighted by their visits; a state without data by the pairs that led
there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from twoclock.logs.dataset import Log, encode_labels, rows_as_labels
from twoclock.logs.features import Crossed, Matrix, PairFeatures, table_of
from twoclock.logs.linear_systems import solve_lstd

if TYPE_CHECKING:
    from twoclock.logs.estimators import EstimatorContext

Counts = tuple[np.ndarray, np.ndarray]


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
