"""Estimators of a policy's value: their interface, and the computations that they share.

The returns of whole episodes are among these. An episode may lie in several parts of the log. For each piece the
product of its ratios, its length and its discounted sums are stored, which is enough to join pieces in order.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from jaxtyping import Float

from twoclock.engine.code_identity import Unidentified, code_identity
from twoclock.logs.dataset import Batch
from twoclock.logs.linear_systems import (
    Basis,
    LstdSolution,
    bootstrap_values,
    solve_lstd,
    step_radius,
    studentized_values,
)
from twoclock.logs.sufficient_stats import Estimand, Moments, Scores, matrix_fits, part_moments, part_scores, run_starts
from twoclock.protocols import InputError
from twoclock.storage import Checkpoints, Identity

FOLDS = 5
FEW_EPISODES = 30  # effective episodes; with fewer, importance sampling cannot be trusted
EVERY = 20.0  # seconds between two checkpoints
_FEWEST_EPISODES = 10
_LOG_ZERO = -1e4  # stands for log 0: its exponential is 0, and it can be subtracted from sums again
_FEWEST_GROUPS = 20  # for a bootstrap
_STUDENTIZED, _MOST_STUDENTIZED = 500, 4_000_000  # resamples, and numbers of all groups' matrices
T = TypeVar("T")
S = TypeVar("S", Moments, Scores)
Propensities = Callable[[Batch], np.ndarray]
Influence = Float[np.ndarray, " k"]


class DoesNotApply(InputError):
    """The estimator cannot be used on this log; the message says why."""


@dataclass(frozen=True, eq=False)
class ValueEstimate:
    """An estimate of a policy's value."""

    value: float  # the estimate
    influence: Influence | None  # the contribution of each cluster of data to its error; None where that is not known
    resampled: Float[np.ndarray, " b"] | None = None  # the estimates on resamples of episodes, if there are any
    notes: tuple[str, ...] = ()  # a note for the reader
    comparable: bool = True  # whether it estimates the same number as the others, so that a difference is a warning
    ratios: Float[np.ndarray, " e"] | None = None  # of importance sampling, the ratio of each whole episode
    fixed_point: bool = False  # whether it equals LSTD-Q's, or nearly
    thin: Float[np.ndarray, " p"] | None = None  # of a table, the error from pairs without rows
    studentized: Float[np.ndarray, " b"] | None = None  # (v* − v̂)/se* on resamples of episodes
    shifts: tuple[tuple[float, Influence], ...] = ()  # how far checks of the features move it, with influences
    checks: Mapping[str, tuple[float, str]] = field(default_factory=dict)  # its own diagnostics: a number, a sentence


@dataclass(frozen=True, eq=False)
class Estimator:
    """A named estimator; ``estimate`` raises ``DoesNotApply`` where it cannot be used."""

    name: str
    title: str
    estimate: Callable[[EstimatorContext], ValueEstimate]


def estimator(title: str) -> Callable[[Callable[[EstimatorContext], ValueEstimate]], Estimator]:
    """Register a function of a context as the estimator of its name."""
    return lambda function: Estimator(function.__name__, title, function)


@functools.cache
def estimators() -> dict[str, Estimator]:
    """Every estimator, by the name of its function.

    >>> "lstdq" in estimators()
    True
    """
    modules = [sys.modules[__name__]]
    modules += [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    entries = [entry for module in modules for entry in vars(module).values() if isinstance(entry, Estimator)]
    return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}


class Mapper(Protocol):
    """A map over the parts of a log: ``function(*arguments, part)`` for each of the parts, in their order."""

    def __call__(
        self, function: Callable[..., T], arguments: tuple[object, ...], parts: Sequence[int]
    ) -> Iterator[T]: ...


@dataclass
class EstimatorContext:
    """An estimand and the quantities that estimators share, each computed at its first use."""

    estimand: Estimand
    mapper: Mapper
    resamples: int = 0
    checkpoint: Path | None = None
    announce: Callable[[str], None] = lambda name: None  # called with the name of an estimator before it runs
    thrifty: bool = False  # iterative estimators have a budget, unless they were chosen by name
    _shared: dict[object, Any] = field(default_factory=dict)

    def once(self, compute: Callable[[EstimatorContext], T]) -> T:
        """``compute(self)``, computed once for all estimators."""
        if compute not in self._shared:
            self._shared[compute] = compute(self)
        return cast("T", self._shared[compute])

    def map_parts(self, function: Callable[..., T], *arguments: object, first: int = 0) -> Iterator[T]:
        """``function(estimand, *arguments, part)`` for each part of the log from ``first`` on, in their order."""
        return self.mapper(function, (self.estimand, *arguments), range(len(self.estimand.log.parts))[first:])

    def sum_scores(self, name: str, theta: np.ndarray, x: np.ndarray) -> Scores:
        """Sum the scores of the columns of θ and x over the log."""
        sums = Scores.zeros(self.estimand, range(self.estimand.clusters), theta.shape[1])
        return self._sum(name, sums, part_scores, theta, x)

    def _sum(self, name: str, sums: S, function: Callable[..., S], *arguments: object) -> S:
        """Add what the function gives for each part, from the checkpoint on if there is one."""
        first, saved, last = 0, None, time.monotonic()
        with ExitStack() as held:
            if self.checkpoint is not None and self._identity is not None:
                identity = Identity({"pass": name, "arguments": code_identity(arguments), **self._identity})
                saved = Checkpoints(self.checkpoint / str(int(identity.digest, 16)), identity, {})
                held.callback(saved.close)
                if found := saved.latest():
                    first = found[0]
                    vars(sums).update(found[1]["carry"])
            for done, part in enumerate(self.map_parts(function, *arguments, first=first), first + 1):
                sums.add(part)
                ends = done == len(self.estimand.log.parts) or time.monotonic() - last > EVERY
                if saved is not None and ends and not isinstance(getattr(sums, "A", None), list):
                    arrays = {key: value for key, value in vars(sums).items() if isinstance(value, np.ndarray)}
                    saved.save(done, {"carry": arrays, "engine": {}})  # with sparse sums a pass is short
                    last = time.monotonic()
        return sums

    @cached_property
    def _identity(self) -> dict[str, str] | None:
        """The identity of the sums; None where it is unknown, so that a checkpoint could be of other sums."""
        fields = {name: value for name, value in vars(self.estimand).items() if name != "log"}
        try:
            return {"log": self.estimand.log.fingerprint(), "estimand": code_identity(fields)}
        except Unidentified as error:
            warnings.warn(f"`checkpoint` is not used: {error}", stacklevel=2)
            return None

    @cached_property
    def moments(self) -> Moments:
        return self._sum("moments", Moments.zeros(self.estimand, range(self.estimand.groups)), part_moments)

    @cached_property
    def basis(self) -> Basis:
        return Basis.of(self.moments.C)

    @cached_property
    def solution(self) -> LstdSolution:
        """The solution on the whole log."""
        return solve_lstd(*self.moments.total(), self.basis)

    @cached_property
    def fold(self) -> np.ndarray:
        """The fold of each group."""
        return np.arange(self.estimand.groups) * FOLDS // self.estimand.groups

    @cached_property
    def fold_solutions(self) -> list[LstdSolution]:
        """The solutions on the log without each fold; none if there are too few groups."""
        if self.estimand.groups < 2 * FOLDS:
            return []
        return [solve_lstd(*self.moments.total(1.0 * (self.fold != k)), self.basis) for k in range(FOLDS)]

    @cached_property
    def scores(self) -> Scores:
        """The scores of the solution on the whole log, then of each solution without a fold."""
        solutions = [self.solution, *self.fold_solutions]
        theta, x = (np.column_stack([getattr(one, name) for one in solutions]) for name in ("theta", "x"))
        return self.sum_scores("scores", theta, x)

    @cached_property
    def radius(self) -> float:
        return step_radius(self.moments.total()[0], self.moments.C, self.basis)

    @cached_property
    def resample_counts(self) -> Float[np.ndarray, "b g"] | None:
        """How often each group is drawn in each resample; None without a bootstrap, or with too few groups for one."""
        groups, rng = self.estimand.groups, np.random.default_rng(0)
        if not self.resamples or groups < _FEWEST_GROUPS:
            return None
        return rng.multinomial(groups, np.full(groups, 1 / groups), size=self.resamples).astype(float)

    @cached_property
    def studentized(self) -> Float[np.ndarray, " b"] | None:
        """(v* − v̂)/se* on resamples of groups; None with too few groups, or with too many features."""
        groups, rng = self.estimand.groups, np.random.default_rng(1)
        if groups < _FEWEST_GROUPS or self.moments.is_sparse or groups * self.basis.rank**2 > _MOST_STUDENTIZED:
            return None
        counts = rng.multinomial(groups, np.full(groups, 1 / groups), size=_STUDENTIZED).astype(float)
        return studentized_values(self.moments, self.basis, counts)

    def fixed_point_estimate(self, value: float, *notes: str, bootstrap: bool = True) -> ValueEstimate:
        """An estimate at the fixed point of LSTD-Q; its influence and resamples do not depend on how it was
        computed."""
        influence = self.scores.score[:, 0] + self.start_influence(self.scores.start[:, 0], value)
        counts = self.resample_counts if bootstrap else None
        resampled = None if counts is None else bootstrap_values(self.moments, self.basis, counts)
        return ValueEstimate(value, influence, resampled, notes, fixed_point=True)

    def start_influence(self, start: np.ndarray, value: float) -> np.ndarray:
        """The influence of the sampled starts: (φ̄₀(s₀)ᵀθ − v̂)/n₀ of each cluster."""
        total = self.scores.starts.sum()
        return (start - self.scores.starts * value) / total if total else np.zeros(self.estimand.clusters)

    def require_matrix(self) -> None:
        """Refuse features whose A is too large."""
        if not matrix_fits(self.estimand.features, self.estimand.log):
            size = f"{self.estimand.features.size:,}"
            raise DoesNotApply(f"{size} dense features make a matrix of {size}²; take fewer, or estimator='dice'")


def effective_size(weights: np.ndarray) -> float:
    """The number of equal weights that these are worth, (Σw)²/Σw²."""
    return float(weights.sum() ** 2 / max(weights @ weights, 1e-300))


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


def check_whole_episodes(estimand: Estimand) -> None:
    """Refuse logs without whole episodes, and other starts than theirs."""
    if estimand.stream:
        raise DoesNotApply(f"it needs whole episodes, {_FEWEST_EPISODES} or more; this log has {estimand.log.episodes}")
    if estimand.start is not None or estimand.visited:
        raise DoesNotApply("it can only speak of the starts of the log's own episodes; leave out `start`")


def episode_returns(
    context: EstimatorContext, propensities: Propensities | None = None, notes: tuple[str, ...] = ()
) -> EpisodeReturns:
    """Compute the returns of all episodes that have all their rows, and their ratios where there are propensities."""
    estimand, log, gamma = context.estimand, context.estimand.log, context.estimand.gamma
    check_whole_episodes(estimand)
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


@estimator("mean discounted return of the log (the behaviour's value)")
def naive(context: EstimatorContext) -> ValueEstimate:
    """v̂ = mean over episodes of Σγᵗr: no estimate of the target's value, but a yardstick for it."""
    returns = episode_returns(context)
    return returns.estimate(context, returns.plain, np.ones_like(returns.plain), comparable=False)
