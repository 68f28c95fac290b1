"""Where a sweep stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import tyro

from twoclock.cli import options
from twoclock.cli.console import print_table, say


@dataclass
class StatusOptions:
    folder: Annotated[Path, tyro.conf.Positional]
    """The folder of a sweep."""


def command(args: Sequence[str]) -> int:
    """twoclock status DIR: what of a sweep is done, running, failed and diverged, and the time left."""
    from twoclock.sweeps.status import status

    now = status(options.parse(StatusOptions, args, "twoclock status").folder)
    left = "unknown yet" if now.seconds_left is None else str(timedelta(seconds=round(now.seconds_left)))
    if now.done == now.shards:
        left = "none, it is finished"
    elif not now.alive:
        left = "nobody is working on it; the same sweep with the same folder goes on"
    print_table(
        "",
        ("", ""),
        [
            ("done", f"{now.done} of {now.shards} shards, {now.runs_done:,} of {now.runs:,} runs"),
            ("running", f"{now.running} shards"),
            ("failed", f"{len(now.failed)} shards"),
            ("diverged", f"{now.diverged:,} runs"),
            ("time left", left),
        ],
    )
    for name, why in now.failed.items():
        say(f"  {name}: {why}")
    return 0
