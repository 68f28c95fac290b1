"""The mean of the log: what the behaviour earned, whatever the target is."""

from __future__ import annotations

from twoclock.logs.estimator_context import Estimated, EstimatorContext
from twoclock.logs.importance_sampling import returns

TITLE = "mean discounted return of the log (the behaviour's value)"


def estimate(work: EstimatorContext) -> Estimated:
    """v̂ = mean over episodes of Σγᵗr: no estimate of the target's value, but a yardstick for it."""
    found = returns(work, needs_ratios=False)
    value = float(found.plain.mean())
    influence = found.clustered((found.plain - value) / len(found.plain))
    return Estimated(value, influence, found.resampled_mean(found.plain), found.notes, comparable=False)
