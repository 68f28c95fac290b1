"""Where an agent and an environment meet: one call from both to a result over seeds and its record."""

from __future__ import annotations

import functools
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from twoclock import storage, validation
from twoclock.agents.env_adapters import check_env, is_env, is_vector
from twoclock.agents.protocol import Agent, check_kind
from twoclock.agents.seed_runner import Job, Outcome, Stopped
from twoclock.agents.vector_env import together
from twoclock.engine import metrics
from twoclock.engine.loop import ProgressEvent
from twoclock.engine.signals import Interrupted, deferred_interrupt
from twoclock.executor.agent_processes import check_processes, walkers
from twoclock.executor.agent_ray import on_ray
from twoclock.progress import watch
from twoclock.protocols import InputError
from twoclock.result import Result
from twoclock.storage.run_identity import Identity, Provenance, RunSpec, describe
from twoclock.validation import run_args


def run(
    agent: Agent,
    env: Any,
    steps: int | float = 10_000,
    seeds: int | Iterable[int] | None = None,
    marks: Iterable[int] | None = None,
    progress: bool | Callable[[ProgressEvent], None] = False,
    checkpoint: str | Path | None = None,
    *,
    x0: Any = None,
    limit: float | None = None,
    processes: int | None = None,
    on: Literal["local", "ray"] = "local",
    address: str | None = None,
    checkpoint_every: float = 10.0,
) -> Result:
    """Let an agent learn on an environment, for several seeds, and hand back a result such as `solve` does.

    Every seed begins with a fresh agent with the settings of the one that is given, which is left as it is, and has
    exploration and an environment's noise of its own: what a seed comes to depends on nothing but its number.

    Beside what the agent measures, its history has ``mean_reward`` and ``mean_return`` (of a step, and of the episodes
    that ended), and ``mean_cost`` where the agent knows the cost of a step: at each mark over the later half of the
    steps. ``result.interval()`` has intervals of the means over the later half of the run, each from its own seed,
    unless the agent keeps intervals of its own.

    Args:
        agent: such as `Regulator`; one that has learnt nothing yet.
        env: a Gymnasium environment; the id of one; a function without arguments that makes one; a vectorised one, each
            part of which serves a seed; or a step function ``(x, u, rng) -> x_next``, which may also give
            ``(x_next, reward)`` or ``(x_next, reward, terminated)``.
        steps: how many, for each seed; one step takes one sample.
        seeds: a count, or the integers themselves; one by default, as many as it has parts for a vectorised one.
        marks: the steps at which to record; by default the start, the end and ten a decade.
        progress: True for a bar, or a function that is called with every tick.
        checkpoint: a folder, in which each seed is kept as its agent saves itself. A run that was stopped, killed or
            met a fault goes on from there: a step function, and a Gymnasium environment that repeats itself, to the
            identical result.
        x0: of a step function the first state of every episode, or a function of ``rng`` that draws it.
        limit: seconds that the environment may take for a step or a reset. One that takes longer is ended with its
            process.
        processes: how many seeds at once, each in a process of its own; one a core by default, where the environment
            can be made there. It changes nothing but the time.
        on: "local", or "ray" for a cluster.
        address: of the Ray cluster; None starts Ray on this machine, or joins where ``ray.init`` was called already.
        checkpoint_every: seconds between checkpoints.

    >>> import numpy as np, twoclock as tc
    >>> def plant(x, u, rng):
    ...     return 0.9 * x + 0.5 * u + rng.normal(size=1)
    >>> agent = tc.agents.Regulator(Q=[[1.0]], R=[[1.0]])
    >>> result = tc.agents.run(agent, plant, steps=500, seeds=2, x0=np.zeros(1), processes=1)
    >>> result.theta["K"].shape
    (2, 1, 1)
    """
    check_agent(agent)
    check_env(env, x0)
    vector = is_vector(env)
    if seeds is None:
        seeds = int(env.num_envs) if vector else 1
    spec = RunSpec.checked(steps, seeds, marks)
    run_args.check_pace(None, checkpoint_every, progress)
    where = validation.choice("on", on, ("local", "ray"))
    if address is not None and (not isinstance(address, str) or where != "ray"):
        raise InputError(
            f'`address` must be "host:port" of a Ray cluster, with on="ray", got {validation.short_repr(address)}'
        )
    if limit is not None and where == "ray":
        raise InputError("`limit` is for processes on this machine; leave it out on Ray")
    check_processes(processes, limit)
    if checkpoint is not None:
        validation.check_path("checkpoint", checkpoint)
    job = job_of(agent, env, x0, spec, checkpoint, checkpoint_every)
    if vector:
        _check_vector(env, spec, checkpoint, limit, processes, where)
    lock: AbstractContextManager[None] = nullcontext() if job.folder is None else storage.lock(job.folder)
    began = time.perf_counter()
    with lock, deferred_interrupt() as interrupted, watch(progress, spec.steps, len(spec.seeds)) as look:
        seen = _Seen(spec, look)
        try:
            if vector:
                found = together(job, spec.seeds, seen, interrupted)
            elif where == "ray":
                found = on_ray(job, spec.seeds, address, seen, interrupted)
            else:
                with walkers(job, len(spec.seeds), processes, limit) as walk:
                    found = walk([(job, seed) for seed in spec.seeds], seen, interrupted)
        except Stopped as stopped:
            how = "; the same call with the same checkpoint goes on from there" if job.folder else ""
            raise Interrupted(f"stopped at step {stopped.args[0]:,} of {spec.steps:,}{how}") from None
    return _result(job, found, time.perf_counter() - began)


class _Seen:
    """Where each seed is, told on as one tick."""

    def __init__(self, spec: RunSpec, look: Callable[[ProgressEvent], None]) -> None:
        self.steps, self.lost = dict.fromkeys(spec.seeds, 0), set[int]()
        self.spec, self.look = spec, look

    def __call__(self, seed: int, step: int, diverged: bool) -> None:
        self.steps[seed] = self.spec.steps if diverged else step
        self.lost |= {seed} if diverged else set()
        mean = sum(self.steps.values()) // len(self.steps)
        self.look(ProgressEvent(mean, None, len(self.lost), _no_carry, engine="the environment"))


def _no_carry() -> Any:
    raise InputError("`carry` of a tick is for `solve`; what agents have learnt lies in their checkpoints")


def check_agent(agent: Any) -> None:
    """Complain of what is no agent, or has learnt already."""
    check_kind(agent)
    if agent.steps:
        raise InputError(
            f"`agent` must not have learnt yet, and has from {agent.steps:,} samples: every seed begins anew; pass "
            f"`tc.agents.fresh(agent, seed=0)`, or go on with this one in a loop of your own"
        )


def _check_vector(env: Any, spec: RunSpec, checkpoint: Any, limit: Any, processes: Any, on: str) -> None:
    if int(env.num_envs) != len(spec.seeds):
        raise InputError(
            f"`seeds` must be as many as the vectorised environment has parts, {env.num_envs}, got {len(spec.seeds)}; "
            "leave them out"
        )
    asked = {"checkpoint": checkpoint, "limit": limit, "processes": processes, "on": on if on != "local" else None}
    for name, value in asked.items():
        if value is not None:
            raise InputError(
                f"`{name}` is for environments that are made one by one; in place of a vectorised one pass a function "
                "that makes a single one"
            )


def job_of(
    agent: Agent, env: Any, x0: Any, spec: RunSpec, checkpoint: Any = None, every: float = 10.0, **changes: Any
) -> Job:
    """What every seed of a run does, perhaps with some settings of the agent changed."""
    settings = {name: value for name, value in {**agent.settings, **changes}.items() if name != "seed"}
    what = {"problem": _described(env), "method": describe(functools.partial(type(agent), **settings))}
    numbers = hashlib.sha256(json.dumps(what).encode())
    for leaf in jax.tree.leaves(settings):
        if isinstance(leaf, (np.ndarray, np.generic, jax.Array, float, int)):
            numbers.update(np.asarray(leaf).tobytes())
    of_run = {name: value for name, value in spec.as_dict().items() if name != "seeds"}
    identity = Identity({**of_run, "problem": what["problem"], "method": numbers.hexdigest()[:16]})
    folder = None if checkpoint is None else storage.absolute(checkpoint)
    return Job(type(agent), settings, env, x0, spec, identity, what, folder, float(every))


def _described(env: object) -> dict[str, Any]:
    if isinstance(env, str):
        return {"name": env}
    if is_env(env):
        known = getattr(env, "spec", None)
        return {"name": str(getattr(known, "id", None) or type(getattr(env, "unwrapped", env)).__name__)}
    return describe(env)


def _result(job: Job, outcomes: Sequence[Outcome], seconds: float) -> Result:
    import pandas as pd

    spec = job.spec
    names = list(dict.fromkeys(name for outcome in outcomes for name in outcome.rows[0]))
    by_mark = [
        {name: np.asarray([[outcome.rows[i].get(name, np.nan) for outcome in outcomes]]) for name in names}
        for i in range(len(spec.marks))
    ]
    history = pd.DataFrame(metrics.columns(by_mark, 0, spec.seeds, spec.marks))
    theta, omega = (_stacked([getattr(o, name) for o in outcomes]) for name in ("theta", "omega"))
    notes = [note for outcome in outcomes for note in outcome.notes]
    for note in notes:
        warnings.warn(note, stacklevel=3)
    extra: Mapping[str, Any] = {"notes": notes} if notes else {}
    about = {**job.what, **spec.as_dict(), **extra, **Provenance.here(seconds).as_dict()}
    diverged, last = np.asarray([o.diverged for o in outcomes]), np.asarray([o.last for o in outcomes], int)
    return Result(theta, omega, history, diverged, last, about)


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)
