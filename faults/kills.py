"""SIGKILL at random moments, again and again, until the work is done: the end is the same to the last byte."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from faults._children import complaint, digests, python, started, twoclock, wait_for
from faults.campaign import Trial

NAME = "kills"

RUN = ("run", "quadratic", "polyak", "--steps", "400000", "--seeds", "4", "--problem.dim", "3")
SOLVE = """
import sys, twoclock as tc
methods = {"a": tc.Fast(), "b": tc.Standard()}
r = tc.solve(tc.problems.boyan(), methods, 150_000, 3, checkpoint=sys.argv[1], checkpoint_every=0.1)
for k, v in r.items():
    v.save(sys.argv[2] + "/" + k)
"""
SWEEP = """
import sys, twoclock as tc
grid = tc.grid(tc.Fast(), **{"alpha.c": [0.5, 1.0, 2.0, 4.0], "lam.c": [20.0, 40.0]})
tc.sweep({"bowl": tc.problems.quadratic(dim=2), "walk": tc.problems.walk_tabular()}, {"fast": grid}, 60_000, 8, lanes=8,
         out=sys.argv[1], on=sys.argv[2])
"""


def trials(scale: float, seed: int) -> Iterator[Trial]:
    rng = random.Random(seed)
    many = max(int(6 * scale), 1)
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        root = Path(name)
        yield from _runs(root, rng, many)
        yield from _solves(root, rng, many)
        yield from _sweeps(root, rng, many)
        yield from _ray(root, rng, max(many // 2, 1))


def _runs(root: Path, rng: random.Random, many: int) -> Iterator[Trial]:
    whole = root / "run"
    twoclock(*RUN, "--out", whole)
    good = digests(whole)
    for i in range(many):
        out = root / f"run-{i}"
        for _ in range(rng.randint(1, 3)):
            with started("-m", "twoclock", *RUN, "--out", out, "--resume") as child:
                wait_for((out / "checkpoint").exists, child)
                time.sleep(rng.uniform(0, 3))
        end = twoclock(*RUN, "--out", out, "--resume")
        check = twoclock("check", out)
        same = digests(out) == good and check.returncode == 0 and _is_tidy(out)
        yield Trial("twoclock run", complaint(end, (0,)) or (None if same else "another end"))


def _solves(root: Path, rng: random.Random, many: int) -> Iterator[Trial]:
    python(SOLVE, root / "solve", root / "solved")
    good = digests(root / "solved")
    for i in range(many):
        kept, out = root / f"solve-{i}", root / f"solved-{i}"
        for _ in range(rng.randint(1, 4)):
            with started("-c", SOLVE, kept, out) as child:
                wait_for(kept.exists, child)
                time.sleep(rng.uniform(0, 2.5))
        end = python(SOLVE, kept, out)
        yield Trial("tc.solve", complaint(end, (0,)) or (None if digests(out) == good else "another end"))


def _sweeps(root: Path, rng: random.Random, many: int) -> Iterator[Trial]:
    python(SWEEP, root / "swept", "local")
    good = digests(root / "swept")
    for i in range(many):
        out = root / f"swept-{i}"
        for _ in range(rng.randint(1, 4)):
            with started("-c", SWEEP, out, "local") as child:
                wait_for((out / "sweep.json").exists, child)
                time.sleep(rng.uniform(0, 2))  # in the middle of a shard, or of its writing
        end = python(SWEEP, out, "local")
        same = digests(out) == good and _is_tidy(out)
        yield Trial("tc.sweep", complaint(end, (0,)) or (None if same else "another end"))


def _ray(root: Path, rng: random.Random, many: int) -> Iterator[Trial]:
    try:
        import psutil
        import ray  # noqa: F401
    except ImportError:
        return
    good = digests(root / "swept")
    for i in range(many):
        out = root / f"ray-{i}"
        with started("-c", SWEEP, out, "ray") as child:
            wait_for(lambda out=out: any(out.glob("shards/*.json")), child)
            time.sleep(rng.uniform(0, 1))
            family = psutil.Process(child.pid).children(recursive=True) if child.poll() is None else []
            workers = [process for process in family if _is_worker(process)]
            if workers:
                os.kill(rng.choice(workers).pid, signal.SIGKILL)
                time.sleep(rng.uniform(0, 2))
            driver_dies = i % 2 == 0
            if not driver_dies:
                _, output = child.communicate(timeout=600)
                fault = None if child.returncode == 0 else f"ended with {child.returncode}: {output.strip()[-150:]!r}"
                same = digests(out) == good
                yield Trial("tc.sweep on Ray, a worker killed", fault or (None if same else "another end"))
                continue
            family = psutil.Process(child.pid).children(recursive=True) if child.poll() is None else []
        for process in family:  # a machine that goes down takes them all
            if process.is_running():
                process.kill()
        end = python(SWEEP, out, "local")
        same = digests(out) == good and _is_tidy(out)
        yield Trial(
            "tc.sweep on Ray, worker and driver killed", complaint(end, (0,)) or (None if same else "another end")
        )


def _is_worker(process: object) -> bool:
    import psutil

    try:
        return " ".join(process.cmdline()).startswith("ray::_run_task")  # type: ignore[attr-defined]
    except psutil.Error:
        return False


def _is_tidy(folder: Path) -> bool:
    """Whether nothing half-written is left."""
    return not any((*folder.parent.glob(".twoclock*"), *folder.rglob(".twoclock*")))
