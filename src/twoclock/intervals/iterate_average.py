"""What a run kept for its intervals, read back from the columns of its history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from twoclock.stats import TRACKED, by_step_and_seed

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Tracked:
    """The outputs of a run at its marks.

    Attributes:
        steps: the marks.
        seeds: the seeds.
        outputs: the names of the outputs.
        n: how many iterates the mean was of.
        estimate: y_n of each output.
        scale: √(V/n) of each output.
        effective: how many independent iterates the mean was worth.
        exponents: of each step size at the marks, p̂ in k^−p̂; NaN where it cannot be told.
        memory: the same for the averaging weights.
        correction: what an extrapolation added to each output; None where there was none.
    """

    steps: Int[np.ndarray, " marks"]
    seeds: Int[np.ndarray, " seeds"]
    outputs: list[str]
    n: Float[np.ndarray, "marks seeds"]
    estimate: Float[np.ndarray, "outputs marks seeds"]
    scale: Float[np.ndarray, "outputs marks seeds"]
    effective: Float[np.ndarray, "outputs marks seeds"]
    exponents: dict[str, Float[np.ndarray, " marks"]]
    memory: dict[str, Float[np.ndarray, " marks"]]
    correction: Float[np.ndarray, "outputs marks seeds"] | None


def outputs(columns: pd.Index) -> list[str]:
    """The names of the outputs that a history has intervals for; none where nothing was tracked."""
    return list(_named(columns, "estimate"))


def read(history: pd.DataFrame) -> Tracked | None:
    """None where nothing was tracked."""
    names = outputs(history.columns)
    if not names:
        return None
    steps, seeds, n = by_step_and_seed(history, f"{TRACKED}n")
    longest = n.argmax(axis=1)  # a seed that has not diverged: schedules are the same for all

    def every(kind: str) -> Float[np.ndarray, "outputs marks seeds"]:
        return np.stack([by_step_and_seed(history, f"{TRACKED}{kind}:{name}")[2] for name in names])

    def of_schedules(kind: str) -> dict[str, Float[np.ndarray, " marks"]]:
        found = {name: by_step_and_seed(history, column)[2] for name, column in _named(history.columns, kind).items()}
        return {name: values[np.arange(len(steps)), longest] for name, values in found.items()}

    return Tracked(
        steps, seeds, names, n, every("estimate"), every("scale"), every("effective"), of_schedules("exponent"),
        of_schedules("memory"), every("correction") if _named(history.columns, "correction") else None,
    )  # fmt: skip


def _named(columns: pd.Index, kind: str) -> dict[str, str]:
    """Name → column of those of one kind."""
    start = f"{TRACKED}{kind}:"
    return {column.removeprefix(start): column for column in columns if column.startswith(start)}
