"""``Auto`` against methods tuned with the answer known, on one problem: a case of an experiment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jax
import numpy as np
import pandas as pd

from reproduction.experiment import Role
from twoclock.engine import program_digest
from twoclock.engine.loop import ProgressEvent, drive
from twoclock.engine.run_batch import Lanes, make_instances
from twoclock.methods.auto import Auto
from twoclock.methods.fast import Fast
from twoclock.methods.lstd import Lstd
from twoclock.methods.polyak import Polyak
from twoclock.methods.standard import Standard
from twoclock.protocols import Method, ProblemSource
from twoclock.result import Result
from twoclock.schedules import Power
from twoclock.storage.run_identity import Identity, Provenance
from twoclock.theory.certify import certify
from twoclock.tuning.tune import tune

AUTO, BEST, TUNED, CERTIFIED, LSTD = "Auto", "best of 60", "tune without truth", "certified", "LSTD"
LIMIT = "statistical limit"
_HOLD = 100.0
_RUNS_OF_A_SEARCH = 400  # of two rungs, with their fresh samples


def grid() -> dict[str, dict[str, Method]]:
    """Twenty settings each of Standard, Fast and Polyak: first steps of .001 to 1 and β/α of .1, 1 and 10."""
    found: dict[str, dict[str, Method]] = {"Standard": {}, "Fast": {}, "Polyak": {}}
    for first in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0):
        for ratio in (0.1, 1.0, 10.0):
            if (first, ratio) != (1.0, 10.0):
                label = f"{first:g}, {ratio:g}"
                slow, fast = _steps(first, 1.0), _steps(first * ratio, 1.0)
                found["Standard"][label] = Standard(slow, fast)
                found["Fast"][label] = Fast(slow, fast, "40/(k+160)")
                found["Polyak"][label] = Polyak(Standard(_steps(first, 0.5), _steps(first * ratio, 0.5)), power=1.0)
    return found


def _steps(first: float, p: float) -> Power:
    """first·(1 + k/100)^−p."""
    return Power(first * _HOLD**p, p=p, shift=_HOLD)


@dataclass(frozen=True, eq=False)
class Race:
    """Who is nearest to the answer after the same number of samples.

    Args:
        make: makes the problem, when it is first needed.
        metric: by which, recorded as "error"; the mean over seeds at the end counts.
        methods: label → how it is made: "auto", "grid" (the best of 60 settings, chosen with truth on other seeds),
            "tune" (half of the samples for the search, without truth, half for the run), "certified", "lstd" or
            "limit".
        steps, seeds: how many; the seeds are shared by all.
        kind: of the problem, in words.
        structure: of h, for certified steps; the problem must know its constants.
        td: makes the problem with TD's operator, from which LSTD reads the same samples.
        variance: of the problem, that of the efficient estimate from one sample; a limit is this over the steps.
        apart: how many other seeds the best of 60 settings is chosen on.
    """

    make: Callable[[], ProblemSource]
    metric: str
    methods: Mapping[str, str]
    steps: int
    seeds: int
    kind: str
    structure: str | None = None
    td: Callable[[], ProblemSource] | None = None
    variance: Callable[[ProblemSource], float] | None = None
    apart: int = 8
    title: str = ""
    role: Role = "compare"

    @cached_property
    def problem(self) -> ProblemSource:
        return self.make()

    @property
    def lanes(self) -> int:
        return sum(self.seeds + (60 * self.apart if how == "grid" else 0) for how in self.methods.values())

    @property
    def work(self) -> int:
        return self.steps * self.lanes

    @cached_property
    def identities(self) -> dict[str, Identity]:
        of_problem, of_methods = program_digest.of_run(self.problem, {"": Auto()}, x64=True)
        parts = {"steps": self.steps, "seeds": self.seeds, "metric": self.metric, "problem": of_problem}
        own = {"auto": of_methods[""], "grid": [self.apart, str(grid())], "certified": self.structure}
        return {label: Identity({**parts, "method": [how, own.get(how)]}) for label, how in self.methods.items()}

    def run(
        self, todo: Mapping[str, str], checkpoint: Path, progress: Callable[[ProgressEvent], None] | None
    ) -> dict[str, Result]:
        """Each in its turn; nothing is kept in between, for each takes seconds."""
        found = {}
        for label, how in todo.items():
            began = time.perf_counter()
            name, values, lost = getattr(self, f"_{how}")(progress or (lambda tick: None))
            found[label] = self._result(name, values, lost, time.perf_counter() - began)
        return found

    def _auto(self, look: Callable[[ProgressEvent], None]) -> tuple[str, np.ndarray, np.ndarray]:
        values, lost = self._walk(self.problem, [Auto()], self.steps, look)
        return "Auto", values[0], lost[0]

    def _lstd(self, look: Callable[[ProgressEvent], None]) -> tuple[str, np.ndarray, np.ndarray]:
        assert self.td is not None
        values, lost = self._walk(self.td(), [Lstd()], self.steps, look)
        return "Lstd", values[0], lost[0]

    def _limit(self, look: Callable[[ProgressEvent], None]) -> tuple[str, np.ndarray, np.ndarray]:
        assert self.variance is not None
        return "limit", np.full(self.seeds, self.variance(self.problem) / self.steps), np.zeros(self.seeds, bool)

    def _certified(self, look: Callable[[ProgressEvent], None]) -> tuple[str, np.ndarray, np.ndarray]:
        assert self.structure is not None
        method = certify(self.structure, **self.problem.constants()).method()  # type: ignore[union-attr]
        values, lost = self._walk(self.problem, [method], self.steps, look)
        return str(method), values[0], lost[0]

    def _grid(self, look: Callable[[ProgressEvent], None]) -> tuple[str, np.ndarray, np.ndarray]:
        """Chosen on seeds of its own, so that luck in the choice does not count: few lost, then a small mean."""
        apart = range(self.seeds, self.seeds + self.apart)
        found = []
        for family, settings in grid().items():
            values, lost = self._walk(self.problem, list(settings.values()), self.steps, look, apart)
            ranks = zip(lost.sum(axis=1), values.mean(axis=1), strict=True)
            found += [(rank, f"{family} {s}", settings[s]) for s, rank in zip(settings, ranks, strict=True)]
        _, name, best = min(found, key=lambda one: one[0])
        values, lost = self._walk(self.problem, [best], self.steps, look)
        return name, values[0], lost[0]

    def _tune(self, look: Callable[[ProgressEvent], None]) -> tuple[str, np.ndarray, np.ndarray]:
        half = self.steps // 2
        short = max(half * self.seeds // _RUNS_OF_A_SEARCH, 1)  # the horizon that so small a budget affords
        method = Polyak(Standard(_steps(0.03, 0.5), _steps(0.03, 0.5)), power=1.0)
        found = tune(self.problem, method, steps=short, budget=half * self.seeds, metric="residual", rungs=2)
        values, lost = self._walk(self.problem, [found.method], half, look)
        return str(found.method), values[0], lost[0]

    def _walk(
        self,
        problem: ProblemSource,
        methods: Sequence[Method],
        steps: int,
        look: Callable[[ProgressEvent], None],
        seeds: range | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The metric at the end and which lanes diverged, each methods × seeds; on those that count if not said."""
        seeds = range(self.seeds) if seeds is None else seeds
        with jax.enable_x64(True):
            walked = drive(Lanes.of(make_instances(problem, seeds), list(methods), seeds, None), [steps], look=look)
        lost = ~np.asarray(walked.carry.alive)
        return np.where(lost, np.inf, np.asarray(walked.rows[-1][self.metric], float)), lost

    def _result(self, name: str, values: np.ndarray, lost: np.ndarray, seconds: float) -> Result:
        seeds = list(range(self.seeds))
        history = pd.DataFrame({"seed": seeds, "step": self.steps, "error": values})
        spec = {
            "problem": {"name": self.title or self.kind}, "method": {"name": name}, "steps": self.steps,
            "marks": [self.steps], "seeds": seeds, "precision": "float64", **Provenance.here(seconds).as_dict(),
        }  # fmt: skip
        nothing = np.zeros((self.seeds, 0))
        return Result(nothing, nothing, history, lost, np.full(self.seeds, self.steps), spec)
