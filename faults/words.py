"""Command lines with words changed, lost, doubled or put in."""

from __future__ import annotations

import contextlib
import functools
import io
from pathlib import Path

import numpy as np
import pandas as pd

import twoclock as tc
from faults._calls import LOG
from reproduction.__main__ import main as reproduction_main
from twoclock import cli

NAME = "words of a command line"
TRIALS = 1000
WHAT = "command lines"

# Words for the command line: the values above as text, and others that only a shell can pass.
WORDS = (
    "",
    "0",
    "-1",
    "1.7",
    "nan",
    "inf",
    "1e308",
    "10",
    str(10**400),
    "true",
    "None",
    "nonsense",
    "a\x1b[31m",
    "x" * 300,
    "\udcff",
    "[/bold]",
    "$\\frac{$",
    "1/(k",
    "/proc/nowhere",
    "/dev/zero",
    "..",
    "~nobody/x",
    "--",
    "-h",
    "--help",
    "%s",
)


@functools.cache
def right() -> list[list[str]]:
    """Command lines that work, and the files that they name."""
    with open("spec.toml", "w") as file:
        file.write('steps=5\nseeds=2\n[problems.a]\nname="quadratic"\ndim=2\n[methods.b]\nname="fast"\n')
    tc.solve(tc.problems.quadratic(dim=2), tc.Fast(), 5, 2).save("run")
    tc.sweep({"a": tc.problems.quadratic(dim=2)}, {"b": tc.Fast()}, 5, 2, out="swept")
    pd.DataFrame(LOG).to_parquet("log.parquet", index=False)
    Path("mine.py").write_text("import numpy as np\npi = np.full((3, 2), 0.5)\n")
    asked = ["evaluate", "log.parquet", "--policy", "mine.py:pi", "--gamma", "0.9", "--bootstrap", "0"]
    small = ["--steps", "5", "--seeds", "2"]
    return [
        ["run", "quadratic", "fast", *small, "--problem.dim", "2", "--method.alpha", "1/(k+1)", "--bound", "9"],
        ["run", "boyan", "polyak", *small, "--precision", "float32", "--method.power", "1", "--out", "new", "--resume"],
        ["sweep", "spec.toml", "--out", "swept", "--metric", "error"],
        ["certify", "pl", "--L", "1", "--mu-h", "0.9", "--mu-g", "0.9", "--noise", "1", *small],
        ["certify", "pl", "--L", "1", "--mu-h", "0.9", "--mu-g", "0.9", "--check", "--alpha", "1/(k+9)"],
        [*asked, "--propensity", "p", "--step", "step", "--on-bad", "drop", "--report", "reported"],
        [*asked, "--state", "state", "--features", "rbf", "--estimator", "dr", "--level", "0.9"],
        ["status", "swept"],
        ["check", "."],
        ["plot", "run", "--metric", "gap"],
        ["reproduction", "--report", "run"],
        ["list"],
        ["reproduction", "fig9", "--quick", "--out", "x"],
        ["--version"],
        [],
    ]


def trial(i: int, rng: np.random.Generator) -> tuple[str, str | None]:
    args = list(right()[int(rng.integers(15))])
    for _ in range(int(rng.integers(1, 4))):
        at, word = int(rng.integers(len(args) + 1)), str(rng.choice(WORDS))
        how = int(rng.integers(4))
        if how == 0 or not args:
            args.insert(at, word)
        elif how == 1:
            args[at % len(args)] = word
        elif how == 2:
            del args[at % len(args)]
        else:
            args.insert(at, args[at % len(args)])
    reproduces = args[:1] == ["reproduction"]
    program, words = (reproduction_main, args[1:]) if reproduces else (cli.main, args)
    if reproduces and "fig9" not in words:
        words.append("fig9")  # a whole reproduction is no trial of an argument
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(io.StringIO()):
            status = program(words)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException as error:
        return WHAT, f"{args}: {type(error).__name__}: {' '.join(str(error).split())[:150]}"
    complaints = [line for line in output.getvalue().splitlines() if line.startswith(("twoclock:", "reproduction:"))]
    if "Traceback" in output.getvalue():
        return WHAT, f"{args}: a traceback"
    if status == 2 and (len(complaints) != 1 or output.getvalue().strip().splitlines()[-1] != complaints[0]):
        return WHAT, f"{args}: {len(complaints)} lines for a wrong argument: {output.getvalue()[-200:]!r}"
    return WHAT, None if status in (0, 1, 2) else f"{args}: exit status {status}"
