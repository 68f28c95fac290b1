"""Sources of a policy (function, array, frame, mapping, classifier), and its comparison with the behaviour."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from jaxtyping import Float

from twoclock.logs.dataset import Log, encode_labels, rows_as_labels
from twoclock.logs.diagnostics import Diagnostic
from twoclock.logs.policies import Discrete, Gaussian, Policy, list_labels, named_columns
from twoclock.protocols import InputError, list_names
from twoclock.validation import short_repr
from twoclock.validation.arrays import as_array, check_distributions

_SINGLE = (str, bool, int, float, np.generic)
SAME = 0.01  # a mean gap of probabilities that rounding in the log can make
_MOST_ROWS = 50_000
_VARIED = 0.02  # from this spread of an action's propensities on, a match of all of them is no accident
_CLAIMS = re.compile(r"behaviou?r|logg(ed|ing)|today", re.IGNORECASE)


def as_policies(given: object, log: Log) -> dict[str, Policy]:
    """Return the policies by name; a single one is called "policy"."""
    named = given if isinstance(given, Mapping) and not _is_one_policy(given, log) else {"policy": given}
    if not named:
        raise InputError("`policy` must name at least one policy, got an empty mapping")
    names = [str(name) for name in named]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"`policy` has two policies named {short_repr(name)}; rename one")
        if not name.isprintable() or name[:1] in "=+-@":  # a terminal or a spreadsheet would execute it
            raise InputError(
                f"`policy` must have names that can be printed and do not begin with =, +, - or @, got {name!r:.60}"
            )
    return {name: as_policy(name, entry, log) for name, entry in zip(names, named.values(), strict=True)}


def with_all_actions(log: Log, given: object) -> tuple[Log, dict[str, Policy]]:
    """Return the log with all the actions that a policy has, and the policies for these."""
    named = as_policies(given, log)
    if log.actions is None or log.actions != tuple(range(len(log.actions))):
        return log, named
    most, state = len(log.actions), log.sample[0][:2]
    for one in named.values():
        if isinstance(one, Discrete):
            with suppress(Exception):  # it is called again later, and raises there
                most = max(most, len(one.actions), one.most_actions(state))
    if most > len(log.actions):
        log = dataclasses.replace(log, actions=tuple(range(most)))
        named = as_policies(given, log)
    return log, named


def _is_one_policy(given: Mapping[Any, Any], log: Log) -> bool:
    """Whether a mapping is {state: action} or {state: {action: probability}}, not {name: policy}."""
    entries = list(given.values())
    if not entries or log.actions is None:
        return False
    if all(isinstance(entry, _SINGLE) for entry in entries):
        return True
    if not all(isinstance(entry, Mapping) and set(entry) <= set(log.actions) for entry in entries):
        return False
    seen = log.sample[0]
    states = set(map(tuple, seen.tolist()) if seen.ndim == 2 else seen.tolist())
    return any(key in states for key in given)


def as_policy(name: str, given: Any, log: Log) -> Policy:
    """Convert a user's policy to a ``Policy`` for the actions of the log."""
    if isinstance(given, Policy):
        if (log.actions is None) != isinstance(given, Gaussian):
            raise InputError(
                f"`{name}` is for {'discrete' if log.actions is None else 'continuous'} actions, the log's are not"
            )
        return given
    if log.actions is None:
        raise InputError(
            f"`{name}` must be a `tc.logs.Gaussian(mean, covariance)` where actions are continuous; if the floats "
            "stand for discrete actions, name them with `read(…, actions=[…])`"
        )
    if hasattr(given, "predict_proba"):
        return Discrete(name, log.actions, _classifier(name, given, log))
    if callable(given):
        return Discrete(name, log.actions, given, _is_ordered(log))
    if hasattr(given, "predict"):
        raise InputError(f"`{name}` is a {type(given).__name__}; give its function `{type(given).__name__}.predict`")
    pandas = type(given).__module__.split(".")[0] == "pandas"
    if isinstance(given, Mapping) or (pandas and not hasattr(given, "columns")):
        return _mapping_policy(name, given, log)
    if pandas:
        return _frame_policy(name, given, log)
    return _array_policy(name, given, log)


def _is_ordered(log: Log) -> bool:
    """Whether columns without names can be distinguished: actions are numbers, or the user gave their order."""
    assert log.actions is not None
    return log.roles.actions is not None or not isinstance(log.actions[0], str)


def _classifier(name: str, model: Any, log: Log) -> Callable[[np.ndarray], object]:
    """The probabilities of a fitted classifier in the style of scikit-learn, by its classes."""
    classes = getattr(model, "classes_", None)
    if classes is None or np.ndim(classes) != 1:
        raise InputError(f"`{name}` must be fitted to one action a state: it has no list `classes_`; fit it first")
    columns = getattr(model, "feature_names_in_", None)
    if columns is not None and set(columns) != set(log.roles.state):
        raise InputError(
            f"`{name}` was fitted on the columns {list_labels(list(columns))} and the state has "
            f"{list_labels(log.roles.state)}; read the log with these as `state`, or give a function of the states"
        )

    def law(state: np.ndarray) -> object:
        rows: Any = state if state.ndim == 2 else state[:, None]
        if columns is not None:
            import pandas as pd

            rows = pd.DataFrame(rows, columns=list(log.roles.state))[list(columns)]
        return dict(zip(np.asarray(classes).tolist(), np.asarray(model.predict_proba(rows)).T, strict=True))

    return law


def _mapping_policy(name: str, given: Any, log: Log) -> Policy:
    """A policy from {state: action}, a Series of actions by state, or {state: {action: probability}}."""
    entries = list(given.values()) if isinstance(given, Mapping) else given.tolist()
    states, actions = list(given.keys()), log.actions
    if not entries:
        raise InputError(f"`{name}` must have an action for each state, got none")
    if isinstance(entries[0], Mapping):
        columns = named_columns(entries, len(entries))
    elif all(isinstance(entry, _SINGLE) for entry in entries):
        chosen = list(dict.fromkeys(entries))
        columns = chosen, np.array([[entry == action for action in chosen] for entry in entries], float)
    else:
        columns = None
    if columns is None or actions is None:
        raise InputError(
            f"`{name}` must map states to actions, or to {{action: probability}}, got {short_repr(entries[0])}"
        )
    return Discrete(name, actions, _by_state(name, states, dict(zip(columns[0], columns[1].T, strict=True))))


def _frame_policy(name: str, given: Any, log: Log) -> Policy:
    """A policy from a frame with the states as its index and a column for each action."""
    assert log.actions is not None
    if given.columns.has_duplicates:
        raise InputError(f"`{name}` has two columns for one action; make the names of its columns differ")
    columns = {column: as_array(name, given[column].to_numpy()) for column in given.columns}
    return Discrete(name, log.actions, _by_state(name, list(given.index), columns))


def _array_policy(name: str, given: Any, log: Log) -> Policy:
    """A policy from an array [state, action], for states 0, 1, …"""
    actions = log.actions
    assert actions is not None
    pi = as_array(name, given, "an array [state, action], a frame, {state: action}, or a function of a batch of states")
    if pi.ndim != 2:
        raise InputError(f"`{name}` must be an array [state, action], got the shape {pi.shape}")
    if actions == tuple(range(len(actions))):
        actions = tuple(range(max(pi.shape[1], len(actions))))
    if pi.shape[1] != len(actions):
        known = list_names([repr(action) for action in actions])
        raise InputError(
            f"`{name}` must have a column for each of the {len(actions)} actions {known}, got {pi.shape[1]}; "
            "if the log has fewer, list them in `read(…, actions=[…])`"
        )
    pi = check_distributions(name, pi, f"{name}[s]")
    look_up = _by_state(name, range(len(pi)), dict(enumerate(pi.T)))

    def rows(state: np.ndarray) -> np.ndarray:
        one = state[:, 0] if state.ndim == 2 and state.shape[1] == 1 else state
        if one.ndim != 1 or one.dtype.kind not in "iufb" or (one != np.floor(one)).any():
            raise InputError(
                f"`{name}` is an array, so states must be whole numbers from 0; for others give a function of a batch "
                "of states, {state: action}, or a DataFrame with the states as its index"
            )
        return np.column_stack([*look_up(one).values()])

    return Discrete(name, actions, rows, _is_ordered(log))


def _by_state(
    name: str, states: Iterable[Hashable], columns: dict[Any, np.ndarray]
) -> Callable[[np.ndarray], dict[Any, np.ndarray]]:
    """A function that looks the columns up for each state of a batch."""
    known = np.array([list(state) if isinstance(state, tuple) else state for state in states])

    def look_up(state: np.ndarray) -> dict[Any, np.ndarray]:
        one = state[:, 0] if state.ndim == 2 and state.shape[1] == 1 and known.ndim == 1 else state
        if one.shape[1:] != known.shape[1:] or (one.dtype.kind == "U") != (known.dtype.kind == "U"):
            raise InputError(
                f"`{name}` must have states as the log has them, such as {short_repr(one[0].tolist())}, got "
                f"{short_repr(known[0].tolist())}"
            )
        kind = np.result_type(one, known)
        found = encode_labels(rows_as_labels(one.astype(kind)), rows_as_labels(known.astype(kind)))
        if (found < 0).any():
            lost = short_repr(max(one[found < 0].tolist()))
            raise InputError(
                f"`{name}` has {len(known)} rows and the log has the state {lost}, which is not there; add it"
            )
        return {column: entries[found] for column, entries in columns.items()}

    return look_up


def compare_with_behaviour(name: str, policy: Policy, log: Log) -> Diagnostic | None:
    """Report whether the policy is the behaviour, or would be with its columns in another order.

    This concerns policies that have the name of the behaviour ("behaviour", "logged", "today's"), or whose columns are
    the log's propensities in some order. None for others, and for logs without propensities.
    """
    state, action, logged = _rows_with_propensities(log)
    if not len(logged):
        return None
    ours = policy.density(state, action)
    gap = float(np.abs(ours - logged).mean())
    claims = bool(_CLAIMS.search(name))
    order = _order_of_columns(policy, state, action, logged) if isinstance(policy, Discrete) and gap > SAME else None
    if order is not None:
        words = (
            f"its columns are the log's propensities if they stand for {order}: it is the behaviour, read in a wrong"
        )
        return _diagnostic(gap, f"{words} order", warn=True)
    if gap <= SAME:
        return _diagnostic(gap, "the policy gives the logged actions the probabilities that the log has")
    if not claims:
        return None
    words = (
        f"the policy gives the logged actions {ours.mean():.2f} on average, the log's propensities {logged.mean():.2f}"
    )
    return _diagnostic(gap, f"{words}: by its name it should be the behaviour, and it is not", warn=True)


def _diagnostic(gap: float, sentence: str, *, warn: bool = False) -> Diagnostic:
    remedy = "give a frame with a column for each action, or the order of the columns with `read(…, actions=[…])`"
    return Diagnostic("behaviour", gap, SAME, float("inf"), "warning" if warn else "fine", sentence, remedy)


def _rows_with_propensities(log: Log) -> tuple[np.ndarray, np.ndarray, Float[np.ndarray, " n"]]:
    """Some states, actions and propensities of the log."""
    found, rows = [], 0
    for batch in log if log.propensities else ():
        if batch.propensity is not None and rows < _MOST_ROWS:
            known = np.flatnonzero(~np.isnan(batch.propensity))[: _MOST_ROWS - rows]
            found.append((batch.state[known], batch.action[known], batch.propensity[known]))
            rows += len(known)
        if rows >= _MOST_ROWS:
            break
    if not found:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    state, action, logged = (np.concatenate(column) for column in zip(*found, strict=True))
    return state, action, logged


def _order_of_columns(policy: Discrete, state: np.ndarray, action: np.ndarray, logged: np.ndarray) -> str | None:
    """The order of the actions in which the policy's columns are the log's propensities; None if there is none."""
    law, at, varied = policy.law(state), dict[int, int](), False
    for a in np.unique(action).tolist():
        rows = action == a
        gaps = np.abs(law[rows] - logged[rows, None]).mean(axis=0)
        at[int(np.argmin(gaps))] = a
        varied = varied or float(logged[rows].std()) > _VARIED
        if gaps.min() > SAME:
            return None
    # A single action that the log lacks takes the place that is left.
    left = [j for j in range(len(policy.actions)) if j not in at]
    unused = [a for a in range(len(policy.actions)) if a not in at.values()]
    if not varied or len(left) != len(unused) or len(left) > 1:
        return None
    at |= dict(zip(left, unused, strict=True))
    return list_labels([policy.actions[at[j]] for j in range(len(policy.actions))])
