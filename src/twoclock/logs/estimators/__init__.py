"""Estimators of a policy's value: what they are, what they share, and every one in the modules of this folder."""

from __future__ import annotations

import functools
import importlib
import pkgutil
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
from twoclock.logs.linear_systems import Basis, LstdSolution, bootstrap_values, solve_lstd, step_radius
from twoclock.logs.sufficient_stats import Estimand, Moments, Scores, matrix_fits, part_moments, part_scores
from twoclock.protocols import InputError
from twoclock.storage import Checkpoints, Identity

FOLDS = 5
FEW_EPISODES = 30  # effective ones; importance sampling on fewer is not to be trusted
EVERY = 20.0  # seconds between two checkpoints
_FEWEST_GROUPS = 20  # for a bootstrap
T = TypeVar("T")
S = TypeVar("S", Moments, Scores)
Influence = Float[np.ndarray, " k"]


class DoesNotApply(InputError):
    """An estimator that cannot be used on this log; the message says why."""


@dataclass(frozen=True, eq=False)
class ValueEstimate:
    """An estimate of a policy's value."""

    value: float  # the estimate
    influence: Influence | None  # what each cluster of data adds to its error; None where that is not known
    resampled: Float[np.ndarray, " b"] | None = None  # the estimates on resamples of episodes, if there are any
    notes: tuple[str, ...] = ()  # what a reader should know
    comparable: bool = True  # it is an estimate of the same number as the others, so that a difference is a warning
    ratios: Float[np.ndarray, " e"] | None = None  # of importance sampling, the ratio of each whole episode
    fixed_point: bool = False  # it is that of LSTD-Q, or near it
    thin: Float[np.ndarray, " p"] | None = None  # of a table, the error of each pair that its rows do not show
    shifts: tuple[tuple[float, Influence], ...] = ()  # how far checks of features move it, and the influence on that
    checks: Mapping[str, tuple[float, str]] = field(default_factory=dict)  # its own diagnostics: a number, a sentence


@dataclass(frozen=True, eq=False)
class Estimator:
    """An estimator by the name of its function; ``estimate`` raises ``DoesNotApply`` where it cannot be used."""

    name: str
    title: str
    estimate: Callable[[EstimatorContext], ValueEstimate]


def estimator(title: str) -> Callable[[Callable[[EstimatorContext], ValueEstimate]], Estimator]:
    """Make a function of a context, in a module of ``logs/estimators/``, an estimator of its name."""
    return lambda function: Estimator(function.__name__, title, function)


@functools.cache
def estimators() -> dict[str, Estimator]:
    """Every estimator, by the name of its function."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    entries = [entry for module in modules for entry in vars(module).values() if isinstance(entry, Estimator)]
    return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}


class Mapper(Protocol):
    """A map over the parts of a log: ``function(*arguments, part)`` for each of the parts, in their order."""

    def __call__(
        self, function: Callable[..., T], arguments: tuple[object, ...], parts: Sequence[int]
    ) -> Iterator[T]: ...


@dataclass
class EstimatorContext:
    """An estimand and what estimators share of it, each computed when it is first asked for."""

    estimand: Estimand
    mapper: Mapper
    resamples: int = 0
    checkpoint: Path | None = None
    announce: Callable[[str], None] = lambda name: None  # called with the name of an estimator before it runs
    thrifty: bool = False  # estimators that iterate must keep to a budget, unless they were chosen by name
    _shared: dict[object, Any] = field(default_factory=dict)

    def once(self, compute: Callable[[EstimatorContext], T]) -> T:
        """``compute(self)``, computed once for all estimators that ask for it."""
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
                    saved.save(done, {"carry": arrays, "engine": {}})  # where sums are sparse a pass is short
                    last = time.monotonic()
        return sums

    @cached_property
    def _identity(self) -> dict[str, str] | None:
        """What the sums are of; None where that cannot be known, and a checkpoint could be of something else."""
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
        groups, rng = self.estimand.groups, np.random.default_rng(0)
        if not self.resamples or groups < _FEWEST_GROUPS:
            return None
        return rng.multinomial(groups, np.full(groups, 1 / groups), size=self.resamples).astype(float)

    def fixed_point_estimate(self, value: float, *notes: str, bootstrap: bool = True) -> ValueEstimate:
        """An estimate at the fixed point of LSTD-Q, whose influence and resamples all ways to it share."""
        influence = self.scores.score[:, 0] + self.start_influence(self.scores.start[:, 0], value)
        counts = self.resample_counts if bootstrap else None
        resampled = None if counts is None else bootstrap_values(self.moments, self.basis, counts)
        return ValueEstimate(value, influence, resampled, notes, fixed_point=True)

    def start_influence(self, start: np.ndarray, value: float) -> np.ndarray:
        """The sampling of the starts: (φ̄₀(s₀)ᵀθ − v̂)/n₀ of each cluster."""
        total = self.scores.starts.sum()
        return (start - self.scores.starts * value) / total if total else np.zeros(self.estimand.clusters)

    def require_matrix(self) -> None:
        """Refuse features whose A is too large."""
        if not matrix_fits(self.estimand.features, self.estimand.log):
            size = f"{self.estimand.features.size:,}"
            raise DoesNotApply(f"{size} dense features make a matrix of {size}²; take fewer, or estimator='dice'")


def effective_size(weights: np.ndarray) -> float:
    """How many equal weights these are worth, (Σw)²/Σw²."""
    return float(weights.sum() ** 2 / max(weights @ weights, 1e-300))
