"""A model over states, for tables with too many pairs of state and action for the log.

    V = r̂ + γP̂V,    r̂(s) = Σρr/Σρ,    P̂(s'|s) = Σρ1[s']/Σρ    over the rows of s,    ρ = π(a|s)/b(a|s)

LSTD-Q needs data of every pair that the policy reaches; this needs only data of every state. Within a state the ratios
are normalised, Σρ instead of the number of rows: without that, the chain would gain or lose probability.

So an action that a state lacks is replaced by the state's others, and equal rows of a state have no residual. Both may
be off as the log's residuals are: the error of each state has the policy's share of actions without data there, and
half a row more, times the root of their mean square. In many states these errors average out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from twoclock.logs.dataset import Batch
from twoclock.logs.diagnostics import THRESHOLDS, own_diagnostics
from twoclock.logs.estimators import (
    DoesNotApply,
    EstimatorContext,
    ValueEstimate,
    effective_size,
    estimator,
    estimators,
)
from twoclock.logs.features import Crossed, Matrix, table_of, without_alike
from twoclock.logs.linear_systems import solve_sparse
from twoclock.logs.ope_result import PolicyEstimate
from twoclock.logs.sufficient_stats import Estimand

_HALF = 1 / 2
_MOST_PATH, _PATH_LEFT = 5_000, 1e-3  # steps of the policy's path, and the mass below which the rest does not matter
_Z = 3.0  # a mean ratio that differs from 1 by this many standard errors is not chance


@estimator("a model over states, ratios normalised within each")
def state_model(context: EstimatorContext) -> ValueEstimate:
    """v̂ = φ̄₀ᵀV; its influence, episode by episode, is Σwδ with w = ρφ̄₀ᵀA⁻¹φ, A = Σρφ(φ − γφ')ᵀ, and that of the starts.

    It needs the propensities of all rows and one-hot features. With ratios of 1, for the policy that wrote the log, it
    is the certainty-equivalent solution of TD(0).

    Reference: Sutton, Mahmood & White, *An emphatic approach to off-policy TD*, 2016, for ratios per step; Hájek,
    *Comment on a paper of Basu*, 1971, for the normalisation.
    """
    estimand = context.estimand
    log, gamma, table = estimand.log, estimand.gamma, table_of(estimand.features)
    if table is None or log.actions is None:
        raise DoesNotApply("it counts states, so it needs features='onehot' and discrete actions")
    if log.propensities < log.rows:
        raise DoesNotApply("it needs the behaviour's probability of each action; name its column with `propensity`")
    from scipy.sparse import csc_array, diags_array

    sums = StateSums.zeros(table.size)
    for part in context.map_parts(_part_sums):
        sums = sums.add(part)
    start = sums.starts / max(float(sums.begun), 1.0)
    if estimand.start is not None:
        start = without_alike(estimand.features, estimand.start).reshape(table.size, -1).sum(axis=1)
    seen = sums.ratio > 0
    A = diags_array(np.where(seen, sums.ratio, 1.0)) - gamma * sums.moves
    V, x, _ = solve_sparse(csc_array(A), np.where(seen, sums.earned, 0.0), start)
    value = float(start @ V)
    # x is the discounted visits of a state over its Σρ; in a state without data it is the visits that end there.
    outside = float(x[~seen].sum() + max(0.0, 1.0 - start.sum()))
    score, weight, lacks, begun, squares, residual = np.zeros((6, estimand.clusters))
    x = np.where(seen, x, 0.0)
    even = x * sums.ratio / np.maximum(sums.rows, 1)  # visits, spread evenly over the rows of a state
    for part_scores in context.map_parts(_part_scores, V, x, even, value):
        score, weight, lacks, begun, squares, residual = (
            a + b for a, b in zip((score, weight, lacks, begun, squares, residual), part_scores, strict=True)
        )
    influence = score + (begun / sums.begun if estimand.start is None else 0.0)
    # E[ρ|s] = 1 if the behaviour may take every action of the policy. By chance the mean is lower where large ratios
    # are rarely drawn; a larger gap means that actions are missing.
    lack = float(lacks.sum())
    error = float(np.sqrt(((lacks - lack / len(lacks)) ** 2).sum()))
    law = estimand.policy.acts(table.rows(), (0, 0)).law
    never = (law * (context.moments.C.diagonal().reshape(law.shape) == 0)).sum(axis=1)
    lacking = min(lack, float((x * sums.ratio) @ never), 1.0) if lack > _Z * error else 0.0
    visits = x * sums.ratio
    gaps = float(np.linalg.norm(visits * never) / max(float(np.abs(visits).sum()), 1e-300))
    transitions, clusters = float(weight.sum() ** 2 / max(squares.sum(), 1e-300)), effective_size(np.abs(weight))
    counts = "reweighted to the policy the log counts as"
    unit = "blocks" if estimand.stream else "episodes"
    checks = {
        "outside": (outside, f"{_share(outside)} of the policy's discounted path leads to states without data"),
        "support": (lacking, f"{_share(lacking)} of the policy's discounted path does what the behaviour never does"),
        "gaps": (gaps, f"actions without data in their states leave an error of {_share(gaps)} of the policy's path"),
        "clusters": (float(len(weight)), f"the interval rests on {len(weight):,} {unit}"),
        "effective_transitions": (transitions, f"{counts} {transitions:,.0f} of its {log.rows:,} transitions"),
        "effective_clusters": (clusters, f"{counts} {clusters:,.0f} of its {len(weight):,} {unit}"),
    }
    # Half a row of each sign in a state, and the actions without data, each with a residual like those of the log.
    deviation = np.sqrt(residual.sum() / max(float(sums.ratio.sum()), 1e-300))
    lacking_errors = visits * np.hypot(never, _HALF**0.5 / np.maximum(sums.rows, 1)) * deviation * _HALF**0.5
    thin = np.concatenate([lacking_errors, -lacking_errors])
    return ValueEstimate(value, influence, None, comparable=False, checks=checks, thin=thin)


def _share(share: float) -> str:
    return f"{min(max(share, 0.0), 1.0):.1%}"


def answer_large_table(context: EstimatorContext, compare: bool) -> PolicyEstimate | None:
    """Take the model over states where a table has too many pairs for LSTD-Q, before its matrix is formed.

    The share of the policy's path that leads to pairs without data needs no factorisation: the path is followed step by
    step. Up to the limit of refusal LSTD-Q has an answer too, with a longer interval; it is taken if a check of the
    model over states warns.
    """
    log = context.estimand.log
    if log.propensities < log.rows:
        return None
    A, _, path = context.moments.total()
    counts, outside = context.moments.C.diagonal(), max(0.0, 1.0 - float(path.sum()))
    for _ in range(_MOST_PATH):
        outside += float(path[counts == 0].sum())
        visits = np.divide(path, counts, out=np.zeros(len(path)), where=counts > 0)
        path = np.where(counts > 0, path, 0.0) - A.T @ visits
        if not path.sum() > _PATH_LEFT:
            break
    limits = THRESHOLDS["outside"]
    if outside <= limits.warning:
        return None
    share = f"{min(outside, 1.0):.1%} of the policy's discounted path leads to pairs that the log has no data for"
    others = ["naive", "pdis", "wis"] if compare else []
    found, refused = dict[str, ValueEstimate](), dict.fromkeys(["lstdq", "dr"] if compare else ["lstdq"], share)
    for name in ("state_model", *others):
        try:
            found[name] = estimators()[name].estimate(context)
        except DoesNotApply as error:
            refused[name] = str(error)
    checks = own_diagnostics(found["state_model"])
    if outside <= limits.fatal and any(check.grade != "fine" for check in checks):
        return None  # LSTD-Q has an answer
    return PolicyEstimate(found, refused, checks, context.estimand.stream, np.zeros(0), None)


class StateSums(NamedTuple):
    """Sums over rows, by state."""

    moves: Matrix  # Σρ of each move from a state to one that is not terminal
    ratio: Float[np.ndarray, " s"]  # Σρ
    earned: Float[np.ndarray, " s"]  # Σρr
    rows: Float[np.ndarray, " s"]  # how many rows
    starts: Float[np.ndarray, " s"]  # how many starts
    begun: float  # all starts, also those in states that the table lacks

    @classmethod
    def zeros(cls, states: int) -> StateSums:
        from scipy.sparse import csr_array

        empty = np.zeros(states)
        return cls(csr_array((states, states)), empty, empty, empty, empty, 0.0)

    def add(self, other: StateSums) -> StateSums:
        return StateSums(*(a + b for a, b in zip(self, other, strict=True)))


def _ratios(estimand: Estimand, batch: Batch) -> Float[np.ndarray, " n"]:
    return np.asarray(estimand.policy.density(batch.state, batch.action) / batch.propensity)


def _part_sums(estimand: Estimand, part: int) -> StateSums:
    assert isinstance(estimand.features, Crossed)
    encode, size = estimand.features.encode, estimand.features.base.size
    sums = StateSums.zeros(size)
    for batch in estimand.log.batches(part):
        here, after, ratio = encode(batch.state), encode(batch.next_state), _ratios(estimand, batch)
        goes_on = (ratio * ~batch.terminated)[:, None]
        begins = estimand.begins(batch)
        first = here[np.flatnonzero(begins)]
        weights = np.column_stack([ratio, ratio * batch.reward, np.ones(len(batch))])
        total, earned, rows = np.asarray(here.T @ weights).T
        moves = here.T @ after.multiply(goes_on).tocsr()
        starts = np.asarray(first.sum(axis=0)).ravel()
        found = StateSums(moves, total, earned, rows, starts, float(begins.sum()))
        sums = sums.add(found)
    return sums


def _part_scores(
    estimand: Estimand, V: np.ndarray, x: np.ndarray, even: np.ndarray, value: float, part: int
) -> np.ndarray:
    """Sums over each cluster: wδ, w, the loss of even weights by the ratios, V(s₀) − v̂ over the starts, w², and ρδ²."""
    assert isinstance(estimand.features, Crossed)
    encode, k = estimand.features.encode, estimand.clusters
    sums = np.zeros((6, k))
    for batch in estimand.log.batches(part):
        here, after = encode(batch.state), encode(batch.next_state)
        ratio = _ratios(estimand, batch)
        weight = ratio * (here @ x)
        delta = batch.reward + estimand.gamma * ~batch.terminated * (after @ V) - here @ V
        starts = np.where(estimand.begins(batch), here @ V - value, 0.0)
        at = estimand.index(batch, k)
        lost = (here @ even) * (1 - ratio)
        columns = (weight * delta, weight, lost, starts, weight**2, ratio * delta**2)
        sums += np.stack([np.bincount(at, column, minlength=k) for column in columns])
    return sums
