"""Importance sampling of whole episodes; missing propensities are estimated."""

from __future__ import annotations

from operator import attrgetter

import numpy as np
from jaxtyping import Float

from twoclock.logs.dataset import Batch
from twoclock.logs.estimators import (
    DoesNotApply,
    EpisodeReturns,
    EstimatorContext,
    Propensities,
    ValueEstimate,
    check_whole_episodes,
    episode_returns,
    estimator,
)
from twoclock.logs.features import Crossed, Matrix

CLIP = 0.01
_MOST_ROWS = 100_000
_CALIBRATION = 0.05
_PENALTY = 1e-3


@estimator("per-decision importance sampling (PDIS)")
def pdis(context: EstimatorContext) -> ValueEstimate:
    """v̂ = mean over episodes of Σγᵗ(ρ₀…ρₜ)rₜ, ρ = π(a|s)/b(a|s).

    Unbiased with known propensities and whole episodes; its variance grows exponentially with the horizon.

    Reference: Precup, Sutton & Singh, *Eligibility traces for off-policy policy evaluation*, 2000.
    """
    returns = context.once(weighted_returns)
    return returns.estimate(context, returns.per_decision, np.ones_like(returns.ratio))


@estimator("weighted importance sampling (WIS)")
def wis(context: EstimatorContext) -> ValueEstimate:
    """v̂ = Σρ_e G_e/Σρ_e, ρ_e the ratio of the whole episode and G_e its return: biased, with less variance than the
    unweighted estimate.

    Reference: Precup, Sutton & Singh, *Eligibility traces for off-policy policy evaluation*, 2000.
    """
    returns = context.once(weighted_returns)
    if not returns.ratio.sum() > 0:
        raise DoesNotApply("no episode of the log is possible under the policy: every ratio is 0")
    return returns.estimate(context, returns.plain, returns.ratio)


def weighted_returns(context: EstimatorContext) -> EpisodeReturns:
    """The returns of all episodes with their ratios."""
    check_whole_episodes(context.estimand)
    return episode_returns(context, *propensities_of(context))


def propensities_of(context: EstimatorContext) -> tuple[Propensities, tuple[str, ...]]:
    """The logged probabilities of actions, or estimates where they are missing, with notes."""
    log = context.estimand.log
    return (attrgetter("propensity"), ()) if log.propensities == log.rows else fit_propensities(context)


def fit_propensities(context: EstimatorContext) -> tuple[Propensities, tuple[str, ...]]:
    """Estimate the behaviour's probabilities, and report their source and their error.

    A multinomial logit of the features of the state for each half of the episodes is used on the other half.
    """
    from scipy.special import softmax

    features, log = context.estimand.features, context.estimand.log
    if not isinstance(features, Crossed):
        raise DoesNotApply("it needs propensities, which the log lacks; with such features they cannot be estimated")
    step = -(-log.rows // _MOST_ROWS)
    thinned = [(batch.state[::step], batch.action[::step], batch.episode[::step]) for batch in log]
    state, action, episode = (np.concatenate(column) for column in zip(*thinned, strict=True))
    encoded = features.encode(state)
    halves = [np.flatnonzero(episode % 2 == half) for half in (0, 1)]
    fits = [_fit_logit(encoded[rows], action[rows], features.actions) for rows in halves][::-1]
    miss = 0.0  # the mean gap of predicted and true frequencies over tenths of the predictions, for the worst action
    for rows, fit in zip(halves, fits, strict=True):
        for a, chance in enumerate(softmax(encoded[rows] @ fit, axis=1).T):
            tenths = np.array_split(np.argsort(chance), 10)
            gaps = [abs(chance[at].mean() - (action[rows][at] == a).mean()) for at in tenths if len(at)]
            miss = max(miss, float(np.mean(gaps)))
    share = log.propensities / log.rows
    known = f"given for {share:.0%} of the rows and " if log.propensities else "not in the log but "
    notes: tuple[str, ...] = (f"propensities are {known}estimated by a cross-fitted logit, none below {CLIP:g}",)
    if miss > _CALIBRATION:
        notes += (f"the estimated propensities are off by up to {miss:.2f} on average: do not trust this row",)

    def propensities(batch: Batch) -> Float[np.ndarray, " n"]:
        encoded, fitted = features.encode(batch.state), np.empty(len(batch))
        for half, fit in enumerate(fits):
            rows = np.flatnonzero(batch.episode % 2 == half)
            law = softmax(encoded[rows] @ fit, axis=1)
            fitted[rows] = np.maximum(law[np.arange(len(rows)), batch.action[rows]], CLIP)
        return fitted if batch.propensity is None else np.where(np.isnan(batch.propensity), fitted, batch.propensity)

    return propensities, notes


def _fit_logit(x: Matrix, action: np.ndarray, actions: int) -> Float[np.ndarray, "k a"]:
    from scipy.optimize import minimize  # slow to load
    from scipy.special import softmax

    n, k = x.shape
    taken = np.eye(actions)[action]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        B = flat.reshape(k, actions)
        law = softmax(x @ B, axis=1)
        likelihood = -np.log(np.maximum(law[np.arange(n), action], 1e-300)).mean()
        gradient = x.T @ (law - taken) / n + _PENALTY / n * B
        return float(likelihood + _PENALTY / n / 2 * (B**2).sum()), np.asarray(gradient).ravel()

    start = np.zeros(k * actions)
    return minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 300}).x.reshape(k, actions)
