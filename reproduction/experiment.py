"""The contract of an experiment: settings as data in, figures and claims from records out."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import pandas as pd

import twoclock as tc
from twoclock import InputError, Method, Result, plot
from twoclock.intervals import Estimate
from twoclock.protocols import ProblemSource
from twoclock.storage import Identity, RunSpec, identify, provenance

# The results of an experiment: case → method → result.
Records = Mapping[str, Mapping[str, Result]]
# What a claim rests on: a number, one with its interval, several, or words.
Measured = float | int | str | Estimate | Sequence[float]
Role = Literal["compare", "tune", "warm up"]
# Called with the step that a case has come to and how many of its lanes diverged.
Progress = Callable[[int, int], None]
T = TypeVar("T")


class Runnable(Protocol):
    """What the runner asks of a case: :class:`Case`, or one that is no run of two operators.

    ``methods`` has what is compared by label, ``lanes`` the number of trajectories.
    """

    @property
    def methods(self) -> Mapping[str, object]: ...

    @property
    def steps(self) -> int: ...

    @property
    def lanes(self) -> int: ...

    @property
    def title(self) -> str: ...

    @property
    def role(self) -> Role: ...

    @property
    def identities(self) -> Mapping[str, Identity]:
        """What the record of each method must be of."""

    def run(self, labels: Sequence[str], checkpoint: Path, progress: Progress) -> dict[str, Result]:
        """Compute the results of some of the methods; a killed run continues from the checkpoint."""


@dataclass(frozen=True)
class Case:
    """One problem and the methods compared on it; settings as data.

    Args:
        problem: a problem, or a function of a key that makes one for each seed.
        methods: label → method. Those that differ only in numbers run as one program.
        steps: how many.
        seeds: how many, or which.
        marks: where to record; log-spaced if None.
        bound: what counts as diverged, beyond not being finite.
        title: what the report calls the case; its label if empty.
        role: ``"tune"`` tries settings and ``"warm up"`` compiles ahead of a timed run: the report's tables leave both
            out.
    """

    problem: ProblemSource
    methods: Mapping[str, Method]
    steps: int
    seeds: int | Sequence[int]
    marks: Sequence[int] | None = None
    bound: float | None = None
    title: str = ""
    role: Role = "compare"

    @property
    def lanes(self) -> int:
        return len(self.methods) * (self.seeds if isinstance(self.seeds, int) else len(self.seeds))

    def run(self, labels: Sequence[str], checkpoint: Path, progress: Progress) -> dict[str, Result]:
        todo = {label: self.methods[label] for label in labels}
        return tc.solve(
            self.problem, todo, self.steps, self.seeds, self.marks, bound=self.bound, checkpoint=checkpoint,
            progress=lambda event: progress(event.step, event.diverged),
        )  # fmt: skip

    @cached_property
    def identities(self) -> dict[str, Identity]:
        spec = RunSpec.checked(self.steps, self.seeds, self.marks, bound=self.bound)
        return identify(self.problem, self.methods, spec)


def make_result(
    title: str, method: str, steps: int, history: pd.DataFrame, seconds: float, theta: np.ndarray, lost: np.ndarray
) -> Result:
    """The result of what is no run of two operators: a row of the history for each seed, at the one step."""
    seeds = [int(seed) for seed in history["seed"]]
    spec = {
        "problem": {"name": title}, "method": {"name": method}, "steps": steps, "marks": [steps], "seeds": seeds,
        "precision": "float64", **provenance(seconds),
    }  # fmt: skip
    return Result(theta, np.zeros_like(theta), history, lost, np.full(len(seeds), steps), spec)


@dataclass(frozen=True)
class Claim:
    """Something that was claimed, the rule that decides it, what was measured, and the verdict that follows.

    Args:
        name: a short name, unique in its experiment; the key in ``claims.csv``.
        statement: the claim in one line; no two claims of an experiment have the same.
        place: where the paper makes it; a claim of this project begins with "ours" or "not in the paper".
        rule: the test that decides it.
        numbers: what was measured, with intervals where there are any.
        verdict: one of the kinds in ``reproduction.verdicts``.
        cases: the cases that the numbers come from; all of the experiment's if empty.
        speed: says that Fast is faster than a method without averaged operators, which is what the paper is about.
        quote: the paper's own words; its line of the source stands in ``place``.
        finding: what was found, in one sentence.
        short: the same in at most six words, for the title of a picture.
        halves: whether each half of the seeds must lead to the same verdict; not where nothing was chosen on seeds.
        needs: the steps that a run must have to say anything; a shorter one leaves the claim to the full run.
        detail: shown with its experiment and not in the tables of claims.
    """

    name: str
    statement: str
    place: str
    rule: str
    numbers: Mapping[str, Measured]
    verdict: str
    cases: Sequence[str] = ()
    speed: bool = False
    quote: str = ""
    finding: str = ""
    short: str = ""
    halves: bool = True
    needs: int = 0
    detail: bool = False

    @property
    def ours(self) -> bool:
        """Whether it is not the paper's claim but one of this project."""
        return self.place.startswith(("ours", "not in the paper"))


@cache
def _words() -> dict[str, dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / "claims.toml").read_text(encoding="utf-8"))


def words_of(experiment: str, claim: str) -> dict[str, Any]:
    """The quote, place, statement and rule of one of the paper's claims, from claims.toml."""
    return dict(_words()[experiment][claim])


def is_detail(experiment: str, claim: str) -> bool:
    """Whether a claim stands with its experiment alone, and not in the tables of claims."""
    return claim.startswith(tuple(_words()["details"].get(experiment, ())))


@runtime_checkable
class Experiment(Protocol):
    """A module of ``reproduction/experiments``: what it must have.

    Where there is something to say it also has

    * ``ALT``: {figure: what it plots}, true of any records;
    * ``captions(records)``: {figure: what these records show in it};
    * ``claims(records)``: a list of :class:`Claim`, the one that the experiment is about first;
    * ``panel(ax, records)``: the panel of the summary, about the first claim; or several: ``PANELS``, {label: (panel,
      the name of the claim that it is about)};
    * ``advice(records)``: what to use instead, in sentences computed from the records;
    * ``relative_errors(records)``: {task: {method: its final error over that of the best estimator known}};
    * ``searches()``: {case: :class:`reproduction.tuned_settings.MethodSearch`}, what `--tune` tunes;
    * ``QUICK``: false if a quick run of everything leaves it out; by name it still runs;
    * ``JUDGED``: {figure: {the name of a claim that it is about: what a reader calls it}}; else the first claim;
    * ``TIMED``: true if it compares seconds, so that a full run gives it the machine for itself.
    """

    TITLE: str

    def cases(self, quick: bool) -> Mapping[str, Runnable]:
        """What to run, by label; fewer seeds and steps if quick."""

    def draw(self, records: Records) -> Mapping[str, plot.Figure]:
        """The figures, from records alone."""


def require(name: str, module: object) -> Experiment:
    """The module, if it is an experiment."""
    lacking = [part for part in ("TITLE", "cases", "draw") if not hasattr(module, part)]
    if lacking or not isinstance(module, Experiment):
        raise InputError(f"the experiment `{name}` lacks {', '.join(lacking)}; docs/reproduction.md says what it needs")
    return module


def hook(experiment: Experiment, name: str, records: Records, default: T) -> T:
    """What a part of the experiment makes of the records; the default if it lacks that part."""
    function: Callable[[Records], T] | None = getattr(experiment, name, None)
    try:
        return default if function is None else function(records)
    except InputError as error:  # no argument of the user's is wrong, so it is this experiment alone that fails
        raise RuntimeError(f"`{name}` of the experiment: {error}") from error
