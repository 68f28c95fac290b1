"""Entropy-regularised MDPs: what is compared, how it is tuned, and what its files read off records."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import twoclock as tc
from reproduction.experiment import Records
from reproduction.tuned_settings import MethodSearch, decaying
from twoclock import Method, Result
from twoclock.intervals import Estimate, log_slope, slope_difference
from twoclock.protocols import ProblemSource

FAST, SAME, TWO, RIVAL = "Fast", "Standard, exponents 1 and 1", "Standard, exponents 1 and 2/3", "model-based"
BOLD = "Fast, c_α four times larger"
WORDS = {"random": "random MDPs, 10 states, 4 actions, γ = 0.9", "lake": "FrozenLake 4×4, γ = 0.95"}
SIZE = {"random": (10, 0.9), "lake": (16, 0.95)}


class EntropyTask(NamedTuple):
    """A kind of MDP at a temperature."""

    family: str
    temp: float

    @property
    def case(self) -> str:
        return f"{self.family} {self.temp:g}"

    @property
    def counted(self) -> str:
        """The case with the model that is counted."""
        return f"counted {self.case}"

    @property
    def around(self) -> str:
        """The case with the settings around the tuned ones."""
        return f"around {self.case}"

    @property
    def words(self) -> str:
        """The case in words.

        >>> EntropyTask("lake", 0.03).words
        'FrozenLake 4×4, τ = 0.03'
        """
        return f"{WORDS[self.family].split(',')[0]}, τ = {self.temp:g}"


# The box in which `tc.tune` looks first; it widens it while the leader lies at an edge. No order is imposed. The scale
# of c_α goes with the temperature; c_β means less at the exponent 2/3.
CENTRES = {
    EntropyTask(family, temp): centre
    for family, centres in {
        "random": {1.0: 10.0, 0.1: 640.0, 0.02: 10240.0},
        "lake": {0.1: 400.0, 0.03: 2000.0, 0.01: 8000.0},
    }.items()
    for temp, centre in centres.items()
}
FIRST = (0.0125, 0.8)
CRITIC = dict.fromkeys((FAST, SAME), (25.0, 25_600.0)) | {TWO: (0.5, 512.0)}


def method(name: str, actor: float, first: float, critic: float) -> Method:
    """α = c_α/(k + s) with α₀ = first, β = c_β/(k + s)^p with β₀ = ¼, λ = 8c_β/(k + s) with λ₀ = ¼, so that β ≤ λ."""
    alpha = decaying(actor, first)
    if name == FAST:
        return tc.Fast(alpha, decaying(critic, 0.25), decaying(8 * critic, 0.25))
    return tc.Standard(alpha, decaying(critic, 0.25, 1.0 if name == SAME else 2 / 3))


def searches() -> dict[str, MethodSearch]:
    found = {}
    for task, centre in CENTRES.items():
        methods = {
            name: (partial(method, name), {"actor": (centre / 16, centre * 16), "first": FIRST, "critic": critic})
            for name, critic in CRITIC.items()
        }
        found[task.case] = MethodSearch(problem(*task), methods, 1_000_000, "gap", runs=520, title=task.words)
    return found


def problem(kind: str, temp: float) -> ProblemSource:
    if kind == "lake":
        return tc.problems.frozen_lake(temp=temp)
    return partial(tc.problems.random_entropy_mdp, temp=temp)


def measured(records: Records) -> dict[EntropyTask, Mapping[str, Result]]:
    """The cases that compare, each with the model that was counted in it, without those around the tuned settings."""
    return {
        task: {**records[task.case], RIVAL: records[task.counted][RIVAL]} for task in CENTRES if task.case in records
    }


def slopes(records: Records, decades: float) -> dict[EntropyTask, dict[str, Estimate]]:
    """The slope of log mean gap against log k over the last decades, with its 95 % interval, by case and method."""
    return {
        task: {name: log_slope(result.history, "gap", decades) for name, result in results.items()}
        for task, results in measured(records).items()
    }


def differences(records: Records, name: str, decades: float) -> dict[EntropyTask, Estimate]:
    """A method's slope less Fast's on the same seeds, with its 95 % interval."""
    return {
        task: slope_difference(results[name].history, results[FAST].history, "gap", decades)
        for task, results in measured(records).items()
    }
