"""Comparison of a policy with the behaviour, by the propensities that the log has."""

from __future__ import annotations

import re

import numpy as np
from jaxtyping import Float

from twoclock.logs.dataset import Log
from twoclock.logs.diagnostics import Diagnostic
from twoclock.logs.policies import Discrete, Policy, list_labels

SAME = 0.01  # a mean gap of probabilities that rounding in the log can make
_MOST_ROWS = 50_000
_VARIED = 0.02  # from this spread of an action's propensities on, a match of all of them is no accident
_CLAIMS = re.compile(r"behaviou?r|logg(ed|ing)|today", re.IGNORECASE)


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
