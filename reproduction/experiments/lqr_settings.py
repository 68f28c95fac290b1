"""Figure 2: what is compared, and what several of its files read off the records."""

from __future__ import annotations

from functools import partial

import numpy as np

import twoclock as tc
from reproduction.experiment import Records
from reproduction.sensitivity import around, labelled
from reproduction.tuned_settings import Limits, Search, settings
from twoclock.problems.lqr.actor_critic import PAPER
from twoclock.protocols import Method
from twoclock.result import Result

FAST, SAME, TWO = "Fast", "Standard, Fast's exponents", "Standard, 1 and 2/3"
AVERAGED, RIVAL = "Fast, iterates averaged", "certainty equivalence"
LABELS = (FAST, SAME, TWO, AVERAGED, RIVAL)
# The box in which `tc.tune` looks first; it widens it while the leader lies at an edge. No order is imposed.
_BOX: Limits = {"c": (0.25, 8.0), "ratio": (0.25, 32.0), "shift": (600.0, 60_000.0)}
BOXES: dict[str, Limits] = {FAST: {**_BOX, "weight": (2.0, 200.0)}, SAME: _BOX, TWO: _BOX}

EXPECTED = "Fast, expected action"

# The map has constant steps, so that a cell is one pair of numbers; α = β/10.
BETAS = (0.002, 0.0024, 0.0028, 0.0034, 0.004, 0.0048, 0.0056, 0.0068, 0.008)
LAMBDAS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005)

# Where the guard is shown: a plant that no ordinary step survives, and steps that the paper's plant does not survive.
ORDINARY = tc.Fast(tc.Power(3.0, shift=1000.0), tc.Power(3.0, shift=1000.0), tc.Power(100.0, shift=1000.0))
BOLD = tc.Fast(tc.Power(4.0, shift=400.0), tc.Power(4.0, shift=400.0), tc.Power(40.0, shift=400.0))


PLANTS = {"boeing": "Boeing 747", "bold": "the paper's plant, large steps"}


def with_steps(name: str, c: float, ratio: float, shift: float, weight: float = 1.0) -> tc.Fast | tc.Standard:
    """α = c/(k + shift), and β and λ in proportion.

    Args:
        ratio: β/α, at every step; where β has the exponent 2/3, at the start.
        weight: λ/β, at every step; less where λ would begin above 1.
    """
    alpha, critic = tc.Power(c, shift=shift), ratio * c
    if name == TWO:
        return tc.Standard(alpha, tc.Power(critic * shift ** (-1 / 3), p=2 / 3, shift=shift))
    beta = tc.Power(critic, shift=shift)
    lam = tc.Power(min(weight * critic, shift), shift=shift)
    return tc.Standard(alpha, beta) if name == SAME else tc.Fast(alpha, beta, lam)


def searches() -> dict[str, Search]:
    methods = {name: (partial(with_steps, name), box) for name, box in BOXES.items()}
    return {"gap": Search(tc.problems.paper_lqr(), methods, 1_000_000, "gap", runs=1040, title="the paper's regulator")}


def nearby() -> dict[str, Method]:
    """Settings around the tuned ones: α, β and the shift move, λ/β stays."""
    found: dict[str, Method] = {}
    for name in BOXES:
        found |= labelled(name, around(partial(with_steps, name), settings("fig2", "gap", name), list(_BOX)))
    return found


def tuned(name: str) -> tc.Fast | tc.Standard:
    """The method with the settings that were found."""
    return with_steps(name, **settings("fig2", "gap", name))


def compared() -> dict[str, Method]:
    """The tuned ones, Fast's averaged iterates, and certainty equivalence while Fast acts."""
    fast = tuned(FAST)
    rival: Method = tc.PlugIn(fast, tc.models.CertaintyEquivalence(PAPER.Q, PAPER.R, sigma=1.0))
    return {FAST: fast, SAME: tuned(SAME), TWO: tuned(TWO), AVERAGED: tc.Polyak(fast, power=2.0), RIVAL: rival}


def grid() -> dict[str, Method]:
    """The cells of the map: standard and Fast for every β, Fast for every λ."""
    cells: dict[str, Method] = {f"{beta} standard": tc.Standard(beta / 10, beta) for beta in BETAS}
    return cells | {f"{beta} {lam}": tc.Fast(beta / 10, beta, lam) for beta in BETAS for lam in LAMBDAS}


def diverged_share(records: Records) -> np.ndarray:
    """Rows: standard, then λ from large to small; columns: β from small to large."""
    rows = ("standard", *LAMBDAS)
    return np.array([[records["map"][f"{beta} {row}"].diverged.mean() for beta in BETAS] for row in rows])


def start(result: Result) -> float:
    """The gap before the first step."""
    return float(result.history.loc[result.history["step"] == 0, "gap"].iloc[0])
