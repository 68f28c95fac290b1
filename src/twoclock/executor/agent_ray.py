"""Seeds as Ray tasks, one core each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twoclock.agents.env_checks import EnvironmentFault
from twoclock.agents.seed_runner import Job, Outcome, Stopped, walk
from twoclock.executor.ray_cluster import ONE_THREAD, connected, first_line
from twoclock.protocols import InputError

_SECONDS_BETWEEN_LOOKS = 0.25


def on_ray(
    job: Job,
    seeds: Sequence[int],
    address: str | None,
    look: Callable[[int, int, bool], None],
    interrupted: Callable[[], bool],
) -> list[Outcome]:
    """What each seed came to. Interrupted, tasks are ended: what they had not kept is lost."""
    found: dict[int, Outcome] = {}
    with connected(address) as ray:
        try:
            home = ray.put(job)
        except (TypeError, AttributeError) as error:
            why = first_line(error.__cause__ or error)
            raise InputError(f"the agent or the environment cannot travel to the workers: {why}") from None
        task = ray.remote(num_cpus=1, runtime_env={"env_vars": ONE_THREAD})(walk)
        flying: dict[Any, int] = {task.remote(home, seed): seed for seed in seeds}
        try:
            while flying:
                for reference in ray.wait(list(flying), timeout=_SECONDS_BETWEEN_LOOKS)[0]:
                    seed = flying.pop(reference)
                    found[seed] = _fetch(ray, reference, job, seed)
                    look(seed, job.spec.steps, found[seed].diverged)
                if interrupted():
                    raise Stopped(0)
        finally:
            for reference in flying:
                ray.cancel(reference, force=True)
    return [found[seed] for seed in seeds]


def _fetch(ray: Any, reference: Any, job: Job, seed: int) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except ray.exceptions.RayError as error:
        how = f"its Ray task ended, {first_line(error)}"
        raise EnvironmentFault(how).at(seed, 0, job.kept_up_to_now(seed)) from None
    return outcome
