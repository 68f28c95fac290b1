"""The result of a sweep, read from its records alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from twoclock import storage, validation
from twoclock.engine.protocol import preferred_metric
from twoclock.intervals import bootstrap
from twoclock.protocols import InputError, html_table, list_names
from twoclock.result import Result
from twoclock.storage.atomic_file import Document
from twoclock.storage.sweep_store import Shards

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_LABELS = ("problem", "method", "seed", "step", "diverged")


@dataclass(frozen=True, eq=False)
class Sweep:
    """Every run of a sweep.

    ``sweep`` returns it.

    Attributes:
        history: one row per problem, method, seed and mark: those four, whether the seed had diverged by then, and a
            column for each metric (empty if a problem does not measure it).
        spec: what was run: problems, methods with their family and numbers, steps, seeds, marks, versions.
    """

    history: pd.DataFrame
    spec: Document

    @classmethod
    def load(cls, folder: str | Path) -> Sweep:
        """The finished part of the sweep in a folder."""
        shards = Shards(folder)
        spec = shards.spec
        if not shards.done():
            raise InputError(f"the sweep in {shards.folder} has no finished shard yet; run it first")
        history = shards.history()
        with storage.reading(folder, "DIR"):
            # In the order of the arguments; the files are in alphabetical order.
            order = [history[name].map({label: i for i, label in enumerate(spec[f"{name}s"])}) for name in _LABELS[:2]]
            _check(spec, history)
        return cls(history.iloc[np.lexsort(order[::-1])].reset_index(drop=True), spec)

    @property
    def metrics(self) -> list[str]:
        """The names of the recorded metrics."""
        return [name for name in bootstrap.metric_names(self.history.columns) if name not in _LABELS]

    def final(self, metric: str, confidence: float = 0.95) -> pd.DataFrame:
        """One row per problem and method at the last step: mean with its bootstrap interval, median, seeds, diverged.

        A diverged seed counts with its last finite state, as everywhere. ``family`` and the numbers of the method
        (``alpha.c`` …) are columns.

        Args:
            metric: the metric, a column of ``history``.
            confidence: the level of the interval.
        """
        import pandas as pd

        bootstrap.check_metric(metric, self.metrics)
        bootstrap.check_confidence(confidence)
        last = self.history[self.history["step"] == self.spec["identity"]["steps"]]
        last = last.dropna(subset=[metric])
        rows = []
        for (problem, method), group in last.groupby(["problem", "method"], sort=False):
            known = self.spec["methods"][method]
            rows.append(
                {
                    "problem": problem, "family": known["family"], "method": method,
                    "values": group[metric].to_numpy(float), "diverged": int(group["diverged"].sum()),
                    "seeds": len(group), **known["numbers"],
                }
            )  # fmt: skip
        table = pd.DataFrame(rows)
        for _, alike in table.groupby("seeds"):  # in an unfinished sweep some have fewer seeds
            values = np.stack(alike["values"].tolist())
            low, high = bootstrap.bootstrap_mean(values, confidence)
            middle = {"mean": values.mean(axis=1), "low": low, "high": high, "median": np.median(values, axis=1)}
            table.loc[alike.index, list(middle)] = np.stack(list(middle.values()), axis=1)
        first = ["problem", "family", "method", "mean", "low", "high", "median", "diverged", "seeds"]
        return table[first + [name for name in table.columns if name not in (*first, "values")]]

    def best(self, metric: str | None = None) -> pd.DataFrame:
        """For each problem and family the setting with the smallest mean at the last step, of those where the fewest
        seeds diverged; its numbers are those that the sweep varied, ``final`` has all of them.

        Without a metric it is the error, or another measure of progress, or the first that was recorded.

        The best of many is chosen and shown on the same seeds, so its mean is biased downwards; for a number to quote,
        run it again on fresh seeds.
        """
        metric = preferred_metric(self.metrics) if metric is None else metric
        if metric is None:
            raise InputError("`metric`: this sweep recorded none, so there is no best; give its problem a `measure`")
        final = self.final(metric)
        ranked = final.sort_values(["diverged", "mean"], kind="stable")
        best = ranked.groupby(["problem", "family"], sort=False).head(1).sort_index(ignore_index=True)
        shown = ["problem", "family", "method", "mean", "low", "high", "diverged", "seeds"]
        numbers = [name for name in final.columns if name not in (*shown, "median")]
        varied = [name for name in numbers if (final.groupby("family")[name].nunique() > 1).any()]
        return best[shown + varied]

    def result(self, problem: str, method: str) -> Result:
        """The record of one method on one problem, as a result without iterates.

        Args:
            problem, method: their names in ``history``.
        """
        validation.lookup(self.spec["problems"], problem, "problem")
        validation.lookup(self.spec["methods"], method, "method")
        rows = self.history[(self.history["problem"] == problem) & (self.history["method"] == method)]
        if rows.empty:
            raise InputError(f"this sweep has no {method!r} on {problem!r} yet; `.history` has what there is")
        recorded = [name for name in self.history.columns if name not in _LABELS and rows[name].notna().any()]
        fine = rows[~rows["diverged"]].groupby("seed")["step"].max()
        seeds = rows["seed"].drop_duplicates().tolist()
        ended = rows.groupby("seed")["diverged"].any()
        known = self.spec["identity"]
        spec = {
            "problem": self.spec["problems"][problem], "method": self.spec["methods"][method], "seeds": seeds,
            **{name: known[name] for name in ("steps", "marks", "precision", "bound")},
        }  # fmt: skip
        history = rows[["seed", "step", *recorded]].reset_index(drop=True)
        return Result(None, None, history, ended[seeds].to_numpy(), fine.reindex(seeds).fillna(0).to_numpy(int), spec)

    def plot_best(self, metric: str, statistic: str = "mean") -> Figure:
        """Learning curves of the best setting of each family, with bands; a panel per problem.

        Args:
            metric: the metric, a column of ``history``.
            statistic: the statistic over seeds, "mean", "median" or "iqm".
        """
        from twoclock import plot

        return plot.best_curves(self, metric, statistic)

    def plot_sensitivity(self, metric: str, setting: str | None = None) -> Figure:
        """The metric at the last step against a setting, a line per family; a panel per problem.

        Args:
            metric: the metric, a column of ``history``.
            setting: the setting, such as "alpha.c"; the first that varies if None.
        """
        from twoclock import plot

        return plot.setting_curves(self, metric, setting)

    def plot_map(self, metric: str, x: str | None = None, y: str | None = None) -> Figure:
        """The metric at the last step over two settings, hatched where seeds diverged; one panel for each family.

        Args:
            metric: the metric, a column of ``history``.
            x, y: the two settings; the first two that vary if None.
        """
        from twoclock import plot

        return plot.setting_map(self, metric, x, y)

    def __repr__(self) -> str:
        return f"Sweep({self._words()}; metrics: {list_names(self.metrics)})"

    def _words(self) -> str:
        known = self.spec["identity"]
        return (
            f"{len(self.spec['problems'])} problems × {len(self.spec['methods'])} methods × "
            f"{len(known['seeds'])} seeds, {known['steps']:,} steps"
        )

    def _repr_html_(self) -> str:
        metric = preferred_metric(self.metrics)
        best = [] if metric is None else self.best(metric).to_dict("records")
        rows = [
            (str(row["problem"]), str(row["family"]), str(row["method"]), f"{row['mean']:.3g}",
             f"{row['low']:.3g} … {row['high']:.3g}", f"{row['diverged']} of {row['seeds']}")
            for row in best
        ]  # fmt: skip
        columns = ("problem", "family", "best setting", f"mean {metric or ''} at the end", "95 % interval", "diverged")
        return html_table(f"Sweep: {self._words()}", columns, rows)


def _check(spec: Document, history: pd.DataFrame) -> None:
    """Raise an error where a specification lacks what its tables and figures need: another program wrote it."""
    run = spec["identity"]
    if [*run["marks"]] != [*np.unique(history["step"])] or run["steps"] != run["marks"][-1]:
        raise ValueError("its marks are not those of its history")
    if not {*run["seeds"]} >= {*history["seed"]}:
        raise ValueError("its seeds are not those of its history")
    if run["precision"] not in ("float64", "float32") or not isinstance(run["bound"], float | int | None):
        raise ValueError("its precision or bound is unknown")
    for problem in history["problem"].unique():
        spec["problems"][problem]["name"].encode()
    for method in history["method"].unique():
        known = spec["methods"][method]
        (known["name"] + known["family"]).encode()
        if not all(isinstance(number, float | int | None) for number in known["numbers"].values()):
            raise ValueError(f"the numbers of {method} are none")
