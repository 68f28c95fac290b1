"""Whole episodes: their returns and the ratios of the target's probabilities to the behaviour's.

An episode may lie in several parts of the log. What is kept of a piece of it (the product of its ratios, its length,
its discounted sums) is enough to join pieces in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from twoclock.logs.dataset import Batch
from twoclock.logs.diagnostics import RULES, effective
from twoclock.logs.estimand import Target, runs
from twoclock.logs.estimator_context import DoesNotApply, EstimatorContext
from twoclock.logs.intervals import multinomial_weights
from twoclock.logs.propensity import behaviour

_FEWEST = 10
_NOUGHT = -1e4  # stands for log 0: its exponential is 0, and sums of it can be taken apart again

Propensities = Callable[[Batch], np.ndarray]


@dataclass(frozen=True, eq=False)
class Returns:
    """One entry an episode.

    Attributes:
        plain: Σγᵗr.
        per_decision: Σγᵗρ₀…ρₜr.
        ratio: ρ₀…ρ_T.
        episode: its number.
        whole: hardly any episode was cut off.
    """

    plain: Float[np.ndarray, " e"]
    per_decision: Float[np.ndarray, " e"]
    ratio: Float[np.ndarray, " e"]
    episode: np.ndarray
    target: Target
    resamples: int
    notes: tuple[str, ...]
    whole: bool

    @property
    def comparable(self) -> bool:
        """Whether a disagreement with other estimators means anything."""
        return self.whole and effective(self.ratio) >= RULES["ratios"].warning

    def clustered(self, influence: np.ndarray) -> np.ndarray:
        """The influence of episodes summed by cluster."""
        at = self.episode * self.target.clusters // self.target.units
        return np.bincount(at, influence, minlength=self.target.clusters)

    def resampled_mean(self, values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray | None:
        """Σ weight·value/Σ weight over resampled groups of episodes."""
        groups = self.target.groups
        if not self.resamples or groups < 20:
            return None
        at = self.episode * groups // self.target.units
        weights = np.ones_like(values) if weights is None else weights
        counts = multinomial_weights(groups, self.resamples)
        top, bottom = (np.bincount(at, column, minlength=groups) for column in (weights * values, weights))
        return (counts @ top) / np.maximum(counts @ bottom, 1e-300)


def returns(work: EstimatorContext, needs_ratios: bool = True) -> Returns:
    """The returns of all episodes, once for all estimators that ask."""
    target = work.target
    if target.stream:
        raise DoesNotApply(f"it needs whole episodes, {_FEWEST} or more; this log has {target.log.episodes}")
    if target.start is not None or target.visited:
        raise DoesNotApply("it can only speak of the starts of the log's own episodes; leave out `start`")
    propensities: Propensities | None = None
    notes: tuple[str, ...] = ()
    if needs_ratios:
        propensities, notes = behaviour(work)
    key = "ratios" if needs_ratios else "returns"
    if key not in work.settings:
        pieces = list(work.mapped(part_returns, (target, propensities), work.parts))
        work.settings[key] = _joined([np.concatenate(column) for column in zip(*pieces, strict=True)], target.gamma)
    episode, ratio, plain, per_decision = work.settings[key]
    whole = ~np.isin(episode, list(target.log.broken)) if target.log.broken else np.full(len(episode), True)
    if not whole.all():
        notes = (*notes, f"{int((~whole).sum()):,} episodes lack rows that were dropped and are left out")
    cut = target.log.cut / target.log.episodes
    if cut > 0.01:
        notes = (
            *notes,
            f"{cut:.0%} of the episodes were cut off before they ended; what they would have earned is missing",
        )
    return Returns(
        plain[whole], per_decision[whole], ratio[whole], episode[whole], target, work.resamples, notes, cut <= 0.01
    )


def part_returns(target: Target, propensities: Propensities | None, part: int) -> tuple[np.ndarray, ...]:
    """Pieces of episodes: the episode, the log of the product of ratios, the length, Σγʲr and Σγʲρ₀…ρⱼr."""
    found: list[tuple[np.ndarray, ...]] = []
    for batch in target.log.batches(part):
        if not len(batch):
            continue
        begins = runs(batch.episode)
        length = np.diff(np.append(begins, len(batch)))
        at = np.arange(len(batch)) - np.repeat(begins, length)
        logs = np.zeros(len(batch))
        if propensities is not None:
            ratio = target.policy.density(batch.state, batch.action) / propensities(batch)
            logs = np.log(ratio, out=np.full(len(ratio), _NOUGHT), where=ratio > 0)
        up_to = np.cumsum(logs)
        up_to -= np.repeat(up_to[begins] - logs[begins], length)
        earned = target.gamma**at * batch.reward
        sums = (np.add.reduceat(column, begins) for column in (earned, np.exp(np.minimum(up_to, 700)) * earned))
        found.append((batch.episode[begins], np.add.reduceat(logs, begins), length, *sums))
    if not found:
        return np.zeros(0, int), *(np.zeros(0) for _ in range(4))
    return tuple(np.concatenate(column) for column in zip(*found, strict=True))


def _joined(pieces: list[np.ndarray], gamma: float) -> tuple[np.ndarray, ...]:
    """Pieces of the same episode, which follow each other, as one."""
    episode, logs, length, plain, weighted = pieces
    begins = runs(episode)
    if len(begins) < len(episode):
        for i in np.flatnonzero(episode[1:] == episode[:-1])[::-1]:  # from the end, so that chains add up
            factor = gamma ** length[i]
            plain[i] += factor * plain[i + 1]
            weighted[i] += factor * np.exp(min(logs[i], 700)) * weighted[i + 1]
            logs[i] += logs[i + 1]
            length[i] += length[i + 1]
    return episode[begins], np.exp(np.minimum(logs[begins], 700)), plain[begins], weighted[begins]
