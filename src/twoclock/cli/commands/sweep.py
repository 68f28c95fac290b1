"""Run a sweep from a file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from twoclock.cli import ERR, main_metric, print_table, resumable, save_figure, say
from twoclock.cli.options import EngineOption, option, parse
from twoclock.engine.engines import VARIABLE


@dataclass
class SweepOptions:
    spec: Path = option(
        "A TOML file: steps, seeds, [problems.LABEL] and [methods.LABEL] with a name, settings and a grid.",
        positional=True,
    )
    out: Path | None = option(
        "Folder for the data set; by default runs/ and the name of the file. What is there already is not run again.",
        None,
    )
    on: Literal["local", "ray"] = option("Where to run.", "local")
    address: str | None = option("Of the Ray cluster, host:port; started on this machine if left out.", None)
    shared: bool = option("Ray workers write to --out themselves, a folder that they all see.", False)
    metric: str | None = option("What to draw; the first recorded metric that measures progress if left out.", None)
    engine: EngineOption = option(
        'What walks the steps: XLA always can, "c" and "cuda" compile a program for them.', "auto"
    )
    yes: bool = option("Do not ask back when the grid is very large.", False)


def command(args: Sequence[str]) -> int:
    """twoclock sweep SPEC.toml [--on ray] [--out DIR] [--yes]: run a grid of settings as one resumable data set."""
    from twoclock import plot
    from twoclock.sweeps import ShardsFailed, sweep, toml_spec

    chosen = parse(SweepOptions, args, "twoclock sweep")
    if chosen.engine != "auto":
        os.environ[VARIABLE] = chosen.engine  # for the rest of the process and its child processes
    wanted = toml_spec.read(chosen.spec, however_many=chosen.yes)
    out = chosen.out or Path("runs") / chosen.spec.stem
    try:
        with resumable(shlex.join(["twoclock", "sweep", *args])):
            found = sweep(
                **wanted, out=out, on=chosen.on, address=chosen.address, shared=chosen.shared, progress=True
            )  # fmt: skip
    except ShardsFailed as trouble:
        say(f"twoclock: {trouble}", ERR)
        return 1
    metric = chosen.metric or main_metric(found)
    best = found.best(metric)
    rows = [
        (str(r.problem), str(r.method), f"{r.mean:.4g}", f"{r.low:.3g} … {r.high:.3g}", f"{r.diverged}/{r.seeds}")
        for r in best.itertuples()
    ]
    print_table(f"best by {metric}", ("problem", "method", "mean", "95 % interval", "diverged"), rows)
    figures = {"best": found.plot_best(metric)}
    if plot.varied(found, metric):
        figures["sensitivity"] = found.plot_sensitivity(metric)
    if plot.varied_together(found, metric):
        figures["map"] = found.plot_map(metric)
    for name, fig in figures.items():
        save_figure(fig, out, f"{metric}-{name}")
    say(f"  {(out / 'history').absolute()}")
    return 0
