"""What was run, in words and numbers that JSON can hold."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

from twoclock.version import __version__

_INLINE = 64


def describe(thing: object) -> dict[str, Any]:
    """A problem, method or schedule by its class and fields; a function by its name and bound arguments."""
    if isinstance(thing, functools.partial):
        inner = describe(thing.func)
        return {**inner, **{name: _value(value) for name, value in thing.keywords.items()}}
    if not dataclasses.is_dataclass(thing):
        return {"name": _function_name(thing)}
    fields = {field.name: _value(getattr(thing, field.name)) for field in dataclasses.fields(thing)}
    return {"name": type(thing).__name__, **fields}


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Where a number came from: recorded beside it, and no part of what was run."""

    versions: dict[str, str]
    device: str
    wall_seconds: float | None = None

    @classmethod
    def here(cls, wall_seconds: float | None = None) -> Provenance:
        return cls(dict(_versions()), jax.devices()[0].device_kind, wall_seconds and round(wall_seconds, 3))

    def as_dict(self) -> dict[str, object]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@functools.cache
def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("jax", "jaxlib", "numpy")}
    return {"python": platform.python_version(), "twoclock": __version__, **packages}


def environment() -> dict[str, Any]:
    """The versions of everything that has a part in the numbers, and what they were computed on."""
    packages = ("jax", "jaxlib", "numpy", "scipy", "pandas", "matplotlib")
    devices = jax.devices()
    return {
        "twoclock": __version__,
        **{name: version(name) for name in packages},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "accelerator": "none" if devices[0].platform == "cpu" else f"{len(devices)} × {devices[0].device_kind}",
    }


def _value(value: object) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): _value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(value)
        return array.tolist() if array.size <= _INLINE else f"{array.dtype}{list(array.shape)}"
    if dataclasses.is_dataclass(value):
        return str(value) if callable(value) else describe(value)
    return _function_name(value)


def _function_name(thing: Callable[..., Any] | Any) -> str:
    return getattr(thing, "__qualname__", type(thing).__name__)
