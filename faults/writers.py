"""Two writers into one folder at once: one of them works, the other gets one line, and nothing is lost."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import twoclock as tc
from faults._children import complaint, digests, twoclock
from faults.campaign import Trial

NAME = "rival writers"

SMALL = ("--steps", "60000", "--seeds", "3", "--problem.dim", "2")
SAVE = """
import sys, twoclock as tc
r = tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), int(sys.argv[2]), 2)
for _ in range(60):
    r.save(sys.argv[1])
"""
SPEC = """
steps = 20000
seeds = 8
lanes = 8
[problems.a]
name = "quadratic"
[methods.b]
name = "fast"
grid = { "alpha.c" = [0.5, 1, 2, 4] }
"""


def trials(scale: float, seed: int) -> Iterator[Trial]:
    rng = random.Random(seed)
    many = max(int(6 * scale), 1)
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        root = Path(name)
        (root / "spec.toml").write_text(SPEC)
        twoclock("run", "quadratic", "fast", *SMALL, "--out", root / "run")
        twoclock("sweep", root / "spec.toml", "--out", root / "swept")
        for kind, args in {
            "twoclock run": ("run", "quadratic", "fast", *SMALL),
            "twoclock sweep": ("sweep", root / "spec.toml"),
        }.items():
            good = digests(root / kind.split()[1].replace("sweep", "swept"))
            for i in range(many):
                yield _two(kind, args, root / f"{args[0]}-{i}", good, rng)
        for i in range(max(many // 2, 1)):
            yield _saves(root / f"saved-{i}")


def _two(kind: str, args: tuple[object, ...], out: Path, good: dict[str, str], rng: random.Random) -> Trial:
    children = []
    for _ in range(2):
        command = [sys.executable, "-m", "twoclock", *map(str, args), "--out", str(out)]
        children.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        time.sleep(rng.uniform(0, 1.0))
    ends = []
    for child in children:
        output, wrong = child.communicate(timeout=600)
        ends.append(subprocess.CompletedProcess(child.args, child.returncode, output, wrong))
    fault = next(filter(None, (complaint(end, (0, 2)) for end in ends)), None)
    if fault is None and not any(end.returncode == 0 for end in ends):
        fault = "neither has worked"
    return Trial(kind, fault or (None if digests(out) == good else "another end"))


def _saves(out: Path) -> Trial:
    """Results saved over each other while they are read: always one or the other, whole."""
    children = [subprocess.Popen([sys.executable, "-c", SAVE, str(out), steps]) for steps in ("50", "70")]
    fault = None
    while any(child.poll() is None for child in children):
        try:
            if out.exists() and tc.load(out).spec["steps"] not in (50, 70):
                fault = "a result that neither writer wrote"
        except tc.InputError as error:
            fault = f"at one moment: {error}"
        time.sleep(0.002)
    failed = [child.returncode for child in children if child.wait()]
    return Trial("result.save", fault or (f"a save ended with {failed[0]}" if failed else None))
