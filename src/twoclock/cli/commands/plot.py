"""Draw records again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from twoclock import record
from twoclock.cli import options
from twoclock.cli.console import draw_comparison, main_metric, say_figures
from twoclock.core import InputError
from twoclock.result import load


@dataclass
class PlotOptions:
    folder: Annotated[Path, tyro.conf.Positional]
    """A run folder, or a folder of run folders to compare."""
    metric: str | None = None
    """What to draw; the first recorded metric that measures progress if left out."""
    statistic: Literal["mean", "median", "iqm"] = "mean"
    """How to sum up the seeds."""


def command(args: Sequence[str]) -> int:
    """twoclock plot DIR [--metric M] [--statistic S]: draw a record again, or several together."""
    chosen = options.parse(PlotOptions, args, "twoclock plot")
    if record.is_complete(chosen.folder):
        results = {chosen.folder.resolve().name: load(chosen.folder)}
    else:
        found = record.results_below(chosen.folder)
        if not found:
            raise InputError(
                f"`DIR` must hold a run, {chosen.folder} has none; make one with `twoclock run … --out DIR`"
            )
        results = {name: load(path) for name, path in found.items()}
    metric = chosen.metric or main_metric(next(iter(results.values())))
    say_figures(draw_comparison(results, record.writable(chosen.folder), metric, chosen.statistic))
    return 0
