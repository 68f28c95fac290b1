"""Objectives: settings of a method or an agent, run on shared seeds and scored."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Bool, Float

from twoclock.agents import check_agent, check_processes, make_agent_job, seed_executor
from twoclock.agents.env_adapters import check_env, is_vector
from twoclock.agents.protocol import Agent, fresh
from twoclock.agents.seed_runner import COST, RETURN, REWARD, Stopped, run_seeds
from twoclock.engine import compatibility
from twoclock.engine.loop import Interrupted, deferred_interrupt, drive
from twoclock.engine.run_batch import Instances, Lanes, make_instances, pad_to
from twoclock.param_paths import paths, with_settings
from twoclock.protocols import InputError, Method, ProblemSource
from twoclock.storage.run_identity import RunSpec, describe
from twoclock.tuning.fresh_samples import FreshMeans, OracleHalf, Probe, hide_truth, read_samples, samples_used
from twoclock.tuning.residual import check_solves, check_unconstrained, follows_theta
from twoclock.tuning.residual_estimate import LocalModel, ResidualEstimates, estimate_residuals
from twoclock.tuning.search_space import Box, check_box, is_number
from twoclock.tuning.tune_result import ScoreTable
from twoclock.validation import short_repr

By = Literal["end", "area"]

RESIDUAL = "residual"
WIDTH = 8  # settings side by side in the program that all rungs share, and settings in the last rung
MOST_SEEDS = 64  # at once, which bounds the memory
_AGENT_METRICS = (COST, REWARD, RETURN)
_DECADES, _PER_DECADE = 2, 10
_LEADERS = 4  # at most; they may take turns


def marks_of(by: By, steps: int) -> list[int]:
    """The steps at which the metric is read: the last alone, or ten per decade over the last two decades.

    Earlier decades would weigh as much, and measure the start rather than the method.
    """
    if by == "end":
        return [steps]
    grid = steps / 10 ** (np.arange(_DECADES * _PER_DECADE + 1) / _PER_DECADE)
    return sorted({max(round(mark), 1) for mark in grid.tolist()})


class Objective(ABC):
    """Runs settings on shared seeds and scores them by a metric; smaller is better."""

    def __init__(self, metric: str, **facts: object) -> None:
        self.metric = self.label = metric  # the metric's label in the result
        self.facts = {"rough": False, **facts}  # for the result's spec
        self.spent = 0  # seed-steps so far
        self.look: Callable[[], None] = lambda: None  # called when some were spent
        self._interrupted: Callable[[], bool] = lambda: False

    @abstractmethod
    def __call__(
        self, methods: Sequence[Method], seeds: Sequence[int], steps: int, batch: int, width: int = WIDTH
    ) -> ScoreTable:
        """Score any number of settings, ``width`` settings and ``batch`` seeds at a time where they run as one."""

    def cost(self, steps: int) -> int:
        """Seed-steps for one seed of one setting."""
        return steps

    @contextmanager
    def session(self, seeds: int) -> Iterator[None]:
        """Hold the resources for calls with ``seeds`` seeds. Ctrl-C ends the search at the next event of a run.

        Raised anywhere, it could be lost: Python ignores it inside JAX's function for the garbage collector.
        """
        with deferred_interrupt() as self._interrupted:
            try:
                yield
            except (Stopped, Interrupted):
                raise Interrupted("stopped while tuning; nothing was saved") from None

    def check(self, methods: Sequence[Method], seeds: Sequence[int]) -> None:
        """Refuse methods that cannot be run or scored; none by default."""
        return

    def finish(self, method: Method) -> Method:
        """Make the user's method or agent from the best settings."""
        return method

    def _count(self, work: int) -> None:
        self.spent += work
        self.look()


class ProblemObjective(Objective):
    """Runs methods on a problem, those that differ only in numbers in one program.

    The metric is one of the problem, or "residual"; the other arguments are those of ``tune``.
    """

    def __init__(self, problem: ProblemSource, metric: str, by: By, bound: float | None, engine: str) -> None:
        super().__init__(metric, problem=describe(problem))
        self.problem, self.by, self.bound, self.engine = problem, by, bound, engine
        self._unit: float | None = None  # converts a square of G to one of F, for a large ω; measured in the first call
        self._last: tuple[list[int], Instances] | None = None
        self._leader: tuple[tuple[list[int], int], FreshMeans] | None = None  # on these seeds, after this many steps

    def cost(self, steps: int) -> int:
        """Without truth there are as many fresh samples as steps."""
        return steps + (samples_used(steps) if self.metric == RESIDUAL else 0)

    def check(self, methods: Sequence[Method], seeds: Sequence[int]) -> None:
        """Refuse methods that do not fit the problem, or for which the residual is meaningless."""
        example = self._instances(seeds[:MOST_SEEDS]).example
        for method in methods:
            compatibility.check_fit(OracleHalf(example) if self.metric == RESIDUAL else example, method)
            if self.metric == RESIDUAL:
                check_unconstrained([path for path, value in paths(method).items() if value is not None])
                check_solves(example)
        self.facts["rough"] = self.metric == RESIDUAL and follows_theta(example)

    def _instances(self, seeds: Sequence[int]) -> Instances:
        """As ``solve`` makes them. Drawing them can take longer than a run, so the last ones are cached."""
        if self._last is None or self._last[0] != list(seeds):
            self._last = (list(seeds), make_instances(self.problem, list(seeds)))
        return self._last[1]

    def _at_start(self, seeds: Sequence[int]) -> Float[np.ndarray, " seeds"]:
        """The metric at the start of each seed, a batch at a time as in a run."""
        found = []
        for i in range(0, len(seeds), MOST_SEEDS):
            some = seeds[i : i + MOST_SEEDS]
            lanes = Lanes(self._instances(some), Probe(), 1, list(some))
            found.append(drive(lanes, [0], engine="xla", interrupted=self._interrupted).rows[0][self.metric][0])
        return np.concatenate(found)

    def __call__(
        self, methods: Sequence[Method], seeds: Sequence[int], steps: int, batch: int, width: int = WIDTH
    ) -> ScoreTable:
        batch, blind = min(batch, MOST_SEEDS), self.metric == RESIDUAL
        parts: list[tuple[np.ndarray, Any]] = []  # whether lanes are alive, and their means on fresh samples
        if len({jax.tree.structure(method) for method in methods}) > 1:
            width = 1  # their functions differ, so they share no program
        for i in range(0, len(seeds), batch):
            some, pages = list(seeds[i : i + batch]), []
            for j in range(0, len(methods), width):  # a short page is padded with its last
                page = pad_to(list(methods[j : j + width]), width)
                lanes = Lanes.of(self._instances(some), page, some, self.bound)
                output = drive(
                    hide_truth(lanes) if blind else lanes, marks_of(self.by, steps), engine=self.engine,
                    interrupted=self._interrupted,
                )  # fmt: skip
                self._count(width * len(some) * self.cost(steps))
                if blind:
                    seen: Any = read_samples(lanes, output.carry, steps, steps, self.engine)
                else:
                    seen = np.stack([row[self.metric] for row in output.rows], axis=-1)
                pages.append((np.asarray(output.carry.alive), seen))
            parts.append(jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(methods)], *pages))
        alive, found = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *parts)
        if not blind:
            if found.shape[2] > 1 and (found < 0).any():
                raise InputError(
                    f"`by='area'` needs a metric that is never negative, and {self.metric!r} is; use by='end'"
                )
            start = np.broadcast_to(self._at_start(seeds), alive.shape)
            return ScoreTable(np.where(np.isfinite(found), found, np.inf), ~alive, start)
        there = (list(seeds), steps)
        rival = self._leader[1] if self._leader and self._leader[0] == there else None
        found, leader = judge_by_leader(found, rival)
        self._leader = there, leader
        if self._unit is None:
            self._unit = found.median_unit()
        score, noise = found.best(self._unit)
        lost = ~np.isfinite(score) | ~np.isfinite(noise)
        weights = _weigh_seeds(found, lost)
        score, noise = (np.where(lost, np.inf, weights * part) for part in (score, noise))
        start = np.where(lost, np.inf, weights * found.start.value)
        return ScoreTable(score[..., None], lost, start, found.F.value, found.G.value, noise)


def _weigh_seeds(found: ResidualEstimates, lost: Bool[np.ndarray, "settings seeds"]) -> Float[np.ndarray, " seeds"]:
    """Weights of the seeds, 1 on average: smaller where the start is farther away by the slopes of the seed.

    Slopes differ between seeds, by orders of magnitude for exponential operators, so that one seed would decide. If the
    distance of the start is the same for all, as for affine operators, or unknown, the weights are equal.
    """
    best = int(np.argmin(lost.sum(axis=1)))
    value, se = found.start.value[best], found.start.se[best]
    if lost[best].any() or not np.all(value > 3 * se):
        return np.ones(len(value))
    weights: np.ndarray = value.min() / value
    return weights / weights.mean()


def judge_by_leader(means: FreshMeans, rival: FreshMeans | None = None) -> tuple[ResidualEstimates, FreshMeans]:
    """Judge all settings by the slopes at the leader's end; also return the leader's means on fresh samples.

    A setting's own slopes may flatter it: where an exponential is steep a Newton step is short, even far from the
    solution, so that a setting that does not move would win. The comparison of means at two points by the slopes at one
    of them is Deuflhard's natural monotonicity test; units do not matter to it.

    Args:
        rival: a former leader on the same samples, which may lead again.
    """
    count = len(means.alive)
    everybody = means if rival is None else FreshMeans(*map(np.concatenate, zip(means, rival, strict=True)))
    found, leader = estimate_residuals(everybody), -1
    for _ in range(_LEADERS):
        square = found.best(found.median_unit())
        lost = ~(everybody.alive & np.isfinite(square.value) & np.isfinite(square.se))
        value, se = (np.where(lost, np.inf, part) for part in square)
        first = int(ScoreTable(value[..., None], lost, noise=se).best_first()[0])
        if first == leader or not everybody.whole.all() or lost[first].any():
            leader = first
            break
        leader = first
        found = estimate_residuals(everybody, LocalModel.of(everybody.select(leader)))
    return jax.tree.map(lambda part: part[:count], found), everybody.select(leader)


class AgentObjective(Objective):
    """Runs agents on an environment, scored by their cost or reward over the later half of their steps.

    By default the metric is the mean cost, or the mean reward of an agent that knows no costs. Rewards have a minus
    sign, since the score is minimised.
    """

    def __init__(
        self, env: object, agent: Agent, metric: object, x0: object, step_timeout: float | None, processes: int | None
    ) -> None:
        check_agent(agent)
        check_env(env, x0)
        check_processes(processes, step_timeout)
        if is_vector(env):
            raise InputError("`problem` must be an environment that is made one by one, got a vectorised one")
        if metric is None:
            metric = COST if callable(getattr(agent, "stage_cost", None)) else REWARD
        if not isinstance(metric, str) or metric not in _AGENT_METRICS:
            raise InputError(
                f"`metric` of an agent must be one of {', '.join(_AGENT_METRICS)}, got {short_repr(metric)}: "
                "an agent's own metrics cannot be tuned on"
            )
        self._job = make_agent_job(agent, env, x0, RunSpec.checked(1, 1))
        super().__init__(metric, problem=self._job.what["problem"], scale="log" if metric == COST else "linear")
        self.label = metric if metric == COST else f"−{metric}"
        self.env, self.agent, self.x0, self.step_timeout, self.processes = env, agent, x0, step_timeout, processes
        # A frozen class of the settings, so that they have paths like those of a method.
        settings = {name: value for name, value in agent.settings.items() if name != "seed"}
        self.settings: Any = dataclasses.make_dataclass(type(agent).__name__, list(settings), frozen=True)(**settings)

    def check_box(self, space: object) -> Box:
        """Check the box: at each limit an agent must be possible."""
        if space is None:
            known = ", ".join(path for path, value in paths(self.settings).items() if is_number(value))
            raise InputError(f"`space` must be given for an agent; it has {known}")
        box = check_box(self.settings, space)
        for path, limits in box.items():
            for limit in limits:
                self.finish(with_settings(self.settings, {path: limit}))
        return box

    @contextmanager
    def session(self, seeds: int) -> Iterator[None]:
        """Hold the processes that run the seeds."""
        seed_processes = seed_executor(self._job, seeds, self.processes, self.step_timeout)
        with super().session(seeds), seed_processes as self._executor:
            yield

    def __call__(
        self, methods: Sequence[Method], seeds: Sequence[int], steps: int, batch: int, width: int = WIDTH
    ) -> ScoreTable:
        spec = RunSpec.checked(steps, list(seeds), [steps])
        jobs = [make_agent_job(self.agent, self.env, self.x0, spec, **vars(settings)) for settings in methods]
        tasks = [(job, seed) for job in jobs for seed in seeds]
        outcomes = run_seeds(self._executor, tasks, lambda *at: None, self._interrupted)
        self._count(len(outcomes) * steps)
        ends = [outcome.rows[-1] for outcome in outcomes]
        for row in ends:
            if self.metric not in row:
                there = ", ".join(name for name in _AGENT_METRICS if name in row) or "none of them"
                raise InputError(f"`metric` {self.metric} is not recorded here, {there} is")
        sign, shape = 1 if self.metric == COST else -1, (len(methods), len(seeds))
        values = sign * np.reshape([row[self.metric] for row in ends], shape)
        lost = np.reshape([outcome.diverged for outcome in outcomes], shape)
        return ScoreTable(np.where(lost | ~np.isfinite(values), np.inf, values)[..., None], lost)

    def finish(self, method: Any) -> Any:
        """A new agent with these settings."""
        return fresh(self.agent, 0, **vars(method))
