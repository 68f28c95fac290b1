"""``python -m faults [--scale S] [--only NAME …] [--write]``: run the campaigns, print the table."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

from faults.campaign import Outcome, campaigns, table

PAGE = Path(__file__).parents[1] / "docs" / "faults.md"


def main() -> int:
    found = campaigns()
    parser = argparse.ArgumentParser(prog="python -m faults", description="Faults tried on purpose.")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of trials; 1 is the whole campaign")
    parser.add_argument("--only", nargs="*", choices=list(found), default=list(found), help="these campaigns alone")
    parser.add_argument("--write", action="store_true", help="write the table to docs/faults.md")
    chosen = parser.parse_args()
    began, outcomes = time.monotonic(), []
    for name in chosen.only:
        print(f"{found[name].NAME} …", flush=True)
        outcomes.append(Outcome(found[name].NAME).run(found[name].trials(chosen.scale)))
        done = outcomes[-1]
        print(
            f"  {sum(done.counts.values()):,} trials, {len(done.failures)} failures, {done.seconds:.0f} s", flush=True
        )
    lines = list(table(outcomes))
    print("\n".join(("", *lines)))
    if chosen.write:
        _write(lines, time.monotonic() - began, outcomes)
    return 1 if any(outcome.failures for outcome in outcomes) else 0


def _write(lines: list[str], seconds: float, outcomes: list[Outcome]) -> None:
    head, _, _ = PAGE.read_text().partition("<!-- the table -->")
    made = (
        f"Python {platform.python_version()}, jax {version('jax')}, twoclock {version('twoclock')}, "
        f"{len(os.sched_getaffinity(0))} cores, {seconds / 60:.0f} minutes."
    )
    failed = [f"* {trial.what}: {trial.trouble}" for outcome in outcomes for trial in outcome.failures]
    PAGE.write_text(
        "\n".join((f"{head}<!-- the table -->", "", *lines, "", made, *(("", *failed) if failed else ()), ""))
    )


if __name__ == "__main__":
    sys.exit(main())
