"""Curves over steps: metrics, confidence bands of one run, and how often intervals cover."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twoclock.plot.style import COLOURS, LABELS, MARKERS, caption, figure, panels_for, plain
from twoclock.protocols import InputError
from twoclock.storage.atomic_file import Document
from twoclock.validation import check_labels, lookup, short_repr

if TYPE_CHECKING:
    import pandas as pd

_STATISTICS = {"mean": "mean", "median": "median", "iqm": "interquartile mean"}
_STEPS = "steps k (one sample each)"
_COLUMNS = {"step": (0, math.inf), "level": (0, 1), "coverage": (0, 1), "runs": (1, math.inf)}  # and their ranges
_MOST_PANELS = 6
_WORSE = 1e3  # times the start; a line that goes beyond, because seeds diverged, leaves the panel
_BEYOND = 30.0  # room above the highest line
_SETTLED = 0.02  # of the steps: earlier bands are too wide for the range of the panel


class Summarised(Protocol):
    """A run that can be summarised over its seeds, such as a ``Result``."""

    @property
    def spec(self) -> Document: ...

    def summary(self, metric: str) -> pd.DataFrame:
        """One row per step: mean, median, iqm, low, high, seeds, diverged."""


def curves(
    ax: Axes,
    results: Mapping[str, Summarised],
    metric: str,
    statistic: str = "mean",
    colours: Mapping[str, str] | None = None,
    unit: Mapping[str, float] | None = None,
    xlabel: str = _STEPS,
) -> None:
    """A line for each result, log-log, with the 95 % bootstrap band of the mean and the count of diverged seeds.

    Metrics that may be negative, such as rewards, have a linear axis. ``unit`` is the length of a step on the x axis,
    in the unit of ``xlabel``.

    Args:
        ax: the axes to draw in.
        results: the results by label.
        metric: a recorded metric.
        statistic: "mean", "median" or "iqm", over seeds.
        colours: colours by label; others are Okabe & Ito's.
        unit: the length of a step on the x axis by label, in the unit of ``xlabel``.
        xlabel: the label of the x axis.

    >>> import twoclock as tc
    >>> problem = tc.problems.quadratic(dim=2)
    >>> results = tc.solve(problem, {"fast": tc.Fast(), "standard": tc.Standard()}, steps=100, seeds=3)
    >>> fig, ((ax,),) = figure()
    >>> curves(ax, results, "error")
    """
    if not isinstance(statistic, str) or statistic not in _STATISTICS:
        raise InputError(f"`statistic` must be one of {', '.join(_STATISTICS)}, got {short_repr(statistic)}")
    scale, tops = "log", list[float]()
    for i, (label, result) in enumerate(results.items()):
        table, colour = _summarise(result, metric), (colours or {}).get(label, COLOURS[i % len(COLOURS)])
        if (table[statistic] < 0).any():
            scale = "linear"
        cost, diverged = table["step"] * (unit[label] if unit else 1.0), int(table["diverged"].iloc[-1])
        lost = f" ({diverged}/{table['seeds'].iloc[-1]} diverged)" if diverged else ""
        tops.append(_top(table[statistic], table["median"], lost=bool(diverged)))
        _draw_line(ax, i, cost, table[statistic], label + lost, colour)
        finite = np.isfinite(table["low"]) & np.isfinite(table["high"])
        if statistic == "mean" and finite.any():
            ax.fill_between(cost, table["low"], table["high"], where=finite, color=colour, alpha=0.2, linewidth=0)
    _finish(ax, xlabel, LABELS.get(metric, metric), scale)
    if tops and np.isfinite(max(tops)) and ax.get_ylim()[1] > _BEYOND * max(tops) > 0:
        ax.set_ylim(top=_BEYOND * max(tops))
        if scale == "log":  # the margin below was a share of the decades up to the diverged seeds
            shown = np.concatenate([np.asarray(line.get_ydata(), float) for line in ax.lines])
            ax.set_ylim(bottom=shown[shown > 0].min() / _BEYOND)


def _top(shown: pd.Series[float], median: pd.Series[float], *, lost: bool) -> float:
    """The upper limit for a line: its maximum or, where seeds diverged, that of the median seed and of the start."""
    finite = shown[np.isfinite(shown)]
    if not lost or finite.empty:
        return float(finite.max()) if len(finite) else -math.inf
    middle = median[np.isfinite(median)]
    return float(min(middle.max(), _WORSE * abs(middle.iloc[0]))) if len(middle) else -math.inf


def ratios(
    ax: Axes,
    pairs: Mapping[str, tuple[Summarised, Summarised]],
    metric: str,
    rule: float | None = None,
    ylabel: str | None = None,
) -> None:
    """For each pair of results the mean of the first over that of the second, and a line at the required ratio.

    Args:
        ax: the axes to draw in.
        pairs: label → two results.
        metric: a recorded metric.
        rule: the required ratio.
        ylabel: the label of the y axis.

    >>> import twoclock as tc
    >>> problem = tc.problems.quadratic(dim=2)
    >>> results = tc.solve(problem, {"fast": tc.Fast(), "standard": tc.Standard()}, steps=100, seeds=3)
    >>> fig, ((ax,),) = figure()
    >>> ratios(ax, {"fast / standard": (results["fast"], results["standard"])}, "error")
    """
    for i, (label, pair) in enumerate(pairs.items()):
        ours, theirs = (_summarise(result, metric) for result in pair)
        ratio = ours["mean"].to_numpy() / theirs["mean"].to_numpy()
        _draw_line(ax, i, ours["step"], ratio, label, COLOURS[i % len(COLOURS)])
    if rule is not None:
        ax.axhline(rule, color="0.45", linestyle="--", linewidth=1, zorder=1)
    _finish(ax, _STEPS, ylabel or f"ratio of {metric}")


def slope(ax: Axes, exponent: float, anchor: tuple[float, float], label: str) -> None:
    """A dashed reference line ∝ k^exponent from the anchor (k, value) to the right edge, labelled at its end.

    Args:
        ax: the axes to draw in.
        exponent: of the line.
        anchor: its first point.
        label: its label.

    >>> fig, ((ax,),) = figure()
    >>> slope(ax, -1.0, (10.0, 0.1), "1/k")
    """
    right = max(ax.get_xlim()[1], anchor[0] * 10)
    k = np.geomspace(anchor[0], right, 50)
    ax.plot(k, anchor[1] * (k / anchor[0]) ** exponent, color="0.45", linestyle="--", linewidth=1, zorder=1)
    middle = k[25], anchor[1] * (k[25] / anchor[0]) ** exponent
    ax.annotate(
        label, middle, (-4, -4), textcoords="offset points", fontsize="x-small", color="0.35", ha="right", va="top"
    )


def compare(
    results: Mapping[str, Summarised],
    metric: str,
    statistic: str = "mean",
    title: str | None = None,
    *,
    ax: Axes | None = None,
    scale: Literal["log", "linear"] = "log",
    size: tuple[float, float] = (6.4, 4.6),
) -> Figure:
    """One panel with a line for each result, its settings underneath.

    Args:
        results: the results to compare, by label.
        metric: one of the recorded metrics.
        statistic: "mean", "median" or "iqm", over seeds.
        title: above the panel; the problem's name if None.
        ax: an axes to draw in, instead of a new figure; its figure is returned without a caption.
        scale: "log" or "linear".
        size: width and height of a new figure, in inches.

    >>> import twoclock as tc
    >>> problem = tc.problems.quadratic(dim=2)
    >>> results = tc.solve(problem, {"fast": tc.Fast(), "standard": tc.Standard()}, steps=100, seeds=3)
    >>> fig = compare(results, "error")
    """
    if not isinstance(results, Mapping) or not results or not all(hasattr(r, "summary") for r in results.values()):
        raise InputError("`results` must map labels to results, one or more; try `{'Fast': result, …}`")
    check_labels("results", results)
    fig, (panel,) = panels_for(1, ax, scale, size)
    curves(panel, results, metric, statistic)
    if scale == "linear":
        panel.set(xscale="linear", yscale="linear")
    one = next(iter(results.values())).spec
    panel.set_title(plain(title or one["problem"]["name"]), fontsize="medium")
    if ax is None:
        seeds = len(one["seeds"])
        band = "; band: 95 % bootstrap interval of the mean over seeds" if statistic == "mean" and seeds > 1 else ""
        caption(fig, f"{_STATISTICS[statistic]} over {seeds} seeds, {one['steps']:,} steps, {one['precision']}{band}")
    return fig


def _summarise(result: Summarised, metric: str) -> pd.DataFrame:
    table = result.summary(metric)
    return table[table["step"] > 0]  # a log axis has no step 0


def _draw_line(
    ax: Axes, i: int, x: pd.Series[float], y: pd.Series[float] | np.ndarray, label: str, colour: str
) -> None:
    ax.plot(
        x, y, color=colour, linewidth=1.6, label=plain(label), marker=MARKERS[i % len(MARKERS)], markersize=3.5,
        markevery=max(1, len(x) // 8),
    )  # fmt: skip


def _finish(ax: Axes, xlabel: str, ylabel: str, scale: str = "log") -> None:
    ax.set(xscale="log", yscale=scale, xlabel=xlabel, ylabel=plain(ylabel))
    ax.legend(frameon=False, fontsize="small")


def intervals(
    frame: pd.DataFrame,
    title: str,
    level: float,
    output: str | None = None,
    *,
    ax: Axes | None = None,
    scale: Literal["log", "linear"] = "log",
    size: tuple[float, float] = (6.4, 4.6),
) -> Figure:
    """A panel for each of the first outputs, or for the one that is named.

    Args:
        frame: of one seed, with columns step, seed, output, estimate, low, high, note. With anytime_low and
            anytime_high there is a second band, for all steps together.
        title: the title of the figure.
        level: the coverage of the intervals.
        output: a single output to draw.
        ax: an axes to draw one output in, instead of a new figure; its figure is returned without a caption.
        scale: of the step axis, "log" or "linear".
        size: width and height of a new figure, in inches.

    >>> import twoclock as tc
    >>> method = tc.Polyak(tc.Standard("1/(k+20)^0.6", "4/(k+20)^0.6"), intervals=True)
    >>> fig = tc.solve(tc.problems.quadratic(dim=2), method, steps=500, seeds=2).plot(intervals=True)
    """
    of_output = {str(name): part for name, part in frame.groupby("output", sort=False)}
    names = list(of_output)
    chosen = names[: 1 if ax is not None else _MOST_PANELS]
    if output is not None:
        lookup(of_output, output, "metric")
        chosen = [output]
    seed, last = frame["seed"].iloc[0], int(frame["step"].iloc[-1])
    fig, panels = panels_for(len(chosen), ax, scale, size)
    band = f"{100 * level:g} % confidence band of this one run (seed {seed}),\nfor one look at a step chosen beforehand"
    anytime = f"{100 * level:g} % at all steps together:\nvalid at any stopping time"
    for panel, name in zip(panels, chosen, strict=True):
        _draw_band(panel, of_output[name], name, band, anytime)
        panel.set_xscale(scale)
    if ax is None:
        fig.legend(
            *panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False, fontsize="small"
        )
        fig.suptitle(plain(title), fontsize="medium", x=0.02, ha="left")
        rest = f"; {len(chosen)} of {len(names)} outputs" if len(chosen) < len(names) else ""
        caption(fig, f"mean of the iterates of seed {seed}, {last:,} steps{rest}; no spread over seeds is shown")
    else:
        ax.legend(frameon=False, fontsize="x-small")
    return fig


def _draw_band(ax: Axes, path: pd.DataFrame, name: str, band: str, anytime: str) -> None:
    path = path.replace([-np.inf, np.inf], np.nan)
    step, estimate, low, high = (path[column].to_numpy(float) for column in ("step", "estimate", "low", "high"))
    note = path["note"].iloc[-1]
    ax.plot(step, estimate, color=COLOURS[0], linewidth=1.6, label="estimate")
    ax.fill_between(step, low, high, color=COLOURS[4], alpha=0.35, linewidth=0.8, edgecolor=COLOURS[4], label=band)
    if "anytime_low" in path and path["anytime_low"].notna().any():
        widest = path["anytime_low"].to_numpy(float), path["anytime_high"].to_numpy(float)
        ax.fill_between(step, *widest, color=COLOURS[2], alpha=0.2, linewidth=0.8, edgecolor=COLOURS[2], label=anytime)
        low, high = np.fmin(low, widest[0]), np.fmax(high, widest[1])
    late = (step >= _SETTLED * step[-1]) & np.isfinite(low)
    if late.any():
        bottom, top = low[late].min(), high[late].max()
        margin = 0.05 * (top - bottom) or 0.05 * abs(top) or 1.0
        ax.set_ylim(bottom - margin, top + margin)
    ax.set(xlabel=_STEPS, ylabel=plain(name))
    if note:
        ax.set_title(textwrap.fill(f"not to be trusted: {note}", 50), fontsize="x-small", color=COLOURS[1], loc="left")


def coverage(frame: pd.DataFrame, title: str | None = None) -> Figure:
    """Coverage against samples: a line for each nominal level with its 95 % binomial error, the level dashed.

    Args:
        frame: one row per step and level: ``step``, ``level``, ``coverage`` (the share of intervals that covered) and
            ``runs`` (the number of independent runs; outputs of one run are not independent). With a column ``label``,
            there is a panel per label.
        title: the title of the figure.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"step": [1000, 10000], "level": 0.95, "coverage": [0.91, 0.946], "runs": 1000})
    >>> fig = coverage(frame)  # tc.plot.coverage
    """
    columns = list(getattr(frame, "columns", ()))
    if missing := [name for name in _COLUMNS if name not in columns]:
        raise InputError(f"`frame` must have the columns {', '.join(_COLUMNS)}; it lacks {', '.join(missing)}")
    for name, (start, end) in _COLUMNS.items():
        values = frame[name].to_numpy(float)
        if not len(values) or not np.all((values >= start) & (values <= end) & np.isfinite(values)):
            raise InputError(
                f"`frame` must have `{name}` in [{start}, {end}], in one row or more, got {short_repr(values.tolist())}"
            )
    by_label = {"": frame}
    if "label" in frame:
        by_label = {str(label): part for label, part in frame.groupby("label", sort=False)}
    cols = min(3, len(by_label))
    rows = math.ceil(len(by_label) / cols)
    fig, axes = figure(rows, cols, width=4.6 if cols > 1 else 5.8, height=3.9)
    for ax in list(axes.flat)[len(by_label) :]:
        ax.set_visible(False)
    levels = sorted(frame["level"].unique())
    for ax, (label, of_label) in zip(axes.flat, by_label.items(), strict=False):
        for i, level in enumerate(levels):
            line = of_label[of_label["level"] == level].sort_values("step")
            share, colour = line["coverage"].to_numpy(float), COLOURS[i % len(COLOURS)]
            low, high = binomial(share, line["runs"].to_numpy(float))
            # Side by side: bars of several levels at one step would hide each other.
            aside = 1.04 ** (i - (len(levels) - 1) / 2)
            ax.errorbar(
                line["step"] * aside, share, [share - low, high - share], color=colour, linewidth=1.4, capsize=2,
                marker=MARKERS[i % len(MARKERS)], markersize=4, label=f"{100 * level:g} %",
            )  # fmt: skip
            ax.axhline(level, color=colour, linestyle="--", linewidth=0.9, alpha=0.8, zorder=1)
        ax.set(xscale="log", xlabel="samples", ylabel="share of intervals that cover", title=plain(label))
        # The points are beside their step, so only the steps are labelled on the axis.
        steps = sorted(of_label["step"].unique())
        ax.set_xticks(steps, [f"{step:,}" for step in steps])
        ax.set_xticks([], minor=True)
        ax.set_xlim(steps[0] / 1.5, steps[-1] * 1.5)
        bottom = min(frame["coverage"].min(), frame["level"].min())
        ax.set_ylim(max(0.0, bottom - 0.08), 1.01)
    axes[0, 0].legend(frameon=False, fontsize="small", title="nominal", title_fontsize="small", loc="lower right")
    if title is not None:
        fig.suptitle(plain(title), fontsize="medium")
    least, most = int(frame["runs"].min()), int(frame["runs"].max())
    runs = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    caption(fig, f"{runs} independent runs; bars: 95 % binomial error (Wilson); dashed: what is promised")
    return fig


def binomial(share: np.ndarray, runs: np.ndarray, z: float = 1.959964) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval of a share of ``runs`` runs, which lies inside [0, 1] and contains the share.

    Args:
        share: the shares.
        runs: the numbers of runs.
        z: the quantile of the normal law; 1.96 for 95 %.

    >>> low, high = binomial(np.array([0.95]), np.array([400]))
    >>> low.round(3).item(), high.round(3).item()
    (0.924, 0.967)
    """
    middle = (share + z**2 / (2 * runs)) / (1 + z**2 / runs)
    half = z / (1 + z**2 / runs) * np.sqrt(share * (1 - share) / runs + z**2 / (4 * runs**2))
    return np.minimum(middle - half, share), np.maximum(middle + half, share)
