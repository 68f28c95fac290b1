"""The same numbers, bit for bit, on any number of threads, cores and processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from faults._children import digests
from faults.campaign import Trial

NAME = "determinism"

CODE = """
import sys, twoclock as tc
problem = {"boyan": tc.problems.boyan, "quadratic": tc.problems.quadratic, "forest": tc.problems.forest,
           "paper_lqr": tc.problems.paper_lqr}[sys.argv[2]]()
tc.solve(problem, tc.Polyak(tc.Fast()), 2000, 70, block=int(sys.argv[3]) or None).save(sys.argv[1])
tc.sweep({"p": problem}, {"a": tc.Fast(), "b": tc.Standard()}, 500, 20, out=sys.argv[1] + "-swept")
"""
WAYS: dict[str, dict[str, object]] = {
    "as it comes": {},
    "one core": {"cores": 1},
    "one thread": {"env": {"OMP_NUM_THREADS": "1", "NPROC": "1"}},
    "eight threads": {"env": {"NPROC": "8"}},
    "four devices": {"env": {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}},
    "short blocks": {"block": 7},
    "another hash seed": {"env": {"PYTHONHASHSEED": "7"}},
}


def trials(scale: float, seed: int) -> Iterator[Trial]:
    names = ("boyan", "quadratic", "forest", "paper_lqr")[: max(int(4 * scale), 1)]
    with tempfile.TemporaryDirectory(prefix="faults-") as root:
        for name in names:
            first = None
            for i, (way, how) in enumerate(WAYS.items()):
                out = Path(root) / f"{name}-{i}"
                child = _run(out, name, how)
                if child.returncode:
                    yield Trial(f"{way}", f"{name}: {child.stderr.strip()[-150:]!r}")
                    continue
                found = {**digests(out), **digests(Path(f"{out}-swept"))}
                first = first or found
                yield Trial(way, None if found == first else f"{name}: other bits than as it comes")
        yield _side_by_side(Path(root))


def _run(out: Path, name: str, how: dict[str, object]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE, str(out), name, str(how.get("block", 0))]
    if how.get("cores") == 1:
        command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *command]
    env = {**os.environ, **how.get("env", {})}  # type: ignore[dict-item]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def _side_by_side(root: Path) -> Trial:
    """Two processes that fight for the cores."""
    outs = [root / f"side-{i}" for i in range(2)]
    children = [subprocess.Popen([sys.executable, "-c", CODE, str(out), "quadratic", "0"]) for out in outs]
    failed = [child.wait() for child in children]
    one, two = (digests(out) for out in outs)
    return Trial("two processes at once", None if not any(failed) and one == two else "other bits")
