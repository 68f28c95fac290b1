"""Intervals as a frame: seed, output, estimate, low, high, note."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from twoclock.intervals import batch_means_table, interval_warnings
from twoclock.intervals.iterate_average import Tracked, read
from twoclock.intervals.random_scaling import critical_value
from twoclock.protocols import InputError
from twoclock.validation import choice, shown

if TYPE_CHECKING:
    import pandas as pd

HOW = ("random-scaling", "blocks")


def interval(
    history: pd.DataFrame,
    diverged: Mapping[int, int],
    level: float = 0.95,
    how: str = "random-scaling",
    step: int | None = None,
) -> pd.DataFrame:
    """The intervals of a run at a mark.

    Args:
        history: of the run, with what it tracked.
        diverged: the last finite step of each seed that diverged.
        level: their coverage.
        how: "random-scaling", or "blocks" for linear problems.
        step: the mark; the last by default.
    """
    if choice("how", how, HOW) == "blocks":
        return batch_means_table.interval(history, diverged, level, step)
    c, tracked = critical_value(level), _kept(history)
    return at_mark(tracked, mark_of(tracked, step), c, diverged)


def _kept(history: pd.DataFrame) -> Tracked:
    tracked = read(history)
    if tracked is None:
        raise InputError(
            "`interval` needs what a run keeps for it, and this one kept nothing; "
            "run `tc.Polyak(method, intervals=True)`"
        )
    return tracked


def mark_of(tracked: Tracked, step: int | None) -> int:
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
    shared = [interval_warnings.of_memory(tracked, mark, lost), *interval_warnings.of_steps(tracked, mark)]
    moved, corrected = interval_warnings.moved(tracked, mark), interval_warnings.corrected(tracked, mark, lost)
    drifting = interval_warnings.drifting(tracked, mark, lost)
    rows = []
    for s, seed in enumerate(tracked.seeds.tolist()):
        if lost[s]:
            rows += [f"diverged after step {diverged[seed]:,}: no interval"] * len(tracked.outputs)
            continue
        for large, biased, moves in zip(corrected, drifting, moved[:, s], strict=True):
            rows.append("; ".join(filter(None, [interval_warnings.HALVES if moves else "", large, biased, *shared])))
    return rows


def summary(history: pd.DataFrame, diverged: Mapping[int, int]) -> str:
    """In a line how many intervals there are at the last mark, and what speaks against them; "" if there are none."""
    tracked = read(history)
    if tracked is None or tracked.n[-1].max() < 2:
        return ""
    notes = at_mark(tracked, len(tracked.steps) - 1, 1.0, diverged)["note"]
    many = f"intervals: {len(tracked.outputs)} output{'s' * (len(tracked.outputs) > 1)} a seed"
    noted = notes[notes != ""]
    if noted.empty:
        return many
    return f"{many}, {len(noted)} of {len(notes)} with a note: {noted.value_counts().index[0].partition(';')[0]}"


def by_step(
    history: pd.DataFrame, diverged: Mapping[int, int], level: float = 0.95, seed: int | None = None
) -> pd.DataFrame:
    """The intervals of one seed, the first by default, at every mark that has them; with a column ``step``.

    The note is of the whole run, that of the last mark.
    """
    import pandas as pd

    c, tracked = critical_value(level), _kept(history)
    seeds = tracked.seeds.tolist()
    chosen = history["seed"].iloc[0] if seed is None else seed
    if isinstance(chosen, bool) or chosen not in seeds:
        raise InputError(f"`seed` must be one of the run, got {shown(seed)}; see `result.spec['seeds']`")
    marks = [i for i in range(len(tracked.steps)) if tracked.n[i].max() >= 2]
    last = at_mark(tracked, len(tracked.steps) - 1, c, diverged)
    note = last.set_index(["seed", "output"])["note"]
    s = seeds.index(chosen)
    half = c * tracked.scale[:, marks, s]
    lost = tracked.steps[marks] > diverged.get(int(chosen), tracked.steps[-1])
    half[:, lost] = np.nan
    estimate = tracked.estimate[:, marks, s]
    return pd.DataFrame(
        {
            "step": np.tile(tracked.steps[marks], len(tracked.outputs)),
            "seed": int(chosen),
            "output": np.repeat(np.asarray(tracked.outputs, object), len(marks)),
            "estimate": estimate.ravel(),
            "low": (estimate - half).ravel(),
            "high": (estimate + half).ravel(),
            "note": np.repeat([note[chosen, name] for name in tracked.outputs], len(marks)),
        }
    )
