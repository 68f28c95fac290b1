"""Limits of the machine: few files, addresses, small files, stacks. It works, or one line and nothing half-written."""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path

import numpy as np

from faults._children import complaint, twoclock, way_on

NAME = "limits of the machine"
TRIALS = 25
COMMANDS = (
    ("run", "quadratic", "fast", "--steps", "2000", "--seeds", "4", "--problem.dim", "2"),
    ("run", "boyan", "polyak", "--steps", "500", "--seeds", "2"),
    ("certify", "pl", "--L", "1", "--mu-h", "0.9", "--mu-g", "0.9"),
    ("list",),
)


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    what, which, low, high = (
        ("open files", resource.RLIMIT_NOFILE, 24, 200), ("size of files", resource.RLIMIT_FSIZE, 0, 60_000),
        ("processes' stacks", resource.RLIMIT_STACK, 1 << 20, 8 << 20), ("core files", resource.RLIMIT_CORE, 0, 1),
        ("addresses", resource.RLIMIT_AS, 300 << 20, 4 << 30),
    )[i % 5]  # fmt: skip
    limit = int(rng.integers(low, high))
    command = COMMANDS[int(rng.integers(len(COMMANDS)))]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        given = (*command, "--out", out) if command[0] == "run" else command
        # Python 3.11 takes half a .pyc file for a whole one, and every later process would read it.
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"} if which == resource.RLIMIT_FSIZE else None
        end = twoclock(
            *given,
            module="twoclock_command",
            preexec_fn=lambda: resource.setrlimit(which, (limit, limit)),
            cwd=folder,
            env=environment,
        )
        trouble = complaint(end)
        if trouble is None and command[0] == "run" and end.returncode:  # what it left is not in the way
            trouble = complaint(twoclock(*way_on(end.stderr, given), cwd=folder), (0,))
    return what, trouble and f"{limit}, {' '.join(command)[:40]}: {trouble}"
