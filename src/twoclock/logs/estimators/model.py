"""Count the transitions and solve the MDP that the counts make: for few states."""

from __future__ import annotations

from typing import Any

import numpy as np

from twoclock.logs.diagnostics import is_table
from twoclock.logs.estimand import Target
from twoclock.logs.estimator_context import DoesNotApply, Estimated, EstimatorContext
from twoclock.logs.estimators.lstdq import resampled
from twoclock.logs.features.onehot import OneHot
from twoclock.logs.features.protocol import Crossed

TITLE = "the MDP of the counted transitions"


def estimate(work: EstimatorContext) -> Estimated:
    """V = r̂_π + γP̂_πV with r̂ and P̂ the log's averages; a pair without data is worth 0.

    On a table this is LSTD-Q by another way, equal up to rounding, and its influence is the same.
    """
    target = work.target
    features = target.features
    if not is_table(work) or not isinstance(features, Crossed):
        raise DoesNotApply("it counts states, so it needs features='onehot'")
    from scipy.sparse import coo_array, diags_array
    from scipy.sparse.linalg import spsolve

    S, A = features.base.size, features.actions
    visits, earned, moves = np.zeros(S * A), np.zeros(S * A), coo_array((S * A, S)).tocsr()
    for found in work.mapped(part_counts, (target,), work.parts):
        visits += found[0]
        earned += found[1]
        moves = moves + found[2]
    law = target.policy.acts(_states(features), (0, 0)).law.ravel()
    share = np.divide(law, visits, out=np.zeros(S * A), where=visits > 0)
    gather: Any = coo_array((share, (np.repeat(np.arange(S), A), np.arange(S * A))), shape=(S, S * A)).tocsr()
    V = np.atleast_1d(spsolve((diags_array(np.ones(S)) - target.gamma * (gather @ moves)).tocsc(), gather @ earned))
    value = float(_start(work, S, A) @ V)
    influence = work.scores.score[:, 0] + work.start_influence(work.scores.start[:, 0], value)
    return Estimated(value, influence, resampled(work))


def part_counts(target: Target, part: int) -> tuple[np.ndarray, np.ndarray, Any]:
    """Visits of each pair, what they earned, and the moves to each next state that go on."""
    from scipy.sparse import coo_array

    features = target.features
    assert isinstance(features, Crossed)
    S, A = features.base.size, features.actions
    visits, earned, moves = np.zeros(S * A), np.zeros(S * A), coo_array((S * A, S)).tocsr()
    for batch in target.log.batches(part):
        pair = features.encode(batch.state).indices * A + batch.action
        visits += np.bincount(pair, minlength=S * A)
        earned += np.bincount(pair, batch.reward, minlength=S * A)
        on = ~batch.terminated
        after = features.encode(batch.next_state[on]).indices
        moves = moves + coo_array((np.ones(len(after)), (pair[on], after)), shape=(S * A, S)).tocsr()
    return visits, earned, moves


def _start(work: EstimatorContext, S: int, A: int) -> np.ndarray:
    """The law of the start over states."""
    return work.moments.total()[2].reshape(S, A).sum(axis=1)


def _states(features: Crossed) -> np.ndarray:
    """The states of the table, as the log has them."""
    assert isinstance(features.base, OneHot)
    return features.base.rows()
