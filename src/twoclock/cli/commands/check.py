"""Verify the checksums of saved files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from twoclock.cli import print_table, say
from twoclock.cli.options import option, parse


@dataclass
class CheckOptions:
    folder: Path = option("A run, a sweep, a reproduction, a checkpoint, or a folder of them.", positional=True)


def command(args: Sequence[str]) -> int:
    """twoclock check DIR: compare every file of a run, sweep, reproduction or checkpoint with its digest."""
    from twoclock.storage.record import verify

    chosen = parse(CheckOptions, args, "twoclock check")
    found = verify(chosen.folder)
    rows = [
        (os.path.relpath(finding.path, chosen.folder.absolute()), finding.kind, str(finding.files),
         finding.trouble or "as written")
        for finding in found
    ]  # fmt: skip
    print_table("", ("what", "kind", "files", "verdict"), rows)
    damaged = sum(finding.trouble is not None for finding in found)
    say(f"{damaged} of {len(found)} damaged." if damaged else "Every file is as it was written.")
    return 1 if damaged else 0
