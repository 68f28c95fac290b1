"""Disks that are full or cannot be written: one line, nothing half-written that counts, and the way on works."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from faults._children import complaint, digests, twoclock, way_on
from faults.campaign import Trial

NAME = "disks"

RUN = ("run", "quadratic", "fast", "--steps", "3000", "--seeds", "300", "--problem.dim", "2")
SPEC = """
steps = 2000
seeds = 40
lanes = 40
[problems.a]
name = "quadratic"
[methods.b]
name = "fast"
grid = { "alpha.c" = [0.5, 1, 2] }
"""


def trials(scale: float, seed: int) -> Iterator[Trial]:
    many = max(int(6 * scale), 1)
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        root = Path(name)
        (root / "spec.toml").write_text(SPEC)
        twoclock(*RUN, "--out", root / "run")
        twoclock("sweep", root / "spec.toml", "--out", root / "swept")
        yield from _full(root, random.Random(seed), many)
        yield from _read_only(root)


@contextlib.contextmanager
def disk(place: Path, options: str) -> Iterator[bool]:
    """A small disk in memory, if this user may have one."""
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=False, capture_output=True)
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "-l", place], check=False)
        shutil.rmtree(place, ignore_errors=True)


def _full(root: Path, rng: random.Random, many: int) -> Iterator[Trial]:
    good = {"run": digests(root / "run"), "sweep": digests(root / "swept")}
    for i in range(2 * many):
        kind = ("run", "sweep")[i % 2]
        with disk(root / f"disk-{i}", "size=4m") as mounted:
            if not mounted:
                yield from _limited(root, kind, good[kind], rng.randrange(1000, 12_000))
                continue
            place, ballast = root / f"disk-{i}", root / f"disk-{i}" / "ballast"
            free = rng.randrange(8, 60) * 4096 if kind == "run" else rng.randrange(4, 40) * 4096
            with contextlib.suppress(OSError), ballast.open("wb") as file:
                file.write(b"\0" * (os.statvfs(place).f_bavail * 4096 - free))
            out = place / "out"
            args = [*RUN, "--out", out] if kind == "run" else ["sweep", root / "spec.toml", "--out", out]
            first = twoclock(*args)
            fault = complaint(first)
            ballast.unlink()
            if fault is None and first.returncode != 0:
                fault = complaint(twoclock(*way_on(first.stderr, args)), (0,))
            fault = fault or (None if digests(out) == good[kind] else "another end")
            yield Trial(f"a full disk, twoclock {kind}", fault)


def _limited(root: Path, kind: str, good: dict[str, str], most: int) -> Iterator[Trial]:
    """Where no disk can be mounted, a limit on the size of every file is the next thing."""
    out = root / f"limited-{kind}-{most}"
    args = [*RUN, "--out", out] if kind == "run" else ["sweep", root / "spec.toml", "--out", out]
    first = twoclock(
        *args, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # half of a compiled module would outlive the trial
    )  # fmt: skip
    fault = complaint(first)
    if fault is None and first.returncode != 0:
        fault = complaint(twoclock(*way_on(first.stderr, args)), (0,))
    yield Trial(f"a full disk, twoclock {kind}", fault or (None if digests(out) == good else "another end"))


def _read_only(root: Path) -> Iterator[Trial]:
    shutil.copytree(root / "swept", root / "lower" / "swept")
    shutil.copytree(root / "run", root / "lower" / "run")
    place = root / "lower"
    bound = subprocess.run(["mount", "--bind", place, place], check=False, capture_output=True).returncode == 0
    if not bound:
        return
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True, capture_output=True)
        for args, status in (
            ((*RUN, "--out", place / "new"), 2),
            (("sweep", root / "spec.toml", "--out", place / "new"), 2),
            (("sweep", root / "spec.toml", "--out", place / "swept"), 2),
            (("certify", "pl", "--L", "1", "--mu-h", ".9", "--mu-g", ".9", "--out", place / "new"), 2),
            (("plot", place / "run"), 2),
            (("reproduction", "quadratic", "--quick", "--out", place / "new"), 2),
            (("status", place / "swept"), 0),
            (("check", place), 0),
        ):
            end = twoclock(*args[1:], module=args[0]) if args[0] == "reproduction" else twoclock(*args)
            computed = "seed-steps" in end.stderr
            fault = complaint(end, (status,)) or ("it computed first" if computed else None)
            yield Trial("a disk that cannot be written", fault and f"{args[0]}: {fault}")
    finally:
        subprocess.run(["umount", "-l", place], check=False)
