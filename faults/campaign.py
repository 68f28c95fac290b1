"""Running campaigns, and the table of their outcomes."""

from __future__ import annotations

import importlib
import pkgutil
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType

import faults
from faults._stream import stream


@dataclass(frozen=True)
class Trial:
    """One fault: its target, and what was wrong with the answer, if anything."""

    what: str
    trouble: str | None = None


@dataclass
class Outcome:
    """A campaign that has run: its trials by what they were tried on, and its failures."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Trial] = field(default_factory=list)
    seconds: float = 0.0

    def run(self, trials: Iterable[Trial]) -> Outcome:
        began = time.monotonic()
        for trial in trials:
            self.counts[trial.what] += 1
            if trial.trouble is not None:
                self.failures.append(trial)
                print(f"  {trial.what}: {trial.trouble}", flush=True)
        self.seconds = time.monotonic() - began
        return self


def campaigns() -> dict[str, ModuleType]:
    """Every campaign here by the name of its file, in the order of the alphabet."""
    names = (info.name for info in pkgutil.iter_modules(faults.__path__) if not info.name.startswith("_"))
    modules = {name: importlib.import_module(f"faults.{name}") for name in sorted(names)}
    return {name: module for name, module in modules.items() if hasattr(module, "NAME")}


def run(name: str, scale: float, seed: int) -> Outcome:
    """One campaign to its end."""
    for number in (signal.SIGINT, signal.SIGHUP):  # a background job and nohup ignore them, and so would every trial
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    module = campaigns()[name]
    if hasattr(module, "trials"):
        return Outcome(module.NAME).run(module.trials(scale, seed))
    many = max(round(module.TRIALS * scale), min(module.TRIALS, 5))
    trials = stream(name, many, seed, getattr(module, "SECONDS", 300.0))
    return Outcome(module.NAME).run(Trial(what, trouble) for what, trouble in trials)


def table(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Campaign × trials × failures, in Markdown."""
    yield "| campaign | tried on | trials | failures |"
    yield "|---|---|---:|---:|"
    trials = failures = 0
    for outcome in outcomes:
        bad = Counter(trial.what for trial in outcome.failures)
        for i, (what, count) in enumerate(outcome.counts.items()):
            yield f"| {outcome.name if i == 0 else ''} | {what} | {count:,} | {bad[what]} |"
        trials, failures = trials + sum(outcome.counts.values()), failures + len(outcome.failures)
    yield f"| **all** | | **{trials:,}** | **{failures}** |"
