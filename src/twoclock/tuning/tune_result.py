"""The results of tuning: the best settings of a method, and a ranking of several methods."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from twoclock.intervals.bootstrap import resampled_means
from twoclock.param_paths import text
from twoclock.protocols import Method, html_table, printable
from twoclock.storage.atomic_file import Document
from twoclock.tuning.search_space import Side

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


_RESAMPLES = 1000
_HUGE = 1e150  # as good as infinite; squares of it would overflow
_NOTHING = 1e-16  # of the best value at the first mark: as good as zero


class ScoreTable(NamedTuple):
    """Settings × seeds × marks: the metric; whether the seed diverged; without truth also the squared residuals and the
    standard error of the metric from the fresh samples.

        score = m(n)   or   exp(mean of log m(k) over marks k)        m(k) = the metric's mean over seeds at step k

    The second is the area under the curve of m in a log-log picture, in the unit of the metric. On a linear axis the
    first steps, decades above the last ones, would dominate. The mean over seeds is taken first, so that a failed seed
    counts as it does at the end point; logarithms of single seeds would hide it.
    """

    values: Float[np.ndarray, "settings seeds marks"]
    diverged: Bool[np.ndarray, "settings seeds"]
    start: Float[np.ndarray, "settings seeds"] | None = None  # the metric at the start
    F: Float[np.ndarray, "settings seeds"] | None = None
    G: Float[np.ndarray, "settings seeds"] | None = None
    noise: Float[np.ndarray, "settings seeds"] | None = None

    def best_first(self) -> Int[np.ndarray, " settings"]:
        """The settings in order: fewer diverged seeds first, then the smaller score.

        An estimate without truth may be negative; far from any solution, where it is mostly noise, very negative. One
        that is further below zero than three standard errors of the quieter settings therefore counts as its own
        standard error.
        """
        key = self.scores()
        if self.noise is not None:
            noise = np.hypot.reduce(self.noise, axis=1) / self.noise.shape[1]
            usual = np.quantile(noise, 0.25, method="lower")
            key = np.where(key < -3 * usual, noise, key)
        return np.lexsort((key, self.diverged.mean(axis=1)))

    def scores(self) -> Float[np.ndarray, " settings"]:
        """One score per setting."""
        with np.errstate(over="ignore"):
            return self._score_curves(self.values.mean(axis=1))

    def rows(self, best: int | None = None) -> list[dict[str, float]]:
        """One row per setting, with intervals; ``best`` is the denominator of the ratios, seed by seed."""
        # Seeds drawn with replacement, the same draws for every setting.
        means = resampled_means(np.clip(np.moveaxis(self.values, 1, 2), None, _HUGE), _RESAMPLES)
        drawn = self._score_curves(np.moveaxis(means, 1, 2))
        drawn, scores = np.where(drawn > _HUGE / 1e6, np.inf, drawn), self.scores()
        ratio, ratios = np.full(len(scores), np.nan), np.full(drawn.shape, np.nan)
        if best is not None and scores[best] > 0:
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                ratios = np.where(drawn[best] > 0, drawn / drawn[best], np.inf)
                ratio = scores / scores[best]
        # At drawn values, without interpolation, so that infinite ones stay separate.
        ends = [np.quantile(part, [0.025, 0.975], axis=1, method="nearest") for part in (drawn, ratios)]
        names = ("score", "low", "high", "ratio", "ratio_low", "ratio_high")
        columns = dict(zip(names, (scores, *ends[0], ratio, *ends[1]), strict=True))
        columns["diverged"] = self.diverged.mean(axis=1)
        for name, part in (("F", self.F), ("G", self.G)):
            if part is not None:
                with np.errstate(invalid="ignore", over="ignore"):
                    error = part.std(axis=1, ddof=1) / np.sqrt(part.shape[1])
                columns |= {name: part.mean(axis=1), f"{name}_se": error}
        return [{name: float(column[i]) for name, column in columns.items()} for i in range(len(scores))]

    def select(self, i: int) -> ScoreTable:
        """One of the settings."""
        return jax.tree.map(lambda part: part[i : i + 1], self)

    def join(self, others: ScoreTable) -> ScoreTable:
        """Join these settings and others on the same seeds."""
        return jax.tree.map(lambda *parts: np.concatenate(parts), self, others)

    def _score_curves(self, means: np.ndarray) -> np.ndarray:
        """Score mean curves, whose marks are the last axis."""
        if means.shape[-1] == 1:
            return means[..., 0]
        first = self.values[:, :, 0].mean(axis=1)
        floor = max(_NOTHING * float(first[np.isfinite(first)].min(initial=np.inf)), np.finfo(float).tiny)
        return np.exp(np.log(np.maximum(means, floor)).mean(axis=-1))


_SHOWN = 8  # rows of a ranking in a notebook
_CLEARLY = 0.01  # of the score of the start: a smaller improvement counts as none
_SIDES = {"low": "lower", "high": "upper"}


@dataclass(frozen=True, repr=False, eq=False)
class Tuned:
    """The best settings of a method.

    Attributes:
        method: the method with the best settings, ready for ``solve``; the agent, for ``agents.run``.
        settings: those settings, path → number.
        metric: the metric whose mean over seeds was compared, or the residual.
        ranking: one row for each setting tried, the best first, later rungs before earlier ones. It has the settings,
            ``score`` with the 95 % interval ``low`` to ``high``, the share of seeds ``diverged``, ``steps``, ``seeds``
            and ``rung``. In the last rung ``ratio`` is its score over the best one's on the shared seeds, with the
            interval ``ratio_low`` to ``ratio_high``. Without truth also the squared residuals ``F`` and ``G`` with
            their ``_se``.
        sensitivity: how the score changes when one setting moves and the others stay at their best: ``setting``,
            ``value`` and the columns of the ranking, the best one's row included; on the seeds of the last rung.
        edge: the settings whose best value lies at a limit of the box, path → "low" or "high". A better one may lie
            beyond; ``widen=True`` searches there.
        start: the score of the start itself, on the seeds of the last rung; None for an agent. The repr says if the
            choice is not better.
        spec: the work and the options. ``space`` is the final box and ``given`` the first one; ``rough`` is True if
            residuals of samples that depend on θ were used, since the curvature ignores that dependence.
    """

    method: Method
    settings: dict[str, float]
    metric: str
    ranking: pd.DataFrame
    sensitivity: pd.DataFrame
    edge: dict[str, Side]
    start: float | None
    spec: Document

    def plot(self) -> Figure:
        """The sensitivity to each setting, and the settings of the last rungs around it."""
        from twoclock import plot

        return plot.sensitivity(self.ranking, self.sensitivity, self.metric, self.spec, self.edge)

    def __repr__(self) -> str:
        last = self.ranking[self.ranking["rung"] == self.ranking["rung"].max()]
        # Scores that are not positive have no ratio; then overlapping intervals count as a tie.
        unknown = last["ratio"].isna() & (last["low"] <= last["high"].iloc[0])
        tied = int(((last["ratio_low"] <= 1) | unknown).iloc[1:].sum())
        return (
            f"Tuned({_format_settings(self.settings)}; {_describe_score(self)}; "
            f"of the {len(last) - 1} others in the last rung {tied} may be as good{_describe_caveats(self)})"
        )

    def _repr_html_(self) -> str:
        rows = [
            (_format_settings({path: row[path] for path in self.settings}), _format_interval(row, "score"),
             _format_interval(row, "ratio"), f"{row['diverged']:.0%}", f"{row['steps']:,.0f} × {row['seeds']:.0f}")
            for row in self.ranking.head(_SHOWN).to_dict("records")
        ]  # fmt: skip
        columns = ("settings", self.metric, "ratio to the best", "diverged", "steps × seeds")
        return html_table(f"Tuned: {_describe_score(self)}{_describe_caveats(self)}", columns, rows)


@dataclass(frozen=True, repr=False, eq=False)
class TunedMethods(Mapping[str, Tuned]):
    """Several methods, each at its best settings; a mapping from labels to ``Tuned``.

    Attributes:
        tuned: label → the ``Tuned`` of that method.
        ranking: one row per method, the best first, on seeds that no tuning had seen: ``label``, ``spent``, and the
            other columns as of ``Tuned.ranking``.
        metric: what was compared.
        spec: what was asked.
    """

    tuned: dict[str, Tuned]
    ranking: pd.DataFrame
    metric: str
    spec: Document

    @property
    def best_label(self) -> str:
        """The first of the ranking."""
        return str(self.ranking["label"].iloc[0])

    @property
    def best(self) -> Tuned:
        return self.tuned[self.best_label]

    @property
    def methods(self) -> dict[str, Method]:
        """The methods at their best settings, ready for ``solve``."""
        return {label: found.method for label, found in self.tuned.items()}

    def plot(self) -> Figure:
        """The score of each method with its interval."""
        from twoclock import plot

        return plot.tuned_scores(self.ranking, self.metric, self.spec)

    def __getitem__(self, label: str) -> Tuned:
        return self.tuned[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tuned)

    def __len__(self) -> int:
        return len(self.tuned)

    def __repr__(self) -> str:
        lines = [
            f"TunedMethods({self.metric} {_describe_horizon(self.spec)}, {self.ranking['seeds'].iloc[0]} seeds that no "
            f"tuning had seen, at most {self.spec['budget']:,} seed-steps to tune each:"
        ]
        for rank, row in enumerate(self.ranking.to_dict("records"), 1):
            found = self.tuned[str(row["label"])]
            tied = ", may be as good as the best" if rank > 1 and row["ratio_low"] <= 1 else ""
            settings = _format_settings(found.settings) + _describe_caveats(found)
            lines.append(f"  {rank}. {printable(row['label'])}: {_format_interval(row, 'score')}{tied}; {settings}")
        return "\n".join(lines) + ")"

    def _repr_html_(self) -> str:
        rows = [
            (str(rank), str(row["label"]), _format_interval(row, "score"), _format_interval(row, "ratio"),
             _format_settings(self.tuned[str(row["label"])].settings))
            for rank, row in enumerate(self.ranking.to_dict("records"), 1)
        ]  # fmt: skip
        title = f"{_describe_horizon(self.spec)}, on {self.ranking['seeds'].iloc[0]} seeds that no tuning had seen"
        return html_table(f"Tuned {title}", ("", "method", self.metric, "ratio to the best", "settings"), rows)


def _format_interval(row: Mapping[Hashable, float], name: str) -> str:
    """A number with its interval; empty where there is none."""
    low, high = (row[end if name == "score" else f"{name}_{end}"] for end in ("low", "high"))
    return "" if row[name] != row[name] else f"{row[name]:.3g} [{low:.3g}, {high:.3g}]"


def _format_settings(settings: Mapping[str, float]) -> str:
    return ", ".join(f"{path}={text(value)}" for path, value in settings.items())


def _describe_score(found: Tuned) -> str:
    best = found.ranking.to_dict("records")[0]
    score = f"{found.metric} {_format_interval(best, 'score')}"
    return f"{score} {_describe_horizon(found.spec)} on {best['seeds']} seeds"


def _describe_horizon(spec: Document) -> str:
    return f"{'after' if spec['by'] == 'end' else 'over the last decades of'} {spec['steps']:,} steps"


def _describe_caveats(found: Tuned) -> str:
    """Reservations: settings at an edge, a rough score, or one no better than that of the start."""
    rough = "; the samples follow θ, so the residual is a rough guide" if found.spec["rough"] else ""
    best = found.ranking.to_dict("records")[0]
    if found.start is not None and not best["score"] < found.start - _CLEARLY * abs(found.start):
        rough += f"; nothing beats standing still, which scores {found.start:.3g}: give more steps or another space"
    elif found.start is not None and not best["high"] < found.start:
        rough += f"; not clearly better than not moving, which scores {found.start:.3g}"
    if not found.edge:
        return rough
    where = ", ".join(f"{path} at the {_SIDES[side]} edge of its box" for path, side in found.edge.items())
    return f"; {where}{', widened as it is' if found.spec['widen'] else ': try widen=True'}{rough}"
