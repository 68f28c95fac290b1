"""Off-policy evaluation: from a log to a value with an interval and a verdict."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from twoclock import storage
from twoclock.executor import TaskBatch, Threads
from twoclock.executor.ray_cluster import on_ray
from twoclock.intervals.confidence_sequence import FIRST_LOOK, first_look
from twoclock.logs import diagnostics
from twoclock.logs.dataset import Log
from twoclock.logs.estimators import FOLDS, DoesNotApply, EstimatorContext, Mapper, ValueEstimate, estimators
from twoclock.logs.estimators.importance_sampling import weighted_returns
from twoclock.logs.estimators.least_squares import with_alike
from twoclock.logs.estimators.state_model import answer_large_table
from twoclock.logs.feature_check import feature_shifts, judge_features, richer_features, still_richer_features
from twoclock.logs.features import PairFeatures, build, table_of
from twoclock.logs.ope_result import PolicyEstimate, Value
from twoclock.logs.policies import Gaussian, Policy
from twoclock.logs.policy_sources import compare_with_behaviour, with_all_actions
from twoclock.logs.standard_error import interval_of, thin_errors
from twoclock.logs.sufficient_stats import Estimand, matrix_fits
from twoclock.protocols import InputError
from twoclock.validation import check_path, choice, flag, function, lookup, number, short_repr, whole

_FEW_EPISODES = 10
_MOST_GROUPS, _MOST_CLUSTERS, _MOST_BLOCKS = 200, 50_000, 2_000
_GROUP_BYTES = 1 << 28
_MOST_RESAMPLES = 100_000
_START_SAMPLES = 4_096
_TRIES = 4  # of a task on Ray
_LONGEST_UNIT = 40  # characters
_MOST_CUT = 0.01  # from this share of cut-off episodes on, the log's mean return is not its behaviour's value
_LARGE_TABLE = 2_000  # pairs
T = TypeVar("T")


def evaluate(
    log: Log,
    policy: object,
    gamma: float,
    features: object = "onehot",
    estimator: str | Iterable[str] = "auto",
    level: float = 0.95,
    start: ArrayLike | str | None = None,
    *,
    bootstrap: int = 200,
    compare: bool = True,
    anytime: bool | int = False,
    on: str = "local",
    address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    checkpoint: str | Path | None = None,
    unit: str = "",
) -> Value:
    """Estimate the value v = E[Σγᵗr] of a policy from the log of another, with an interval and a verdict.

    Args:
        log: what ``tc.logs.read`` returned.
        policy: a function of a batch of states that gives an action or probabilities for each. Probabilities are a
            frame or a dict with a column for each action, or an array where their order is known. A policy may also be
            a DataFrame or an array [state, action]; {state: action} or a Series of them; a classifier with
            ``predict_proba``; or ``tc.logs.Gaussian``. With {name: policy} there is a ranking, and intervals of the
            differences hold for all policies at once.
        gamma: the discount, in [0, 1].
        features: "onehot", "rbf", "tiles", "fourier", an object of ``tc.logs.features``, or a function of a batch of
            (states, actions).
        estimator: a name of ``tc.logs.estimators()``, several of them, "all", or "auto": LSTD-Q, but DICE where a
            d × d matrix of dense features would be too large (d > 4,000).
        level: the coverage of the intervals.
        start: the states over which the value is a mean. None for the first states of the log's episodes; an array of
            states, or of probabilities of the states 0, 1, …; "visited" for all logged states.
        bootstrap: resamples of groups of episodes for a second interval; 0 for none.
        compare: also compute cheap estimates for comparison: the doubly robust estimate, the
            mean of the log, importance sampling where there are propensities, richer features.
        anytime: for a log that grows and is evaluated repeatedly: intervals that hold at all looks together. True if
            the first look is at 1,000 transitions or more, or the number of transitions at the first look.
        on: "local" threads, or "ray" tasks over the parts of the log.
        address: of the Ray cluster; one is started here if None.
        progress: called with the number of parts done and of all parts, for each pass over the log.
        checkpoint: a folder. A pass over the log that was killed resumes from the sums saved there.
        unit: of the rewards, such as "€", for the verdict and the report.

    Returns:
        A :class:`twoclock.logs.Value`. Where the log does not support an estimate, the ``value`` is NaN, the interval
        is infinite, and the ``verdict`` says why.

    >>> import numpy as np, twoclock as tc
    >>> rng = np.random.default_rng(0)
    >>> action = rng.integers(2, size=400)  # one state, two actions, episodes of one step
    >>> log = tc.logs.read({"state": np.zeros(400, int), "action": action, "reward": action + rng.normal(size=400),
    ...                     "terminated": np.ones(400, bool)})
    >>> v = tc.evaluate(log, np.array([[0.1, 0.9]]), gamma=0.9)
    >>> v.low < 0.9 < v.high, round(v.se, 2)
    (True, 0.06)
    """
    if not isinstance(log, Log):
        raise InputError(f"`log` must be what `tc.logs.read(…)` returns, got {type(log).__name__}")
    gamma, level = number("gamma", gamma, 0, 1), number("level", level, 0, 1, above=True, below=True)
    bootstrap = whole("bootstrap", bootstrap, 0, _MOST_RESAMPLES)
    flag("compare", compare)
    choice("on", on, ("local", "ray"))
    if progress is not None:
        function("progress", progress, "done", "total")
    if checkpoint is not None:
        check_path("checkpoint", checkpoint)
    if isinstance(start, str):
        choice("start", start, ("visited",))
    if not isinstance(unit, str) or not unit.isprintable() or len(unit) > _LONGEST_UNIT:
        raise InputError(f"`unit` must be a short text such as '€', got {short_repr(unit)}")
    if address is not None and not isinstance(address, str):
        raise InputError(f"`address` must be host:port of a Ray cluster, got {short_repr(address)}")
    first = 0 if anytime is False else FIRST_LOOK if anytime is True else first_look(anytime, [])
    if log.rows < first:
        raise InputError(
            f"`anytime` begins at {first:,} transitions and the log has {log.rows:,}; look later, or say when you "
            f"first look, `anytime={log.rows}`"
        )
    if gamma == 1 and log.cut == log.episodes:
        raise InputError(
            "`gamma` is 1 and no episode of the log terminates, so the sum of rewards has no end; take gamma below 1, "
            "or name the column of terminations in `read(…, terminated=…)`"
        )
    log, policies = with_all_actions(log, policy)
    starts = None if start is None or isinstance(start, str) else log.start_states(start)
    others = None if starts is None else starts[0]
    built = build(features, log, others)
    names, table = _estimator_names(estimator, built, log), table_of(built)
    added = richer_features(built, log, others) if compare and table is None else None
    began = time.perf_counter()
    estimates = {}
    everything = isinstance(estimator, str) and estimator == "all"
    with _mapper(on, address, progress) as map_parts, _estimator_bar(everything and progress is None) as announce:
        folder = None if checkpoint is None else storage.writable(checkpoint)
        built = with_alike(built, log, map_parts)
        for name, one in policies.items():
            make = partial(_estimand, log, one, gamma=gamma, starts=starts, visited=isinstance(start, str))
            estimand = make(built)
            context = EstimatorContext(estimand, map_parts, bootstrap, folder, announce, everything)
            traced = [dataclasses.replace(estimand, traced=True)] if compare and table is None else []
            richer = [*traced, *([make(added, resampled=False)] if added is not None else [])]
            richer = [dataclasses.replace(other, groups=1) for other in richer]
            large = estimator == "auto" and table is not None and built.size >= _LARGE_TABLE
            found = answer_large_table(context, compare) if large else None
            if found is None:
                found = _estimate(context, names, level, compare, richer, make)
            estimates[name] = _answer_otherwise(context, found) if estimator == "auto" else found
            estimates[name].diagnostics[:0] = diagnostics.of_every_estimator(estimates[name], level, estimand)
            if compare and (alike := compare_with_behaviour(name, one, log)) is not None:
                estimates[name].diagnostics.append(alike)
    called = features if isinstance(features, str) else getattr(features, "__name__", None) or short_repr(features)
    settings = {
        "gamma": gamma, "level": level, "anytime": first, "estimator": names[0], "features": called, "size": built.size,
        "rows": log.rows, "episodes": log.episodes, "dropped": dict(log.dropped),
        "actions": None if log.actions is None else list(log.actions), "wall_seconds": time.perf_counter() - began,
        "unit": unit, "reward": log.roles.reward, "gains": _gains_over_log(estimates, level, log.cut / log.episodes),
    }  # fmt: skip
    return Value.of(estimates, settings)


@contextmanager
def _mapper(on: str, address: str | None, progress: Callable[[int, int], None] | None) -> Iterator[Mapper]:
    """Make a map over the parts of a log, on "local" threads or on "ray"."""
    from threadpoolctl import threadpool_limits

    local = on == "local"
    place = nullcontext(Threads()) if local else on_ray(address, "`policy` or `features`", tries=_TRIES, ordered=True)

    def over_parts(function: Callable[..., T], arguments: tuple[object, ...], parts: Sequence[int]) -> Iterator[T]:
        if local and len(parts) == 1:  # needs no threads
            yield function(*arguments, parts[0])
            if progress is not None:
                progress(parts[0] + 1, parts[0] + 1)
            return
        batch = TaskBatch(lambda shared, part, channel: function(*shared, part), arguments, parts)
        outcomes = executor.map(batch)
        with closing(outcomes):
            for number, outcome in outcomes:
                if isinstance(outcome, Exception):
                    raise outcome
                yield outcome
                if progress is not None:
                    progress(parts[number] + 1, parts[-1] + 1)

    # One core per thread: BLAS's threads beside ours would spin while they wait for cores, and take ten times as long.
    with threadpool_limits(1 if local else None, user_api="blas"), place as executor:
        yield over_parts


@contextmanager
def _estimator_bar(shown: bool) -> Iterator[Callable[[str], None]]:
    """Show on a terminal which estimator runs; a pass over a short log is too quick for its own progress bar."""
    if not shown:
        yield lambda name: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("estimators", total=len(estimators()))
        yield lambda name: bar.update(task, advance=1, description=name)


def _estimand(
    log: Log,
    policy: Policy,
    features: PairFeatures,
    *,
    gamma: float,
    starts: tuple[np.ndarray, np.ndarray] | None,
    visited: bool,
    resampled: bool = True,
) -> Estimand:
    """Choose the numbers of groups and clusters, and set the start states if they are not those of the log."""
    stream, d = log.episodes < _FEW_EPISODES, features.size
    units, most = (log.length, _MOST_BLOCKS) if stream else (log.episodes, _MOST_CLUSTERS)
    fitting = _GROUP_BYTES // (8 * d * d) if d <= 2_000 else _GROUP_BYTES // (64 * d)
    wanted = 2 * FOLDS if not resampled else 50 if stream else _MOST_GROUPS
    groups = min(units, wanted, max(fitting, 2 * FOLDS))
    clusters = units if units <= most else most // groups * groups  # a group is a whole number of clusters
    estimand = Estimand(log, policy, features, gamma, groups, clusters, stream, visited=visited)
    if starts is None and stream and not visited:
        states = np.concatenate([batch.state[batch.first] for batch in log])
        starts = states, np.full(len(states), 1 / len(states))
    if starts is None:
        return estimand
    states, weights = starts
    if isinstance(policy, Gaussian):  # many samples, since the log's clusters do not include their error
        copies = -(-_START_SAMPLES // len(states))
        states, weights = np.repeat(states, copies, axis=0), np.repeat(weights, copies) / copies
    return dataclasses.replace(estimand, start=weights @ estimand.at(states))


def _estimate(
    context: EstimatorContext,
    names: list[str],
    level: float,
    compare: bool,
    richer: list[Estimand],
    make: Callable[..., Estimand],
) -> PolicyEstimate:
    """Compute the estimates of one policy and their diagnostics; ``make`` makes the estimand with other features."""
    main, stream, log = names[0], context.estimand.stream, context.estimand.log

    def still_richer() -> Estimand | None:
        found = still_richer_features(richer[-1].features, log)
        return None if found is None else dataclasses.replace(make(found, resampled=False), groups=1)

    linear = matrix_fits(context.estimand.features, log)
    if compare:
        names = [*names, *(["dr"] if linear else []), "naive"]
        names += ["pdis", "wis"] if log.propensities else []
        counts = table_of(context.estimand.features) is not None and log.propensities == log.rows
        names += ["state_model"] if counts else []
    estimates, refused = dict[str, ValueEstimate](), dict[str, str]()
    for name in dict.fromkeys(names):
        context.announce(name)
        try:
            estimates[name] = estimators()[name].estimate(context)
        except DoesNotApply as error:
            if name == main:
                raise InputError(f"`estimator` {name!r} does not apply to this log: {error}") from None
            refused[name] = str(error)
    if not linear:
        return PolicyEstimate(estimates, refused, [], stream, np.zeros(0), None)
    if own := diagnostics.own_diagnostics(estimates[main]):  # LSTD-Q's checks do not apply
        return PolicyEstimate(estimates, refused, own, stream, np.zeros(0), None)
    found, thin = list[diagnostics.Diagnostic](), context.once(thin_errors)
    shifts = feature_shifts(context, estimates[main], richer, still_richer) if richer else ()
    estimates = {
        name: dataclasses.replace(one, thin=thin, shifts=shifts, studentized=context.studentized)
        if one.fixed_point
        else one
        for name, one in estimates.items()
    }
    if estimates[main].influence is not None:
        found = diagnostics.diagnose(context, main, estimates, level)
        if table_of(context.estimand.features) is None:
            found.append(judge_features(estimates[main], level, stream=stream, compared=compare))
    weights = context.scores.sample * context.scores.rows.sum()
    returns = np.zeros((2, 0))
    if {"pdis", "wis"} & {*estimates} and (known := context.once(weighted_returns)).complete:
        returns = np.stack([known.plain, known.ratio])
    return PolicyEstimate(estimates, refused, found, stream, weights, diagnostics.support(context), returns)


def _gains_over_log(singles: Mapping[str, PolicyEstimate], level: float, cut: float) -> dict[str, list[float]]:
    """The difference of each policy's value and the log's own mean return, paired by episode.

    Empty where episodes were cut off, since their returns are incomplete.
    """
    found = {}
    for name, one in singles.items():
        base = one.estimates.get("naive")
        if base is None or base.influence is None or one.fatal or cut > _MOST_CUT:
            continue
        main = one.estimates[one.main]
        band = interval_of(main, level, stream=one.stream, minus=base)
        found[name] = [main.value - base.value, band.low, band.high]
    return found


def _answer_otherwise(context: EstimatorContext, found: PolicyEstimate) -> PolicyEstimate:
    """If LSTD-Q is refused, take the model over states, or the returns if the policy wrote the log."""
    failed = [one for one in found.diagnostics if one.grade == "fatal"]
    if not failed:
        return found
    main, others = found.main, dict(found.estimates)
    for name in ("state_model", "wis"):
        try:
            one = others.get(name) or estimators()[name].estimate(context)
        except DoesNotApply:
            continue
        checks = diagnostics.own_diagnostics(one)
        of_the_behaviour = one.comparable and one.ratios is not None and np.allclose(one.ratios, 1.0, atol=0.05)
        usable = bool(checks) or of_the_behaviour  # ratios of 1 are enough; others hide actions that were never taken
        if not usable or any(check.grade == "fatal" for check in checks):
            continue
        del others[main]
        others = {name: one, **others}
        refused = {main: failed[0].sentence, **found.refused}
        return dataclasses.replace(found, estimates=others, refused=refused, diagnostics=checks)
    return found


def _estimator_names(given: object, features: PairFeatures, log: Log) -> list[str]:
    """Return the names of the estimators, the main one first."""
    found = estimators()
    if not isinstance(given, (str, list, tuple)) or not given:
        raise InputError(
            f"`estimator` must be a name or a list of them, got {short_repr(given)}; leave it out for 'auto'"
        )
    names = [given] if isinstance(given, str) else list(given)
    if given == "auto":
        names = ["lstdq" if matrix_fits(features, log) else "dice"]
    elif given == "all":
        names = ["lstdq", *found]
    for name in names:
        lookup(found, name, "estimator")
    return list(dict.fromkeys(names))
