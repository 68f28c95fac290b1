"""Diagnostics of an estimate: numbers with thresholds, each with a sentence and a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from twoclock.intervals.batch_means import ALIKE, BLOCKS
from twoclock.logs.estimators import (
    FEW_EPISODES,
    FOLDS,
    EstimatorContext,
    ValueEstimate,
    effective_size,
)
from twoclock.logs.estimators.least_squares import unseen_share
from twoclock.logs.features import table_of
from twoclock.logs.linear_systems import solve_lstd
from twoclock.logs.standard_error import (
    MOVES,
    cluster_error,
    interval,
    interval_of,
    standard_errors,
    unseen_error,
)
from twoclock.protocols import list_names

if TYPE_CHECKING:
    import pandas as pd

    from twoclock.logs.dataset import Log
    from twoclock.logs.ope_result import PolicyEstimate
    from twoclock.logs.sufficient_stats import Estimand


Grade = Literal["fine", "note", "warning", "fatal"]


class Diagnostic(NamedTuple):
    """A number, its thresholds, and its meaning for the estimate."""

    name: str
    value: float
    warning: float
    fatal: float
    grade: Grade
    sentence: str
    remedy: str


class Threshold(NamedTuple):
    """The limits from which a number warns and from which an estimate is refused, and the remedy."""

    warning: float
    fatal: float
    remedy: str
    small_is_bad: bool = False

    def grade(self, value: float) -> Literal["fine", "warning", "fatal"]:
        if np.isposinf(value) and not self.small_is_bad:
            return "fatal"
        sign = -1 if self.small_is_bad else 1
        bad, warning, fatal = sign * value, sign * self.warning, sign * self.fatal
        return "fatal" if bad > fatal else "warning" if bad > warning else "fine"


_NEVER, _TINY, _EXACT = float("inf"), 1e-300, 1e-9
_MORE = "log more episodes, of a behaviour that does more often what the policy would do"
_LONGER = "log a longer stream: its blocks are shorter than its memory, the interval too narrow"
_GIVE_STARTS = "log episodes of every kind of start, or give the states and their shares with `start`"
_SPELT = "write an action alike in all rows, as with `.str.strip().str.lower()`"
_CODED = "if it stands for a missing number, write NaN there and read with on_bad='drop'"
_MISSED = 3.0  # expected number of a kind of start that is missing in one log of twenty
_MANY = 1_000  # standard errors
THRESHOLDS = {
    "clusters": Threshold(30, 10, "log more: an interval from fewer than 30 is rough, from fewer than 10 none", True),
    "effective_transitions": Threshold(100, 10, _MORE, True),
    "effective_clusters": Threshold(15, 5, _MORE, True),
    "overlap": Threshold(100, _NEVER, _MORE),
    "negative_weights": Threshold(0.1, 0.4, "take richer features, or fewer where episodes are few"),
    "memory": Threshold(ALIKE / BLOCKS**0.5, _NEVER, _LONGER),
    "outside": Threshold(0.05, 0.1, "evaluate a policy that stays closer to the log, or log what this one does"),
    "support": Threshold(0.01, 0.1, "evaluate a policy that does only what the behaviour may do"),
    "gaps": Threshold(
        0.03, 0.1, "log what the policy does in these states, or evaluate one that stays closer to the log"
    ),
    "blind": Threshold(3.0, _NEVER, "log what the policy does there; until then the interval is that much longer"),
    "radius": Threshold(1.0, _NEVER, "do not iterate Q on this log; LSTD-Q has the same fixed point without iterating"),
    "condition": Threshold(1e8, 1e13, "take fewer features, a smaller gamma, or a log with more variety"),
    "halves": Threshold(3.0, _NEVER, "see whether the world or the behaviour changed; evaluate on the later part"),
    "mspbe": Threshold(6.0, _NEVER, "see whether the world changed, or episodes are not independent"),
    "features": Threshold(MOVES, _NEVER, "take richer features"),
    "tails": Threshold(
        0.6, _NEVER, "see whether that one is recorded rightly; log more, since rare events decide here"
    ),
    "estimators": Threshold(3.0, _NEVER, "find out which one is wrong: features, propensities, or episodes cut off"),
    "ratios": Threshold(FEW_EPISODES, 0, "do not believe PDIS and WIS here; LSTD-Q needs no ratios", True),
    "ratios_mean": Threshold(
        0.0, 0.1, "see whether the propensities are right, and whether the behaviour may do all that the policy does"
    ),
    "time_limit": Threshold(
        0.0, _NEVER, "give that flag as `truncated`, with terminated=None; or add the number of the step to `state`"
    ),
    "possible": Threshold(0.0, 0.01, "the features extrapolate: take others, or a policy closer to the log"),
    "width": Threshold(1.0, 1.0, _MORE),
}


def own_diagnostics(estimate: ValueEstimate) -> list[Diagnostic]:
    """Grade the estimate's own checks."""
    limits = {key: THRESHOLDS[key] for key in estimate.checks}
    return [
        Diagnostic(
            key, value, limits[key].warning, limits[key].fatal, limits[key].grade(value), words, limits[key].remedy
        )
        for key, (value, words) in estimate.checks.items()
    ]


def of_every_estimator(single: PolicyEstimate, level: float, estimand: Estimand) -> list[Diagnostic]:
    """What concerns every estimator: starts that may be missing, an interval without length, suspicious entries."""
    main, log = single.estimates[single.main], estimand.log
    own = estimand.start is None and not estimand.visited and not single.fatal
    noted = missing_starts(main, level, log.episodes, stream=estimand.stream) if own else []
    return [*noted, *without_length(main, level, stream=estimand.stream), *suspicious_entries(log)]


def without_length(one: ValueEstimate, level: float, *, stream: bool) -> list[Diagnostic]:
    """A warning if the interval has no length, as from a log in which every reward is 0."""
    if one.influence is None:
        return []
    band = interval_of(one, level, stream=stream)
    length, words = band.high - band.low, "the interval has no length, since all that the log shows is alike"
    remedy, least = "log more, until rewards differ: a rare one may be missing", _EXACT * abs(one.value)
    return [] if length > least else [Diagnostic("length", length, least, -_NEVER, "warning", words, remedy)]


def suspicious_entries(log: Log) -> list[Diagnostic]:
    """A warning for each code of a missing number, and for actions that differ only in blanks or capitals."""
    found = [("missing_codes", sentence, _CODED) for sentence in log.codes]
    spelt = dict[str, list[str]]()
    for action in log.actions or ():
        spelt.setdefault(" ".join(str(action).lower().split()), []).append(repr(action))
    if twice := [" and ".join(names) for names in spelt.values() if len(names) > 1]:
        found.append(("spelling", f"actions differ only in blanks or capitals: {list_names(twice)}", _SPELT))
    return [Diagnostic(name, 1.0, 0.0, float("inf"), "warning", sentence, remedy) for name, sentence, remedy in found]


def missing_starts(one: ValueEstimate, level: float, starts: int, *, stream: bool) -> list[Diagnostic]:
    """A note on the kinds of start that the log may lack: no data show them, so this never warns."""
    if one.influence is None:
        return []
    band = interval_of(one, level, stream=stream)
    rare, least, most = harmless_starts(one.value, band.low, band.high, starts)
    message = (
        f"a kind of start rarer than {rare:.2g} may be missing among {starts:,}; it moves the value out of the "
        f"interval if it is worth less than {least:.4g} or more than {most:.4g}"
    )
    return [Diagnostic("starts", float(starts), _NEVER, _NEVER, "note", message, _GIVE_STARTS)]


def harmless_starts(value: float, low: float, high: float, starts: int) -> tuple[float, float, float]:
    """How rare a kind of start that the log lacks is, and the worths between which it leaves the value in [low, high].

    The rule of three: with probability .95 a kind of share 3/n occurs among n starts.

    >>> harmless_starts(5.0, 4.0, 6.0, 100)
    (0.03, -28.333333333333336, 38.333333333333336)
    """
    rare = min(_MISSED / starts, 1.0)
    return rare, value + (low - value) / rare, value + (high - value) / rare


def diagnose(
    context: EstimatorContext,
    name: str,
    estimates: Mapping[str, ValueEstimate],
    level: float,
) -> list[Diagnostic]:
    """Compute every diagnostic of the estimate ``name`` but that of its features."""
    main, stream = estimates[name], context.estimand.stream
    assert main.influence is not None
    whole, band = interval_of(main, level, stream=stream), interval(main.value, main.influence, level, stream=stream)
    unit = "blocks" if stream else "episodes"
    found: list[Diagnostic] = []

    def say(key: str, value: float, sentence: str, also: str = "", *, held: bool = False) -> None:
        limit = THRESHOLDS[key]
        if key == "outside" and table is not None:  # the interval of a table includes this error
            limit = limit._replace(warning=limit.fatal)
        grade: Grade = limit.grade(value) if key != "ratios" or name in ("pdis", "wis") else "note"
        grade = "note" if held and grade == "warning" else grade  # the interval includes this error
        found.append(Diagnostic(key, value, limit.warning, limit.fatal, grade, sentence, limit.remedy + also))

    def distance(other: ValueEstimate) -> tuple[float, float]:
        """The difference of two estimates, and its number of standard errors."""
        gap = other.value - main.value
        if main.influence is None or other.influence is None:
            return gap, 0.0
        # What the whole log may lack, parts of it lack too; estimators fill these gaps in different ways.
        apart = interval(gap, other.influence - main.influence, level, stream=stream, missing=main.thin)
        size = standard_errors(gap, apart.se, main.value)  # at most three times that in those of the estimate
        return gap, min(size, 3 * standard_errors(gap, whole.se, main.value))

    share, table = unseen_share(context), table_of(context.estimand.features)
    logged = table is None or context.estimand.log.propensities > 0
    also = "" if logged else "; if the behaviour's probabilities are known, read the log with `propensity=…`"
    say("outside", share, f"{share:.1%} of the policy's discounted path leads to what the log has no data for", also)
    if table is not None and share <= THRESHOLDS["outside"].fatal:
        missed = unseen_error(context)
        z = standard_errors(missed, band.se, main.value)
        many = f"{z:.3g}" if z < _MANY else f"more than {_MANY:,}"
        message = f"what the log has no data for may well move the value by {missed:.3g}, {many} standard errors"
        say("blind", z, f"{message}, which the interval holds", held=True)
    say("clusters", float(band.clusters), f"the interval rests on {band.clusters:,} {unit}")
    if stream and main.influence is not None:
        memory = cluster_error(main.influence, stream=True).correlation
        say("memory", memory, f"neighbouring blocks of the stream are correlated by {memory:.2f}")
    if length := context.estimand.log.time_limit:
        message = f"each episode terminates after {length:,} rows whatever its state, as if by a time limit"
        say("time_limit", float(length), message)
    largest = float((main.influence**2).max()) / max(whole.se**2, _TINY)
    say("tails", largest, f"one of the {unit} carries {largest:.0%} of the squared error")
    scores = context.scores  # the effective size of the reweighted log
    squares, absolute, negative = scores.squares.tolist()
    total, rows, by_cluster = float(scores.weight[:, 0].sum()), float(scores.rows.sum()), np.abs(scores.weight[:, 0])
    transitions, clusters = total**2 / max(squares, _TINY), effective_size(by_cluster)
    overlap, below = rows / max(transitions, _TINY), negative / max(absolute, _TINY)
    seen = "reweighted to the policy the log counts as"
    worth = "it is worth that many times fewer transitions than a log of the policy itself"
    if rows > len(by_cluster):  # otherwise transitions are episodes
        say("effective_transitions", transitions, f"{seen} {transitions:,.0f} of its {rows:,.0f} transitions")
    say("effective_clusters", clusters, f"{seen} {clusters:,.0f} of its {len(by_cluster):,} {unit}")
    say("overlap", overlap, f"E[w²]/E[w]² = {overlap:,.3g}: {worth}")
    say("negative_weights", below, f"{below:.0%} of the weight is negative, which no ratio of visits can be")
    radius, condition = context.radius, context.solution.condition
    say("radius", radius, f"the spectral radius of fitted Q-evaluation is {radius:.4g}; from 1 on it diverges")
    say("condition", condition, f"the condition of A is {condition:.3g}")
    if context.fold_solutions:  # whether parts of the log disagree
        first = np.arange(context.estimand.groups) < context.estimand.groups // 2
        totals = [context.moments.total(1.0 * half) for half in (first, ~first)]
        one, other = (float(phi0 @ solve_lstd(A, b, phi0, context.basis).theta) for A, b, phi0 in totals)
        z = standard_errors(one - other, 2 * whole.se, one)
        says = f"the first half of the log says {one:.4g} and the second {other:.4g}"
        say("halves", z, f"{says}, {z:.3g} standard errors apart")
        ratio = mspbe_ratio(context)
        message = f"the projected Bellman error on episodes that were left out is {ratio:.2g} times its noise floor"
        say("mspbe", ratio, message)
    gaps = {key: distance(other) for key, other in estimates.items() if key != name and other.comparable}
    if gaps:
        key, (gap, z) = max(gaps.items(), key=lambda entry: entry[1][1])
        message = f"the estimator {key} differs by {gap:.3g}, {z:.3g} standard errors of the difference"
        say("estimators", z, message)
    for ratios in [one.ratios for one in estimates.values() if one.ratios is not None][:1]:
        left = effective_size(ratios)
        message = f"the ratios of whole episodes leave {left:,.0f} effective episodes of {len(ratios):,}"
        say("ratios", left, message)
    gamma, (least, minus_most) = context.estimand.gamma, context.moments.reward
    if gamma < 1:  # whether the estimate and its interval say more than the range of the rewards
        low, high = min(least, 0.0) / (1 - gamma), max(-minus_most, 0.0) / (1 - gamma)
        span = max(high - low, _TINY)
        beyond = max(low - main.value, main.value - high, 0.0) / span
        beyond = 0.0 if beyond < 1e-9 else beyond
        message = f"with the rewards of the log the value lies in [{low:.4g}, {high:.4g}]; the estimate is "
        say("possible", beyond, message + ("outside" if beyond else "inside"))
        width = (whole.high - whole.low) / span
        times = f"{width:.0%}" if width < 1 else f"{width:.3g} times"
        message = f"the interval is {times} as wide as all values that the log's rewards allow"
        say("width", width, message)
    return found


def mspbe_ratio(context: EstimatorContext) -> float:
    """‖mean of (b − Aθ₋ₖ)‖² in the metric C⁻¹ on the left-out fold k, relative to its expectation under noise alone."""
    moments, basis = context.moments, context.basis
    # The metric of a sparse table: its counts.
    scale = 1.0 if basis.seen is None else 1 / np.sqrt(moments.C.diagonal()[basis.seen])
    seen = floor = 0.0
    for k, solution in enumerate(context.fold_solutions):
        groups = np.flatnonzero(context.fold == k)
        scores = np.stack([basis.down(moments.b[g] - moments.A[g] @ solution.theta) for g in groups]) * scale
        mean = scores.mean(axis=0)
        seen += float(mean @ mean)
        noise = float(((scores - mean) ** 2).sum() / max(len(groups) - 1, 1) / len(groups))
        floor += noise * (1 + 1 / (FOLDS - 1))  # θ₋ₖ is noisy too
    size = float(np.square(basis.down(moments.b) * scale).sum())
    return seen / max(floor, 1e-20 * size, _TINY)


def support(context: EstimatorContext) -> pd.DataFrame | None:
    """For a table: the log's discounted visits of each state, and the policy's."""
    import pandas as pd

    table = table_of(context.estimand.features)
    if table is None:
        return None
    visits = context.moments.C.diagonal()
    log, target = (by.reshape(table.size, -1).sum(axis=1) for by in (visits, context.solution.x * visits))
    return pd.DataFrame({"state": [str(label) for label in table.states], "visits": log, "target": target})
