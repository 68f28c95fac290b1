"""A function over the parts of a log, in order: here on the machine's cores, or as Ray tasks."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from twoclock.executor import ray_cluster
from twoclock.logs.estimand import Mapper
from twoclock.protocols import InputError

_TRIES = 4


@contextmanager
def mapper(on: str, address: str | None = None, progress: Callable[[int, int], None] | None = None) -> Iterator[Mapper]:
    """A map over parts, on "local" threads or on "ray"."""
    look = progress or (lambda done, total: None)
    if on == "ray":
        with ray_cluster.connected(address) as ray:
            yield lambda function, arguments, parts: _on_ray(ray, function, arguments, parts, look)
    else:
        from threadpoolctl import threadpool_limits

        # A core each: BLAS's own threads beside ours would wait for cores by spinning, and take ten times as long.
        with threadpool_limits(1, user_api="blas"):
            yield lambda function, arguments, parts: _on_threads(function, arguments, parts, look)


def _on_threads(
    function: Callable[..., Any], arguments: tuple[Any, ...], parts: range, look: Callable[[int, int], None]
) -> Iterator[Any]:
    """NumPy leaves other threads free to run; a few parts are ahead of the one that is asked for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if min(cores, len(parts)) <= 1:
        for part in parts:
            yield function(*arguments, part)
            look(part + 1, parts.stop)
        return
    with ThreadPoolExecutor(cores) as pool:
        yield from _in_order(
            parts, cores + 1, lambda part: pool.submit(function, *arguments, part), Future.result, Future.cancel, look
        )


def _on_ray(
    ray: Any, function: Callable[..., Any], arguments: tuple[Any, ...], parts: range, look: Callable[[int, int], None]
) -> Iterator[Any]:
    """A task a part; a worker that dies is tried again elsewhere."""
    task = ray.remote(num_cpus=1, max_retries=_TRIES - 1, runtime_env={"env_vars": ray_cluster.ONE_THREAD})(_part)
    try:
        home = ray.put((function, arguments))
    except (TypeError, AttributeError) as error:
        why = ray_cluster.first_line(error.__cause__ or error)
        raise InputError(f"`policy` or `features` cannot travel to the workers: {why}") from None
    at_once = max(int(ray.cluster_resources().get("CPU", 1)), 1) + 1
    yield from _in_order(
        parts, at_once, lambda part: task.remote([home], part), ray.get, lambda one: ray.cancel(one, force=True), look
    )


def _in_order(
    parts: range,
    at_once: int,
    send: Callable[[int], Any],
    fetch: Callable[[Any], Any],
    cancel: Callable[[Any], object],
    look: Callable[[int, int], None],
) -> Iterator[Any]:
    """Keep so many parts in flight, and hand them over in their order."""
    flying = deque(send(part) for part in parts[:at_once])
    try:
        for i, part in enumerate(parts):
            found = fetch(flying.popleft())
            flying.extend(send(later) for later in parts[i + at_once : i + at_once + 1])
            yield found
            look(part + 1, parts.stop)
    finally:
        for waiting in flying:
            cancel(waiting)


def _part(home: list[Any], part: int) -> Any:
    """Runs in a Ray worker."""
    import ray

    function, arguments = ray.get(home[0])
    return function(*arguments, part)
