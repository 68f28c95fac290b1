"""Entropy-regularised MDPs: what is compared, how it is tuned, and what its files read off records."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import twoclock as tc
from reproduction.experiment import Records
from reproduction.tuned_settings import MethodSearch, decaying, settings
from twoclock import Method, Result
from twoclock.intervals import Estimate, log_slope, slope_difference
from twoclock.protocols import ProblemSource

FAST, SAME, TWO, RIVAL = "Fast", "Standard, exponents 1 and 1", "Standard, exponents 1 and 2/3", "model-based"
BOLD = "Fast, c_α four times larger"
AROUND, COUNTED = "around ", "counted "
TEMPS = {"random": (1.0, 0.1, 0.02), "lake": (0.1, 0.03, 0.01)}
QUICK = {"lake": (0.03,)}
WORDS = {"random": "random MDPs, 10 states, 4 actions, γ = 0.9", "lake": "FrozenLake 4×4, γ = 0.95"}
SIZE = {"random": (10, 0.9), "lake": (16, 0.95)}

# The box in which `tc.tune` looks first; it widens it while the leader lies at an edge. No order is imposed. The scale
# of c_α goes with the temperature; c_β means less at the exponent 2/3.
CENTRE = {"random 1": 10.0, "random 0.1": 640.0, "random 0.02": 10240.0}
CENTRE |= {"lake 0.1": 400.0, "lake 0.03": 2000.0, "lake 0.01": 8000.0}
FIRST = (0.0125, 0.8)
CRITIC = dict.fromkeys((FAST, SAME), (25.0, 25_600.0)) | {TWO: (0.5, 512.0)}


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


def searches() -> dict[str, MethodSearch]:
    found = {}
    for where, centre in CENTRE.items():
        family, temp = where.split()
        methods = {
            name: (partial(method, name), {"actor": (centre / 16, centre * 16), "first": FIRST, "critic": critic})
            for name, critic in CRITIC.items()
        }
        made = problem(family, float(temp))
        found[where] = MethodSearch(made, methods, 1_000_000, "gap", runs=520, title=words(where))
    return found


def tuned(where: str, name: str) -> Method:
    """The method with the settings that were found."""
    return method(name, **settings("mdp", where, name))


def problem(kind: str, temp: float) -> ProblemSource:
    if kind == "lake":
        return tc.problems.frozen_lake(temp=temp)
    return partial(tc.problems.random_entropy_mdp, temp=temp)


def measured(records: Records) -> dict[str, Mapping[str, Result]]:
    """The cases that compare, each with the model that was counted in it, without those around the tuned settings."""
    return {
        where: {**results, RIVAL: records[f"{COUNTED}{where}"][RIVAL]}
        for where, results in records.items()
        if not where.startswith((AROUND, COUNTED))
    }


def around_where(records: Records) -> dict[str, Mapping[str, Result]]:
    """The settings around the tuned ones, by case."""
    return {case.removeprefix(AROUND): tried for case, tried in records.items() if case.startswith(AROUND)}


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
