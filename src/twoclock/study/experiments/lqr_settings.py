"""Figure 2: what is compared, and what several of its files read off the records."""

from __future__ import annotations

import numpy as np

import twoclock as tc
from twoclock.core import Method
from twoclock.problems.lqr.cases import PAPER
from twoclock.result import Result
from twoclock.study.experiment import Records

# Tuned alike: each family over a grid of about ninety cells of (c_α, c_β, shift) and, for Fast, λ, by the mean gap of
# 40 seeds at 1e5 steps with no seed diverged. These are the best, or within its noise; docs/lqr.md has the grids.
FAST = tc.Fast(tc.Power(1.0, shift=6000.0), tc.Power(4.0, shift=6000.0), tc.Power(160.0, shift=6000.0))
SAME = tc.Standard(tc.Power(1.0, shift=6000.0), tc.Power(4.0, shift=6000.0))
TWO = tc.Standard(tc.Power(1.0, shift=6000.0), tc.Power(0.2, p=2 / 3, shift=6000.0))
AVERAGED = tc.Polyak(FAST, power=2.0)
RIVAL = tc.PlugIn(FAST, tc.models.CertaintyEquivalence(PAPER.Q, PAPER.R, sigma=1.0))

LABELS: dict[str, Method] = {
    "Fast": FAST,
    "Standard, Fast's exponents": SAME,
    "Standard, 1 and 2/3": TWO,
    "Fast, iterates averaged": AVERAGED,
    "certainty equivalence": RIVAL,
}

EXPECTED = "Fast, expected action"

# The map has constant steps, so that a cell is one pair of numbers; α = β/10.
BETAS = (0.002, 0.0024, 0.0028, 0.0034, 0.004, 0.0048, 0.0056, 0.0068, 0.008)
LAMBDAS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005)

# Where the guard is shown: a plant that no ordinary step survives, and steps that the paper's plant does not survive.
ORDINARY = tc.Fast(tc.Power(3.0, shift=1000.0), tc.Power(3.0, shift=1000.0), tc.Power(100.0, shift=1000.0))
BOLD = tc.Fast(tc.Power(4.0, shift=400.0), tc.Power(4.0, shift=400.0), tc.Power(40.0, shift=400.0))


PLANTS = {"boeing": "Boeing 747", "bold": "the paper's plant, large steps"}


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
