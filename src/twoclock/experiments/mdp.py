"""Entropy-regularised MDPs: random ones and a frozen lake, over three temperatures each, against a model-based rival."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

import twoclock as tc
from twoclock import plot
from twoclock.experiment import Case, Claim, Records
from twoclock.result import Result
from twoclock.stats import bootstrap_slope

TITLE = "Entropy-regularised MDPs: actor-critics and a model-based rival"

FAST, SAME, TWO, RIVAL = "Fast", "Standard, exponents 1 and 1", "Standard, exponents 1 and 2/3", "model-based"
TEMPS = {"random": (1.0, 0.1, 0.02), "lake": (0.1, 0.03, 0.01)}
QUICK = {"random": (0.1,), "lake": (0.03,)}
WORDS = {"random": "random MDPs, 10 states, 4 actions, γ = 0.9", "lake": "FrozenLake 4×4, γ = 0.95"}
SIZE = {"random": (10, 0.9), "lake": (16, 0.95)}

# Every method is tried with the same eighteen settings, but for the third number, on seeds of their own: the c_α below
# divided by 4, as it is, and times 4; the first step of the actor; and the critic's constant or, for Fast, λ's.
CENTRE = {"random 1": 10.0, "random 0.1": 640.0, "random 0.02": 10240.0}
CENTRE |= {"lake 0.1": 400.0, "lake 0.03": 1000.0, "lake 0.01": 4000.0}
FIRST = (0.05, 0.2)
THIRD = {FAST: (2.0, 8.0, 32.0), SAME: (100.0, 400.0, 1600.0), TWO: (2.0, 8.0, 32.0)}
CHOSEN: dict[str, dict[str, tuple[float, float, float]]] = {}


def decaying(c: float, first: float, p: float = 1.0) -> tc.Power:
    """c/(k + shift)^p with the first step ``first``."""
    return tc.Power(c, p=p, shift=(c / first) ** (1 / p))


def method(name: str, c: float, first: float, third: float) -> Any:
    """α = c/(k + s) from ``first`` on; β from ¼ on, β = 400/(k + s) for Fast, whose third number is λ/β in the end."""
    alpha = decaying(c, first)
    if name == FAST:
        return tc.Fast(alpha, decaying(400.0, 0.25), decaying(400.0 * third, 0.25))
    return tc.Standard(alpha, decaying(third, 0.25, 1.0 if name == SAME else 2 / 3))


def tuning(where: str) -> dict[str, Any]:
    """The eighteen settings of each method."""
    return {
        f"{name}: {factor * CENTRE[where]:g} {first:g} {third:g}": method(name, factor * CENTRE[where], first, third)
        for name in THIRD
        for factor in (0.25, 1.0, 4.0)
        for first in FIRST
        for third in THIRD[name]
    }


def problem(kind: str, temp: float) -> Any:
    if kind == "lake":
        return tc.problems.frozen_lake(temp=temp)
    return partial(tc.problems.random_entropy_mdp, temp=temp)


def cases(quick: bool) -> dict[str, Case]:
    steps, seeds = (20_000, 20) if quick else (1_000_000, 100)
    found = {}
    for kind, temps in (QUICK if quick else TEMPS).items():
        for temp in temps:
            where = f"{kind} {temp:g}"
            states, gamma = SIZE[kind]
            compared = {name: method(name, *CHOSEN[where][name]) for name in THIRD}
            model = tc.models.EmpiricalMdp(states, 4, gamma, temp)
            found[where] = Case(
                problem(kind, temp), {**compared, RIVAL: tc.PlugIn(compared[FAST], model)}, steps, seeds
            )
            if not quick:
                found[f"tuning {where}"] = Case(
                    problem(kind, temp), tuning(where), steps // 10, range(1000, 1016), marks=[steps // 10]
                )
    return found
