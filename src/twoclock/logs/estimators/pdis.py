"""Per-decision importance sampling."""

from __future__ import annotations

from twoclock.logs.estimator_context import Estimated, EstimatorContext
from twoclock.logs.importance_sampling import returns

TITLE = "per-decision importance sampling (PDIS)"


def estimate(work: EstimatorContext) -> Estimated:
    """v̂ = mean over episodes of Σγᵗ(ρ₀…ρₜ)rₜ, ρ = π(a|s)/b(a|s).

    Unbiased with known propensities and whole episodes; its variance grows with the horizon like a power.

    Reference: Precup, Sutton & Singh, *Eligibility traces for off-policy policy evaluation*, 2000.
    """
    found = returns(work)
    value = float(found.per_decision.mean())
    influence = found.clustered((found.per_decision - value) / len(found.per_decision))
    return Estimated(value, influence, found.resampled_mean(found.per_decision), found.notes, found.comparable)
