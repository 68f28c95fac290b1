"""Objectives: settings of a method or an agent, run on shared seeds and scored."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from twoclock.agents import check_agent, check_processes, make_agent_job, seed_executor
from twoclock.agents.env_adapters import check_env, is_vector
from twoclock.agents.protocol import Agent, fresh
from twoclock.agents.seed_runner import COST, RETURN, REWARD, Stopped, run_seeds
from twoclock.engine import compatibility
from twoclock.engine.loop import Interrupted, deferred_interrupt, drive
from twoclock.engine.run_batch import Instances, Lanes, make_instances, pad_to
from twoclock.intervals.bootstrap import resampled_means
from twoclock.param_paths import paths, with_settings
from twoclock.protocols import InputError, Method, ProblemSource
from twoclock.storage.run_identity import RunSpec, describe
from twoclock.tuning.residual import check_differentiable, check_unconstrained, follows_theta
from twoclock.tuning.residual_estimate import Oracle, estimate_residuals, hide_truth, samples_used
from twoclock.tuning.search_space import Box, check_box, is_number
from twoclock.validation import short_repr

By = Literal["end", "area"]

RESIDUAL = "residual"
WIDTH = 8  # settings side by side in the one program that all rungs share, and settings in the last rung
MOST_SEEDS = 64  # at once, which bounds the memory
_AGENT_METRICS = (COST, REWARD, RETURN)
_DECADES, _PER_DECADE = 2, 10
_RESAMPLES = 1000
_HUGE = 1e150  # as good as infinite; squares of it would overflow
_NOTHING = 1e-16  # of the best value at the first mark: as good as zero


def marks_of(by: By, steps: int) -> list[int]:
    """The steps at which the metric is read: the last alone, or ten per decade over the last two decades.

    Earlier decades would weigh as much, and measure the start rather than the method.
    """
    if by == "end":
        return [steps]
    grid = steps / 10 ** (np.arange(_DECADES * _PER_DECADE + 1) / _PER_DECADE)
    return sorted({max(round(mark), 1) for mark in grid.tolist()})


class ScoreTable(NamedTuple):
    """Settings × seeds × marks: the metric; whether the seed diverged; without truth also the squared residuals and the
    standard error of the metric from the fresh samples.

        score = m(n)   or   exp(mean of log m(k) over marks k)        m(k) = the metric's mean over seeds at step k

    The second is the area under the curve of m in a log-log picture, in the unit of the metric. On a linear axis the
    first steps, decades above the last ones, would be all of it. The mean over seeds comes first, so that a seed that
    fails counts as it does at the end point; logs of single seeds would hide it.
    """

    values: Float[np.ndarray, "settings seeds marks"]
    diverged: Bool[np.ndarray, "settings seeds"]
    F: Float[np.ndarray, "settings seeds"] | None = None
    G: Float[np.ndarray, "settings seeds"] | None = None
    noise: Float[np.ndarray, "settings seeds"] | None = None

    def best_first(self) -> Int[np.ndarray, " settings"]:
        """The settings in order: fewer diverged seeds first, then the smaller score.

        An estimate without truth may be negative, and far from any solution, where noise is all it is, hugely so. One
        that is further below zero than three standard errors of the quieter settings therefore counts as its own
        standard error.
        """
        key = self.scores()
        if self.noise is not None:
            noise = np.hypot.reduce(self.noise, axis=1) / self.noise.shape[1]
            usual = np.quantile(noise, 0.25, method="lower")
            key = np.where(key < -3 * usual, noise, key)
        return np.lexsort((key, self.diverged.mean(axis=1)))

    def scores(self) -> Float[np.ndarray, " settings"]:
        """One score per setting."""
        with np.errstate(over="ignore"):
            return self._score_curves(self.values.mean(axis=1))

    def rows(self, best: int | None = None) -> list[dict[str, float]]:
        """One row per setting, with intervals; ``best`` is the one that ratios are taken to, seed by seed."""
        # Seeds drawn with replacement, the same draws for every setting.
        means = resampled_means(np.clip(np.moveaxis(self.values, 1, 2), None, _HUGE), _RESAMPLES)
        drawn = self._score_curves(np.moveaxis(means, 1, 2))
        drawn, scores = np.where(drawn > _HUGE / 1e6, np.inf, drawn), self.scores()
        ratio, ratios = np.full(len(scores), np.nan), np.full(drawn.shape, np.nan)
        if best is not None and scores[best] > 0:
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                ratios = np.where(drawn[best] > 0, drawn / drawn[best], np.inf)
                ratio = scores / scores[best]
        # At drawn values themselves, so that an infinite one stays where it is.
        ends = [np.quantile(part, [0.025, 0.975], axis=1, method="nearest") for part in (drawn, ratios)]
        names = ("score", "low", "high", "ratio", "ratio_low", "ratio_high")
        columns = dict(zip(names, (scores, *ends[0], ratio, *ends[1]), strict=True))
        columns["diverged"] = self.diverged.mean(axis=1)
        for name, part in (("F", self.F), ("G", self.G)):
            if part is not None:
                with np.errstate(invalid="ignore", over="ignore"):
                    error = part.std(axis=1, ddof=1) / np.sqrt(part.shape[1])
                columns |= {name: part.mean(axis=1), f"{name}_se": error}
        return [{name: float(column[i]) for name, column in columns.items()} for i in range(len(scores))]

    def select(self, i: int) -> ScoreTable:
        """One of the settings."""
        return jax.tree.map(lambda part: part[i : i + 1], self)

    def join(self, others: ScoreTable) -> ScoreTable:
        """These settings and others, on the same seeds."""
        return jax.tree.map(lambda *parts: np.concatenate(parts), self, others)

    def _score_curves(self, means: np.ndarray) -> np.ndarray:
        """Score mean curves, whose marks are the last axis."""
        if means.shape[-1] == 1:
            return means[..., 0]
        first = self.values[:, :, 0].mean(axis=1)
        floor = max(_NOTHING * float(first[np.isfinite(first)].min(initial=np.inf)), np.finfo(float).tiny)
        return np.exp(np.log(np.maximum(means, floor)).mean(axis=-1))


class Objective(ABC):
    """Runs settings on shared seeds and scores them by a metric, of which the least is best."""

    def __init__(self, metric: str, **facts: object) -> None:
        self.metric = self.label = metric  # the label is what the result calls it
        self.facts = {"rough": False, **facts}  # for the result's spec
        self.spent = 0  # seed-steps so far
        self.look: Callable[[], None] = lambda: None  # called when some were spent

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
        """Hold what calls with ``seeds`` seeds need."""
        yield

    def check(self, methods: Sequence[Method], seeds: Sequence[int]) -> None:
        """Refuse methods that cannot be run or scored; none by default."""
        return

    def finish(self, method: Method) -> Method:
        """Turn the best settings into what the user gets."""
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
        self._unit: float | None = None  # turns a square of G into one of F, for a large ω; measured in the first call
        self._last: tuple[list[int], Instances] | None = None

    def cost(self, steps: int) -> int:
        """Without truth there are as many fresh samples as steps."""
        return steps + (samples_used(steps) if self.metric == RESIDUAL else 0)

    def check(self, methods: Sequence[Method], seeds: Sequence[int]) -> None:
        """Refuse methods that do not fit the problem, or that the residual says nothing about."""
        example = self._instances(seeds[:MOST_SEEDS]).example
        for method in methods:
            compatibility.check_fit(Oracle(example) if self.metric == RESIDUAL else example, method)
            if self.metric == RESIDUAL:
                check_unconstrained([path for path, value in paths(method).items() if value is not None])
                check_differentiable(example)
        self.facts["rough"] = self.metric == RESIDUAL and follows_theta(example)

    def _instances(self, seeds: Sequence[int]) -> Instances:
        """As ``solve`` makes them. Drawing them can take longer than a run, so the last ones are cached."""
        if self._last is None or self._last[0] != list(seeds):
            self._last = (list(seeds), make_instances(self.problem, list(seeds)))
        return self._last[1]

    def __call__(
        self, methods: Sequence[Method], seeds: Sequence[int], steps: int, batch: int, width: int = WIDTH
    ) -> ScoreTable:
        batch, blind = min(batch, MOST_SEEDS), self.metric == RESIDUAL
        parts: list[tuple[np.ndarray, Any]] = []  # whether lanes are alive, and what was seen of them
        if len({jax.tree.structure(method) for method in methods}) > 1:
            width = 1  # they have functions of their own, and share no program
        for i in range(0, len(seeds), batch):
            some, pages = list(seeds[i : i + batch]), []
            for j in range(0, len(methods), width):  # a short page is filled up with its last
                page = pad_to(list(methods[j : j + width]), width)
                lanes = Lanes.of(self._instances(some), page, some, self.bound)
                output = drive(hide_truth(lanes) if blind else lanes, marks_of(self.by, steps), engine=self.engine)
                self._count(width * len(some) * self.cost(steps))
                if blind:
                    seen: Any = estimate_residuals(lanes, output.carry, steps, steps, self.engine)
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
            return ScoreTable(np.where(np.isfinite(found), found, np.inf), ~alive)
        if self._unit is None:
            self._unit = found.median_unit()
        score, noise = found.best(self._unit)
        lost = ~np.isfinite(score) | ~np.isfinite(noise)
        score, noise = (np.where(lost, np.inf, part) for part in (score, noise))
        return ScoreTable(score[..., None], lost, found.F.value, found.G.value, noise)


class AgentObjective(Objective):
    """Runs agents on an environment, scored by what they are paid over the later half of their steps.

    By default the metric is the mean cost, or the mean reward of an agent that knows no costs. What is earned counts
    with a minus, since the least is sought.
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
        # A frozen class of the settings, so that they have paths as those of a method have.
        settings = {name: value for name, value in agent.settings.items() if name != "seed"}
        self.settings: Any = dataclasses.make_dataclass(type(agent).__name__, list(settings), frozen=True)(**settings)

    def check_box(self, space: object) -> Box:
        """Check the box; at each of its limits an agent must be possible."""
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
        with (
            deferred_interrupt() as self._interrupted,
            seed_executor(self._job, seeds, self.processes, self.step_timeout) as self._executor,
        ):
            try:
                yield
            except Stopped:
                raise Interrupted("stopped while tuning; nothing was kept") from None

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
        """An agent with these settings that has learnt nothing yet."""
        return fresh(self.agent, 0, **vars(method))
