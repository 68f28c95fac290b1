"""Two checks of the features: whether the Bellman residual vanishes on richer features, and on earlier rows.

    g = Σ w⁺δ,   w⁺ = x⁺ᵀz,   A⁺ᵀx⁺ = φ̄₀⁺,   A⁺ = Σ z(φ⁺ − γφ̄'⁺)ᵀ

If the features hold the policy's Q, the residual δ has mean 0 given the state, the action and the past, so every
projection of it is noise. With richer features φ⁺ = z the projection g is how far the value moves with them, which is
the bias if they do hold Q. With traces z of the features, sums over the last eight rows of the episode, g is how far
the value moves if returns are over several steps: states that the features do not separate may differ in their past.
The weights are from a part of a long log, the projection is on all of it. So more data always sharpen the checks, and
the second pass needs no products of matrices.

Where richer features move the value, their own estimate has to pass the same two tests, with still richer features. The
interval holds all of these estimates. So it is in doubt only if one of the second tests leads out of it.

Reference: Sargan, *The estimation of economic relationships using instrumental variables*, 1958, for such tests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twoclock.logs.dataset import Log, rows_as_labels
from twoclock.logs.diagnostics import THRESHOLDS, Diagnostic, Grade
from twoclock.logs.estimators import EstimatorContext, Influence, ValueEstimate
from twoclock.logs.features import Crossed, Matrix, OneHot, PairFeatures, Rbf, build, table_of, to_dense, vectors
from twoclock.logs.linear_systems import Basis, LstdSolution, solve_lstd
from twoclock.logs.policies import Actions
from twoclock.logs.standard_error import Interval, bands_of, does_move, hull, is_determined, shift_size
from twoclock.logs.sufficient_stats import MOST_DENSE, Estimand, Moments, part_moments, run_starts
from twoclock.protocols import InputError

_ROWS = 150_000  # rows for the weights; of a longer log, parts that are spread over it
_CENTRES, _WIDTHS = 20, (1.0, 1 / 3)  # a kink is narrower than the median distance of states
_STILL_RICHER = ((40, 0.6), (80, 0.25))  # further centres and their width
_MOST_STATES, _COME_BACK = 20_000, 3.0
_TESTS = 2  # of features that are no table: on traces, and on richer features
_UNCHECKED = "whether the features hold the value was not checked"
_CHECK = "leave out compare=False; states must be numbers, or text that comes back"
_MOST_SECOND = 1_500  # features of a second test, whose matrix takes their square
_FEWEST_SECOND = 1 / 4  # of the centres of a second test
_ROWS_EACH = 10  # fewer rows for each feature do not determine an estimate


class _Encodings(tuple[Matrix, ...]):
    """Encodings of the same states by several features; indexed by rows."""

    def __getitem__(self, rows: Any) -> Any:
        return _Encodings(one[rows] for one in self)


@dataclass(frozen=True, eq=False)
class SideBySide:
    """Several features of a pair side by side, as dense rows."""

    parts: tuple[PairFeatures, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def encode(self, state: np.ndarray) -> Matrix:
        return _Encodings(part.encode(state) for part in self.parts)

    def pairs(self, encoded: Matrix, action: np.ndarray) -> Matrix:
        return np.hstack([to_dense(part.pairs(one, action)) for part, one in self._with(encoded)])

    def mean(self, encoded: Matrix, actions: Actions) -> Matrix:
        return np.hstack([to_dense(part.mean(one, actions)) for part, one in self._with(encoded)])

    def pairs_times(self, encoded: Matrix, action: np.ndarray, c: np.ndarray) -> np.ndarray:
        each = zip(self._with(encoded), self._split(c), strict=True)
        return np.sum([part.pairs_times(one, action, own) for (part, one), own in each], axis=0)

    def mean_times(self, encoded: Matrix, actions: Actions, c: np.ndarray) -> np.ndarray:
        each = zip(self._with(encoded), self._split(c), strict=True)
        return np.sum([part.mean_times(one, actions, own) for (part, one), own in each], axis=0)

    def _with(self, encoded: Matrix) -> Iterator[tuple[PairFeatures, Matrix]]:
        return zip(self.parts, iter(encoded), strict=True)

    def _split(self, c: np.ndarray) -> list[np.ndarray]:
        return np.split(c, np.cumsum([part.size for part in self.parts])[:-1])


def richer_features(features: PairFeatures, log: Log, others: np.ndarray | None = None) -> PairFeatures | None:
    """Features that represent more functions: a table where states recur, else radial features beside the given ones.

    None where there are no richer ones: for a table, and for states that are text and do not recur.
    """
    if table_of(features) is not None:
        return None
    states, _ = log.sample
    labels = rows_as_labels(states)
    if log.actions is not None and len(labels) >= _COME_BACK * len(np.unique(labels)):
        table = OneHot.of(log, others)
        if table.size <= _MOST_STATES:
            return Crossed(table, len(log.actions), labels=True)
    try:
        spread = Rbf(1).fit(vectors(states)).width or 1.0
        added = [build(Rbf(_CENTRES, share * spread, seed), log) for seed, share in enumerate(_WIDTHS, 1)]
    except InputError:  # states that are text
        return None
    # Beside very many features, the new ones alone: a matrix of all would be too large.
    return SideBySide(tuple(added if features.size > MOST_DENSE // 2 else [features, *added]))


def still_richer_features(richer: PairFeatures, log: Log) -> PairFeatures | None:
    """Features that represent more functions than richer ones, fewer of them in a short log.

    None for a table, and where there is no room for a quarter of them.
    """
    if not isinstance(richer, SideBySide):
        return None
    spread = Rbf(1).fit(vectors(log.sample[0])).width or 1.0
    room = min(_MOST_SECOND, log.rows / _ROWS_EACH) - richer.size
    share = min(1.0, room / len(log.actions or (0,)) / sum(centres for centres, _ in _STILL_RICHER))
    if share < _FEWEST_SECOND:
        return None
    drawn = enumerate(_STILL_RICHER, 1 + len(_WIDTHS))
    added = [build(Rbf(int(share * centres), width * spread, seed), log) for seed, (centres, width) in drawn]
    return SideBySide((*richer.parts, *added))


@dataclass(frozen=True, eq=False)
class Shift:
    """How far the value moves, the contribution of each cluster to its error, and the solution of that estimand."""

    gap: float
    influence: Influence
    estimand: Estimand
    solution: LstdSolution


def value_shifts(
    context: EstimatorContext, richer: Sequence[Estimand], own: tuple[Estimand, LstdSolution] | None = None
) -> list[Shift]:
    """How far the value of a linear fixed point moves with richer features, or with traces.

    Args:
        context: of the estimate.
        richer: the same estimand with richer features, or with traces; each gives one shift.
        own: the estimand and its solution, by default those of the context.
    """
    log, found = context.estimand.log, list[LstdSolution]()
    estimand, solution = own or (context.estimand, context.solution)
    parts = range(len(log.parts))
    for other in richer:
        sums = Moments.zeros(other, range(other.groups))
        for part in context.mapper(part_moments, (other,), parts[:: max(1, -(-log.rows // _ROWS))]):
            sums.add(part)
        one = solve_lstd(*sums.total(), Basis.of(sums.C))
        found.append(dataclasses.replace(one, x=one.x * (float(sums.rows.sum()) / log.rows)))
    weights, both = [one.x[:, None] for one in found], np.column_stack([solution.theta, solution.x])
    sums_of = np.zeros((estimand.clusters, 1 + len(richer)))
    for first, projections in context.mapper(part_projections, (estimand, richer, both, weights), parts):
        sums_of[first : first + len(projections)] += projections
    gaps, moved = sums_of.sum(axis=0), sums_of - sums_of.mean(axis=0)
    gaps, moved = gaps[1:] - (gaps[0] if own else 0.0), moved[:, 1:] - moved[:, :1]
    return [Shift(float(gap), moved[:, i], richer[i], found[i]) for i, gap in enumerate(gaps)]


def feature_shifts(
    context: EstimatorContext,
    estimate: ValueEstimate,
    richer: Sequence[Estimand],
    still_richer: Callable[[], Estimand | None],
) -> tuple[tuple[float, Influence], ...]:
    """How far the value moves with traces and with richer features; where these matter, with those of a second test.

    Args:
        context: of the estimate.
        estimate: the value, with its error.
        richer: the same estimand with traces, then with richer features if there are any.
        still_richer: makes the same estimand with features that are richer still, None if there are none.
    """
    if not richer or estimate.influence is None:
        return ()
    first = value_shifts(context, richer)
    shifts = [(one.gap, one.influence) for one in first]
    if len(first) < _TESTS or not any(does_move(estimate, *one, stream=context.estimand.stream) for one in shifts):
        return tuple(shifts)
    last, still = first[-1], still_richer()
    other = dataclasses.replace(last.estimand, clusters=context.estimand.clusters)
    if still is None and table_of(other.features) is None:
        return tuple(shifts)
    second = [dataclasses.replace(other, traced=True), *([still] if still else [])]
    for i, one in enumerate(value_shifts(context, second, (other, last.solution))):
        if is_determined(estimate, one.influence, stream=context.estimand.stream):
            shifts.append((last.gap + one.gap, last.influence + one.influence))
        elif i == 0:  # so that shifts keep their places
            shifts.append(shifts[-1])
    return tuple(shifts)


def judge_features(main: ValueEstimate, level: float, *, stream: bool, compared: bool = True) -> Diagnostic:
    """Whether the features hold the value, or else whether the interval, widened to what tests gave, can be believed.

    A shift with returns over several steps, or with richer features, is a note where the interval without it was wide
    enough, or where the estimate with richer features passes the same tests. Without any shift nothing was checked;
    ``compared`` says whether it should have been.
    """
    if not main.shifts:
        grade: Grade = "warning" if compared else "note"
        return Diagnostic("features", float("nan"), *THRESHOLDS["features"][:2], grade, _UNCHECKED, _CHECK)
    sizes = [shift_size(main, *shift, stream=stream) for shift in main.shifts[:_TESTS]]
    bands, limit = bands_of(main, level, stream=stream), THRESHOLDS["features"]
    at = 0 if sizes[0] > limit.warning else len(sizes) - 1
    what = ("returns over several steps", "richer features")[at]
    sentence = f"with {what} the value moves by {main.shifts[at][0]:.3g}, {sizes[at]:.3g} standard errors of the move"
    grade = limit.grade(sizes[at])
    if grade == "warning":
        doubt = _doubt(main, bands, stream=stream)
        grade = "warning" if doubt else "note"
        held = f"the interval holds that of the features alone, {_ends(bands[0])}, and that with {what}, "
        sentence += f"; {doubt or held + _ends(bands[1 + at])}"
    return Diagnostic("features", sizes[at], limit.warning, limit.fatal, grade, sentence, limit.remedy)


def _doubt(main: ValueEstimate, bands: Sequence[Interval], *, stream: bool) -> str:
    """Why the interval, widened to hold the estimates of all tests, may be wrong; empty if nothing says so."""
    if len(bands) <= 1 + _TESTS:
        return f"there are no {'still richer ones' if len(bands) > _TESTS else 'richer features'} to test these with"
    (alone, traces, richer), widened = bands[: 1 + _TESTS], hull(bands[: 1 + _TESTS])
    (gap, influence), second = main.shifts[_TESTS - 1], main.shifts[_TESTS:]
    # Two estimates with independent errors of these sizes are hardly ever further apart.
    far = np.hypot(alone.high - alone.low, traces.high - traces.low) / 2
    if abs(main.shifts[0][0]) > far and does_move(main, *main.shifts[0], stream=stream):
        return f"their interval, {_ends(traces)}, contradicts that of the features alone, {_ends(alone)}"
    moving = [more for more, moved in second if does_move(main, more - gap, moved - influence, stream=stream)]
    for more in moving:
        if not widened.low <= main.value + more <= widened.high:
            return f"still richer ones move it on to {main.value + more:.4g}, out of the interval of both"
    still = [more for more, _ in second[1:]]
    excused = (still and not moving) or any(abs(more) < abs(more - gap) for more in still)
    if (richer.low > alone.high or richer.high < alone.low) and not excused:
        return (
            f"their interval, {_ends(richer)}, has no point in common with that of the features alone, {_ends(alone)}"
        )
    return ""


def _ends(band: Interval) -> str:
    return f"[{band.low:.4g}, {band.high:.4g}]"


def part_projections(
    estimand: Estimand, richer: Sequence[Estimand], own: np.ndarray, weights: Sequence[np.ndarray], part: int
) -> tuple[int, np.ndarray]:
    """Σwδ and, for each of the richer, Σw⁺δ of each cluster of a part, and the number of its first cluster."""
    span = estimand.span(part, estimand.clusters)
    sums = np.zeros((len(span), 1 + len(richer)))
    for batch in estimand.log.batches(part):
        here, ahead = estimand.products(batch, own)
        delta = batch.reward + estimand.gamma * ahead[:, 0] - here[:, 0]
        columns = [here[:, 1:]]
        for other, x in zip(richer, weights, strict=True):
            weight = other.features.pairs_times(other.features.encode(batch.state), batch.action, x)
            columns.append(other.instruments(weight, batch))
        at = estimand.index(batch, estimand.clusters) - span.start
        runs = run_starts(at)
        sums[at[runs]] += np.add.reduceat(np.hstack(columns) * delta[:, None], runs, axis=0)
    return span.start, sums
