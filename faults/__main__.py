"""``python -m faults [--scale S] [--seed N] [--only NAME …] [--workers N] [--write]``: run campaigns."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path

from faults.campaign import Outcome, campaigns, run, table

_LONGEST = [
    "concurrency",
    "signals",
    "kills",
    "determinism",
    "command_lines",
    "writers",
    "compilers",
    "caches",
    "constants",
    "fuzz",
]
PAGE = Path(__file__).parents[1] / "docs" / "faults.md"


def main() -> int:
    found = campaigns()
    parser = argparse.ArgumentParser(prog="python -m faults", description="Faults tried on purpose.")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of trials; 1 is the whole campaign")
    today = int(time.strftime("%Y%m%d"))
    parser.add_argument(
        "--seed", type=int, default=today, help="of what is drawn; the date by default, such as %(default)s"
    )
    parser.add_argument("--only", nargs="*", choices=list(found), default=list(found), help="these campaigns alone")
    parser.add_argument("--workers", type=int, default=2, help="campaigns side by side")
    parser.add_argument("--write", action="store_true", help="write the table to docs/faults.md")
    chosen = parser.parse_args()
    began = time.monotonic()
    print(f"seed {chosen.seed}; to repeat: python -m faults --scale {chosen.scale:g} --seed {chosen.seed}", flush=True)
    outcomes = _side_by_side(chosen.only, chosen.scale, chosen.seed, chosen.workers)
    lines = list(table(outcomes))
    print("\n".join(("", *lines)))
    if chosen.write:
        _write(lines, time.monotonic() - began, outcomes, chosen.seed)
    return 1 if any(outcome.failures for outcome in outcomes) else 0


def _side_by_side(names: list[str], scale: float, seed: int, workers: int) -> list[Outcome]:
    """Run the campaigns, the longest first, each in its own process."""
    order = sorted(names, key=lambda name: (_LONGEST.index(name) if name in _LONGEST else len(_LONGEST), name))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
        running = {pool.submit(run, name, scale, seed): name for name in order}
        done = {}
        for future in as_completed(running):
            done[running[future]] = outcome = future.result()
            count, failed = sum(outcome.counts.values()), len(outcome.failures)
            print(f"{outcome.name}: {count:,} trials, {failed} failures, {outcome.seconds:.0f} s", flush=True)
    return [done[name] for name in names]


def _write(lines: list[str], seconds: float, outcomes: list[Outcome], seed: int) -> None:
    head, _, _ = PAGE.read_text().partition("<!-- the table -->")
    made = (
        f"Python {platform.python_version()}, jax {version('jax')}, twoclock {version('twoclock')}, "
        f"{len(os.sched_getaffinity(0))} cores, {seconds / 60:.0f} minutes, seed {seed}."
    )
    failed = [f"* {trial.what}: {trial.trouble}" for outcome in outcomes for trial in outcome.failures]
    PAGE.write_text(
        "\n".join((f"{head}<!-- the table -->", "", *lines, "", made, *(("", *failed) if failed else ()), ""))
    )


if __name__ == "__main__":
    sys.exit(main())
