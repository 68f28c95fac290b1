"""The cache of compiled programs, full, closed, tampered with or foreign: the run continues and loads nothing odd."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from faults._children import python

NAME = "the cache of programs"
TRIALS = 25
SOLVE = """
import twoclock as tc
r = tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), 1_000_000, 4)
print(float(r.theta.sum()).hex(), r.spec.get("engine"))
"""
BAD = '#include <stdlib.h>\n__attribute__((constructor)) void taken(void) { system("touch %s"); }\n'


@functools.cache
def _compiled() -> tuple[Path, str]:
    """A cache with the program in it, and what a run without a fault prints; trials damage copies of it."""
    cache = Path(tempfile.mkdtemp(dir=".")).absolute() / "cache"
    return cache, python(SOLVE, env={**os.environ, "TWOCLOCK_CACHE": str(cache)}).stdout.strip()


def _files(cache: Path) -> list[Path]:
    return [path for path in sorted(cache.rglob("*")) if path.is_file()]


def _tamper(cache: Path, mark: Path, rng: np.random.Generator) -> str:
    """Another library in the place of a compiled one, with its digest beside it left or lost."""
    source, built = cache.parent / "bad.c", cache.parent / "bad.so"
    source.write_text(BAD % mark)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", built, source], check=False, capture_output=True)
    how = str(rng.choice(["replaced", "cut", "bit", "empty", "digest lost", "link", "folder"]))
    for path in _files(cache):
        if how == "digest lost":
            if path.suffix not in (".so", ".dylib"):
                path.unlink()
        elif path.suffix in (".so", ".dylib"):
            content = path.read_bytes()
            path.unlink()
            if how == "replaced":
                path.write_bytes(built.read_bytes())
            elif how == "cut":
                path.write_bytes(content[: int(rng.integers(len(content)))])
            elif how == "bit":
                at = int(rng.integers(len(content)))
                path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
            elif how == "empty":
                path.touch()
            elif how == "link":
                path.symlink_to(built)
            else:
                path.mkdir()
    return how


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    what = ("tampered with", "modes", "a full disk", "of another user", "left over")[i % 5]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        cache, mark, how = root / "up" / "cache", root / "taken", what
        cache.parent.mkdir()
        environment = {**os.environ, "TWOCLOCK_CACHE": str(cache)}
        made, truth = _compiled()
        shutil.copytree(made, cache, symlinks=True)
        mounted = False
        if what == "tampered with":
            how = _tamper(cache, mark, rng)
        elif what == "modes":
            target, mode = [(cache, 0o777), (cache.parent, 0o777), (cache, 0o500), (cache, 0o000)][int(rng.integers(4))]
            target.chmod(mode)
            how = f"{target.name} with mode {mode:o}"
        elif what == "a full disk":
            size = int(rng.choice([4096, 16384]))
            small = root / "small"
            small.mkdir()
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(small)], check=False, capture_output=True
            )
            if done.returncode:
                return f"{what}: cannot mount here", None
            mounted, environment = True, {**environment, "TWOCLOCK_CACHE": str(small / "cache")}
        elif what == "of another user":
            if os.getuid():
                return f"{what}: needs root", None
            _tamper(cache, mark, np.random.default_rng(2))
            for path in [cache if rng.random() < 0.5 else cache.parent, *_files(cache)]:
                os.chown(path, 65534, 65534)
        else:
            (cache / "programs").mkdir(parents=True, exist_ok=True)
            (cache / "programs" / "making-999999").mkdir()
            (cache / "programs" / "mine.txt").write_text("mine")
        try:
            end = python(SOLVE, env=environment, timeout=180)
        except subprocess.TimeoutExpired:
            return what, f"{how}: hangs"
        finally:
            if mounted:
                subprocess.run(["umount", str(root / "small")], check=False)
            for path in (cache, cache.parent):
                path.chmod(0o700)
        if mark.exists():
            return what, f"{how}: the code of another was run"
        if end.returncode or "Traceback" in end.stderr:
            return what, f"{how}: {end.stderr.strip()[-200:]!r}"
        same = end.stdout.split()[:1] == truth.split()[:1]
    return what, None if same else f"{how}: {end.stdout.strip()} for {truth}"
