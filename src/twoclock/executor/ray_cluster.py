"""A Ray cluster: joined, or started on this machine; its tasks take one core each.

Memory: a worker takes what JAX does (about 400 MB) and what its tasks need. Object store: what the tasks share once,
and the outcomes that are finished and not yet fetched, one per core at most.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from twoclock.executor import ONE_THREAD, Channel, Outcomes, RemoteTraceback, S, T, TaskBatch, V, WorkerLost
from twoclock.protocols import InputError
from twoclock.storage.atomic_file import first_line

_SECONDS_TO_ANSWER = 5.0
_SECONDS_BETWEEN_LOOKS = 0.25
_OBJECT_STORE = 256 << 20
_TRIES = 3
_QUIET = {"log_to_driver": False, "logging_level": "error"}
# The function and what its tasks share, as this worker process last fetched them; functions must stay the same objects
# to be compiled once.
_fetched: dict[str, tuple[Callable[..., object], object]] = {}


class RayTasks:
    """Runs tasks on a Ray cluster; a task that runs is not asked to stop but ended. Arguments as for `on_ray`."""

    def __init__(self, ray: ModuleType, what: str, tries: int, ordered: bool) -> None:
        self.ray, self.what, self.tries, self.ordered = ray, what, tries, ordered

    def map(self, batch: TaskBatch[S, T, V]) -> Outcomes[V]:
        ray, name, due = self.ray, uuid.uuid4().hex, 0
        remote = ray.remote(num_cpus=1, max_retries=self.tries - 1, runtime_env={"env_vars": ONE_THREAD})(_run_task)
        waiting = list(reversed(range(len(batch.tasks))))
        running: dict[object, int] = {}
        outcomes: dict[int, V | Exception] = {}
        try:
            home = self._travel(ray.put, (batch.function, batch.shared))
            while (waiting or running or outcomes) and not batch.stop():
                at_once = max(int(ray.cluster_resources().get("CPU", 1)), 1) + self.ordered
                while waiting and len(running) + len(outcomes) < at_once:
                    number = waiting.pop()
                    running[self._travel(remote.remote, name, [home], batch.tasks[number])] = number
                    batch.report(number, None)
                for reference in ray.wait(list(running), timeout=_SECONDS_BETWEEN_LOOKS)[0] if running else ():
                    outcomes[running.pop(reference)] = self._fetch(reference)
                while outcomes and (due in outcomes or not self.ordered):
                    number = due if self.ordered else next(iter(outcomes))
                    yield number, outcomes.pop(number)
                    due += 1
                if running:
                    batch.report(next(iter(running.values())), None)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def _travel(self, send: Callable[..., Any], *given: object) -> Any:
        try:
            return send(*given)
        except (TypeError, AttributeError) as error:
            why = first_line(error.__cause__ or error)
            raise InputError(f"{self.what} cannot travel to the workers: {why}") from None

    def _fetch(self, reference: object) -> Any:
        """The value of a task that has ended, or its exception."""
        errors = self.ray.exceptions
        try:
            return self.ray.get(reference)
        except errors.RayTaskError as error:
            if not isinstance(error.cause, Exception):
                return error
            error.cause.__cause__ = error.cause.__cause__ or RemoteTraceback(str(error))
            return error.cause
        except errors.RayError as error:
            return WorkerLost(f"its Ray task ended, {first_line(error)}")


def _run_task(name: str, home: list[Any], task: object) -> object:
    """Runs in a Ray worker."""
    if name not in _fetched:
        import ray

        _fetched.clear()
        _fetched[name] = ray.get(home[0])
    function, shared = _fetched[name]
    return function(shared, task, Channel())


@contextmanager
def on_ray(address: str | None, what: str, *, tries: int = 1, ordered: bool = False) -> Iterator[RayTasks]:
    """Connect to a cluster, or start Ray on this machine and stop it afterwards.

    Args:
        address: of the cluster.
        what: the arguments sent to the workers, for the error if they cannot be.
        tries: how often a task is started whose worker or node died.
        ordered: yield in the order of the tasks.
    """
    try:
        import ray
    except ImportError:
        raise InputError('on="ray" needs Ray; install it with `pip install ray`') from None
    ours = not ray.is_initialized()
    if ours:
        usual = signal.getsignal(signal.SIGTERM)
        # Ray forks to execute its own programs at once, which is safe; JAX warns of every fork.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
            _start(ray) if address is None else _join(ray, address)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, usual)  # Ray's own handler ends the process silently
    elif address is not None and address != ray.get_runtime_context().gcs_address:
        raise InputError("`address` names another cluster than this program is connected to; leave it out to use that")
    try:
        yield RayTasks(ray, what, tries, ordered)
    finally:
        if ours:
            ray.shutdown()


def _join(ray: ModuleType, address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER):
            pass
        ray.init(address, **_QUIET)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"`address` {address} does not answer as a Ray cluster ({first_line(error)}); "
            "give host:port of its head node, or leave it out to start Ray here"
        ) from None


def _start(ray: ModuleType) -> None:
    """Start Ray with ports that listen on 127.0.0.1 alone; else anyone who reaches this machine could run code on it.

    This is Ray's switch for machines that form no cluster. There is no public one: ``ray.init`` turns 127.0.0.1 into
    the address on the network, and the environment variable is read once, when Ray is imported.
    """
    from ray._private import ray_constants

    switch, before = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, ray_constants.ENABLE_RAY_CLUSTER
    outside = os.environ.get(switch)
    os.environ[switch], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        for left in reversed(range(_TRIES)):  # its processes have half a minute to come up, too short on a busy machine
            try:
                ray.init("local", include_dashboard=False, object_store_memory=_OBJECT_STORE, **_QUIET)
                return
            except Exception as error:  # the bare class is what Ray raises here
                ray.shutdown()
                if not left:
                    raise InputError(
                        f"Ray does not start on this machine ({first_line(error)}); try again when it is less busy, "
                        'or leave out on="ray"'
                    ) from None
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        os.environ.pop(switch)
        if outside is not None:
            os.environ[switch] = outside
