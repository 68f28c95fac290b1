"""Command lines in odd surroundings: closed streams, odd environments, files, TOML, and code of the user's own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from faults.odd_logs import table

NAME = "surroundings of a command"
TRIALS = 60
RUN = ["run", "quadratic", "fast", "--steps", "20", "--seeds", "2", "--out", "out"]
ENVIRONMENTS = (
    {"COLUMNS": "0"},
    {"COLUMNS": "-5"},
    {"COLUMNS": "x"},
    {"LINES": "0"},
    {"TERM": "dumb"},
    {"TERM": ""},
    {"NO_COLOR": "1"},
    {"FORCE_COLOR": "1"},
    {"MPLBACKEND": "nonsense"},
    {"JAX_PLATFORMS": "cuda"},
    {"JAX_PLATFORMS": "nonsense"},
    {"JAX_ENABLE_X64": "maybe"},
    {"HOME": "/nowhere"},
    {"HOME": ""},
    {"TMPDIR": "/nowhere"},
    {"LANG": "C", "LC_ALL": "C"},
    {"PYTHONIOENCODING": "ascii"},
    {"TWOCLOCK_ENGINE": "nonsense"},
    {"TWOCLOCK_CACHE": "/proc/x"},
    {"TWOCLOCK_CACHE": ""},
    {"XLA_FLAGS": ""},
    {"PYTHONWARNINGS": "error"},
    {"PYTHONHASHSEED": "7"},
    {"OMP_NUM_THREADS": "x"},
    {"USER": ""},
)
TOMLS = (
    "",
    "steps = 'a'",
    "steps = 5\nseeds = -1",
    "[problems]\n[methods]",
    "steps = 5\n[problems.a]\nname='quadratic'\ndim='x'",
    "\xff",
    "a = " + "[" * 500 + "]" * 500,
    "steps = 1e400",
    "steps = nan",
    "[problems.a]\nname = 'nothing'",
    "= 3",
    "steps=5\nseeds=2\n[problems.a]\nname='quadratic'\n[methods.b]\nname='fast'\ngrid={'alpha.c'=[]}",
    "steps=5\nseeds=2\n[problems.'../x']\nname='quadratic'\n[methods.b]\nname='fast'",
)
CODES = (
    "import sys; sys.exit(3)",
    "raise SystemExit",
    "raise KeyboardInterrupt",
    "1/0",
    "def pi(",
    "pi = None",
    "pi = lambda s: 'x'",
    "import nothing_of_the_kind",
    "pi = [[0.5, 0.5]] * 4",
    "def pi(s): raise RuntimeError('own\\nmaking')",
    "\x00",
    "# coding: x",
)


def _run(args: list[str], folder: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "twoclock", *args]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, errors="replace", check=False, timeout=200, **options
    )  # type: ignore[call-overload]


def _trouble(end: subprocess.CompletedProcess[str], mute: bool = False) -> str | None:
    if "Traceback" in end.stderr:
        return f"a traceback: {end.stderr.strip().splitlines()[-1][:120]}"
    if end.returncode not in (0, 1, 2):
        return f"exit status {end.returncode}: {end.stderr.strip()[-100:]!r}"
    lines = [line for line in end.stderr.splitlines() if line.startswith("twoclock:")]
    return (
        f"exit status {end.returncode} and {len(lines)} lines"
        if end.returncode and len(lines) != 1 and not mute
        else None
    )


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    what = ("streams", "environment", "TOML", "code", "files")[i % 5]
    with tempfile.TemporaryDirectory() as folder:
        if what == "streams":
            how = str(
                rng.choice([">&-", "2>&-", "<&-", ">&- 2>&-", ">/dev/full", "2>/dev/full", "| head -c 1", "</dev/zero"])
            )
            args = RUN if rng.random() < 0.5 else ["list"]
            words = " ".join([sys.executable, "-m", "twoclock", *args])
            end = subprocess.run(
                ["bash", "-c", f"set -o pipefail; {words} {how}"],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            trouble = "a traceback" if "Traceback" in end.stderr or "Exception ignored" in end.stderr else None
            trouble = trouble or (None if end.returncode in (0, 1, 141) else f"exit status {end.returncode}")
            return what, trouble and f"{how} {args[0]}: {trouble}"
        if what == "environment":
            odd = ENVIRONMENTS[int(rng.integers(len(ENVIRONMENTS)))]
            return what, (trouble := _trouble(_run(RUN, folder, env={**os.environ, **odd}))) and f"{odd}: {trouble}"
        if what == "TOML":
            text = TOMLS[int(rng.integers(len(TOMLS)))]
            (Path(folder) / "spec.toml").write_bytes(text.encode("latin-1"))
            return what, (trouble := _trouble(_run(["sweep", "spec.toml"], folder))) and f"{text[:60]!r}: {trouble}"
        table().to_parquet(f"{folder}/log.parquet", index=False)
        asked = ["evaluate", "log.parquet", "--policy", "mine.py:pi", "--gamma", "0.9", "--bootstrap", "0"]
        if what == "code":
            text = CODES[int(rng.integers(len(CODES)))]
            (Path(folder) / "mine.py").write_text(text)
        else:
            (Path(folder) / "mine.py").write_text("pi = [[0.5, 0.5]] * 4")
            text = str(rng.choice(["empty", "text", "csv", "folder", "fifo", "link", "other suffix"]))
            log = Path(folder) / "log.parquet"
            log.unlink()
            if text == "folder":
                log.mkdir()
            elif text == "fifo":
                os.mkfifo(log)
            elif text == "link":
                log.symlink_to(log)
            elif text == "csv":
                pd.DataFrame(table()).to_csv(log, index=False)
            else:
                log.write_text("" if text == "empty" else "PAR1")
        try:
            end = _run(asked, folder)
        except subprocess.TimeoutExpired:
            return what, f"{text!r}: hangs"
        own = what == "code" and ("own\nmaking" in end.stderr or "ZeroDivisionError" in end.stderr)
        return what, None if own else (trouble := _trouble(end)) and f"{text[:60]!r}: {trouble}"
