"""Estimators from the returns of whole episodes: their mean, and importance sampling.

An episode may lie in several parts of the log. For each piece the product of its ratios, its length and its discounted
sums are stored, which is enough to join pieces in order. Missing propensities are estimated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from jaxtyping import Float

from twoclock.logs.dataset import Batch
from twoclock.logs.estimators import (
    FEW_EPISODES,
    DoesNotApply,
    EstimatorContext,
    ValueEstimate,
    effective_size,
    estimator,
)
from twoclock.logs.features import Crossed, Matrix
from twoclock.logs.sufficient_stats import Estimand, run_starts

CLIP = 0.01
_FEWEST_EPISODES = 10
_LOG_ZERO = -1e4  # stands for log 0: its exponential is 0, and it can be subtracted from sums again
_MOST_ROWS = 100_000
_CALIBRATION = 0.05
_PENALTY = 1e-3

Propensities = Callable[[Batch], np.ndarray]


@estimator("mean discounted return of the log (the behaviour's value)")
def naive(context: EstimatorContext) -> ValueEstimate:
    """v̂ = mean over episodes of Σγᵗr: no estimate of the target's value, but a yardstick for it."""
    returns = _returns(context, weighted=False)
    return returns.estimate(context, returns.plain, np.ones_like(returns.plain), comparable=False)


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


@dataclass(frozen=True, eq=False)
class EpisodeReturns:
    """One entry per episode."""

    plain: Float[np.ndarray, " e"]  # Σγᵗr
    per_decision: Float[np.ndarray, " e"]  # Σγᵗρ₀…ρₜr
    ratio: Float[np.ndarray, " e"]  # ρ₀…ρ_T; 1 without propensities
    episode: np.ndarray  # the number of the episode
    notes: tuple[str, ...]  # notes on the propensities and on episodes that lack rows
    complete: bool  # whether hardly any episode was cut off

    def estimate(
        self, context: EstimatorContext, values: np.ndarray, weights: np.ndarray, *, comparable: bool = True
    ) -> ValueEstimate:
        """Σ weight·value/Σ weight, with its influence by cluster and its resamples by group.

        If ``comparable``, it estimates the target's value, so the ratios matter.
        """
        estimand, total = context.estimand, weights.sum()
        value = float(weights @ values / total)
        cluster = self.episode * estimand.clusters // estimand.units
        influence = np.bincount(cluster, weights * (values - value) / total, minlength=estimand.clusters)
        resampled, counts = None, context.resample_counts
        if counts is not None:
            at = self.episode * estimand.groups // estimand.units
            top, bottom = (np.bincount(at, column, estimand.groups) for column in (weights * values, weights))
            resampled = (counts @ top) / np.maximum(counts @ bottom, 1e-300)
        if not comparable:
            return ValueEstimate(value, influence, resampled, self.notes, comparable=False)
        enough = effective_size(self.ratio) >= FEW_EPISODES
        return ValueEstimate(value, influence, resampled, self.notes, self.complete and enough, self.ratio)


def _returns(context: EstimatorContext, *, weighted: bool) -> EpisodeReturns:
    """Compute the returns of all episodes that have all their rows."""
    estimand, log, gamma = context.estimand, context.estimand.log, context.estimand.gamma
    if estimand.stream:
        raise DoesNotApply(f"it needs whole episodes, {_FEWEST_EPISODES} or more; this log has {log.episodes}")
    if estimand.start is not None or estimand.visited:
        raise DoesNotApply("it can only speak of the starts of the log's own episodes; leave out `start`")
    propensities: Propensities | None = attrgetter("propensity") if weighted else None
    notes: tuple[str, ...] = ()
    if weighted and log.propensities < log.rows:
        propensities, notes = fit_propensities(context)
    pieces = list(context.map_parts(part_returns, propensities))
    episode, logs, length, plain, reweighted = (np.concatenate(column) for column in zip(*pieces, strict=True))
    for i in np.flatnonzero(episode[1:] == episode[:-1])[::-1]:  # from the end, so that chains add up
        factor = gamma ** length[i]
        plain[i] += factor * plain[i + 1]
        reweighted[i] += factor * np.exp(min(logs[i], 700)) * reweighted[i + 1]
        logs[i] += logs[i + 1]
        length[i] += length[i + 1]
    begins = run_starts(episode)
    rows = begins[~np.isin(episode[begins], list(log.broken))]
    if lacking := len(begins) - len(rows):
        notes = (*notes, f"{lacking:,} episodes lack rows that were dropped and are left out")
    if (cut := log.cut / log.episodes) > 0.01:
        why = "of the episodes were cut off before they ended; what they would have earned is missing"
        notes = (*notes, f"{cut:.0%} {why}")
    ratio = np.exp(np.minimum(logs[rows], 700))
    return EpisodeReturns(plain[rows], reweighted[rows], ratio, episode[rows], notes, cut <= 0.01)


weighted_returns = functools.partial(_returns, weighted=True)


def part_returns(estimand: Estimand, propensities: Propensities | None, part: int) -> tuple[np.ndarray, ...]:
    """Pieces of episodes: the episode, the log of the product of ratios, the length, Σγʲr and Σγʲρ₀…ρⱼr."""
    pieces: list[tuple[np.ndarray, ...]] = [(np.zeros(0, int), *np.zeros((4, 0)))]
    for batch in estimand.log.batches(part):
        begins = run_starts(batch.episode)
        length = np.diff(np.append(begins, len(batch)))
        at = np.arange(len(batch)) - np.repeat(begins, length)
        logs = np.zeros(len(batch))
        if propensities is not None:
            ratio = estimand.policy.density(batch.state, batch.action) / propensities(batch)
            logs = np.log(ratio, out=np.full(len(ratio), _LOG_ZERO), where=ratio > 0)
        up_to = np.cumsum(logs)
        up_to -= np.repeat(up_to[begins] - logs[begins], length)
        earned = estimand.gamma**at * batch.reward
        sums = (np.add.reduceat(column, begins) for column in (earned, np.exp(np.minimum(up_to, 700)) * earned))
        pieces.append((batch.episode[begins], np.add.reduceat(logs, begins), length, *sums))
    return tuple(np.concatenate(column) for column in zip(*pieces, strict=True))


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
