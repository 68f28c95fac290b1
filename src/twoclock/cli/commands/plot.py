"""Draw saved runs again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from twoclock import storage
from twoclock.cli import draw_comparison, main_metric, say
from twoclock.cli.options import option, parse
from twoclock.protocols import InputError
from twoclock.result import Result, load, so_far


@dataclass
class PlotOptions:
    folder: Path = option(
        "A run folder, also of an interrupted run, or a folder of run folders to compare.", positional=True
    )
    metric: str | None = option("What to draw; the first recorded metric that measures progress if left out.", None)
    statistic: Literal["mean", "median", "iqm"] = option("How to sum up the seeds.", "mean")


def command(args: Sequence[str]) -> int:
    """twoclock plot DIR [--metric M] [--statistic S]: draw a record again, or several together."""
    chosen = parse(PlotOptions, args, "twoclock plot")
    if storage.is_complete(chosen.folder):
        results = {chosen.folder.resolve().name: load(chosen.folder)}
    else:
        found = storage.results_below(chosen.folder)
        if not found and (started := so_far(chosen.folder)):
            return _draw_interrupted(started, chosen)
        if not found:
            raise InputError(
                f"`DIR` must hold a run, {chosen.folder} has none; make one with `twoclock run … --out DIR`"
            )
        results = {name: load(path) for name, path in found.items()}
    metric = chosen.metric or main_metric(next(iter(results.values())))
    draw_comparison(results, storage.writable(chosen.folder), metric, chosen.statistic)
    return 0


def _draw_interrupted(started: dict[str, Result], chosen: PlotOptions) -> int:
    """The marks up to the checkpoint; what recorded no metric yet has nothing to draw."""
    results = {label or result.spec["method"]["name"]: result for label, result in started.items() if result.metrics}
    if not results:
        raise InputError(f"`DIR` {chosen.folder} holds a run that has recorded nothing yet; wait, or go on with it")
    one = next(iter(results.values()))
    title = f"{one.spec['problem']['name']}, interrupted at step {one.spec['steps']:,} of {one.spec['of']:,}"
    metric = chosen.metric or main_metric(one)
    say(title)
    draw_comparison(results, storage.writable(chosen.folder), metric, chosen.statistic, title)
    return 0
