"""Command lines with odd arguments, files, TOML, environments and streams: one line, the right exit status."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from faults._children import limit_memory
from faults.campaign import Trial

NAME = "command lines"

SMALL = ("--steps", "30", "--seeds", "2")
PROGRAM = "import twoclock_command; twoclock_command.program()"
OWN = """
import jax, numpy as np, twoclock as tc
def bowl(dim: int = 2):
    return tc.problems.custom(lambda t, w, x: w - 1, lambda t, w, x: w - t + x,
                              lambda key: jax.random.normal(key, (dim,)), np.zeros(dim), np.zeros(dim),
                              measure=lambda t, w: {"error": ((t - 1) ** 2).sum()})
ready = bowl()
"""
FILES = {
    "exit.py": "import sys\nsys.exit(3)\n",
    "exit_text.py": "raise SystemExit('away with it\\nand more')\n",
    "syntax.py": "def bowl(:\n",
    "null.py": "x = 1\0\n",
    "deep.py": "def f(): return f()\nf()\n",
    "import.py": "import nowhere_at_all\n",
    "raises.py": "raise ValueError('a\\nb\\x1b[31m')\n",
    "base.py": "class Away(BaseException): pass\nraise Away('x')\n",
    "later.py": "import sys\ndef bowl(dim: int = 2): sys.exit(3)\n",
    "fails.py": "def bowl(dim: int = 2): return 1 / 0\n",
    "none.py": "def bowl(dim: int = 2): return None\n",
    "number.py": "bowl = 3\n",
    "lambda.py": "bowl = lambda key: 3\n",
    "needs.py": "def bowl(a, b): return None\n",
    "empty.py": "",
    "prints.py": "print('\\x1b[31m\\udcff')\n" + OWN,
    "warns.py": "import warnings\nwarnings.warn('look')\n" + OWN,
    "measure.py": OWN.replace('{"error"', '{"e\\x1b[31m$_{"'),
    "class.py": "class bowl: pass\n",
    "own.py": OWN,
    "ünï.py": OWN,
    "my file.py": OWN,
}
GOOD = 'steps = 30\nseeds = 2\n[problems.{p}]\nname = "quadratic"\ndim = 2\n[methods.{m}]\nname = "fast"\n'
SPECS = {
    "good": GOOD.format(p="bowl", m="fast"),
    "markup": GOOD.format(p='"$\\\\frac{$ [bold]"', m='"_[/] <b>"'),
    "escapes": GOOD.format(p='"a\\u001b[31m"', m='"b\\nc\\u0007"'),
    "formula": GOOD.format(p='"=cmd|x"', m='"+1"'),
    "hive": GOOD.format(p='"__HIVE_DEFAULT_PARTITION__"', m='"null"'),
    "dots": GOOD.format(p='".."', m='"a/b"'),
    "long": GOOD.format(p='"' + "x" * 300 + '"', m="fast"),
    "empty": "",
    "not toml": "= 3",
    "dates": GOOD.format(p="bowl", m="fast") + "alpha = 1979-05-27\n",
    "inf": GOOD.format(p="bowl", m="fast") + "alpha = inf\n",
    "list": GOOD.format(p="bowl", m="fast") + "alpha = [1, 2]\n",
    "table": GOOD.format(p="bowl", m="fast") + "alpha = { c = 1 }\n",
    "grid list": GOOD.format(p="bowl", m="fast") + "grid = [1]\n",
    "grid text": GOOD.format(p="bowl", m="fast") + 'grid = { "alpha.c" = ["x"] }\n',
    "grid nan": GOOD.format(p="bowl", m="fast") + 'grid = { "alpha.c" = [nan] }\n',
    "grid twice": GOOD.format(p="bowl", m="fast") + 'grid = { "alpha.c" = [1, 1.0] }\n',
    "grid date": GOOD.format(p="bowl", m="fast") + "grid = { alpha = [1979-05-27] }\n",
    "grid nested": GOOD.format(p="bowl", m="fast") + "grid = { alpha = [[1], {}] }\n",
    "float steps": GOOD.format(p="bowl", m="fast").replace("30", "30.5"),
    "no seeds": GOOD.format(p="bowl", m="fast").replace("seeds = 2", "seeds = []"),
    "odd seeds": GOOD.format(p="bowl", m="fast").replace("seeds = 2", "seeds = [1, -1]"),
    "huge": GOOD.format(p="bowl", m="fast").replace("dim = 2", "dim = 99999999999999999999"),
    "negative": GOOD.format(p="bowl", m="fast").replace("dim = 2", "dim = -1"),
    "name": GOOD.format(p="bowl", m="fast").replace('"quadratic"', '["quadratic"]'),
    "array": "[[problems]]\nname = 3\n",
    "precision": "precision = 'float16'\n" + GOOD.format(p="bowl", m="fast"),
}
ENVIRONMENTS: tuple[dict[str, str | None], ...] = (
    *({"COLUMNS": width} for width in ("0", "00", "-3", "1", "7", "wide", "100000", "")),
    *({"LINES": "0", "COLUMNS": "0"}, {"TERM": "dumb"}, {"TERM": None}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}),
    *({"JAX_PLATFORMS": name} for name in ("cuda", "tpu", "nowhere", "cpu", "cpu,cuda", "")),
    *({"JAX_ENABLE_X64": "maybe"}, {"JAX_DEBUG_NANS": "1"}, {"JAX_NUMPY_DTYPE_PROMOTION": "strict"}),
    *({"MPLBACKEND": name} for name in ("bad", "TkAgg", "module://nowhere", "agg", "")),
    *({"MPLCONFIGDIR": "/proc/nowhere"}, {"HOME": "/proc/nowhere"}, {"HOME": None}, {"TMPDIR": "/nowhere"}),
    *({"PYTHONIOENCODING": name} for name in ("ascii", "latin-1", "utf-16")),
    *({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "xx_YY"}, {"PYTHONUNBUFFERED": "1"}),
    *({"CC": "false"}, {"CC": "/nowhere"}, {"TWOCLOCK_ENGINE": "fortran"}, {"TWOCLOCK_CACHE": "/dev/null"}),
    *({"TZ": "Nowhere/Here"}, {"OMP_NUM_THREADS": "x"}, {"PATH": ""}),
)
# What the shell does with the streams; the second says whether there is a stderr to complain on.
STREAMS = (
    *((">&-", True), ("2>&-", False), (">&- 2>&-", False), ("<&-", True), (">&- 2>&- <&-", False)),
    *(
        (">/dev/full", True),
        ("2>/dev/full", False),
        (">/dev/full 2>/dev/full", False),
        ("| head -c 1 >/dev/null", True),
    ),
)
LIMITS = ("ulimit -n 9", "ulimit -n 16", "ulimit -n 32", "ulimit -f 0", "ulimit -f 4", "ulimit -c 0")
WORDS = (
    *("", " ", "-", "--", "---", "-x", "--help", "None", "nan", "1e400", "-1", "0", "1e5", "a,b", "=cmd", "'", "%s"),
    *("\x1b[31m", "ü", "$x$", "[/]", "../..", "/dev/null", "/proc", "x" * 300, os.fsdecode(b"\xff"), "1" * 5000),
)
OPTIONS = ("--steps", "--seeds", "--out", "--bound", "--precision", "--engine", "--resume", "--problem.dim",
           "--method.alpha", "--method.order", "--problem.", "--metric", "--L", "--statistic", "--yes")  # fmt: skip
COMMANDS = ("run", "sweep", "plot", "status", "check", "list", "certify", "evaluate", "doctor", "runn")


def trials(scale: float, seed: int) -> Iterator[Trial]:
    draw = random.Random(seed)
    kinds = list(_KINDS.items())
    for i in range(round(120 * scale)):
        what, make = kinds[i % len(kinds)]
        with tempfile.TemporaryDirectory() as folder:
            yield Trial(what, _try(Path(folder), *make(draw)))


def _files(draw: random.Random) -> tuple[list[str], dict[str, str | None], str, str]:
    return ["run", f"{draw.choice(list(FILES))}:{draw.choice(('bowl', 'ready', 'x', ''))}", "fast", *SMALL], {}, "", ""


def _toml(draw: random.Random) -> tuple[list[str], dict[str, str | None], str, str]:
    return ["sweep", f"{draw.choice(list(SPECS))}.toml"], {}, "", ""


def _environment(draw: random.Random) -> tuple[list[str], dict[str, str | None], str, str]:
    variables = dict(draw.choice(ENVIRONMENTS))
    if draw.random() < 0.3:
        variables |= draw.choice(ENVIRONMENTS)
    return _plain(draw), variables, "", ""


def _streams(draw: random.Random) -> tuple[list[str], dict[str, str | None], str, str]:
    return _plain(draw), {}, draw.choice(STREAMS)[0], draw.choice((*LIMITS, "", "", ""))


def _arguments(draw: random.Random) -> tuple[list[str], dict[str, str | None], str, str]:
    args = [draw.choice(COMMANDS)]
    if args[0] == "run" and draw.random() < 0.7:
        args += ["quadratic", "fast", *SMALL]
    for _ in range(draw.randint(0, 3)):
        args += [draw.choice(OPTIONS)] if draw.random() < 0.5 else []
        args += [draw.choice(WORDS)]
    return args, {}, "", ""


_KINDS = {"files": _files, "TOML": _toml, "environment": _environment, "streams": _streams, "arguments": _arguments}


def _plain(draw: random.Random) -> list[str]:
    """A command that would succeed, or one that is refused."""
    return draw.choice(
        (["run", "quadratic", "fast", *SMALL], ["run", "own.py:ready", "fast", *SMALL], ["sweep", "good.toml"],
         ["list"], ["--help"], ["run", "quadratik"], ["status", "nowhere"], ["run", "quadratic", "fast", "--help"])
    )  # fmt: skip


def _try(folder: Path, args: list[str], variables: dict[str, str | None], stream: str, limit: str) -> str | None:
    """Run a command line in a shell; what is wrong with how it ended, if anything."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    for name, text in SPECS.items():
        (folder / f"{name}.toml").write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for name, value in variables.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    if limit.startswith("ulimit -f"):  # Python 3.11 would leave half a .pyc file for every later process
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    script = f'{limit or ":"}; exec "$@" {stream}' if "|" not in stream else f'set -o pipefail; "$@" {stream}'
    command = ["/bin/bash", "-c", script, "bash", sys.executable, "-c", PROGRAM, *args]
    what = f"{variables} {limit} {stream} {[word[:40] for word in args]}"
    try:
        child = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, timeout=300, check=False, errors="replace",
            encoding=variables.get("PYTHONIOENCODING") or "utf-8", preexec_fn=limit_memory,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{what}: no end after five minutes"
    heard = dict(STREAMS).get(stream, True)
    lines = [line for line in child.stderr.splitlines() if line.startswith("twoclock:")]
    if "Traceback" in child.stderr or "Error" in child.stderr.replace("SystemExit", "").split("twoclock:")[0]:
        return f"{what}: a traceback, {child.stderr.strip().splitlines()[-1][:200]}"
    if child.returncode not in (0, 1, 2, 130, 141):
        return f"{what}: exit status {child.returncode}, {child.stderr[-200:]!r}"
    if child.returncode in (1, 2) and heard and len(lines) != 1:
        return f"{what}: exit status {child.returncode} with {len(lines)} lines, {child.stderr[-200:]!r}"
    if "\x1b[31m" in child.stdout + child.stderr and "prints.py" not in str(args) and not variables:
        return f"{what}: a name steers the terminal"
    return None
