"""A function over the parts of a log, in order: here on the machine's cores, or as Ray tasks."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from twoclock import cluster
from twoclock.logs.target import Mapper

_TRIES = 4


@contextmanager
def mapper(on: str, address: str | None = None, progress: Callable[[int, int], None] | None = None) -> Iterator[Mapper]:
    """A map over parts, on "local" threads or on "ray"."""
    look = progress or (lambda done, total: None)
    if on == "ray":
        with cluster.connected(address) as ray:
            yield lambda function, arguments, parts: _on_ray(ray, function, arguments, parts, look)
    else:
        yield lambda function, arguments, parts: _on_threads(function, arguments, parts, look)


def _on_threads(
    function: Callable[..., Any], arguments: tuple[Any, ...], parts: int, look: Callable[[int, int], None]
) -> Iterator[Any]:
    """NumPy leaves other threads free to run; a few parts are ahead of the one that is asked for."""
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, parts)
    if workers == 1:
        for part in range(parts):
            yield function(*arguments, part)
            look(part + 1, parts)
        return
    with ThreadPoolExecutor(workers) as pool:
        flying = deque(pool.submit(function, *arguments, part) for part in range(min(workers + 1, parts)))
        try:
            for part in range(parts):
                found = flying.popleft().result()
                if part + workers + 1 < parts:
                    flying.append(pool.submit(function, *arguments, part + workers + 1))
                yield found
                look(part + 1, parts)
        finally:
            for waiting in flying:
                waiting.cancel()


def _on_ray(
    ray: Any, function: Callable[..., Any], arguments: tuple[Any, ...], parts: int, look: Callable[[int, int], None]
) -> Iterator[Any]:
    """A task a part; a worker that dies is tried again elsewhere."""
    task = ray.remote(num_cpus=1, max_retries=_TRIES - 1, runtime_env={"env_vars": cluster.ONE_THREAD})(_part)
    home = ray.put((function, arguments))
    at_once = max(int(ray.cluster_resources().get("CPU", 1)), 1) + 1
    flying = deque(task.remote([home], part) for part in range(min(at_once, parts)))
    try:
        for part in range(parts):
            found = ray.get(flying.popleft())
            if part + at_once < parts:
                flying.append(task.remote([home], part + at_once))
            yield found
            look(part + 1, parts)
    finally:
        for waiting in flying:
            ray.cancel(waiting, force=True)


def _part(home: list[Any], part: int) -> Any:
    """Runs in a Ray worker."""
    import ray

    function, arguments = ray.get(home[0])
    return function(*arguments, part)
