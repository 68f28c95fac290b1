"""Intervals as tables, with the columns seed, output, estimate, low, high and note."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from twoclock.intervals import batch_means, interval_warnings
from twoclock.intervals.bootstrap import TRACKED
from twoclock.intervals.interval_warnings import NO_INTERVAL, Tracked
from twoclock.intervals.random_scaling import critical_value
from twoclock.protocols import InputError
from twoclock.validation import choice, short_repr

if TYPE_CHECKING:
    import pandas as pd

_BLOCK_ESTIMATE = f"{TRACKED}block-estimate:"


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
    if choice("how", how, ("random-scaling", "blocks")) == "blocks":
        return _from_blocks(history, diverged, level, step)
    c, tracked = critical_value(level), _tracked(history)
    return _at_mark(tracked, _mark(tracked.steps, step), c, diverged)


def _tracked(history: pd.DataFrame) -> Tracked:
    tracked = interval_warnings.read(history)
    if tracked is None:
        raise InputError(
            "`interval` needs what a run keeps for it, and this one kept nothing; "
            "run `tc.Polyak(method, intervals=True)`"
        )
    return tracked


def _mark(steps: Int[np.ndarray, " marks"], step: object) -> int:
    """The place of a step among the marks; None stands for the last."""
    if step is None:
        return len(steps) - 1
    if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step not in steps:
        some = ", ".join(map(str, steps[-3:]))
        raise InputError(f"`step` must be a mark of the run ({some} are the last), got {short_repr(step)}; see `marks`")
    return int(np.searchsorted(steps, step))


def _at_mark(tracked: Tracked, mark: int, c: float, diverged: Mapping[int, int]) -> pd.DataFrame:
    """The intervals y_n ± c √(V/n) at a mark, one row per seed and output.

    A seed that has diverged has no interval, so NaN: what stopped somewhere says nothing about the answer.
    """
    if tracked.n[mark].max() < 2:
        raise InputError(
            f"`interval` needs two averaged iterates or more, there are none at step {tracked.steps[mark]:,}; "
            "take more steps, or a smaller `skip`"
        )
    lost = np.asarray([diverged.get(seed, np.inf) < tracked.steps[mark] for seed in tracked.seeds.tolist()])
    estimate = tracked.estimate[:, mark].T
    half = np.where(lost[:, None], np.nan, c * tracked.scale[:, mark].T)
    notes = interval_warnings.notes(tracked, mark, lost, diverged)
    return _table(tracked.seeds, tracked.outputs, estimate, estimate - half, estimate + half, notes)


def _from_blocks(history: pd.DataFrame, diverged: Mapping[int, int], level: float, step: int | None) -> pd.DataFrame:
    """The intervals by batch means at a mark, one row per seed and output; NaN for a seed that has diverged."""
    outputs = [column.removeprefix(_BLOCK_ESTIMATE) for column in history.columns if column.startswith(_BLOCK_ESTIMATE)]
    if not outputs:
        raise InputError(
            "`interval(how='blocks')` needs what a run keeps for it, and this one kept nothing; run "
            "`tc.methods.BatchMeans(method)` on linear problems"
        )
    steps = history["step"].unique()
    at = steps[_mark(steps, step)]
    rows = history[history["step"] == at]

    def every(kind: str) -> Float[np.ndarray, "seeds outputs"]:
        return rows[[f"{TRACKED}block-{kind}:{name}" for name in outputs]].to_numpy(float)

    of_run = (rows[f"{TRACKED}block-{kind}"].to_numpy(float) for kind in ("freedom", "count"))
    statistics = batch_means.BlockStatistics(every("error"), every("correlation"), every("shift"), *of_run)
    table = _table(rows["seed"], outputs, *batch_means.intervals(every("estimate"), statistics, level))
    for seed, last in diverged.items():
        if last < at:
            lost = table["seed"] == seed
            table.loc[lost, ["low", "high"]] = np.nan
            table.loc[lost, "note"] = NO_INTERVAL.format(last)
    return table


def _table(
    seeds: Sequence[int] | np.ndarray, outputs: list[str], estimate: np.ndarray, low: np.ndarray, high: np.ndarray,
    note: list[str],
) -> pd.DataFrame:  # fmt: skip
    import pandas as pd

    names = np.tile(np.asarray(outputs, object), len(seeds))
    ends = {"estimate": estimate.ravel(), "low": low.ravel(), "high": high.ravel()}
    return pd.DataFrame({"seed": np.repeat(np.asarray(seeds), len(outputs)), "output": names, **ends, "note": note})


def summary(history: pd.DataFrame, diverged: Mapping[int, int]) -> str:
    """Say in a line how many intervals there are at the last mark, and what speaks against them; "" if none."""
    tracked = interval_warnings.read(history)
    if tracked is None or tracked.n[-1].max() < 2:
        return ""
    notes = _at_mark(tracked, len(tracked.steps) - 1, 1.0, diverged)["note"]
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

    c, tracked = critical_value(level), _tracked(history)
    seeds = tracked.seeds.tolist()
    chosen = history["seed"].iloc[0] if seed is None else seed
    if isinstance(chosen, bool) or chosen not in seeds:
        raise InputError(f"`seed` must be one of the run, got {short_repr(seed)}; see `result.spec['seeds']`")
    marks = [i for i in range(len(tracked.steps)) if tracked.n[i].max() >= 2]
    last = _at_mark(tracked, len(tracked.steps) - 1, c, diverged)
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
