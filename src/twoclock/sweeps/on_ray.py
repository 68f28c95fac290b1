"""Shards as Ray tasks: one core each, tried again when a worker or a node dies.

Memory: a worker takes what JAX does (about 400 MB) plus the sweep's ``memory``. Object store: the job once, and the
rows of the shards that are finished and not yet fetched, one a core at most; with a shared folder a few bytes each.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twoclock.core import InputError
from twoclock.engine.drive import Tick
from twoclock.record.shards import Shards
from twoclock.sweeps.compute import Computed, Worker
from twoclock.sweeps.plan import Job, Shard

_SECONDS_TO_ANSWER = 5.0
_SECONDS_BETWEEN_LOOKS = 0.5
_OBJECT_STORE = 256 << 20
# One thread each: Ray gives a task one core, and what JAX would take beyond it belongs to its neighbours.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "NPROC": "1"}
# The job that this worker process was last given; its functions must stay the same objects to be compiled once.
_worker: tuple[str, Any] = ("", None)

Look = Callable[[Shard, Tick | None], None]
Outcomes = Iterator[tuple[Shard, Computed | Exception]]


@contextmanager
def cluster(address: str | None) -> Iterator[Callable[..., Callable[[Job, Sequence[Shard], Look], Outcomes]]]:
    """Connect to a cluster, or start Ray on this machine; what was started here is stopped here."""
    try:
        import ray
    except ImportError:
        raise InputError('on="ray" needs Ray; install it with `pip install "twoclock[ray]"`') from None
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address)
    elif address is not None and address != ray.get_runtime_context().gcs_address:
        raise InputError("`address` names another cluster than this program is connected to; leave it out to use that")
    try:
        yield lambda tries, folder: lambda job, shards, look: _outcomes(ray, job, shards, look, tries, folder)
    finally:
        if ours:
            ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    usual = signal.getsignal(signal.SIGTERM)
    # Ray forks to execute its own programs at once, which is safe; JAX warns of every fork.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
        _start_or_join(ray, address)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, usual)  # Ray's own handler leaves without a word


def _start_or_join(ray: Any, address: str | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": "error"}
    if address is None:
        with _on_loopback():
            ray.init("local", include_dashboard=False, object_store_memory=_OBJECT_STORE, **quiet)
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER):
            pass
        ray.init(address, **quiet)
    except (OSError, ValueError, ConnectionError, RuntimeError) as error:
        raise InputError(
            f"`address` {address} does not answer as a Ray cluster ({_first_line(error)}); "
            "give host:port of its head node, or leave it out to start Ray here"
        ) from None


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Have Ray's ports listen on 127.0.0.1 alone; else whoever reaches this machine could run code on it.

    It is Ray's own switch for machines that form no cluster. It is read when Ray is imported, and by its processes.
    """
    from ray._private import ray_constants

    switch, before = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, ray_constants.ENABLE_RAY_CLUSTER
    outside = os.environ.get(switch)
    os.environ[switch], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        os.environ.pop(switch)
        if outside is not None:
            os.environ[switch] = outside


def _outcomes(ray: Any, job: Job, shards: Sequence[Shard], look: Look, tries: int, folder: Path | None) -> Outcomes:
    """Keep a task for each core in flight, and hand over what is finished as it finishes."""
    task = ray.remote(num_cpus=1, max_retries=tries - 1, runtime_env={"env_vars": _ONE_THREAD})(_compute)
    try:
        home, name = ray.put(job), uuid.uuid4().hex
    except (TypeError, AttributeError) as error:
        why = _first_line(error.__cause__ or error)
        raise InputError(f"a problem or method cannot travel to the workers: {why}") from None
    waiting = list(reversed(shards))
    flying: dict[Any, Shard] = {}
    try:
        while waiting or flying:
            while waiting and len(flying) < max(int(ray.cluster_resources().get("CPU", 1)), 1):
                shard = waiting.pop()
                flying[task.remote(name, [home], shard, folder)] = shard
                look(shard, None)
            ready, _ = ray.wait(list(flying), timeout=_SECONDS_BETWEEN_LOOKS)
            for reference in ready:
                yield flying.pop(reference), _fetch(ray, reference)
            if flying:
                look(next(iter(flying.values())), None)
    finally:
        for reference in flying:
            ray.cancel(reference, force=True)


def _fetch(ray: Any, reference: Any) -> Computed | Exception:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        return error.cause if isinstance(error.cause, Exception) else error
    except ray.exceptions.RayError as error:
        return error


def _compute(name: str, home: list[Any], shard: Shard, folder: Path | None) -> Computed:
    """Runs in a Ray worker."""
    global _worker
    if _worker[0] != name:
        import ray

        _worker = name, Worker(ray.get(home[0]))
    computed = _worker[1].compute(shard)
    if folder is None:
        return computed
    Shards(folder).keep(shard.name, computed.tables, computed.info)
    return Computed({}, computed.info)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:100]
