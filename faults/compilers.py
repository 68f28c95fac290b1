"""Odd compilers in $CC: a run ends on time, with its numbers or with one line."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import numpy as np

from faults._children import python

NAME = "odd compilers"
TRIALS = 30
SOLVE = """
import sys, os, time, twoclock as tc
from twoclock.codegen import compiler
compiler.TIME_LIMIT, compiler.VERSION_TIME_LIMIT = 4.0, 3.0
began = time.monotonic()
try:
    r = tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), 20_000, 4, engine=sys.argv[1])
    print(r.theta.sum().hex())
except tc.InputError as error:
    assert "\\n" not in str(error)
    print("refused")
print(time.monotonic() - began)
"""
SCRIPTS = {
    "fails": "exit 1",
    "says bytes": r"printf '\377\376'; printf '\377' >&2; exit 1",
    "says too much": "yes nonsense | head -c 20000000 >&2; exit 1",
    "makes nothing": "exit 0",
    "makes rubbish": 'for a in "$@"; do last=$a; done; echo rubbish > out.so; exit 0',
    "hangs": "sleep 1000",
    "hangs in a child": "sleep 1000 & wait",
    "ignores signals": "trap '' TERM INT; sleep 1000",
    "kills itself": "kill -9 $$",
    "works": 'exec gcc "$@"',
    "is slow and works": 'sleep 1; exec gcc "$@"',
}
TEXTS = (
    "gcc '", "", "   ", "/nowhere/cc", "gcc -ffast-math", "gcc -Wall -O0", "python3",
    "/", "gcc\n", "\\", "gcc; false", "$(x)",
)  # fmt: skip


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    with tempfile.TemporaryDirectory() as folder:
        scripted = i % 2 == 0
        name = str(rng.choice(list(SCRIPTS if scripted else TEXTS)))
        compiler = name
        if scripted:
            path = Path(folder) / "cc"
            path.write_text(f"#!/bin/sh\n{SCRIPTS[name]}\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
            compiler = str(path)
        environment = {**os.environ, "CC": compiler, "TWOCLOCK_CACHE": f"{folder}/cache"}
        engine = str(rng.choice(["c", "auto"]))
        try:
            end = python(SOLVE, engine, timeout=120, env=environment)
        except Exception as error:
            return "solve", f"CC {name!r}, {engine}: {type(error).__name__}"
        if end.returncode or "Traceback" in end.stderr:
            return "solve", f"CC {name!r}, {engine}: {end.stderr.strip()[-200:]!r}"
        if name in ("works", "is slow and works") and "refused" in end.stdout:
            return "solve", f"CC {name!r} is refused"
    return "solve", None
