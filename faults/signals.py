"""Ctrl-C, SIGTERM and SIGHUP at random moments, the first second too: one line, and the command in it resumes."""

from __future__ import annotations

import random
import shlex
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from faults._children import complaint, digests, started, twoclock
from faults.campaign import Trial

NAME = "signals"

# Long enough that no signal comes after its end, on the default engine.
RUN = ("run", "quadratic", "fast", "--steps", "40000000", "--seeds", "4", "--problem.dim", "2")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def trials(scale: float, seed: int) -> Iterator[Trial]:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        root = Path(name)
        twoclock(*RUN, "--out", root / "whole")
        good = digests(root / "whole")
        for _ in range(max(int(15 * scale), 2)):
            yield _while_loading(rng)
        for i in range(max(int(15 * scale), 3)):
            yield _while_running(root / f"run-{i}", _SIGNALS[i % 3], good, rng)


def _while_loading(rng: random.Random) -> Trial:
    """The interpreter starts before any line of the library runs."""
    with started("-m", "twoclock_command", "list") as child:
        time.sleep(rng.uniform(0.15, 1.2))
        child.send_signal(signal.SIGINT)
        _, output = child.communicate(timeout=600)
    ours = "twoclock" in output or not output
    return Trial("Ctrl-C while loading", "a traceback" if "Traceback" in output and ours else None)


def _while_running(out: Path, number: signal.Signals, good: dict[str, str], rng: random.Random) -> Trial:
    twice = rng.random() < 0.4
    with started("-m", "twoclock", *RUN, "--out", out) as child:
        deadline = time.monotonic() + 300
        while not (out / "checkpoint").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 3))
        child.send_signal(number)
        if twice and number == signal.SIGINT:
            time.sleep(rng.uniform(0, 0.2))
            child.send_signal(number)
        _, output = child.communicate(timeout=600)
    what = f"{number.name} while running"
    if child.returncode == 0:  # it was quicker
        return Trial(what, _same(out, good))
    if child.returncode == -number != -signal.SIGINT and "Traceback" not in output:
        end = twoclock(*RUN, "--out", out, "--resume")
        return Trial(f"{number.name} before the first step", complaint(end, (0,)) or _same(out, good))
    if "Traceback" in output or child.returncode != 128 + number:
        return Trial(what, f"exit status {child.returncode}: {output.strip()[-150:]!r}")
    command = output.strip().splitlines()[-1].partition("to resume: twoclock ")[2]
    if not command:
        return Trial(what, f"no way on: {output.strip()[-150:]!r}")
    end = twoclock(*shlex.split(command))
    return Trial(what, complaint(end, (0,)) or _same(out, good))


def _same(out: Path, good: dict[str, str]) -> str | None:
    return None if digests(out) == good else "another end"
