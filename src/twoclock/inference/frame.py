"""Intervals as a frame: seed, output, estimate, low, high, note."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from twoclock.core import Given, InputError
from twoclock.inference import notes
from twoclock.inference.random_scaling import critical_value
from twoclock.inference.tracked import Tracked, read
from twoclock.inputs import choice, shown

if TYPE_CHECKING:
    import pandas as pd

HOW = ("random-scaling",)


def interval(
    history: pd.DataFrame,
    diverged: Mapping[int, int],
    level: Given[float] = 0.95,
    how: Given[str] = "random-scaling",
    step: Given[int | None] = None,
) -> pd.DataFrame:
    """The intervals of a run at a mark.

    Args:
        history: of the run, with what it tracked.
        diverged: the last finite step of each seed that diverged.
        level: their coverage.
        how: "random-scaling".
        step: the mark; the last by default.
    """
    choice("how", how, HOW)
    c, tracked = critical_value(level), read(history)
    if tracked is None:
        raise InputError(
            "`interval` needs what a run keeps for it, and this one kept nothing; run `tc.Polyak(method, intervals=True)`"
        )
    return at_mark(tracked, mark_of(tracked, step), c, diverged)


def mark_of(tracked: Tracked, step: Given[int | None]) -> int:
    """The place of a step among the marks."""
    if step is None:
        return len(tracked.steps) - 1
    if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step not in tracked.steps:
        some = ", ".join(map(str, tracked.steps[-3:]))
        raise InputError(f"`step` must be a mark of the run ({some} are the last), got {shown(step)}; see `marks`")
    return int(np.searchsorted(tracked.steps, step))


def at_mark(tracked: Tracked, mark: int, c: float, diverged: Mapping[int, int]) -> pd.DataFrame:
    """The intervals y_n ± c √(V/n) at a mark, one row a seed and output.

    A seed that has diverged has no interval, so NaN: what stopped somewhere says nothing about the answer.
    """
    import pandas as pd

    if tracked.n[mark].max() < 2:
        raise InputError(
            f"`interval` needs two averaged iterates or more, there are none at step {tracked.steps[mark]:,}; "
            "take more steps, or a smaller `skip`"
        )
    lost = np.asarray([seed in diverged and diverged[seed] < tracked.steps[mark] for seed in tracked.seeds.tolist()])
    estimate = tracked.estimate[:, mark].T
    half = np.where(lost[:, None], np.nan, c * tracked.scale[:, mark].T)
    return pd.DataFrame(
        {
            "seed": np.repeat(tracked.seeds, len(tracked.outputs)),
            "output": np.tile(np.asarray(tracked.outputs, object), len(tracked.seeds)),
            "estimate": estimate.ravel(),
            "low": (estimate - half).ravel(),
            "high": (estimate + half).ravel(),
            "note": _notes(tracked, mark, lost, diverged),
        }
    )


def _notes(tracked: Tracked, mark: int, lost: np.ndarray, diverged: Mapping[int, int]) -> list[str]:
    """The note of each row; "" where nothing speaks against its interval."""
    shared, chance = notes.of_steps(tracked, mark), notes.halves(tracked, mark)
    if chance is None:
        shared = [*shared, notes.FEW_MARKS]
    differs = np.zeros((len(tracked.outputs), len(lost)), bool) if chance is None else notes.differ(chance)
    rows = []
    for s, seed in enumerate(tracked.seeds.tolist()):
        if lost[s]:
            rows += [f"diverged after step {diverged[seed]:,}: no interval"] * len(tracked.outputs)
        else:
            rows += ["; ".join(([notes.HALVES] if moved else []) + shared) for moved in differs[:, s]]
    return rows
