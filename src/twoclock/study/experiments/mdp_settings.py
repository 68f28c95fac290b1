"""Entropy-regularised MDPs: what is compared, the grids that it was tuned on, and what its files read off records."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import twoclock as tc
from twoclock.core import Method, ProblemSource
from twoclock.result import Result
from twoclock.stats import Estimate, log_slope, slope_difference
from twoclock.study.experiment import Records
from twoclock.study.steps import decaying

FAST, SAME, TWO, RIVAL = "Fast", "Standard, exponents 1 and 1", "Standard, exponents 1 and 2/3", "model-based"
BOLD = "Fast, c_α four times larger"
TEMPS = {"random": (1.0, 0.1, 0.02), "lake": (0.1, 0.03, 0.01)}
QUICK = {"lake": (0.03,)}
WORDS = {"random": "random MDPs, 10 states, 4 actions, γ = 0.9", "lake": "FrozenLake 4×4, γ = 0.95"}
SIZE = {"random": (10, 0.9), "lake": (16, 0.95)}

# Every method is tried with the same 24 settings, on seeds of their own: the c_α below divided by 4, as it is, and
# times 4; two first steps of the actor; and four constants c_β of the critic, which mean less at the exponent 2/3.
CENTRE = {"random 1": 10.0, "random 0.1": 640.0, "random 0.02": 10240.0}
CENTRE |= {"lake 0.1": 400.0, "lake 0.03": 2000.0, "lake 0.01": 8000.0}
FIRST = (0.05, 0.2)
CRITIC = dict.fromkeys((FAST, SAME), (100.0, 400.0, 1600.0, 6400.0)) | {TWO: (2.0, 8.0, 32.0, 128.0)}
# The best of them: c_α, the first step, c_β.
CHOSEN = {
    "random 1": {FAST: (10.0, 0.05, 1600.0), SAME: (10.0, 0.05, 400.0), TWO: (10.0, 0.05, 32.0)},
    "random 0.1": {FAST: (640.0, 0.2, 400.0), SAME: (640.0, 0.2, 6400.0), TWO: (640.0, 0.2, 128.0)},
    "random 0.02": {FAST: (40960.0, 0.05, 1600.0), SAME: (10240.0, 0.05, 100.0), TWO: (40960.0, 0.05, 32.0)},
    "lake 0.1": {FAST: (400.0, 0.05, 6400.0), SAME: (400.0, 0.05, 1600.0), TWO: (400.0, 0.05, 128.0)},
    "lake 0.03": {FAST: (2000.0, 0.05, 1600.0), SAME: (2000.0, 0.05, 1600.0), TWO: (2000.0, 0.05, 128.0)},
    "lake 0.01": {FAST: (32000.0, 0.05, 6400.0), SAME: (32000.0, 0.05, 1600.0), TWO: (8000.0, 0.05, 32.0)},
}


def words(where: str) -> str:
    """The case in words.

    >>> words("lake 0.03")
    'FrozenLake 4×4, τ = 0.03'
    """
    kind, temp = where.split()
    return f"{WORDS[kind].split(',')[0]}, τ = {temp}"


def method(name: str, actor: float, first: float, critic: float) -> Method:
    """α = c_α/(k + s) with α₀ = first, β = c_β/(k + s)^p with β₀ = ¼, λ = 8c_β/(k + s) with λ₀ = ¼, so that β ≤ λ."""
    alpha = decaying(actor, first)
    if name == FAST:
        return tc.Fast(alpha, decaying(critic, 0.25), decaying(8 * critic, 0.25))
    return tc.Standard(alpha, decaying(critic, 0.25, 1.0 if name == SAME else 2 / 3))


def tuning(where: str) -> dict[str, Method]:
    """The settings that each method is tried with."""
    return {
        f"{name}: {factor * CENTRE[where]:g} {first:g} {critic:g}": method(name, factor * CENTRE[where], first, critic)
        for name in CRITIC
        for factor in (0.25, 1.0, 4.0)
        for first in FIRST
        for critic in CRITIC[name]
    }


def problem(kind: str, temp: float) -> ProblemSource:
    if kind == "lake":
        return tc.problems.frozen_lake(temp=temp)
    return partial(tc.problems.random_entropy_mdp, temp=temp)


def measured(records: Records) -> dict[str, Mapping[str, Result]]:
    """The cases that compare, without those that tune."""
    return {where: results for where, results in records.items() if not where.startswith("tuning")}


def slopes(records: Records, decades: float) -> dict[str, dict[str, Estimate]]:
    """The slope of log mean gap against log k over the last decades, with its 95 % interval, by case and method."""
    return {
        where: {name: log_slope(result.history, "gap", decades) for name, result in results.items()}
        for where, results in measured(records).items()
    }


def differences(records: Records, name: str, decades: float) -> dict[str, Estimate]:
    """A method's slope less Fast's on the same seeds, with its 95 % interval."""
    return {
        where: slope_difference(results[name].history, results[FAST].history, "gap", decades)
        for where, results in measured(records).items()
    }
