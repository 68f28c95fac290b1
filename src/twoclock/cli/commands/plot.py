"""Draw saved runs again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from twoclock import storage
from twoclock.cli import draw_sweep, main_metric, save_figure, say
from twoclock.cli.options import option, parse
from twoclock.protocols import InputError
from twoclock.result import load, so_far


@dataclass
class PlotOptions:
    folder: Path = option(
        "The folder of a run (finished or interrupted), of a sweep, or of several runs to compare.", positional=True
    )
    metric: str | None = option("What to draw; the first recorded metric that measures progress if left out.", None)
    statistic: Literal["mean", "median", "iqm"] = option("How to sum up the seeds.", "mean")


def command(args: Sequence[str]) -> int:
    """twoclock plot DIR [--metric M] [--statistic S]: draw a record again, or several together."""
    from twoclock import plot
    from twoclock.sweeps.sweep_result import Sweep

    chosen, title = parse(PlotOptions, args, "twoclock plot"), None
    if (chosen.folder / "sweep.json").is_file():
        sweep = Sweep.load(chosen.folder)
        draw_sweep(sweep, chosen.metric or main_metric(sweep), chosen.statistic, storage.writable(chosen.folder))
        return 0
    if storage.is_complete(chosen.folder):
        results = {chosen.folder.resolve().name: load(chosen.folder)}
    elif found := storage.results_below(chosen.folder):
        results = {name: load(path) for name, path in found.items()}
    elif started := so_far(chosen.folder):  # a run without a recorded metric has nothing to draw
        results = {label or each.spec["method"]["name"]: each for label, each in started.items() if each.metrics}
        if not results:
            raise InputError(f"`DIR` {chosen.folder} holds a run that has recorded nothing yet; wait, or resume it")
        one = next(iter(results.values())).spec
        title = f"{one['problem']['name']}, interrupted at step {one['steps']:,} of {one['of']:,}"
        say(title)
    else:
        raise InputError(f"`DIR` must hold a run, {chosen.folder} has none; make one with `twoclock run … --out DIR`")
    metric = chosen.metric or main_metric(next(iter(results.values())))
    fig = plot.compare(results, metric, chosen.statistic, title)
    save_figure(fig, storage.writable(chosen.folder), metric)
    return 0
