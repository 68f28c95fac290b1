"""What a run hands back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twoclock import record, stats
from twoclock.core import InputError, PyTree
from twoclock.engine.rows import preferred_metric

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Result:
    """The solution for every seed, and how it got there.

    Attributes:
        theta: the final estimates of θ, NumPy arrays with a leading seed axis.
        omega: those of ω.
        history: one row a seed and mark: seed, step and a column for each metric.
        diverged: for each seed, whether it left the finite numbers (or the bound).
        last_step: for each seed, the step of its last finite state; the whole run where it did not diverge.
        spec: what was run: problem, method, steps, seeds, marks, precision, versions, wall time.
    """

    theta: PyTree
    omega: PyTree
    history: pd.DataFrame
    diverged: np.ndarray
    last_step: np.ndarray
    spec: dict[str, Any]

    @property
    def metrics(self) -> list[str]:
        """The names of the recorded metrics."""
        return [name for name in self.history.columns if name not in ("seed", "step")]

    def summary(self, metric: str, confidence: float = 0.95) -> pd.DataFrame:
        """Per step: mean, median, interquartile mean, bootstrap interval of the mean, seeds, diverged seeds."""
        ended = dict(zip(self.spec["seeds"], self.last_step.tolist(), strict=True))
        return stats.summarise(self.history, metric, ended, confidence)

    def plot(self, metric: str | None = None, statistic: str = "mean") -> Figure:
        """A log-log figure of the metric against steps, with its band and the number of diverged seeds.

        Without a metric it draws the error, or another measure of progress, or the first that was recorded.
        """
        from twoclock import plot

        chosen = preferred_metric(self.metrics) if metric is None else metric
        if chosen is None:
            raise InputError("`metric`: this run recorded none, so there is nothing to draw; give it a `measure`")
        return plot.compare({self.spec["method"]["name"]: self}, chosen, statistic)

    def save(self, path: str | Path) -> Path:
        """Write ``spec.json``, ``history.parquet`` and ``arrays.npz`` to a folder."""
        trees = {"theta": self.theta, "omega": self.omega, "diverged": self.diverged, "last_step": self.last_step}
        return record.save(path, self.spec, self.history, trees)

    def __repr__(self) -> str:
        run = self.spec
        return (
            f"Result({run['problem']['name']}, {run['method']['name']}, {run['steps']:,} steps, "
            f"{len(run['seeds'])} seeds, {int(self.diverged.sum())} diverged; metrics: {', '.join(self.metrics)})"
        )


def load(path: str | Path) -> Result:
    """The result that ``result.save(path)`` wrote. Dicts, lists and tuples come back as they were; other nodes of a
    pytree (a network's modules) come back as dicts of their fields."""
    spec, history, trees = record.load(path)
    return Result(trees["theta"], trees["omega"], history, trees["diverged"], trees["last_step"], spec)
