"""Methods as JSON values and back, for records, which pickle nothing."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import twoclock.methods
from twoclock import schedules
from twoclock.protocols import InputError, Method


def to_json(method: object) -> dict[str, Any] | None:
    """The class and the exact fields of a method of this library; None if it holds a function or a pytree of arrays.

    >>> import twoclock as tc
    >>> from_json(to_json(tc.Polyak(tc.Fast(alpha=0.1), power=2)))
    Polyak(method=Fast(α=0.1, β=8/(k+40), λ=40/(k+160)), power=2)
    """
    if not dataclasses.is_dataclass(method) or _classes().get(type(method).__name__) is not type(method):
        return None
    fields = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    for name, value in fields.items():
        if dataclasses.is_dataclass(value):
            fields[name] = to_json(value)
            if fields[name] is None:
                return None
        elif isinstance(value, (np.ndarray, np.generic, jax.Array)) and value.ndim == 0:
            fields[name] = value.item()
        elif isinstance(value, np.ndarray):
            fields[name] = {"array": value.tolist()}
        elif isinstance(value, tuple) and all(isinstance(entry, int) for entry in value):
            fields[name] = list(value)
        elif isinstance(value, tuple) and None not in (entries := [to_json(entry) for entry in value]):
            fields[name] = entries  # the schedules of levels
        elif not (value is None or isinstance(value, (bool, int, float, str))):
            return None
    return {"class": type(method).__name__, **fields}


def from_json(record: Mapping[str, Any] | None) -> Any:
    """The method, the schedule or the array that ``to_json`` wrote."""
    if record is None:
        raise InputError(
            "`method` must be given: it holds a function or a tree, which no record can; pass it as it was"
        )
    if "array" in record:
        return np.asarray(record["array"])
    fields = {name: from_json(value) if isinstance(value, Mapping) else value for name, value in record.items()}
    for name, value in fields.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            fields[name] = tuple(map(from_json, value))
    kind = _classes().get(fields.pop("class", ""))
    if kind is None:
        raise InputError(f"`method` {record.get('class')} is not known to this version of twoclock; pass it yourself")
    return kind(**fields)


@functools.cache
def _classes() -> dict[str, type]:
    """Every class of a method or of a schedule in this library, by its name."""
    names = [info.name for info in pkgutil.iter_modules(twoclock.methods.__path__, "twoclock.methods.")]
    modules = [schedules, *(importlib.import_module(name) for name in names)]
    return {
        name: thing
        for module in modules
        for name, thing in vars(module).items()
        if isinstance(thing, type) and thing.__module__ == module.__name__
        if issubclass(thing, Method) or (module is schedules and dataclasses.is_dataclass(thing))
    }
