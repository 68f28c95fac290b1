"""Estimators for a bandit log, whose episodes are one step long: ratios, a model of the reward, and both.

    v̂ = mean of  q̂_π(s) + ρ(r − q̂(s, a)),   ρ = π(a|s)/b(a|s),   q̂_π(s) = Σ_a π(a|s)q̂(s, a)

q̂ is linear in the features and cross-fitted: it is used on a fold that it was not fitted to. It is moved towards the
mean reward so far that the variance of v̂ is least: a poor model then does no harm.
"""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import Float

from twoclock.logs.estimators import (
    FOLDS,
    DoesNotApply,
    EstimatorContext,
    Propensities,
    ValueEstimate,
    effective_size,
    estimator,
)
from twoclock.logs.estimators.importance_sampling import propensities_of
from twoclock.logs.standard_error import interval, thin_errors
from twoclock.logs.sufficient_stats import Estimand

_FAR, _TINY = 3.0, 1e-300  # standard errors from which the mean of the ratios is not 1
_LIMITS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


@estimator("inverse propensity scores of a bandit (IPS)")
def ips(context: EstimatorContext) -> ValueEstimate:
    """v̂ = mean of ρr: unbiased with known propensities; PDIS on episodes of one step."""
    rows = context.once(_with_ratios)
    return rows.estimate(context, 0.0, rows.ratio, rows.reward)


@estimator("self-normalised inverse propensity scores of a bandit (SNIPS)")
def snips(context: EstimatorContext) -> ValueEstimate:
    """v̂ = Σρr/Σρ; WIS on episodes of one step.

    Reference: Swaminathan & Joachims, *The self-normalized estimator for counterfactual learning*, 2015.
    """
    rows = context.once(_with_ratios)
    total = rows.ratio.mean()
    if not total > 0:
        raise DoesNotApply("no step of the log is possible under the policy: every ratio is 0")
    value = float((rows.ratio * rows.reward).mean() / total)
    return rows.estimate(context, value, rows.ratio / total, rows.reward - value)


@estimator("doubly robust, by ratios, of a bandit")
def bandit_dr(context: EstimatorContext) -> ValueEstimate:
    """v̂ = mean of q̂_π + ρ(r − q̂): right if either the propensities or the model are.

    Reference: Dudík, Langford & Li, *Doubly robust policy evaluation and learning*, 2011.
    """
    rows = context.once(_with_model)
    return rows.estimate(context, rows.mean, rows.ratio, rows.reward - rows.model)


@estimator("switch between ratios and the model, of a bandit")
def switch(context: EstimatorContext) -> ValueEstimate:
    """The doubly robust estimate, with the model alone where a ratio exceeds a limit.

    The limit minimises the estimated variance plus squared bias.

    Reference: Wang, Agarwal & Dudík, *Optimal and adaptive off-policy evaluation in contextual bandits*, 2017.
    """
    rows = context.once(_with_model)
    residual, n = rows.ratio * (rows.reward - rows.model), len(rows.ratio)

    def risk(limit: float) -> float:
        beyond = rows.ratio > limit
        lost = abs(float((residual * beyond).mean())) + float((residual * beyond).std()) / np.sqrt(n)
        return float((rows.mean + residual * ~beyond).var()) / n + (lost if beyond.any() else 0.0) ** 2

    limit = min((*_LIMITS, np.inf), key=risk)
    kept = rows.ratio <= limit
    note = f"ratios up to {limit:g}: {kept.mean():.0%} of the rows"
    return rows.estimate(context, rows.mean, rows.ratio * kept, rows.reward - rows.model, note)


class BanditRows:
    """One entry per step: its cluster, reward and ratio, and the model's q̂(s, a) and q̂_π(s)."""

    def __init__(self, columns: Float[np.ndarray, "5 n"], notes: tuple[str, ...]) -> None:
        self.cluster, self.notes = columns[0].astype(int), notes
        self.reward, self.ratio, self.model, self.mean = columns[1:]
        if self.model.any():
            centre = self.reward.mean()
            plain = self.ratio * (self.reward - centre)
            moves = self.mean - centre - self.ratio * (self.model - centre)
            share = float(np.clip(-np.cov(plain, moves, ddof=0)[0, 1] / max(moves.var(), _TINY), 0, 1))
            self.model, self.mean = (centre + share * (column - centre) for column in (self.model, self.mean))
            self.notes = (*notes, f"the model counts by {share:.0%}")

    def estimate(
        self, context: EstimatorContext, base: float | np.ndarray, weight: np.ndarray, residual: np.ndarray, *notes: str
    ) -> ValueEstimate:
        """The mean of base + weight·residual, and whether its ratios and residuals can be trusted."""
        scores, n = base + weight * residual, len(weight)
        value = float(scores.mean())
        influence = np.bincount(self.cluster, (scores - value) / n, minlength=context.estimand.clusters)
        thin = context.once(thin_errors)
        if thin is not None:
            thin = thin[:-2]  # ratios need no pair without data
        else:
            # If a large residual has a small weight by chance, the scores show less than it could do elsewhere. The
            # difference from weights and residuals in any other order is added to the variance.
            apart = residual - residual.mean()
            lack = max(float((weight @ weight) * (apart @ apart) / n - ((weight * apart) ** 2).sum()), 0.0)
            thin = np.sqrt(lack / 2) / n * np.array([1.0, -1.0])
        mean, left = float(self.ratio.mean()), effective_size(self.ratio)
        beyond = max(abs(mean - 1) - _FAR * float(self.ratio.std()) / n**0.5, 0.0)
        largest = float((influence**2).max()) / max(interval(value, influence, 0.95, missing=thin).se ** 2, _TINY)
        seen = f"reweighted to the policy the log counts as {left:,.0f} of its {n:,} episodes"
        checks = {
            "clusters": (float(n), f"the interval rests on {n:,} episodes"),
            "effective_clusters": (left, seen),
            "tails": (largest, f"one of the episodes carries {largest:.0%} of the squared error"),
            "ratios_mean": (beyond, f"the ratios of the policy to the behaviour average {mean:.3g} instead of 1"),
        }
        return ValueEstimate(value, influence, notes=(*self.notes, *notes), thin=thin, checks=checks)


def _rows(context: EstimatorContext, *, modelled: bool) -> BanditRows:
    """Collect the rows of a log whose episodes are one step long."""
    estimand, log = context.estimand, context.estimand.log
    if estimand.stream and log.rows == log.episodes:
        raise DoesNotApply(f"it needs 10 episodes or more; this log has {log.episodes}")
    if log.rows != log.episodes:
        raise DoesNotApply("it is for a bandit, episodes of one step; for longer ones take 'pdis', 'wis' or 'dr'")
    if estimand.start is not None:
        raise DoesNotApply("it can only speak of the states of the log; leave out `start`")
    propensities, notes = propensities_of(context)
    thetas = np.zeros((estimand.features.size, FOLDS))
    if modelled:
        context.require_matrix()
        if not context.fold_solutions:
            raise DoesNotApply(f"cross-fitting needs {2 * FOLDS} groups of episodes or more")
        thetas = np.column_stack([solution.theta for solution in context.fold_solutions])
    parts = list(context.map_parts(part_bandit, propensities, thetas, modelled))
    return BanditRows(np.concatenate(parts, axis=1), notes)


_with_ratios, _with_model = functools.partial(_rows, modelled=False), functools.partial(_rows, modelled=True)


def part_bandit(
    estimand: Estimand, propensities: Propensities, thetas: np.ndarray, modelled: bool, part: int
) -> Float[np.ndarray, "5 n"]:
    """The cluster, the reward, the ratio, q̂(s, a) and q̂_π(s) of each row of a part."""
    found = [np.zeros((5, 0))]
    for batch in estimand.log.batches(part):
        ratio = estimand.policy.density(batch.state, batch.action) / propensities(batch)
        model = mean = np.zeros(len(batch))
        if modelled:
            fold = estimand.index(batch, estimand.groups) * FOLDS // estimand.groups
            encoded = estimand.features.encode(batch.state)
            of_policy = estimand.features.mean(encoded, estimand.policy.acts(batch.state, (*batch.number, 1)))
            pick = np.arange(len(batch)), fold
            model, mean = (estimand.features.pairs(encoded, batch.action) @ thetas)[pick], (of_policy @ thetas)[pick]
        found.append(np.stack([estimand.index(batch, estimand.clusters), batch.reward, ratio, model, mean]))
    return np.concatenate(found, axis=1)
