"""Figures over grids: of settings in a sweep, around the winner of tuning, and grid worlds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullFormatter

from twoclock.plot.curves import Summarised, curves
from twoclock.plot.style import COLOURS, LABELS, MARKERS, caption, figure, plain
from twoclock.protocols import InputError
from twoclock.storage.atomic_file import Document
from twoclock.validation import short_repr

if TYPE_CHECKING:
    import pandas as pd

#: Rows and columns that each action moves, in the order of Gymnasium's FrozenLake: left, down, right, up.
LEFT_DOWN_RIGHT_UP = ((0, -1), (1, 0), (0, 1), (-1, 0))
#: The same in the order of CliffWalking: up, right, down, left.
UP_RIGHT_DOWN_LEFT = ((-1, 0), (0, 1), (1, 0), (0, -1))

_MARKS = {"S": "start", "G": "goal", "H": "hole"}
_RANGE = 1e4  # shown above the best score
_LOST = "diverged, or worse than shown"
_FIXED = ("problem", "family", "method", "mean", "low", "high", "median", "diverged", "seeds")
_HATCH = "////"


class Swept(Protocol):
    """Runs over settings and problems, such as a ``Sweep``."""

    @property
    def spec(self) -> Document: ...

    def best(self, metric: str) -> pd.DataFrame:
        """The best setting of each family on each problem."""

    def final(self, metric: str) -> pd.DataFrame:
        """One row per setting and problem: the metric at the last step."""

    def result(self, problem: str, method: str) -> Summarised:
        """One of its runs."""


def sensitivity(
    ranking: pd.DataFrame, curve: pd.DataFrame, metric: str, spec: Document, edge: Mapping[str, str]
) -> Figure:
    """A panel for each setting: its values with the other settings at their best, and all settings tried to the end.

    If the chosen value lies at an edge of the box, that side is shaded and labelled. If the box was widened, a dotted
    line shows the limit that was given.

    Args:
        ranking, curve, metric, spec, edge: those of a ``Tuned``; ``curve`` is its ``sensitivity``.

    >>> import twoclock as tc
    >>> problem = tc.problems.quadratic(dim=2)
    >>> fig = tc.tune(problem, tc.Fast(), {"alpha.c": (0.1, 10)}, steps=100, rungs=2).plot()
    """
    names, best = list(spec["space"]), spec["best"]
    fig, axes = figure(1, len(names), width=4.2, height=3.6)
    tried = ranking[(ranking["steps"] == spec["steps"]) | (ranking["diverged"] > 0)]
    scores = np.concatenate([tried["score"], curve["score"]])
    scale = spec.get("scale", "log")
    if scale == "log":
        scores = scores[(scores > 0) & (scores <= _RANGE * np.abs(scores).min())]
        floor, ceiling, top = 0.5 * scores.min(), 4 / 1.5 * scores.max(), 4 * scores.max()
    else:  # a reward, with a minus sign
        scores = np.concatenate([scores, curve["low"], curve["high"]])
        scores = scores[np.isfinite(scores)]
        margin = 0.1 * np.ptp(scores) or 1.0
        floor, ceiling, top = scores.min() - margin, scores.max() + 1.5 * margin, scores.max() + 2 * margin
    for ax, name in zip(axes[0], names, strict=True):
        moved = curve[curve["setting"] == name]
        fine, line = (t[(t["diverged"] == 0) & (t["score"] <= top)] for t in (tried, moved))
        ax.plot(fine[name], np.maximum(fine["score"], floor), "o", color="0.7", markersize=4, label="other settings")
        score, low, high = (np.clip(line[column], floor, top) for column in ("score", "low", "high"))
        ax.errorbar(
            line["value"], score, [score - low, high - score], color=COLOURS[0], linewidth=1.6, marker="o",
            markersize=4, capsize=2, label="this one alone moved",
        )  # fmt: skip
        ax.plot(best[name], score[line["value"] == best[name]], "*", color=COLOURS[1], markersize=13, label="chosen")
        lost = np.concatenate(
            [tried.loc[~tried.index.isin(fine.index), name], moved.loc[~moved.index.isin(line.index), "value"]]
        )
        ax.plot(lost, np.full(len(lost), ceiling), "x", color=COLOURS[6], markersize=5, label=_LOST)
        ax.set(xscale="log", yscale=scale, xlim=spec["space"][name], ylim=(floor, top), xlabel=name.replace(",", ", "))
        low_limit, high_limit = spec["space"][name]
        for limit in set(spec["given"][name]) - {low_limit, high_limit}:
            ax.axvline(limit, color="0.4", linestyle=":", linewidth=1)
        if name in edge:
            tenth = (high_limit / low_limit) ** 0.1  # of the box, on the log scale
            band = (low_limit, low_limit * tenth) if edge[name] == "low" else (high_limit / tenth, high_limit)
            ax.axvspan(*band, color=COLOURS[1], alpha=0.25, linewidth=0)
            ax.set_title("at the edge of its box", fontsize="small", color=COLOURS[1])
        ax.xaxis.set_minor_formatter(NullFormatter())  # on a short range labels would overlap
    axes[0, 0].set_ylabel(LABELS.get(metric, metric))
    cols, legend = 4 if len(names) > 1 else 2, axes[0, 0].get_legend_handles_labels()
    fig.legend(*legend, loc="outside upper center", ncols=cols, frameon=False, fontsize="small")
    last = ranking.iloc[0]
    caption(
        fig,
        f"mean over {int(last['seeds'])} seeds after {int(last['steps']):,} steps; bars: 95 % bootstrap interval; "
        f"{len(ranking)} settings tried with {spec['spent']:,} seed-steps",
    )
    return fig


def tuned_scores(ranking: pd.DataFrame, metric: str, spec: Document) -> Figure:
    """The score of each method with its interval, the best at the top.

    Args:
        ranking, metric, spec: those of a ``TunedMethods``.

    >>> import twoclock as tc
    >>> rivals = {"fast": tc.Fast(), "standard": tc.Standard()}
    >>> fig = tc.tune(tc.problems.quadratic(dim=2), rivals, steps=100, rungs=2).plot()
    """
    fig, axes = figure(1, 1, width=6.0, height=1.2 + 0.4 * len(ranking))
    ax, places = axes[0, 0], np.arange(len(ranking))[::-1]
    score, low, high = (ranking[column].to_numpy() for column in ("score", "low", "high"))
    ax.errorbar(score, places, xerr=[score - low, high - score], fmt="o", color=COLOURS[0], capsize=3)
    if np.all(low > 0):
        ax.set_xscale("log")
    ax.set_yticks(places, [plain(label) for label in ranking["label"]])
    ax.set(xlabel=LABELS.get(metric, metric), ylim=(-0.6, len(ranking) - 0.4))
    first = ranking.iloc[0]
    caption(
        fig,
        f"mean over {int(first['seeds'])} seeds that no tuning had seen, {spec['steps']:,} steps; "
        f"bars: 95 % bootstrap interval; {spec['budget']:,} seed-steps to tune each",
    )
    return fig


def best_curves(sweep: Swept, metric: str, statistic: str = "mean") -> Figure:
    """Learning curves of the best setting of each family; a panel for each problem.

    Args:
        sweep: a ``Sweep``.
        metric: a recorded metric.
        statistic: "mean", "median" or "iqm", over seeds.

    >>> import twoclock as tc
    >>> grid = tc.grid(tc.Fast(), **{"alpha.c": [0.5, 1.0], "beta.c": [4, 8]})
    >>> sweep = tc.sweep({"bowl": tc.problems.quadratic(dim=2)}, {"fast": grid}, 100, 3)
    >>> fig = best_curves(sweep, "error")
    """
    best = sweep.best(metric)
    problems = list(dict.fromkeys(best["problem"]))
    fig, axes = figure(cols=len(problems), width=5.6, height=4.4)
    families = list(dict.fromkeys(entry["family"] for entry in sweep.spec["methods"].values()))
    for ax, problem in zip(axes[0], problems, strict=True):
        chosen = best[best["problem"] == problem]
        results = {row.method: sweep.result(problem, row.method) for row in chosen.itertuples()}
        colours = {row.method: COLOURS[families.index(row.family) % len(COLOURS)] for row in chosen.itertuples()}
        curves(ax, results, metric, statistic, colours)
        ax.set_title(plain(problem), fontsize="medium")
    caption(fig, f"best setting of each method by the mean at the last step; {_runs(sweep)}; band: 95 % bootstrap")
    return fig


def setting_curves(sweep: Swept, metric: str, setting: str | None = None) -> Figure:
    """The metric at the last step against one setting; other settings that vary are each at their best.

    Args:
        sweep: a ``Sweep``.
        metric: a recorded metric.
        setting: the path of the setting; the first that varies if None.

    >>> import twoclock as tc
    >>> grid = tc.grid(tc.Fast(), **{"alpha.c": [0.5, 1.0], "beta.c": [4, 8]})
    >>> sweep = tc.sweep({"bowl": tc.problems.quadratic(dim=2)}, {"fast": grid}, 100, 3)
    >>> fig = setting_curves(sweep, "error", "alpha.c")
    """
    table = sweep.final(metric)
    setting = _choose_setting(table, setting)
    problems = list(dict.fromkeys(table["problem"]))
    fig, axes = figure(cols=len(problems), width=5.2, height=4.2)
    for ax, problem in zip(axes[0], problems, strict=True):
        of_problem = table[table["problem"] == problem]
        for i, family in enumerate(dict.fromkeys(table["family"])):
            rows = of_problem[(of_problem["family"] == family) & of_problem[setting].notna()]
            if rows[setting].nunique() > 1:
                rows, colour, mark = _select_best(rows, [setting]), COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
                fine, bad = rows[rows["diverged"] == 0], rows[rows["diverged"] > 0]
                style = {"color": colour, "marker": mark, "markersize": 4, "linewidth": 1.6}
                ax.plot(fine[setting], fine["mean"], label=plain(family), **style)
                ax.fill_between(fine[setting], fine["low"], fine["high"], color=colour, alpha=0.2, linewidth=0)
                # A diverged setting has no meaningful mean; it is marked at the top edge.
                top, at = np.full(len(bad), 0.985 - 0.03 * i), ax.get_xaxis_transform()
                ax.plot(bad[setting], top, "x", color=colour, transform=at, markersize=6)
        ax.set(xscale="log", yscale="log", xlabel=setting, ylabel=plain(LABELS.get(metric, metric)))
        ax.margins(y=0.15)
        ax.set_title(plain(problem), fontsize="medium")
        ax.legend(frameon=False, fontsize="small")
    others = "other settings at their best; " if len(_varied_settings(table)) > 1 else ""
    caption(fig, f"mean of {_runs(sweep)}; {others}band: 95 % bootstrap; × at the top: seeds diverged")
    return fig


def setting_map(sweep: Swept, metric: str, x: str | None = None, y: str | None = None) -> Figure:
    """The metric at the last step over two settings; a panel for each problem and family that varies both.

    Args:
        sweep: a ``Sweep``.
        metric: a recorded metric.
        x, y: the paths of the two settings; the first two that vary if None.

    >>> import twoclock as tc
    >>> grid = tc.grid(tc.Fast(), **{"alpha.c": [0.5, 1.0], "beta.c": [4, 8]})
    >>> sweep = tc.sweep({"bowl": tc.problems.quadratic(dim=2)}, {"fast": grid}, 100, 3)
    >>> fig = setting_map(sweep, "error")
    """
    table = sweep.final(metric)
    families = [_varied_settings(rows) for _, rows in table.groupby("family", sort=False)]
    pairs = list(dict.fromkeys(pair for names in families for pair in itertools.combinations(names, 2)))
    for setting in (x, y):
        if setting is not None:
            _choose_setting(table, setting)
    wanted = [pair for pair in pairs if x in (None, *pair) and y in (None, *pair) and (x is None or x != y)]
    if not wanted:
        known = ", ".join(" and ".join(pair) for pair in pairs) or "none do"
        raise InputError(f"a map needs two settings that one method varies: {known}")
    first, second = wanted[0]
    x = x or (first if y != first else second)
    y = y or (second if x != second else first)
    panels = {
        (problem, family): _select_best(rows, [x, y])
        for (problem, family), rows in table.groupby(["problem", "family"], sort=False)
        if rows[x].nunique() > 1 and rows[y].nunique() > 1
    }
    fig, axes = figure(cols=len(panels), width=5.0, height=4.4)
    for ax, ((problem, family), rows) in zip(axes[0], panels.items(), strict=True):
        _draw_map(fig, ax, rows, x, y, plain(LABELS.get(metric, metric)))
        ax.set_title(plain(f"{problem}: {family}"), fontsize="medium")
    caption(fig, f"mean of {_runs(sweep)}; hatched: seeds diverged; star: the best")
    return fig


def _draw_map(fig: Figure, ax: Axes, rows: pd.DataFrame, x: str, y: str, label: str) -> None:
    ax.grid(visible=False)
    columns, lines = sorted(rows[x].unique()), sorted(rows[y].unique())
    at = rows.set_index([y, x])
    values = at["mean"].unstack(x).reindex(index=lines, columns=columns).to_numpy(float)
    diverged = at["diverged"].unstack(x).reindex(index=lines, columns=columns).fillna(0).to_numpy() > 0
    fine = np.where(diverged | ~np.isfinite(values), np.nan, values)
    if np.isfinite(fine).any():
        image = ax.imshow(
            fine, origin="lower", aspect="auto", cmap="cividis", norm=LogNorm() if np.nanmin(fine) > 0 else None
        )
        fig.colorbar(image, ax=ax, label=plain(label))
        best = np.unravel_index(np.nanargmin(fine), fine.shape)
        ax.plot(best[1], best[0], "*", color="w", markeredgecolor="k", markersize=12)
    for i, j in np.argwhere(diverged):
        ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor="0.93", edgecolor="0.45", hatch=_HATCH, linewidth=0))
    ax.set_xticks(range(len(columns)), [f"{v:.3g}" for v in columns], fontsize="x-small", rotation=40)
    ax.set_yticks(range(len(lines)), [f"{v:.3g}" for v in lines], fontsize="x-small")
    ax.set(xlabel=x, ylabel=y, xlim=(-0.5, len(columns) - 0.5), ylim=(-0.5, len(lines) - 0.5))


def _select_best(rows: pd.DataFrame, settings: list[str]) -> pd.DataFrame:
    """One row for each value of the settings, with the other settings at their best."""
    ranked = rows.sort_values(["diverged", "mean"], kind="stable")
    return ranked.groupby(settings, sort=True).head(1).sort_values(settings)


def _varied_settings(table: pd.DataFrame) -> list[str]:
    settings = [name for name in table.columns if name not in _FIXED]
    return [name for name in settings if (table.groupby(["problem", "family"])[name].nunique() > 1).any()]


def _choose_setting(table: pd.DataFrame, setting: str | None) -> str:
    """The setting, or the first that varies."""
    known = _varied_settings(table)
    if not known:
        raise InputError("this sweep varies no setting; make one with `tc.grid`")
    if setting is not None and (not isinstance(setting, str) or setting not in known):
        raise InputError(f"`setting` {short_repr(setting)} does not vary in this sweep; what does: {', '.join(known)}")
    return setting or known[0]


def _runs(sweep: Swept) -> str:
    return f"{len(sweep.spec['identity']['seeds'])} seeds after {sweep.spec['identity']['steps']:,} steps"


def grid_world(
    ax: Axes,
    values: np.ndarray,
    policy: np.ndarray,
    cells: Sequence[str | bytes] | Sequence[Sequence[str | bytes]] | np.ndarray,
    moves: Sequence[tuple[int, int]] = LEFT_DOWN_RIGHT_UP,
) -> None:
    """A map with the value of each cell and an arrow for each action; its length is the action's probability.

    Args:
        ax: the axes to draw in.
        values: V, one number per state; states are numbered row by row.
        policy: π[s, a].
        cells: the map, rows of letters as in ``env.unwrapped.desc``: S start, G goal, H hole.
        moves: the intended (row, column) step of each action.

    >>> fig, ((ax,),) = figure()
    >>> grid_world(ax, np.array([0.2, 1.0]), np.full((2, 4), 0.25), ["SG"])
    """
    cells = [row.decode() if isinstance(row, bytes) else row for row in cells]  # Gymnasium has its maps in bytes
    letters = np.array([[c.decode() if isinstance(c, bytes) else c for c in row] for row in cells])
    rows, cols = letters.shape
    if values.shape != (rows * cols,) or policy.shape != (rows * cols, len(moves)):
        raise InputError(
            f"`values` and `policy` must fit the {rows}×{cols} map and its {len(moves)} moves, got the shapes "
            f"{values.shape} and {policy.shape}"
        )
    worth = values.reshape(rows, cols)
    live = ~np.isin(letters, ["G", "H"])
    ax.grid(visible=False)
    ax.imshow(np.where(live, worth, np.nan), cmap="Blues", vmin=worth[live].min(), vmax=worth[live].max() * 1.8)
    for (i, j), letter in np.ndenumerate(letters):
        if letter in "GH":
            ax.fill_between([j - 0.5, j + 0.5], i - 0.5, i + 0.5, color="#E69F00" if letter == "G" else "0.25", lw=0)
        if letter in _MARKS:
            at = (j, i) if letter in "GH" else (j, i - 0.4)
            ax.text(*at, _MARKS[letter], ha="center", va="center", fontsize=7, color="w" if letter == "H" else "k")
        if live[i, j]:
            ax.text(j, i + 0.4, f"{worth[i, j]:.3g}", ha="center", va="center", fontsize=6)
    y, x = np.nonzero(live)
    shares = policy[np.flatnonzero(live.ravel())]
    for a, (down, right) in enumerate(moves):
        shown = shares[:, a] > 0.02
        length = 0.32 * shares[shown, a]
        ax.quiver(
            x[shown], y[shown] - 0.06, right * length, down * length, angles="xy", scale_units="xy", scale=1,
            width=0.005, headwidth=3.2, headlength=3.6, minlength=0.6, color="#D55E00",
        )  # fmt: skip
    ax.set_xticks(np.arange(cols + 1) - 0.5, [])
    ax.set_yticks(np.arange(rows + 1) - 0.5, [])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.grid(visible=True, color="w", linewidth=1)
    ax.set(xlim=(-0.5, cols - 0.5), ylim=(rows - 0.5, -0.5), aspect="equal")
