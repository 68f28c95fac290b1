"""How long is a first call? Each in a new process, without anything compiled and again with what the first one stored.

Wall-clock time, and processor time of the process and of the C compilers that it starts; the median of some runs. On a
busy machine the second is more reliable. ``import twoclock`` comes beside ``import jax``, which it needs.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from results import report

SOLVE = "import twoclock as tc; tc.solve(tc.problems.quadratic(dim={dim}){method})"
README = """
import jax
import twoclock as tc
problem = tc.problems.custom(
    F=lambda theta, omega, x: omega - 1, G=lambda theta, omega, x: omega - theta + x,
    noise=jax.random.normal, theta=0.0, omega=0.0,
)
tc.solve(problem)
"""
CALLS = {
    "python": ["-c", "pass"],
    "import jax": ["-c", "import jax"],
    "import twoclock": ["-c", "import twoclock"],
    "twoclock --help": ["-m", "twoclock_command", "--help"],
    "the README's first example": ["-c", README],
    "quadratic(3), Fast": ["-c", SOLVE.format(dim=3, method=", tc.Fast()")],
    "quadratic(3)": ["-c", SOLVE.format(dim=3, method="")],
    "quadratic(10)": ["-c", SOLVE.format(dim=10, method="")],
    "quadratic(40), 1,000 steps": ["-c", SOLVE.format(dim=40, method=", steps=1000")],
    "twoclock run quadratic fast": ["-m", "twoclock_command", "run", "quadratic", "fast"],
}


def seconds(arguments: list[str], folder: Path) -> tuple[float, float]:
    """Wall-clock and processor time of a new process whose cache is in the folder."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        check=True,
        cwd=folder,
        env={**environment, "TWOCLOCK_CACHE": str(folder / "twoclock")},
        capture_output=True,
    )
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(repeats: int = 3) -> None:
    with tempfile.TemporaryDirectory() as folder:
        seconds(CALLS["import twoclock"], Path(folder))  # compiles the modules of Python
    rows = []
    for name, arguments in CALLS.items():
        found = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                found.append([seconds(arguments, Path(folder)) for _ in range(2)])
        (first, first_processor), (second, second_processor) = np.median(found, axis=0)
        rows.append(
            {
                "call": name,
                "first, s": first,
                "second process, s": second,
                "first, processor s": first_processor,
                "second, processor s": second_processor,
            }
        )
    report("first_call", "a new process, seconds; float64, 20 seeds, 10⁵ steps where not said", rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
