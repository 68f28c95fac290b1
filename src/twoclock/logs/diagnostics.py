"""When not to believe an estimate: numbers with thresholds, each with a sentence and a remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from twoclock.intervals.batch_means import ALIKE, BLOCKS
from twoclock.logs.estimator_context import FOLDS, Estimated, EstimatorContext
from twoclock.logs.features.onehot import OneHot
from twoclock.logs.features.protocol import Crossed
from twoclock.logs.intervals import Interval, interval, told_by
from twoclock.logs.lstd_solve import solve

if TYPE_CHECKING:
    import pandas as pd

Grade = Literal["fine", "note", "warning", "fatal"]


class Rule(NamedTuple):
    """From where on a number is a warning, from where on nothing can be told, and what to do about it."""

    warning: float
    fatal: float
    remedy: str
    small_is_bad: bool = False


_NEVER, _TINY = float("inf"), 1e-300
_MORE = "log more episodes, of a behaviour that does more often what the policy would do"
RULES = {
    "clusters": Rule(30, 10, "log more: an interval from fewer than 30 is rough, from fewer than 10 none", True),
    "effective_transitions": Rule(100, 10, _MORE, True),
    "effective_clusters": Rule(30, 5, _MORE, True),
    "overlap": Rule(100, _NEVER, _MORE),
    "negative_weights": Rule(0.1, 0.4, "take richer features, or fewer where episodes are few"),
    "memory": Rule(
        ALIKE / BLOCKS**0.5,
        _NEVER,
        "log a longer stream: its blocks are shorter than its memory, the interval too narrow",
    ),
    "outside": Rule(0.01, 0.1, "evaluate a policy that stays closer to the log, or log what this one does"),
    "blind": Rule(1.0, _NEVER, "log what the policy does there; until then the interval may miss by that much"),
    "radius": Rule(1.0, _NEVER, "do not iterate Q on this log; LSTD-Q has the same fixed point without iterating"),
    "condition": Rule(1e8, 1e13, "take fewer features, a smaller gamma, or a log with more variety"),
    "halves": Rule(3.0, _NEVER, "see whether the world or the behaviour changed; evaluate on the later part"),
    "mspbe": Rule(3.0, _NEVER, "see whether the world changed, or episodes are not independent"),
    "features": Rule(3.0, _NEVER, "take richer features"),
    "estimators": Rule(3.0, _NEVER, "find out which one is wrong: features, propensities, or episodes cut off"),
    "ratios": Rule(30, 0, "do not believe PDIS and WIS here; LSTD-Q needs no ratios", True),
    "possible": Rule(0.0, 0.01, "the features extrapolate: take others, or a policy closer to the log"),
    "width": Rule(0.5, 1.0, _MORE),
}


@dataclass(frozen=True, eq=False)
class Finding:
    """A number that was looked at, and what it says."""

    name: str
    value: float
    sentence: str
    aside: bool = False  # it is not about the estimate that counts

    @property
    def rule(self) -> Rule:
        return RULES[self.name]

    @property
    def grade(self) -> Grade:
        if self.aside:
            return "note"
        if np.isposinf(self.value) and not self.rule.small_is_bad:
            return "fatal"
        sign = -1 if self.rule.small_is_bad else 1
        value, warning, fatal = (sign * number for number in (self.value, self.rule.warning, self.rule.fatal))
        return "fatal" if value > fatal else "warning" if value > warning else "fine"


def diagnose(
    work: EstimatorContext,
    name: str,
    estimates: Mapping[str, Estimated],
    richer: Estimated | None,
    band: Interval,
    level: float,
) -> list[Finding]:
    """All that the log says about the estimate of that name on it."""
    main = estimates[name]
    others = {key: other for key, other in estimates.items() if key != name and other.comparable}
    unit = "blocks" if work.target.stream else "episodes"
    clusters = Finding("clusters", float(band.clusters), f"the interval rests on {band.clusters:,} {unit}")
    return [
        *_outside(work, main, band),
        clusters,
        *_memory(work, main),
        *_weights(work, unit),
        *_system(work),
        *_drift(work, band),
        *_disagreement(work, main, others, richer, level),
        *_ratios(work, aside=name not in ("pdis", "wis")),
        *_possible(work, main, band),
    ]


def _memory(work: EstimatorContext, main: Estimated) -> Iterator[Finding]:
    if work.target.stream and main.influence is not None:
        correlation = float(told_by(main.influence, stream=True).correlation[0])
        yield Finding("memory", correlation, f"neighbouring blocks of the stream are correlated by {correlation:.2f}")


def _weights(work: EstimatorContext, unit: str) -> Iterator[Finding]:
    scores = work.scores
    squares, absolute, negative = (float(number) for number in scores.squares[:3])
    total, rows = float(scores.weight[:, 0].sum()), float(scores.rows.sum())
    by_cluster = np.abs(scores.weight[:, 0])
    counts = total**2 / max(squares, _TINY)
    worth = effective(by_cluster)
    overlap, below = rows / max(counts, _TINY), negative / max(absolute, _TINY)
    seen = "reweighted to the policy the log counts as"
    yield Finding("effective_transitions", counts, f"{seen} {counts:,.0f} of its {rows:,.0f} transitions")
    yield Finding("effective_clusters", worth, f"{seen} {worth:,.0f} of its {len(by_cluster):,} {unit}")
    yield Finding(
        "overlap",
        overlap,
        f"E[w²]/E[w]² = {overlap:,.3g}: it is worth that many times fewer transitions than a log of the policy itself",
    )
    yield Finding("negative_weights", below, f"{below:.0%} of the weight is negative, which no ratio of visits can be")


def outside(work: EstimatorContext) -> float:
    """E[γ^τ], τ the first time that the target does what the log has no data for: exact for a table.

    For other features it is the part of the target's features beyond the span of the log's, relative to the start's.
    """
    A, _, phi0 = work.moments.total()
    left = phi0 - A.T @ work.main.x
    if is_table(work):
        unseen = work.moments.C.diagonal() == 0
        # A state that the table lacks has no feature at all, and is missing from the start's mass.
        return float(left[unseen].sum() + max(0.0, 1.0 - phi0.sum()))
    return float(np.linalg.norm(left) / max(float(np.linalg.norm(phi0)), _TINY))


def is_table(work: EstimatorContext) -> bool:
    features = work.target.features
    return isinstance(features, Crossed) and isinstance(features.base, OneHot)


def _outside(work: EstimatorContext, main: Estimated, band: Interval) -> Iterator[Finding]:
    share = outside(work)
    share = 0.0 if abs(share) < 1e-9 else share
    message = f"{share:.1%} of the policy's discounted path leads to what the log has no data for"
    yield Finding("outside", share, message)
    if is_table(work):
        # There θ is 0 for want of data; it is taken to be as far off as the largest Q of the pairs that were seen.
        missed = share * float(np.abs(work.main.theta).max())
        z = _errors(missed, band.se, main.value)
        message = f"what the log has no data for may well move the value by {missed:.3g}, {z:.3g} standard errors"
        yield Finding("blind", z, message)


def _system(work: EstimatorContext) -> Iterator[Finding]:
    radius, condition = work.radius, work.main.condition
    yield Finding(
        "radius", radius, f"the spectral radius of fitted Q-evaluation is {radius:.4g}; from 1 on it diverges"
    )
    yield Finding("condition", condition, f"the condition of A is {condition:.3g}")


def _drift(work: EstimatorContext, band: Interval) -> Iterator[Finding]:
    if not work.without:
        return
    first = np.arange(work.target.groups) < work.target.groups // 2
    values = []
    for half in (first, ~first):
        A, b, phi0 = work.moments.total(1.0 * half)
        values.append(float(phi0 @ solve(A, b, phi0, work.basis).theta))
    z = _errors(values[0] - values[1], 2 * band.se, values[0])
    message = (
        f"the first half of the log says {values[0]:.4g} and the second {values[1]:.4g}, {z:.3g} standard errors apart"
    )
    yield Finding("halves", z, message)
    ratio = mspbe_ratio(work)
    message = f"the projected Bellman error on episodes that were left out is {ratio:.2g} times its noise floor"
    yield Finding("mspbe", ratio, message)


def mspbe_ratio(work: EstimatorContext) -> float:
    """‖mean of (b − Aθ₋ₖ)‖² in the metric C⁻¹ on the fold k that was left out, over what noise alone would make it."""
    moments, basis = work.moments, work.basis
    # The metric of a sparse table: its counts.
    scale = 1.0 if basis.seen is None else 1 / np.sqrt(moments.C.diagonal()[basis.seen])
    seen = floor = 0.0
    for k, solved in enumerate(work.without):
        groups = np.flatnonzero(work.fold == k)
        scores = np.stack([basis.down(moments.b[g] - moments.A[g] @ solved.theta) for g in groups]) * scale
        mean = scores.mean(axis=0)
        seen += float(mean @ mean)
        noise = float(((scores - mean) ** 2).sum() / max(len(groups) - 1, 1) / len(groups))
        floor += noise * (1 + 1 / (FOLDS - 1))  # θ₋ₖ has noise of its own
    size = float(np.square(basis.down(moments.b) * scale).sum())
    return seen / max(floor, 1e-20 * size, _TINY)


def _disagreement(
    work: EstimatorContext, main: Estimated, others: Mapping[str, Estimated], richer: Estimated | None, level: float
) -> Iterator[Finding]:
    found = {name: _apart(work, main, other, level) for name, other in others.items()}
    if found:
        name = max(found, key=lambda key: found[key][1])
        gap, z = found[name]
        message = f"the estimator {name} differs by {gap:.3g}, {z:.3g} standard errors of the difference"
        yield Finding("estimators", z, message)
    if richer is not None:
        gap, z = _apart(work, main, richer, level)
        yield Finding("features", z, f"with more features the value moves by {gap:.3g}, {z:.3g} standard errors")


def _apart(work: EstimatorContext, main: Estimated, other: Estimated, level: float) -> tuple[float, float]:
    """The difference of two estimates, and how many of its own standard errors it is."""
    gap = other.value - main.value
    if main.influence is None or other.influence is None:
        return gap, 0.0
    band = interval(gap, other.influence - main.influence, level, stream=work.target.stream)
    return gap, _errors(gap, band.se, main.value)


def _errors(gap: float, se: float, value: float) -> float:
    """How many standard errors a gap is; rounding, and what an iteration leaves, is none, however small they are."""
    return 0.0 if abs(gap) <= 1e-6 * abs(value) else abs(gap) / max(se, _TINY)


def _ratios(work: EstimatorContext, aside: bool) -> Iterator[Finding]:
    """The effective number of episodes of importance sampling, where it was asked for."""
    if "ratios" in work.settings:
        ratio = work.settings["ratios"][1]
        left = effective(ratio)
        message = f"the ratios of whole episodes leave {left:,.0f} effective episodes of {len(ratio):,}"
        yield Finding("ratios", left, message, aside)


def effective(weights: np.ndarray) -> float:
    """How many equal weights these are worth, (Σw)²/Σw²."""
    return float(weights.sum() ** 2 / max(weights @ weights, _TINY))


def _possible(work: EstimatorContext, main: Estimated, band: Interval) -> Iterator[Finding]:
    """Whether the estimate and its interval say more than the range of rewards does."""
    gamma, (least, most) = work.target.gamma, work.moments.reward
    if gamma >= 1:
        return
    low, high = min(least, 0.0) / (1 - gamma), max(most, 0.0) / (1 - gamma)
    span = max(high - low, _TINY)
    beyond = max(low - main.value, main.value - high, 0.0) / span
    beyond = 0.0 if beyond < 1e-9 else beyond
    side = "outside" if beyond else "inside"
    message = f"with the rewards of the log the value lies in [{low:.4g}, {high:.4g}]; the estimate is {side}"
    yield Finding("possible", beyond, message)
    width = (band.high - band.low) / span
    yield Finding("width", width, f"the interval is {width:.0%} as wide as all values that the log's rewards allow")


def support(work: EstimatorContext) -> pd.DataFrame | None:
    """For a table: how often the log is in each state, and how often the policy would be, discounted."""
    import pandas as pd

    features = work.target.features
    if not (isinstance(features, Crossed) and isinstance(features.base, OneHot)):
        return None
    visits = work.moments.C.diagonal()
    shape = features.base.size, features.actions
    return pd.DataFrame(
        {
            "state": [str(label) for label in features.base.states],
            "visits": visits.reshape(shape).sum(axis=1),
            "target": (work.main.x * visits).reshape(shape).sum(axis=1),
        }
    )
