"""A Ray cluster: joined, or started on this machine for the time being."""

from __future__ import annotations

import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from twoclock.protocols import InputError

_SECONDS_TO_ANSWER = 5.0
_OBJECT_STORE = 256 << 20
_TRIES = 3
# One thread each: Ray gives a task one core, and what JAX or BLAS would take beyond it belongs to its neighbours.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NPROC": "1"}


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Ray, connected to a cluster or started on this machine; what was started here is stopped here."""
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
        yield ray
    finally:
        if ours:
            ray.shutdown()


def _connect(ray: object, address: str | None) -> None:
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
            _start(ray, include_dashboard=False, object_store_memory=_OBJECT_STORE, **quiet)
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER):
            pass
        ray.init(address, **quiet)
    except (OSError, ValueError, ConnectionError, RuntimeError) as error:
        raise InputError(
            f"`address` {address} does not answer as a Ray cluster ({first_line(error)}); "
            "give host:port of its head node, or leave it out to start Ray here"
        ) from None


def _start(ray: Any, **options: Any) -> None:
    """Ray gives its processes half a minute to come up, which on a busy machine may be too short."""
    for left in reversed(range(_TRIES)):
        try:
            ray.init("local", **options)
            return
        except Exception as error:  # the bare class is what Ray raises here
            ray.shutdown()
            if not left:
                raise InputError(
                    f"Ray does not start on this machine ({first_line(error)}); try again when it is less busy, or "
                    'leave out on="ray"'
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


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:100]
