"""Passes over the parts of a log: on this machine's cores or as Ray tasks, with checkpoints of the sums."""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from twoclock import storage
from twoclock.executor import ray_cluster
from twoclock.logs.features.state_features import to_dense
from twoclock.logs.sufficient_stats import Estimand, LogSums
from twoclock.protocols import InputError

EVERY = 20.0  # seconds
_TRIES = 4

T = TypeVar("T")
H = TypeVar("H")
Progress = Callable[[int, int], None]


class Mapper(Protocol):
    """A map over the parts of a log."""

    def __call__(self, function: Callable[..., T], arguments: tuple[object, ...], parts: range) -> Iterator[T]:
        """``function(*arguments, part)`` for each of the parts, in their order."""


@contextmanager
def mapper(on: str, address: str | None = None, progress: Progress | None = None) -> Iterator[Mapper]:
    """Make a map over parts, on "local" threads or on "ray"."""
    report = progress or (lambda done, total: None)
    if on == "ray":
        with ray_cluster.connected(address) as ray:
            yield lambda function, arguments, parts: _on_ray(ray, function, arguments, parts, report)
    else:
        from threadpoolctl import threadpool_limits

        # A core each: BLAS's own threads beside ours would wait for cores by spinning, and take ten times as long.
        with threadpool_limits(1, user_api="blas"):
            yield lambda function, arguments, parts: _on_threads(function, arguments, parts, report)


def _on_threads(
    function: Callable[..., T], arguments: tuple[object, ...], parts: range, report: Progress
) -> Iterator[T]:
    """NumPy leaves other threads free to run; a few parts are ahead of the one that is asked for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if min(cores, len(parts)) <= 1:
        for part in parts:
            yield function(*arguments, part)
            report(part + 1, parts.stop)
        return
    with ThreadPoolExecutor(cores) as pool:

        def submit(part: int) -> Future[T]:
            return pool.submit(function, *arguments, part)

        yield from _in_order(parts, cores + 1, submit, lambda task: task.result(), Future.cancel, report)


def _on_ray(
    ray: Any, function: Callable[..., T], arguments: tuple[object, ...], parts: range, report: Progress
) -> Iterator[T]:
    """Run a task for each part; a part whose worker dies is tried again elsewhere."""
    task = ray.remote(num_cpus=1, max_retries=_TRIES - 1, runtime_env={"env_vars": ray_cluster.ONE_THREAD})(_run_part)
    try:
        shared = ray.put((function, arguments))
    except (TypeError, AttributeError) as error:
        why = ray_cluster.first_line(error.__cause__ or error)
        raise InputError(f"`policy` or `features` cannot travel to the workers: {why}") from None
    at_once = max(int(ray.cluster_resources().get("CPU", 1)), 1) + 1
    send = lambda part: task.remote([shared], part)  # noqa: E731
    yield from _in_order(parts, at_once, send, ray.get, lambda one: ray.cancel(one, force=True), report)


def _run_part(shared: list[Any], part: int) -> object:
    """Run in a Ray worker."""
    import ray

    function, arguments = ray.get(shared[0])
    return function(*arguments, part)


def _in_order(
    parts: range,
    at_once: int,
    submit: Callable[[int], H],
    fetch: Callable[[H], T],
    cancel: Callable[[H], object],
    report: Progress,
) -> Iterator[T]:
    """Have so many parts in flight, and yield what they give in their order."""
    flying = deque(submit(part) for part in parts[:at_once])
    try:
        for i, part in enumerate(parts):
            result = fetch(flying.popleft())
            flying.extend(submit(later) for later in parts[i + at_once : i + at_once + 1])
            yield result
            report(part + 1, parts.stop)
    finally:
        for waiting in flying:
            cancel(waiting)


@dataclass
class PassCheckpoint:
    """The sums of passes in a folder; only those of the same log, policy, features and arguments are read."""

    folder: Path
    identity: str
    last: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, folder: Path, estimand: Estimand, *others: object) -> PassCheckpoint:
        """Identify the passes by a hash of the log and of what the policy and features give for some of its rows."""
        state, action = estimand.log.sample(64)
        phi = estimand.features.pairs(estimand.features.encode(state), action)
        rows = [estimand.policy.acts(state, (0, 0)).law, to_dense(phi)]
        numbers = (estimand.gamma, estimand.groups, estimand.clusters, estimand.stream, estimand.visited)
        start = b"" if estimand.start is None else estimand.start.tobytes()
        text = repr((estimand.log.fingerprint(), *numbers, others)).encode()
        return cls(folder, hashlib.sha256(b"".join([text, start, *(row.tobytes() for row in rows)])).hexdigest())

    def restore(self, name: str, sums: LogSums) -> int:
        """Fill the sums with the saved ones, and return the first part that is not in them."""
        try:
            with np.load(self._path(name), allow_pickle=False) as saved:
                if str(saved["identity"]) != self.identity:
                    return 0
                arrays = {key: saved[key] for key in sums.arrays()}
                done = int(saved["done"])
        except Exception:  # none, half of one, or of another version: the pass begins anew
            return 0
        for key, array in arrays.items():
            setattr(sums, key, array)
        return done

    def save(self, name: str, sums: LogSums, done: int, at_end: bool) -> None:
        """Write the sums over the first ``done`` parts, every 20 seconds and at the end of the pass."""
        arrays = sums.arrays()
        if not arrays or (not at_end and time.monotonic() - self.last < EVERY):
            return
        self.last = time.monotonic()
        file = io.BytesIO()
        np.savez(file, identity=self.identity, done=done, **arrays)  # type: ignore[arg-type]
        storage.put(self._path(name), file.getvalue())

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}-{self.identity[:16]}.npz"


def discard(folder: Path) -> None:
    """Remove the sums of passes that ended, each known by the identity in its name and in its content."""
    for path in folder.glob("*.npz"):
        with suppress(Exception), np.load(path, allow_pickle=False) as saved:
            if path.stem.endswith(f"-{str(saved['identity'])[:16]}"):
                path.unlink()
    with suppress(OSError):  # not empty, or never made
        folder.rmdir()
