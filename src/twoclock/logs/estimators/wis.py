"""Weighted importance sampling."""

from __future__ import annotations

from twoclock.logs.estimator_context import DoesNotApply, Estimated, EstimatorContext
from twoclock.logs.importance_sampling import returns

TITLE = "weighted importance sampling (WIS)"


def estimate(work: EstimatorContext) -> Estimated:
    """v̂ = Σρ_e G_e/Σρ_e, ρ_e the ratio of the whole episode and G_e its return: biased, less wild than without weights.

    Reference: Precup, Sutton & Singh, *Eligibility traces for off-policy policy evaluation*, 2000.
    """
    found = returns(work)
    total = found.ratio.sum()
    if not total > 0:
        raise DoesNotApply("no episode of the log is possible under the policy: every ratio is 0")
    value = float(found.ratio @ found.plain / total)
    influence = found.clustered(found.ratio * (found.plain - value) / total)
    return Estimated(value, influence, found.resampled_mean(found.plain, found.ratio), found.notes, found.comparable)
