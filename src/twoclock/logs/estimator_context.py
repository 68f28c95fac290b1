"""What estimators are and what they share: the sums, solutions and scores of an estimand, computed on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float

from twoclock.intervals.batch_means import BlockStatistics, in_blocks, intervals, score_statistics
from twoclock.logs.log_pass import Mapper, PassCheckpoint
from twoclock.logs.lstd_solve import Basis, LstdSolution, bootstrap_values, solve_lstd, step_radius
from twoclock.logs.sufficient_stats import Estimand, Moments, Scores, matrix_fits, part_moments, part_scores
from twoclock.protocols import InputError

FOLDS = 5
FEW_EPISODES = 30  # effective ones; importance sampling on fewer is not to be believed
_FEWEST_GROUPS = 20  # for a bootstrap
_TINY = 1e-300
T = TypeVar("T")
S = TypeVar("S", Moments, Scores)
Influence = Float[np.ndarray, " k"]


class DoesNotApply(InputError):
    """An estimator that cannot be used on this log; the message says why."""


@dataclass(frozen=True, eq=False)
class ValueEstimate:
    """An estimate of a policy's value.

    Attributes:
        value: the estimate.
        influence: what each cluster of data adds to its error; None where that is not known.
        resampled: the estimates on resamples of episodes; None where there are none.
        notes: what a reader should know.
        comparable: it is an estimate of the same number as the others, so that a difference is a warning.
        ratios: of importance sampling, the ratio of each whole episode.
    """

    value: float
    influence: Influence | None
    resampled: Float[np.ndarray, " b"] | None = None
    notes: tuple[str, ...] = ()
    comparable: bool = True
    ratios: Float[np.ndarray, " e"] | None = None


@dataclass(frozen=True, eq=False)
class Estimator:
    """An estimator by the name of its function; ``estimate`` raises ``DoesNotApply`` where it cannot be used."""

    name: str
    title: str
    estimate: Callable[[EstimatorContext], ValueEstimate]


def estimator(title: str) -> Callable[[Callable[[EstimatorContext], ValueEstimate]], Estimator]:
    """Make a function of a context, in a module of ``logs/estimators/``, an estimator of its name."""
    return lambda function: Estimator(function.__name__, title, function)


@dataclass
class EstimatorContext:
    """An estimand and what estimators share of it, each computed when it is first asked for."""

    estimand: Estimand
    mapper: Mapper
    resamples: int = 0
    checkpoint: PassCheckpoint | None = None
    _shared: dict[object, Any] = field(default_factory=dict)

    def once(self, compute: Callable[[EstimatorContext], T]) -> T:
        """``compute(self)``, computed once for all estimators that ask for it."""
        if compute not in self._shared:
            self._shared[compute] = compute(self)
        result: T = self._shared[compute]
        return result

    def map_parts(self, function: Callable[..., T], *arguments: object, first: int = 0) -> Iterator[T]:
        """``function(estimand, *arguments, part)`` for each part of the log from ``first`` on, in their order."""
        return self.mapper(function, (self.estimand, *arguments), range(len(self.estimand.log.parts))[first:])

    def sum_scores(self, name: str, theta: np.ndarray, x: np.ndarray) -> Scores:
        """Sum the scores of the columns of θ and x over the log."""
        sums = Scores.zeros(range(self.estimand.clusters), theta.shape[1])
        return self._sum(name, sums, part_scores, theta, x)

    def _sum(self, name: str, sums: S, function: Callable[..., S], *arguments: object) -> S:
        """Add what the function gives for each part, from the checkpoint on if there is one."""
        parts = len(self.estimand.log.parts)
        first = self.checkpoint.restore(name, sums) if self.checkpoint else 0
        for done, part in enumerate(self.map_parts(function, *arguments, first=first), first + 1):
            sums.add(part)
            if self.checkpoint:
                self.checkpoint.save(name, sums, done, done == parts)
        return sums

    @cached_property
    def moments(self) -> Moments:
        return self._sum("moments", Moments.zeros(self.estimand, range(self.estimand.groups)), part_moments)

    @cached_property
    def basis(self) -> Basis:
        return Basis.of(self.moments.C)

    @cached_property
    def solution(self) -> LstdSolution:
        """On the whole log."""
        return solve_lstd(*self.moments.total(), self.basis)

    @cached_property
    def fold(self) -> np.ndarray:
        """The fold of each group."""
        return np.arange(self.estimand.groups) * FOLDS // self.estimand.groups

    @cached_property
    def fold_solutions(self) -> list[LstdSolution]:
        """On the log without each fold; none where there are too few groups to leave any out."""
        if self.estimand.groups < 2 * FOLDS:
            return []
        return [solve_lstd(*self.moments.total(1.0 * (self.fold != k)), self.basis) for k in range(FOLDS)]

    @cached_property
    def scores(self) -> Scores:
        """Of the solution on the whole log, then of each that lacks a fold."""
        solutions = [self.solution, *self.fold_solutions]
        theta, x = (np.column_stack([getattr(one, name) for one in solutions]) for name in ("theta", "x"))
        return self.sum_scores("scores", theta, x)

    @cached_property
    def radius(self) -> float:
        return step_radius(self.moments.total()[0], self.moments.C, self.basis)

    @cached_property
    def resample_counts(self) -> Float[np.ndarray, "b g"] | None:
        """How often each group is drawn in each resample; None without a bootstrap, or with too few groups for one."""
        groups = self.estimand.groups
        if not self.resamples or groups < _FEWEST_GROUPS:
            return None
        rng = np.random.default_rng(0)
        return rng.multinomial(groups, np.full(groups, 1 / groups), size=self.resamples).astype(float)

    def fixed_point_estimate(self, value: float, *notes: str, bootstrap: bool = True) -> ValueEstimate:
        """An estimate at the fixed point of LSTD-Q, whose influence and resamples all ways to it share."""
        influence = self.scores.score[:, 0] + self.start_influence(self.scores.start[:, 0], value)
        counts = self.resample_counts if bootstrap else None
        resampled = None if counts is None else bootstrap_values(self.moments, self.basis, counts)
        return ValueEstimate(value, influence, resampled, notes)

    def start_influence(self, start: np.ndarray, value: float) -> np.ndarray:
        """The sampling of the starts: (φ̄₀(s₀)ᵀθ − v̂)/n₀ of each cluster."""
        total = self.scores.starts.sum()
        return (start - self.scores.starts * value) / total if total else np.zeros(self.estimand.clusters)

    def require_matrix(self) -> None:
        """Refuse features whose A is too large."""
        size = self.estimand.features.size
        if not matrix_fits(self.estimand.features, self.estimand.log):
            raise DoesNotApply(f"{size:,} dense features make a matrix of {size:,}²; take fewer, or estimator='dice'")


class Interval(NamedTuple):
    """A standard error with the clusters it comes from, and the ends of the interval."""

    se: float
    clusters: int
    low: float
    high: float


def interval(value: float, influence: Influence, level: float, *, stream: bool = False) -> Interval:
    """value ± t·se with se² = Σ_cluster influence²·k/(k − 1), t of k − 1 degrees of freedom.

    Args:
        value: the estimate.
        influence: what each cluster adds to the estimate's error; they sum to about 0.
        level: the coverage.
        stream: clusters are consecutive blocks of one stream, which are joined first.

    >>> import numpy as np
    >>> band = interval(1.0, np.array([0.1, -0.1, 0.1, -0.1]), 0.95)
    >>> round(band.se, 4), round(band.high, 4)
    (0.2309, 1.735)
    """
    blocks = block_statistics(influence, stream=stream)
    (low,), (high,) = intervals(np.array([value]), blocks, level)[1:3]
    return Interval(float(blocks.error[0]), int(blocks.blocks), float(low), float(high))


def block_statistics(influence: Influence, *, stream: bool) -> BlockStatistics:
    """The error of the estimate by clusters; in a stream neighbours are joined to ``batch_means.BLOCKS`` blocks."""
    sums, sizes = in_blocks(influence) if stream else (influence, np.ones(len(influence)))
    return score_statistics(sums[:, None], -np.eye(1), sizes / sizes.sum(), np.eye(1))


def effective_size(weights: np.ndarray) -> float:
    """How many equal weights these are worth, (Σw)²/Σw²."""
    return float(weights.sum() ** 2 / max(weights @ weights, _TINY))
