"""Intervals by block scores as a frame, from what a run kept at its marks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from twoclock.core import Given, InputError
from twoclock.inference.blocks import Told, intervals
from twoclock.inputs import shown
from twoclock.stats import TRACKED

if TYPE_CHECKING:
    import pandas as pd

_ESTIMATE = f"{TRACKED}block-estimate:"


def interval(
    history: pd.DataFrame, diverged: Mapping[int, int], level: Given[float], step: Given[int | None]
) -> pd.DataFrame:
    """The intervals at a mark, one row a seed and output; NaN for a seed that has diverged."""
    import pandas as pd

    outputs = [column.removeprefix(_ESTIMATE) for column in history.columns if column.startswith(_ESTIMATE)]
    if not outputs:
        raise InputError(
            "`interval(how='blocks')` needs what a run keeps for it, and this one kept nothing; run "
            "`tc.methods.BlockScores(method)` on linear problems"
        )
    steps = history["step"].unique()
    at = steps[-1] if step is None else step
    if isinstance(at, bool) or not isinstance(at, (int, np.integer)) or at not in steps:
        some = ", ".join(map(str, steps[-3:]))
        raise InputError(f"`step` must be a mark of the run ({some} are the last), got {shown(step)}; see `marks`")
    rows = history[history["step"] == at]
    found = []
    for _, row in rows.iterrows():
        seed = int(row["seed"])
        estimate = _every(row, "estimate", outputs)
        if seed in diverged and diverged[seed] < at:
            low = high = np.full(len(outputs), np.nan)
            note = [f"diverged after step {diverged[seed]:,}: no interval"] * len(outputs)
        else:
            told = Told(
                *(_every(row, kind, outputs) for kind in ("error", "correlation", "shift")),
                *(np.asarray(row[f"{TRACKED}block-{kind}"]) for kind in ("freedom", "count")),
            )
            estimate, low, high, note = intervals(estimate, told, level)
        found.append(
            pd.DataFrame(
                {"seed": seed, "output": outputs, "estimate": estimate, "low": low, "high": high, "note": note}
            )
        )
    return pd.concat(found, ignore_index=True)


def _every(row: pd.Series, kind: str, outputs: list[str]) -> np.ndarray:
    return row[[f"{TRACKED}block-{kind}:{name}" for name in outputs]].to_numpy(float)
