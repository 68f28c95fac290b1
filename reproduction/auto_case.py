"""``Auto`` against methods tuned with the answer known, on one problem: a case of an experiment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

import twoclock as tc
from reproduction.experiment import Progress, Role
from twoclock.protocols import ProblemSource
from twoclock.storage import Identity, Provenance, RunSpec, identify

AUTO, BEST, TUNED, CERTIFIED, LSTD = "Auto", "best of 60", "tune without truth", "certified", "LSTD"
LIMIT = "statistical limit"
_HOLD = 100.0
_RUNS_OF_A_SEARCH = 400  # of two rungs, with their fresh samples


def grid() -> dict[str, dict[str, tc.Method]]:
    """Twenty settings each of Standard, Fast and Polyak: first steps of .001 to 1 and β/α of .1, 1 and 10."""
    found: dict[str, dict[str, tc.Method]] = {"Standard": {}, "Fast": {}, "Polyak": {}}
    for first in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0):
        for ratio in (0.1, 1.0, 10.0):
            if (first, ratio) != (1.0, 10.0):
                label = f"{first:g}, {ratio:g}"
                slow, fast = _steps(first, 1.0), _steps(first * ratio, 1.0)
                found["Standard"][label] = tc.Standard(slow, fast)
                found["Fast"][label] = tc.Fast(slow, fast, "40/(k+160)")
                found["Polyak"][label] = tc.Polyak(
                    tc.Standard(_steps(first, 0.5), _steps(first * ratio, 0.5)), power=1.0
                )
    return found


def _steps(first: float, p: float) -> tc.Power:
    """first·(1 + k/100)^−p."""
    return tc.Power(first * _HOLD**p, p=p, shift=_HOLD)


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
        spec = RunSpec.checked(self.steps, self.seeds, [self.steps])
        auto = identify(self.problem, {AUTO: tc.Auto()}, spec)[AUTO].parts
        parts = {"steps": self.steps, "seeds": self.seeds, "metric": self.metric, "problem": auto["problem"]}
        own = {"auto": auto["method"], "grid": [self.apart, str(grid())], "certified": self.structure}
        return {label: Identity({**parts, "method": [how, own.get(how)]}) for label, how in self.methods.items()}

    def run(self, labels: Sequence[str], checkpoint: Path, progress: Progress) -> dict[str, tc.Result]:
        """Run each in its turn; no checkpoint is written, for each takes seconds."""
        ways = {
            "auto": self._auto, "grid": self._grid, "tune": self._tune, "certified": self._certified,
            "lstd": self._lstd, "limit": self._limit,
        }  # fmt: skip
        found = {}
        for label in labels:
            began = time.perf_counter()
            name, values, lost = ways[self.methods[label]](progress)
            found[label] = self._result(name, values, lost, time.perf_counter() - began)
        return found

    def _auto(self, progress: Progress) -> tuple[str, np.ndarray, np.ndarray]:
        values, lost = self._walk(self.problem, [tc.Auto()], self.steps, progress)
        return "Auto", values[0], lost[0]

    def _lstd(self, progress: Progress) -> tuple[str, np.ndarray, np.ndarray]:
        assert self.td is not None
        values, lost = self._walk(self.td(), [tc.methods.Lstd()], self.steps, progress)
        return "Lstd", values[0], lost[0]

    def _limit(self, progress: Progress) -> tuple[str, np.ndarray, np.ndarray]:
        assert self.variance is not None
        return "limit", np.full(self.seeds, self.variance(self.problem) / self.steps), np.zeros(self.seeds, bool)

    def _certified(self, progress: Progress) -> tuple[str, np.ndarray, np.ndarray]:
        assert self.structure is not None
        method = tc.certify(self.structure, **self.problem.constants()).method()  # type: ignore[union-attr]
        values, lost = self._walk(self.problem, [method], self.steps, progress)
        return str(method), values[0], lost[0]

    def _grid(self, progress: Progress) -> tuple[str, np.ndarray, np.ndarray]:
        """Chosen on seeds of its own, so that luck in the choice does not count: few lost, then a small mean."""
        apart = range(self.seeds, self.seeds + self.apart)
        found = []
        for family, settings in grid().items():
            values, lost = self._walk(self.problem, list(settings.values()), self.steps, progress, apart)
            ranks = zip(lost.sum(axis=1), values.mean(axis=1), strict=True)
            found += [(rank, f"{family} {s}", settings[s]) for s, rank in zip(settings, ranks, strict=True)]
        _, name, best = min(found, key=lambda one: one[0])
        values, lost = self._walk(self.problem, [best], self.steps, progress)
        return name, values[0], lost[0]

    def _tune(self, progress: Progress) -> tuple[str, np.ndarray, np.ndarray]:
        half = self.steps // 2
        short = max(half * self.seeds // _RUNS_OF_A_SEARCH, 1)  # the horizon that so small a budget affords
        method = tc.Polyak(tc.Standard(_steps(0.03, 0.5), _steps(0.03, 0.5)), power=1.0)
        found = tc.tune(self.problem, method, steps=short, budget=half * self.seeds, metric="residual", rungs=2)
        values, lost = self._walk(self.problem, [found.method], half, progress)
        return str(found.method), values[0], lost[0]

    def _walk(
        self,
        problem: ProblemSource,
        methods: Sequence[tc.Method],
        steps: int,
        progress: Progress,
        seeds: range | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The metric at the end and which lanes diverged, each methods × seeds; on those that count if not said."""
        seeds = range(self.seeds) if seeds is None else seeds
        results = tc.solve(
            problem, {str(i): method for i, method in enumerate(methods)}, steps, seeds, [steps],
            progress=lambda event: progress(event.step, event.diverged),
        )  # fmt: skip
        lost = np.array([result.diverged for result in results.values()])
        last = [r.history[r.history["step"] == steps].set_index("seed")[self.metric] for r in results.values()]
        return np.where(lost, np.inf, [column.reindex(seeds).to_numpy(float) for column in last]), lost

    def _result(self, name: str, values: np.ndarray, lost: np.ndarray, seconds: float) -> tc.Result:
        seeds = list(range(self.seeds))
        history = pd.DataFrame({"seed": seeds, "step": self.steps, "error": values})
        spec = {
            "problem": {"name": self.title or self.kind}, "method": {"name": name}, "steps": self.steps,
            "marks": [self.steps], "seeds": seeds, "precision": "float64", **Provenance.here(seconds).as_dict(),
        }  # fmt: skip
        nothing = np.zeros((self.seeds, 0))
        return tc.Result(nothing, nothing, history, lost, np.full(self.seeds, self.steps), spec)
