"""Tuning an agent on an environment: by what it is paid while it acts, on seeds of its own, with no answer known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from twoclock import validation
from twoclock.agents.env_adapters import check_env, is_vector
from twoclock.agents.protocol import Agent, fresh
from twoclock.agents.reward_stats import COST, RETURN, REWARD
from twoclock.agents.run import check_agent, job_of
from twoclock.agents.seed_runner import Stopped
from twoclock.engine.signals import Interrupted, deferred_interrupt
from twoclock.executor.agent_processes import check_processes, walkers
from twoclock.param_paths import paths, with_settings
from twoclock.progress import tally
from twoclock.protocols import InputError
from twoclock.storage.run_identity import RunSpec
from twoclock.tuning.arguments import counter, one_of, seeds_for, whole
from twoclock.tuning.halving import Halving, Plan
from twoclock.tuning.proposals import Candidates
from twoclock.tuning.scores import Scores
from twoclock.tuning.search_space import Box, check_box
from twoclock.tuning.tune_result import Tuned

_FIRST_SEED = 1_000_000
_METRICS = (COST, REWARD, RETURN)

# As for ``agents.run``: one of Gymnasium, its id, a function that makes one, or a step function.
Environment = object


def tune_agent(
    env: object,
    agent: Agent,
    space: object,
    steps: object,
    budget: object,
    metric: object,
    rungs: object,
    seed: object,
    widen: object,
    progress: bool,
    **where: Any,
) -> Tuned:
    """The settings of an agent that cost least, or earn most, over the later half of so many steps.

    Args:
        env, agent: as for ``agents.run``.
        space, steps, budget, rungs, seed, widen, progress: as for ``tune``.
        metric: "mean_cost", "mean_reward" or "mean_return"; the first by default, the second of an agent that knows no
            costs. What is earned counts with a minus, since the least is sought.
        where: ``x0``, ``limit`` and ``processes``, as for ``agents.run``.
    """
    check_agent(agent)
    check_env(env, where.get("x0"))
    check_processes(where.get("processes"), where.get("limit"))
    validation.flag("progress", progress)
    if is_vector(env):
        raise InputError("`problem` must be an environment that is made one by one, got a vectorised one")
    horizon, halvings, drawn = validation.check_steps(steps), whole("rungs", rungs, 1, 10), whole("seed", seed, 0, 4000)
    name = metric if metric is not None else COST if hasattr(agent, "stage_cost") else REWARD
    if not isinstance(name, str) or name not in _METRICS:
        raise InputError(
            f"`metric` of an agent must be one of {', '.join(_METRICS)}, got {validation.shown(metric)}: "
            "what it thinks of itself is no measure of it"
        )
    widen = one_of("widen", widen, (None, False, True))
    view = _view(agent)
    if space is None:
        known = ", ".join(path for path, value in _numbers(view).items() if value)
        raise InputError(f"`space` must be given for an agent; it has {known}")
    box = _box(view, agent, space)
    plan = Plan(halvings, horizon, name, len(box), bool(widen), rivals=False)
    purse, seeds = seeds_for(budget, {"": plan})
    first = _FIRST_SEED * (drawn + 1)
    example = job_of(agent, env, where.get("x0"), RunSpec.checked(horizon, 1))
    with (
        deferred_interrupt() as interrupted,
        tally(progress, "seed-steps") as look,
        walkers(example, seeds[""], where.get("processes"), where.get("limit")) as walk,
    ):
        add = counter(look, plan.price() * seeds[""])
        judge = AgentJudge(agent, env, where.get("x0"), name, walk, add, interrupted)
        halving = Halving(Candidates(view, horizon, False, True, drawn), judge, plan, box)
        try:
            halving.search(first, seeds[""])
        except Stopped:
            raise Interrupted("stopped while tuning; nothing was kept") from None
    spec = {
        "problem": example.what["problem"], "steps": horizon, "budget": purse, "by": "end", "seed": drawn,
        "given": box, "order": False, "widen": bool(widen), "rough": False,
        "scale": "log" if name == COST else "linear",
    }  # fmt: skip
    found = halving.tuned(name if name == COST else f"−{name}", spec)
    return dataclasses.replace(found, method=_agent(agent, found.method, 0))


class AgentJudge:
    """Runs settings of an agent, each on the same seeds, and scores them."""

    def __init__(
        self,
        agent: Agent,
        env: object,
        x0: object,
        metric: str,
        walk: Callable[..., Any],
        look: Callable[[int], None],
        interrupted: Callable[[], bool],
    ) -> None:
        self.agent, self.env, self.x0, self.metric = agent, env, x0, metric
        self.walk, self.look, self.interrupted = walk, look, interrupted
        self.spent = 0

    def __call__(self, methods: Sequence[Any], seeds: Sequence[int], steps: int) -> Scores:
        spec = RunSpec.checked(steps, list(seeds), [steps])
        jobs = [job_of(self.agent, self.env, self.x0, spec, **_settings(view)) for view in methods]
        outcomes = self.walk([(job, seed) for job in jobs for seed in seeds], lambda *at: None, self.interrupted)
        spent = len(outcomes) * steps
        self.spent += spent
        self.look(spent)
        sign = 1.0 if self.metric == COST else -1.0
        shape = len(methods), len(seeds)
        values = np.asarray([sign * self._value(outcome.rows[-1]) for outcome in outcomes]).reshape(shape)
        lost = np.asarray([outcome.diverged for outcome in outcomes]).reshape(shape)
        return Scores(np.where(lost | ~np.isfinite(values), np.inf, values)[..., None], lost)

    def _value(self, row: Mapping[str, float]) -> float:
        if self.metric not in row:
            there = ", ".join(name for name in _METRICS if name in row) or "none of them"
            raise InputError(f"`metric` {self.metric} is not recorded here, {there} is")
        return row[self.metric]


def _view(agent: Agent) -> Any:
    """The settings of an agent as a frozen class, so that they have paths as those of a method have."""
    settings = {name: value for name, value in agent.settings.items() if name != "seed"}
    made = dataclasses.make_dataclass(type(agent).__name__, list(settings), frozen=True)
    return made(**settings)


def _numbers(view: object) -> dict[str, bool]:
    return {
        path: isinstance(value, (int, float)) and not isinstance(value, bool) for path, value in paths(view).items()
    }


def _box(view: Any, agent: Agent, space: Any) -> Box:
    """The box, at whose every limit an agent can be made."""
    box = check_box(view, space)
    for path, limits in box.items():
        for limit in limits:
            _agent(agent, with_settings(view, {path: limit}), 0)
    return box


def _agent(agent: Agent, view: object, seed: int) -> Any:
    return fresh(agent, seed, **_settings(view))


def _settings(view: Any) -> dict[str, Any]:
    return {field.name: getattr(view, field.name) for field in dataclasses.fields(view)}
