"""Progress of a sweep or a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from twoclock import storage
from twoclock.cli import print_table, say
from twoclock.cli.options import option, parse
from twoclock.result import load, so_far


@dataclass
class StatusOptions:
    folder: Path = option("The folder of a sweep or of a run.", positional=True)


def command(args: Sequence[str]) -> int:
    """twoclock status DIR: how far a sweep or a run is, what failed or diverged, and the time left."""
    from twoclock.sweeps.progress import status

    folder = parse(StatusOptions, args, "twoclock status").folder
    if storage.is_complete(folder):
        say(f"finished: {load(folder)!r}")
        return 0
    if started := so_far(folder):  # the step of each method at its last checkpoint
        rows = []
        for label, result in started.items():
            run = result.spec
            at = f"{run['steps']:,} of {run['of']:,} ({run['steps'] / max(run['of'], 1):.0%})"
            diverged = f"{int(result.diverged.sum())} of {len(run['seeds'])}"
            rows.append((run["problem"]["name"], label or run["method"]["name"], at, diverged))
        print_table("", ("problem", "method", "step", "diverged"), rows)
        going = storage.is_held(folder)
        say("it is running" if going else "no process is working on it; the same run with the same folder resumes it")
        return 0
    now = status(folder)
    left = "unknown yet" if now.seconds_left is None else str(timedelta(seconds=round(now.seconds_left)))
    if now.done == now.shards:
        left = "none, it is finished"
    elif not now.alive:
        left = "no process is working on it; the same sweep with the same folder resumes it"
    table = {
        "done": f"{now.done} of {now.shards} shards, {now.runs_done:,} of {now.runs:,} runs",
        "running": f"{now.running} shards",
        "failed": f"{len(now.failed)} shards",
        "diverged": f"{now.diverged:,} runs",
        "time left": left,
    }
    print_table("", ("", ""), list(table.items()))
    for name, why in now.failed.items():
        say(f"  {name}: {why}")
    return 0
