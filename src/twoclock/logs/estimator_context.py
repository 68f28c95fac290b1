"""What estimators share: the sums, the solutions and the scores, each computed when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from twoclock.logs.estimand import Mapper, Target
from twoclock.logs.influence import Scores, part_scores
from twoclock.logs.lstd_solve import Basis, Solved, radius, solve
from twoclock.logs.pass_checkpoint import Keeper
from twoclock.logs.sufficient_stats import Moments, part_moments, sums_are_sparse
from twoclock.protocols import InputError

FOLDS = 5
T = TypeVar("T", Moments, Scores)


class DoesNotApply(InputError):
    """An estimator that cannot be used on this log; the message says why."""


@dataclass(frozen=True, eq=False)
class Estimated:
    """An estimate of a policy's value.

    Attributes:
        value: the estimate.
        influence: what each cluster of data adds to its error; None where that is not known.
        resampled: the estimates on resamples of episodes; None where there are none.
        notes: what a reader should know.
        comparable: it is an estimate of the same number as the others, so that a difference is a warning.
    """

    value: float
    influence: Float[np.ndarray, " k"] | None
    resampled: Float[np.ndarray, " b"] | None = None
    notes: tuple[str, ...] = ()
    comparable: bool = True


@dataclass
class EstimatorContext:
    """A target and what has been computed of it; ``settings`` is where estimators leave what others may want."""

    target: Target
    mapped: Mapper
    resamples: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    keeper: Keeper | None = None

    @property
    def parts(self) -> range:
        return range(len(self.target.log.parts))

    def summed(self, name: str, state: T, function: Callable[..., Any], *arguments: Any) -> T:
        """The state with what the function makes of each part added to it; kept on the way if there is a keeper."""
        first = self.keeper.restore(name, state) if self.keeper else 0
        parts = self.parts[first:]
        for part, found in zip(parts, self.mapped(function, (self.target, *arguments), parts), strict=True):
            state.add(found)
            if self.keeper:
                self.keeper.keep(name, state, part + 1, part + 1 == len(self.parts))
        return state

    @cached_property
    def moments(self) -> Moments:
        return self.summed("moments", Moments.empty(self.target), part_moments, sums_are_sparse(self.target))

    @cached_property
    def basis(self) -> Basis:
        return Basis.of(self.moments.C)

    @cached_property
    def main(self) -> Solved:
        """On the whole log."""
        return solve(*self.moments.total(), self.basis)

    @cached_property
    def fold(self) -> np.ndarray:
        """The fold of each group."""
        return np.arange(self.target.groups) * FOLDS // self.target.groups

    @cached_property
    def without(self) -> list[Solved]:
        """On the log without each fold; nothing where there are too few groups to leave any out."""
        if self.target.groups < 2 * FOLDS:
            return []
        return [solve(*self.moments.total(1.0 * (self.fold != k)), self.basis) for k in range(FOLDS)]

    @cached_property
    def scores(self) -> Scores:
        """Of the main solution, then of each that lacks a fold."""
        solved = [self.main, *self.without]
        theta, x = (np.column_stack([getattr(s, name) for s in solved]) for name in ("theta", "x"))
        return self.summed("scores", Scores.empty(self.target, len(solved)), part_scores, theta, x)

    @cached_property
    def radius(self) -> float:
        A, _, _ = self.moments.total()
        return radius(A, self.moments.C, self.basis)

    def of_cluster(self, by_group: np.ndarray) -> np.ndarray:
        """What is known of each group, for each cluster."""
        return by_group[np.arange(self.target.clusters) * self.target.groups // self.target.clusters]

    def start_influence(self, start: np.ndarray, value: float) -> np.ndarray:
        """The sampling of the starts: (φ̄₀(s₀)ᵀθ − v̂)/n₀ of each cluster."""
        total = self.scores.starts.sum()
        return (start - self.scores.starts * value) / total if total else np.zeros(self.target.clusters)
