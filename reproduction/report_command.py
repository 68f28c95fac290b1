"""Write the report again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from twoclock import registry, storage
from twoclock.cli.options import option, parse
from twoclock.protocols import InputError


@dataclass
class ReportOptions:
    folder: Path = option("The folder `full` or `quick` of a reproduction.", positional=True)


def command(args: Sequence[str]) -> int:
    """twoclock report DIR: draw, judge and write the report again, from the records of a reproduction alone."""
    from reproduction.print_report import publish
    from reproduction.runner import run_experiment

    chosen = parse(ReportOptions, args, "twoclock report")
    folder = chosen.folder.expanduser().absolute()
    quick = folder.name == "quick"
    known = registry.experiments()
    found = {name: module for name, module in known.items() if (folder / name).is_dir()}
    if not found or not storage.note(folder, "reproduction"):
        raise InputError(
            f"`DIR` must be a reproduction's `full` or `quick` folder, {folder} is none; "
            "make one with `twoclock reproduce`"
        )
    outcomes = {name: run_experiment(name, module, folder, quick=quick, run=False) for name, module in found.items()}
    publish(outcomes, found, folder, quick=quick, command=shlex.join(["twoclock", "report", *args]))
    return 0
