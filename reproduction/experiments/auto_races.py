"""``Auto`` against methods tuned with the answer known, and against parameter-free ones: the race on one problem."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np
import pandas as pd

import twoclock as tc
from reproduction.experiment import Progress, Role, make_result
from reproduction.tuned_settings import holding
from twoclock.protocols import Operator, ProblemSource, PyTree, Scalar, pytree, static
from twoclock.storage import Identity, RunSpec, identify

if TYPE_CHECKING:
    import optax


OPTIMIZERS = ("cocob", "dog", "dowg", "prodigy", "schedule-free")


@functools.cache  # a transformation is part of the program: the same one is not compiled again
def _optimizer(name: str) -> "optax.GradientTransformation":
    """Make an optimizer as its authors set it; schedule-free averaging has DoG's steps inside."""
    from optax import contrib  # a quick run does without

    if name == "schedule-free":
        return contrib.schedule_free(contrib.dog(), learning_rate=1.0)
    made: optax.GradientTransformation = getattr(contrib, name)()
    return made


@pytree
class OptaxState:
    theta: PyTree
    omega: PyTree
    memory: tuple[PyTree, PyTree]


@pytree
class ParameterFree(tc.Method):
    """θ and ω each by an optimizer of optax.contrib, as if F and G were its gradients."""

    name: str = static()

    def init(self, theta: PyTree, omega: PyTree) -> OptaxState:
        start = _optimizer(self.name).init
        return OptaxState(theta, omega, (start(theta), start(omega)))

    def step(self, F: Operator, G: Operator, state: OptaxState, x: PyTree, k: Scalar) -> OptaxState:
        import optax

        here = state.theta, state.omega
        moved, memories = [], []
        for variable, operator, memory in zip(here, (F, G), state.memory, strict=True):
            change, after = _optimizer(self.name).update(operator(*here, x), memory, variable)
            moved.append(optax.apply_updates(variable, change))
            memories.append(jax.tree.map(lambda new, old: new.astype(old.dtype), after, memory))
        return OptaxState(moved[0], moved[1], (memories[0], memories[1]))

    def estimate(self, state: OptaxState) -> tuple[PyTree, PyTree]:
        if self.name != "schedule-free":
            return state.theta, state.omega
        from optax import contrib

        theta, omega = (
            contrib.schedule_free_eval_params(memory, variable)
            for memory, variable in zip(state.memory, (state.theta, state.omega), strict=True)
        )
        return theta, omega


AUTO, BEST, TUNED, CERTIFIED, LSTD = "Auto", "best of 60", "tune without truth", "certified", "LSTD"
LIMIT, FREE = "statistical limit", "best parameter-free"
_steps = partial(holding, hold=100.0)  # first·(1 + k/100)^−power
_RUNS_OF_A_SEARCH = 400  # of two rungs, with their fresh samples


def grid() -> dict[str, dict[str, tc.Method]]:
    """Twenty settings each of Standard, Fast and Polyak: first steps of .001 to 1 and β/α of .1, 1 and 10."""
    found: dict[str, dict[str, tc.Method]] = {"Standard": {}, "Fast": {}, "Polyak": {}}
    for first in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0):
        for ratio in (0.1, 1.0, 10.0):
            if (first, ratio) != (1.0, 10.0):
                label = f"{first:g}, {ratio:g}"
                slow, fast = _steps(first, power=1.0), _steps(first * ratio, power=1.0)
                found["Standard"][label] = tc.Standard(slow, fast)
                found["Fast"][label] = tc.Fast(slow, fast, "40/(k+160)")
                root = tc.Standard(_steps(first, power=0.5), _steps(first * ratio, power=0.5))
                found["Polyak"][label] = tc.Polyak(root, power=1.0)
    return found


@dataclass(frozen=True, eq=False)
class Race:
    """Who is nearest to the answer after the same number of samples.

    Args:
        make: makes the problem, when it is first needed.
        metric: by which, recorded as "error"; the mean over seeds at the end counts.
        methods: label → how it is made. "grid" is the best of 60 settings, chosen with truth on other seeds; "free" the
            best parameter-free method of optax, chosen likewise. Then "tune" spends half of the samples on the search,
            without truth, and half on the run. Others are "auto", "certified", "lstd" and "limit".
        steps, seeds: how many; the seeds are shared by all.
        kind: a description of the kind of problem.
        structure: of h, for certified steps; the problem must know its constants.
        td: makes the problem with TD's operator, from which LSTD reads the same samples.
        variance: of the problem, that of the efficient estimate from one sample; a limit is this over the steps.
        apart: how many other seeds the best of 60 settings is chosen on.

    The record of Auto also has ``start``, the error at the start, and ``arrived``, whether the seed says so.
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
    apart: int = 4
    title: str = ""
    role: Role = "compare"

    @cached_property
    def problem(self) -> ProblemSource:
        return self.make()

    @property
    def lanes(self) -> int:
        tried = {"grid": 60, "free": len(OPTIMIZERS)}
        return sum(self.seeds + tried.get(how, 0) * self.apart for how in self.methods.values())

    @cached_property
    def identities(self) -> dict[str, Identity]:
        spec = RunSpec.checked(self.steps, self.seeds, [self.steps])
        auto = identify(self.problem, {AUTO: tc.Auto()}, spec)[AUTO].parts
        parts = {"steps": self.steps, "seeds": self.seeds, "metric": self.metric, "problem": auto["problem"]}
        own = {
            "auto": auto["method"],
            "grid": [self.apart, str(grid())],
            "free": [self.apart],
            "certified": self.structure,
        }
        return {label: Identity({**parts, "method": [how, own.get(how)]}) for label, how in self.methods.items()}

    def run(self, labels: Sequence[str], checkpoint: Path, progress: Progress) -> dict[str, tc.Result]:
        """Run each in its turn; no checkpoint is written, for each takes seconds."""
        found = {}
        for label in labels:
            began = time.perf_counter()
            if (how := self.methods[label]) == "limit":
                assert self.variance is not None
                name, lost = "limit", np.zeros(self.seeds, bool)
                values = np.full(self.seeds, self.variance(self.problem) / self.steps)
            else:
                name, problem, method, steps = self._entrant(how, progress)
                (values,), (lost,), (result,) = self._walk(problem, [method], steps, progress, range(self.seeds))
            history = pd.DataFrame({"seed": range(self.seeds), "step": self.steps, "error": values})
            if how == "auto":
                first = result.history[result.history["step"] == 0].set_index("seed")[self.metric]
                history["start"] = first.reindex(range(self.seeds)).to_numpy(float)
                history["arrived"] = np.asarray(getattr(result, "arrived", np.nan), float)
            title, seconds, nothing = self.title or self.kind, time.perf_counter() - began, np.zeros((self.seeds, 0))
            found[label] = make_result(title, name, self.steps, history, seconds, nothing, lost)
        return found

    def _entrant(self, how: str, progress: Progress) -> tuple[str, ProblemSource, tc.Method, int]:
        """The name of a method, its problem, the method itself, and how many samples are left for it."""
        if how == "auto":
            return "Auto", self.problem, tc.Auto(), self.steps
        if how == "lstd":
            assert self.td is not None
            return "Lstd", self.td(), tc.methods.Lstd(), self.steps
        if how == "certified":
            assert self.structure is not None
            method = tc.certify(self.structure, **self.problem.constants()).method()  # type: ignore[union-attr]
            return str(method), self.problem, method, self.steps
        if how == "tune":
            half = self.steps // 2
            short = max(half * self.seeds // _RUNS_OF_A_SEARCH, 1)  # the horizon that so small a budget affords
            start = tc.Polyak(tc.Standard(_steps(0.03, power=0.5), _steps(0.03, power=0.5)), power=1.0)
            tuned = tc.tune(self.problem, start, steps=short, budget=half * self.seeds, metric="residual", rungs=2)
            return str(tuned.method), self.problem, tuned.method, half
        # Chosen on separate seeds, so that luck in the choice does not count: few lost, then a small mean.
        apart = range(self.seeds, self.seeds + self.apart)
        rivals = grid() if how == "grid" else {name: {"": ParameterFree(name)} for name in OPTIMIZERS}
        found = []
        for family, settings in rivals.items():
            values, lost, _ = self._walk(self.problem, list(settings.values()), self.steps, progress, apart)
            ranks = zip(lost.sum(axis=1), values.mean(axis=1), strict=True)
            found += [(rank, f"{family} {s}".strip(), settings[s]) for s, rank in zip(settings, ranks, strict=True)]
        _, name, best = min(found, key=lambda one: one[0])
        return name, self.problem, best, self.steps

    def _walk(
        self, problem: ProblemSource, methods: Sequence[tc.Method], steps: int, progress: Progress, seeds: range
    ) -> tuple[np.ndarray, np.ndarray, list[tc.Result]]:
        """The metric at the end and which lanes diverged, each methods × seeds, and the results."""
        results = tc.solve(
            problem, {str(i): method for i, method in enumerate(methods)}, steps, seeds, [0, steps],
            progress=lambda event: progress(event.step, event.diverged),
        )  # fmt: skip
        lost = np.array([result.diverged for result in results.values()])
        last = [r.history[r.history["step"] == steps].set_index("seed")[self.metric] for r in results.values()]
        ends = np.where(lost, np.inf, [column.reindex(seeds).to_numpy(float) for column in last])
        return ends, lost, list(results.values())
