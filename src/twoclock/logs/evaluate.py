"""From a log to a value with an interval and a verdict in words."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from twoclock import storage
from twoclock.logs import diagnostics
from twoclock.logs.dataset import Log
from twoclock.logs.estimand import Mapper, Target
from twoclock.logs.estimator_context import FOLDS, DoesNotApply, Estimated, EstimatorContext
from twoclock.logs.estimators import estimators
from twoclock.logs.estimators.lstdq import MOST_FEATURES
from twoclock.logs.features import build
from twoclock.logs.features.bases import Rbf
from twoclock.logs.features.concat import Stacked
from twoclock.logs.features.onehot import OneHot
from twoclock.logs.features.protocol import Features
from twoclock.logs.intervals import interval
from twoclock.logs.ope_result import Value
from twoclock.logs.parallel_map import mapper
from twoclock.logs.pass_checkpoint import Keeper
from twoclock.logs.policies import Discrete, Gaussian, Policy, policies
from twoclock.logs.policy_differences import PolicyEstimate
from twoclock.logs.sufficient_stats import entries_of_a_row
from twoclock.protocols import InputError
from twoclock.validation import check_path, choice, flag, function, number, pick, shown, whole
from twoclock.validation.arrays import law

_FEW_EPISODES = 10
_MOST_GROUPS, _MOST_CLUSTERS, _MOST_BLOCKS = 200, 50_000, 2_000
_GROUP_BYTES = 1 << 28
_MOST_RESAMPLES = 100_000
_ENLARGE_UP_TO = 300_000  # rows
_START_SAMPLES = 4_096


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
    on: str = "local",
    address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    checkpoint: str | Path | None = None,
) -> Value:
    """The value v = E[Σγᵗr] of a policy that the log is not of, with an interval and a verdict.

    Args:
        log: what ``tc.logs.read`` returned.
        policy: an array [state, action]; a DataFrame of the same; a function of a batch of states that gives a row of
            probabilities, or an action, for each; ``tc.logs.Gaussian``; or {name: policy}, which adds paired intervals
            of the differences.
        gamma: the discount, in [0, 1].
        features: "onehot", "rbf", "tiles", "fourier", an object of ``tc.logs.features``, or a function of a batch of
            (states, actions).
        estimator: a name of ``tc.logs.estimators()``, several of them, "all", or "auto": LSTD-Q, but DICE where a
            d × d matrix of dense features would be too large (d > 4,000).
        level: of the intervals.
        start: the value is a mean over the first states of the log's episodes if None; over these states, or over this
            law of the states 0, 1, …, if an array; over all logged states if "visited".
        bootstrap: resamples of groups of episodes for a second interval; 0 for none.
        compare: also compute what is cheap and speaks for or against the estimate: the doubly robust estimate, the
            mean of the log, importance sampling where there are propensities, richer features.
        on: "local" threads, or "ray" tasks over the parts of the log.
        address: of the Ray cluster; one is started here if None.
        progress: called with the parts of the log done and there are, for each pass.
        checkpoint: a folder. A pass over the log that was killed goes on from what it finds there.

    Returns:
        A :class:`twoclock.logs.Value`. Where the log cannot speak about the policy its ``value`` is NaN, its interval
        everything, and its ``verdict`` says why.

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
    if address is not None and not isinstance(address, str):
        raise InputError(f"`address` must be host:port of a Ray cluster, got {shown(address)}")
    log, named = _with_actions(log, policy)
    starts = _start_states(start, log)
    built = build(features, log, None if starts is None else starts[0])
    names = _names(estimator, built, log)
    began = time.perf_counter()
    with mapper(on, address, progress) as mapped:
        singles = {
            name: _one(log, one, built, gamma, names, level, starts, start, bootstrap, compare, mapped, checkpoint)
            for name, one in named.items()
        }
    settings = {
        "gamma": gamma, "level": level, "estimator": names[0], "features": _name(features), "size": built.size,
        "rows": log.rows, "episodes": log.episodes, "dropped": dict(log.dropped),
        "wall_seconds": time.perf_counter() - began,
    }  # fmt: skip
    return Value.of(singles, settings)


def _one(
    log: Log, policy: Policy, features: Features, gamma: float, names: list[str], level: float, starts: object,
    start: object, bootstrap: int, compare: bool, mapped: Mapper, checkpoint: str | Path | None,
) -> PolicyEstimate:  # fmt: skip
    stream = log.episodes < _FEW_EPISODES
    target = Target(
        log,
        policy,
        features,
        gamma,
        *_sizes(log, features.size, stream, bootstrap),
        stream,
        None,
        isinstance(start, str),
    )
    fixed = _fixed_start(target, starts, isinstance(start, str))
    target = dataclasses.replace(target, start=fixed)
    keeper = None if checkpoint is None else Keeper.of(storage.writable(checkpoint), target, level)
    work = EstimatorContext(target, mapped, bootstrap, keeper=keeper)
    found = estimators()
    estimates, refused = {}, {}
    wanted = list(dict.fromkeys([*names, *(_compared(log, features) if compare else ())]))
    for name in wanted:
        try:
            estimates[name] = found[name].estimate(work)
        except DoesNotApply as error:
            if name == names[0]:
                raise InputError(f"`estimator` {name!r} does not apply to this log: {error}") from None
            refused[name] = str(error)
    main = estimates[names[0]]
    findings: list[diagnostics.Finding] = []
    weights, support = np.zeros(0), None
    if _linear_fits(features, log):
        band = interval(main.value, main.influence, level, stream=stream) if main.influence is not None else None
        if band is not None:
            richer = _enlarged(work) if compare else None
            findings = diagnostics.diagnose(work, names[0], estimates, richer, band, level)
        weights, support = work.scores.sample * work.scores.rows.sum(), diagnostics.support(work)
    return PolicyEstimate(estimates, refused, findings, stream, weights, support)


def _compared(log: Log, features: Features) -> list[str]:
    cheap = ["dr", "naive"] if _linear_fits(features, log) else ["naive"]
    return cheap + (["pdis", "wis"] if log.propensities else [])


def _linear_fits(features: Features, log: Log) -> bool:
    return features.size <= MOST_FEATURES or entries_of_a_row(features, log) is not None


def _sizes(log: Log, d: int, stream: bool, bootstrap: int) -> tuple[int, int]:
    """How many groups and clusters; a group is a whole number of clusters."""
    units, most = (log.length, _MOST_BLOCKS) if stream else (log.episodes, _MOST_CLUSTERS)
    fitting = _GROUP_BYTES // (8 * d * d) if d <= 2_000 else _GROUP_BYTES // (64 * d)
    wanted = 2 * FOLDS if not bootstrap else 50 if stream else _MOST_GROUPS
    groups = min(units, wanted, max(fitting, 2 * FOLDS))
    return groups, units if units <= most else most // groups * groups


def _enlarged(work: EstimatorContext) -> Estimated | None:
    """The same with more features, where they are not a table already and the log is not long."""
    target = work.target
    features, log = target.features, target.log
    if isinstance(getattr(features, "base", None), OneHot) or log.rows > _ENLARGE_UP_TO or features.size > 500:
        return None
    try:
        more = build(Rbf(centres=10, seed=1), log)
        both = dataclasses.replace(target, features=Stacked((features, more)))
    except InputError:  # states that are text
        return None
    if target.start is not None:
        return None
    return estimators()["lstdq"].estimate(EstimatorContext(both, work.mapped))


def _names(given: object, features: Features, log: Log) -> list[str]:
    found = estimators()
    if isinstance(given, str) and given == "auto":
        return ["lstdq" if _linear_fits(features, log) else "dice"]
    if isinstance(given, str) and given == "all":
        return ["lstdq", *(name for name in found if name != "lstdq")]
    if not isinstance(given, (str, list, tuple)) or not given:
        raise InputError(f"`estimator` must be a name or a list of them, got {shown(given)}; leave it out for 'auto'")
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        pick(found, name, "estimator")
    return list(dict.fromkeys(names))


def _with_actions(log: Log, given: object) -> tuple[Log, dict[str, Policy]]:
    """The policies, and the log with all the actions that one of them has."""
    named = policies(given, log)
    widths = [len(one.actions) for one in named.values() if isinstance(one, Discrete)]
    if log.actions is not None and log.actions == tuple(range(len(log.actions))):
        state = log.sample(2)[0][:2]
        for one in named.values():
            if isinstance(one, Discrete) and len(one.actions) == len(log.actions):
                try:
                    shape = np.shape(one.function(state))
                except Exception:  # it is called again, and then its error is told
                    continue
                widths.append(shape[1] if len(shape) == 2 and shape[0] == len(state) else 0)
        if max(widths, default=0) > len(log.actions):
            log = dataclasses.replace(log, actions=tuple(range(max(widths))))
            named = policies(given, log)
    return log, named


def _start_states(start: object, log: Log) -> tuple[np.ndarray, np.ndarray] | None:
    """The states of a given start and their probabilities."""
    if start is None or isinstance(start, str):
        if isinstance(start, str):
            choice("start", start, ("visited",))
        return None
    example = log.sample(2)[0][:1]
    try:
        states = np.asarray(start)
    except (ValueError, TypeError):  # lists of different lengths
        raise InputError(f"`start` must be an array of states, or a law over them, got {shown(start)}") from None
    if states.ndim == 1 and states.dtype.kind == "f" and example.dtype.kind in "iu" and example.ndim == 1:
        weights = law("start", states, len(states), "or give the states themselves as whole numbers")
        return np.flatnonzero(weights), weights[weights > 0]
    if states.dtype.kind == "O" and example.dtype.kind != "O":
        raise InputError(
            f"`start` must be states like the log's ({example.dtype}) or a law over them, got {shown(start)}"
        )
    if states.ndim == example.ndim - 1 and states.shape == example.shape[1:]:
        states = states[None]
    if states.shape[1:] != example.shape[1:] or not len(states):
        raise InputError(
            f"`start` must be an array of states as the log has them, with one row of shape {example.shape[1:]} each, "
            f"got the shape {states.shape}"
        )
    return states, np.full(len(states), 1 / len(states))


def _fixed_start(target: Target, starts: Any, visited: bool) -> np.ndarray | None:
    if starts is None:
        if not target.stream or visited:
            return None
        first = [batch.state[batch.first] for batch in target.log]
        states = np.concatenate(first)
        weights = np.full(len(states), 1 / len(states))
    else:
        states, weights = starts
    if isinstance(
        target.policy, Gaussian
    ):  # the error of the samples must not matter here: no row of the log carries it
        copies = -(-_START_SAMPLES // len(states))
        states, weights = np.repeat(states, copies, axis=0), np.repeat(weights, copies) / copies
    return weights @ target.at(states)


def _name(features: object) -> str:
    if isinstance(features, str):
        return features
    return getattr(features, "__name__", None) or shown(features)
