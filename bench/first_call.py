"""How long is a first call? Each in a new process, without anything compiled and again with what the first one stored.

Processor time of the process and of the C compilers that it starts, the least of some runs, so that a busy machine
matters little; on two cores a person waits less. ``import twoclock`` comes beside ``import jax``, which it needs.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

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


def seconds(arguments: list[str], folder: Path) -> float:
    """Processor time of a new process whose caches are in the folder."""
    kept = {
        "TWOCLOCK_CACHE": str(folder / "twoclock"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    if "twoclock_command" in arguments:  # it stores what XLA compiles already
        kept = {"TWOCLOCK_CACHE": kept["TWOCLOCK_CACHE"]}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments], check=True, cwd=folder, env={**environment, **kept}, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(repeats: int = 2) -> None:
    with tempfile.TemporaryDirectory() as folder:
        seconds(CALLS["twoclock run quadratic fast"], Path(folder))  # compiles the modules of Python
    rows = []
    for name, arguments in CALLS.items():
        first, second = [], []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                first.append(seconds(arguments, Path(folder)))
                second.append(seconds(arguments, Path(folder)))
        ratio = min(second) / min(first)
        rows.append({"call": name, "first, s": min(first), "second process, s": min(second), "second / first": ratio})
    report("first_call", "processor time of a new process, seconds; float64, 20 seeds, 10⁵ steps where not said", rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
