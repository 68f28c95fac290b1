"""Agents: ``act`` and ``observe`` around the library's own operators, for any simulator, robot or environment."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from twoclock import storage, validation
from twoclock.agents.constrained_actor_critic import ConstrainedActorCritic
from twoclock.agents.env_adapters import EnvironmentFault, check_env, is_env, is_vector
from twoclock.agents.lqr_regulator import Regulator
from twoclock.agents.plant_statistics import PlantWarning
from twoclock.agents.protocol import Agent, check_kind, fresh
from twoclock.agents.seed_runner import AgentJob, SeedOutcome, Stopped, run_seeds, run_vectorised
from twoclock.agents.softmax_actor_critics import AverageRewardActorCritic, EntropyActorCritic
from twoclock.agents.td_evaluator import Evaluator
from twoclock.engine.code_identity import Unidentified, code_identity
from twoclock.engine.loop import Interrupted, ProgressEvent, deferred_interrupt, watch
from twoclock.engine.protocol import LaneState, history_columns
from twoclock.executor import Channel, Executor, Processes, ThisProcess, check_place, cores, why_not_portable
from twoclock.executor.ray_cluster import on_ray
from twoclock.protocols import InputError
from twoclock.result import Result
from twoclock.storage.run_identity import Identity, RunSpec, describe, provenance
from twoclock.validation import run_args

__all__ = [
    "Agent",
    "AverageRewardActorCritic",
    "ConstrainedActorCritic",
    "EntropyActorCritic",
    "EnvironmentFault",
    "Evaluator",
    "PlantWarning",
    "Regulator",
    "fresh",
    "run",
]


def run(
    agent: Agent,
    env: Any,
    steps: int | float = 10_000,
    seeds: int | Iterable[int] | None = None,
    marks: Iterable[int] | None = None,
    progress: bool | Callable[[ProgressEvent], None] = False,
    checkpoint: str | Path | None = None,
    *,
    x0: object = None,
    step_timeout: float | None = None,
    processes: int | None = None,
    on: Literal["local", "ray"] = "local",
    address: str | None = None,
    checkpoint_every: float = 10.0,
) -> Result:
    """Run an agent on an environment for several seeds, and return a result as `solve` does.

    Every seed begins with a fresh agent with the settings of the given one, which is not changed. Its exploration and
    the noise of its environment depend on the number of the seed alone.

    Besides the agent's own metrics, the history has ``mean_reward`` and ``mean_return`` (of a step, and of the finished
    episodes), and ``mean_cost`` if the agent knows the cost of a step. At each mark they are means over the later half
    of the steps. ``result.interval()`` has intervals of the means over the later half of the run, each from its own
    seed, unless the agent has its own intervals.

    Args:
        agent: such as `Regulator`; it must be new.
        env: a Gymnasium environment; the id of one; a function without arguments that makes one; a vectorised one, each
            part of which serves a seed; or a step function ``(x, u, rng) -> x_next``, which may also give
            ``(x_next, reward)`` or ``(x_next, reward, terminated)``.
        steps: the number of steps of each seed; each takes one sample.
        seeds: a count, or the integers themselves. By default one seed, or one per part of a vectorised environment.
        marks: the steps at which to record; by default the start, the end and ten per decade.
        progress: True for a bar, or a function that is called with every tick.
        checkpoint: a folder in which each seed is saved. A run that was stopped or killed, or met a fault, resumes from
            there. With a step function or a deterministic Gymnasium environment the result is bit-for-bit identical.
            More ``steps`` prolong a finished run. Another agent or environment is refused.
        x0: for a step function, the first state of every episode, or a function of ``rng`` that draws it.
        step_timeout: seconds that the environment may take for a step or a reset. After that its process is killed.
        processes: the number of worker processes; by default one per core, if the environment can be made there. The
            results do not depend on it.
        on: "local", or "ray" for a cluster.
        address: of the Ray cluster. None starts Ray on this machine, or uses the cluster that ``ray.init`` joined.
        checkpoint_every: seconds between checkpoints.

    >>> import numpy as np, twoclock as tc
    >>> def plant(x, u, rng):
    ...     return 0.9 * x + 0.5 * u + rng.normal(size=1)
    >>> agent = tc.agents.Regulator(Q=[[1.0]], R=[[1.0]])
    >>> result = tc.agents.run(agent, plant, steps=500, seeds=2, x0=np.zeros(1), processes=1)
    >>> result.theta["K"].shape
    (2, 1, 1)
    """
    validation.check_process()
    check_agent(agent)
    check_env(env, x0)
    vector = is_vector(env)
    if seeds is None:
        seeds = int(env.num_envs) if vector else 1
    spec = RunSpec.checked(steps, seeds, marks)
    run_args.check_pace(None, checkpoint_every, progress)
    where = check_place(on, address)
    if step_timeout is not None and where == "ray":
        raise InputError("`step_timeout` is for processes on this machine; leave it out on Ray")
    check_processes(processes, step_timeout)
    if checkpoint is not None:
        validation.check_path("checkpoint", checkpoint)
    if vector:
        if int(env.num_envs) != len(spec.seeds):
            raise InputError(
                f"`seeds` must be as many as the vectorised environment has parts, {env.num_envs}, "
                f"got {len(spec.seeds)}; leave them out"
            )
        asked = {"checkpoint": checkpoint, "step_timeout": step_timeout, "processes": processes}
        for name, value in {**asked, "on": where if where != "local" else None}.items():
            if value is not None:
                raise InputError(
                    f"`{name}` is for environments that are made one by one; instead of a vectorised one pass a "
                    "function that makes a single one"
                )
    job = make_agent_job(agent, env, x0, spec, checkpoint, checkpoint_every)
    lock: AbstractContextManager[None] = nullcontext() if job.folder is None else storage.lock(job.folder)
    began = time.perf_counter()
    with lock, deferred_interrupt() as interrupted, watch(progress, spec.steps, len(spec.seeds)) as look:
        at, lost = dict.fromkeys(spec.seeds, 0), set[int]()

        def seen(seed: int, step: int, diverged: bool) -> None:
            """Report the progress of all seeds as one event."""
            at[seed] = spec.steps if diverged else step
            lost.update([seed] * diverged)
            look(ProgressEvent(sum(at.values()) // len(at), None, len(lost), _no_carry, engine="the environment"))

        try:
            if vector:
                outcomes = run_vectorised(job, Channel(lambda seed_at: seen(*seed_at), interrupted))  # type: ignore[misc]
            else:
                place: AbstractContextManager[Executor] = (
                    on_ray(address, "the agent or the environment")
                    if where == "ray"
                    else seed_executor(job, len(spec.seeds), processes, step_timeout)
                )
                with place as executor:
                    outcomes = run_seeds(executor, [(job, seed) for seed in spec.seeds], seen, interrupted)
        except Stopped as stopped:
            how = "; the same call with the same checkpoint resumes there" if isinstance(job.identity, Identity) else ""
            raise Interrupted(f"stopped at step {stopped.args[0]:,} of {spec.steps:,}{how}") from None
    return _result(job, outcomes, time.perf_counter() - began)


def check_processes(processes: object, step_timeout: object) -> None:
    """Refuse an invalid number of processes or an invalid timeout."""
    if processes is not None:
        validation.whole("processes", processes, 1, 4096)
    if step_timeout is not None:
        validation.number("step_timeout", step_timeout, 0, above=True, remedy="leave it out for none")


def seed_executor(
    job: AgentJob, seeds: int, processes: int | None, step_timeout: float | None
) -> AbstractContextManager[Executor]:
    """Worker processes for the seeds, or this process if one is enough or the job cannot be sent to another."""
    count = min(processes or cores(), seeds)
    if count == 1 and step_timeout is None:
        return nullcontext(ThisProcess())
    reason = (
        "it is an environment already"
        if is_env(job.env)
        else why_not_portable(job.env, job.x0, *job.settings.values(), job)
    )
    if reason is None:
        return Processes(count, step_timeout)
    if processes is None and step_timeout is None:
        return nullcontext(ThisProcess())
    raise InputError(
        f"`{'processes' if step_timeout is None else 'step_timeout'}` needs an environment and an agent that can be "
        f"made in another process ({reason}); give `env` as an id or a function that is defined in a file"
    )


def _no_carry() -> LaneState:
    raise InputError("`carry` of a tick is for `solve`; what agents have learnt lies in their checkpoints")


def check_agent(agent: Agent) -> None:
    """Refuse an object that is no agent, and an agent that has learnt already."""
    check_kind(agent)
    if agent.steps:
        raise InputError(
            f"`agent` must not have learnt yet, got one with {agent.steps:,} samples: each seed needs a new one; pass "
            "`tc.agents.fresh(agent, seed=0)`, or continue with this one in your own loop"
        )


def make_agent_job(
    agent: Agent,
    env: Any,
    x0: object,
    spec: RunSpec,
    checkpoint: str | Path | None = None,
    every: float = 10.0,
    **changes: object,
) -> AgentJob:
    """What every seed of a run does, perhaps with some settings of the agent changed."""
    settings = {name: value for name, value in {**agent.settings, **changes}.items() if name != "seed"}
    name = env if isinstance(env, str) else getattr(getattr(env, "spec", None), "id", type(env).__name__)
    about_env: dict[str, object] = {"name": str(name)}
    if not isinstance(env, str) and not is_env(env):
        about_env = describe(env if x0 is None else functools.partial(env, x0=x0))
    what = {"problem": about_env, "method": describe(functools.partial(type(agent), **settings))}
    if checkpoint is None:
        return AgentJob(type(agent), settings, env, x0, spec, what)
    identity: Identity | str
    try:
        parts = {"problem": code_identity((_env_source(env), x0)), "method": code_identity((type(agent), settings))}
        of_run = {name: value for name, value in spec.as_dict().items() if name != "seeds"}
        identity = Identity({**of_run, **parts})
    except Unidentified as error:
        identity = str(error)
        warnings.warn(f"this checkpoint cannot be resumed from: {identity}", stacklevel=3)
    folder = storage.absolute(checkpoint)
    return AgentJob(type(agent), settings, env, x0, spec, what, folder, identity, float(every))


def _env_source(env: Any) -> object:
    """The class and the arguments of an environment, which identify it."""
    if not isinstance(env, str) and not is_env(env):
        return env
    import gymnasium

    try:
        spec = gymnasium.spec(env) if isinstance(env, str) else env.spec
    except gymnasium.error.Error:  # making it will say what is wrong
        return env
    if spec is None or any(wrapper.kwargs is None for wrapper in spec.additional_wrappers):
        raise Unidentified(
            "nothing says how an environment was made that `gymnasium.make` did not make, or that has wrappers of your "
            "own around it; pass a function that makes it"
        )
    source = spec.entry_point
    return spec, gymnasium.envs.registration.load_env_creator(source) if isinstance(source, str) else source


def _result(job: AgentJob, outcomes: Sequence[SeedOutcome], seconds: float) -> Result:
    import pandas as pd

    spec = job.spec
    names = list(dict.fromkeys(name for outcome in outcomes for name in outcome.rows[0]))
    by_mark = [
        {name: np.asarray([[outcome.rows[i].get(name, np.nan) for outcome in outcomes]]) for name in names}
        for i in range(len(spec.marks))
    ]
    history = pd.DataFrame(history_columns(by_mark, 0, spec.seeds, spec.marks))
    learnt = [(outcome.theta, outcome.omega) for outcome in outcomes]
    theta, omega = jax.tree.map(lambda *leaves: np.concatenate(leaves), *learnt)
    notes = [note for outcome in outcomes for note in outcome.notes]
    for note in notes:
        warnings.warn(note, stacklevel=3)
    about = {**job.what, **spec.as_dict(), **({"notes": notes} if notes else {}), **provenance(seconds)}
    diverged, last = np.asarray([o.diverged for o in outcomes]), np.asarray([o.last for o in outcomes], int)
    return Result(theta, omega, history, diverged, last, about)
