"""Intervals by block scores as a frame, from what a run kept at its marks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from twoclock.intervals.batch_means import BlockStatistics, intervals
from twoclock.protocols import InputError
from twoclock.stats import TRACKED
from twoclock.validation import shown

if TYPE_CHECKING:
    import pandas as pd

_ESTIMATE = f"{TRACKED}block-estimate:"


def interval(history: pd.DataFrame, diverged: Mapping[int, int], level: float, step: int | None) -> pd.DataFrame:
    """The intervals at a mark, one row a seed and output; NaN for a seed that has diverged."""
    import pandas as pd

    outputs = [column.removeprefix(_ESTIMATE) for column in history.columns if column.startswith(_ESTIMATE)]
    if not outputs:
        raise InputError(
            "`interval(how='blocks')` needs what a run keeps for it, and this one kept nothing; run "
            "`tc.methods.BatchMeans(method)` on linear problems"
        )
    steps = history["step"].unique()
    at = steps[-1] if step is None else step
    if isinstance(at, bool) or not isinstance(at, (int, np.integer)) or at not in steps:
        some = ", ".join(map(str, steps[-3:]))
        raise InputError(f"`step` must be a mark of the run ({some} are the last), got {shown(step)}; see `marks`")
    rows = history[history["step"] == at]
    seeds = rows["seed"].tolist()

    def every(kind: str) -> Float[np.ndarray, "seeds outputs"]:
        return rows[[f"{TRACKED}block-{kind}:{name}" for name in outputs]].to_numpy(float)

    of_run = (rows[f"{TRACKED}block-{kind}"].to_numpy(float) for kind in ("freedom", "count"))
    told = BlockStatistics(every("error"), every("correlation"), every("shift"), *of_run)
    estimate, low, high, note = intervals(every("estimate"), told, level)
    frame = pd.DataFrame(
        {
            "seed": np.repeat(seeds, len(outputs)),
            "output": np.tile(np.asarray(outputs, object), len(seeds)),
            "estimate": estimate.ravel(),
            "low": low.ravel(),
            "high": high.ravel(),
            "note": note,
        }
    )
    for seed, last in diverged.items():
        if last < at:
            lost = frame["seed"] == seed
            frame.loc[lost, ["low", "high"]] = np.nan
            frame.loc[lost, "note"] = f"diverged after step {last:,}: no interval"
    return frame
