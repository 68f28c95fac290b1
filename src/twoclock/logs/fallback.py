"""Other estimators for the logs on which LSTD-Q is refused."""

from __future__ import annotations

import dataclasses

import numpy as np

from twoclock.logs import diagnostics
from twoclock.logs.estimators import DoesNotApply, EstimatorContext, ValueEstimate, estimators
from twoclock.logs.features import table_of
from twoclock.logs.ope_result import PolicyEstimate

_LARGE_TABLE = 2_000  # pairs
_MOST_PATH, _PATH_LEFT = 5_000, 1e-3  # steps of the policy's path, and the mass below which the rest does not matter


def answer_large_table(context: EstimatorContext, compare: bool) -> PolicyEstimate | None:
    """Take the model over states where a table has too many pairs for LSTD-Q, before its matrix is formed.

    The share of the policy's path that leads to pairs without data needs no factorisation: the path is followed step by
    step. Up to the limit of refusal LSTD-Q has an answer too, with a longer interval; it is taken if a check of the
    model over states warns.
    """
    features, log = context.estimand.features, context.estimand.log
    if table_of(features) is None or features.size < _LARGE_TABLE or log.propensities < log.rows:
        return None
    A, _, path = context.moments.total()
    counts, outside = context.moments.C.diagonal(), max(0.0, 1.0 - float(path.sum()))
    for _ in range(_MOST_PATH):
        outside += float(path[counts == 0].sum())
        visits = np.divide(path, counts, out=np.zeros(len(path)), where=counts > 0)
        path = np.where(counts > 0, path, 0.0) - A.T @ visits
        if not path.sum() > _PATH_LEFT:
            break
    limits = diagnostics.THRESHOLDS["outside"]
    if outside <= limits.warning:
        return None
    share = f"{min(outside, 1.0):.1%} of the policy's discounted path leads to pairs that the log has no data for"
    others = ["naive", "pdis", "wis"] if compare else []
    found, refused = dict[str, ValueEstimate](), dict.fromkeys(["lstdq", "dr"] if compare else ["lstdq"], share)
    for name in ("state_model", *others):
        try:
            found[name] = estimators()[name].estimate(context)
        except DoesNotApply as error:
            refused[name] = str(error)
    checks = diagnostics.own_diagnostics(found["state_model"])
    if outside <= limits.fatal and any(check.grade != "fine" for check in checks):
        return None  # LSTD-Q has an answer
    return PolicyEstimate(found, refused, checks, context.estimand.stream, np.zeros(0), None)


def answer_otherwise(context: EstimatorContext, found: PolicyEstimate) -> PolicyEstimate:
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
