"""Closed forms in float64 for any default precision of JAX, which can also be part of a traced program."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.validation import check_process
from twoclock.validation.arrays import as_array, shaped

P = ParamSpec("P")
R = TypeVar("R")


def in_float64(function: Callable[P, R]) -> Callable[P, R]:
    """Outside a trace, check the arguments against ``model.shapes``, compute in float64 and return NumPy arrays.

    Inside a trace, be part of it.
    """
    compiled, signature = jax.jit(function), inspect.signature(function)

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        check_process()
        if traced(args, kwargs):
            return function(*args, **kwargs)
        with jax.enable_x64(True):
            (first, model), *rest = signature.bind(*args, **kwargs).arguments.items()
            doubles = {name: read_argument(name, value, model.shapes.get(name)) for name, value in rest}
            out = compiled(**{first: jax.tree.map(_double, model)}, **doubles)
            answer: R = jax.tree.map(lambda leaf: np.asarray(leaf)[()], out)
            return answer

    return wrapped


def traced(*values: object) -> bool:
    """Whether the values are part of a trace."""
    # Tracers among the values are one sign of a trace. But inside a `jit` an operation on constants is recorded rather
    # than computed too, so one such operation is tried.
    return any(isinstance(leaf, jax.core.Tracer) for leaf in (*jax.tree.leaves(values), jnp.zeros(())))


def _double(leaf: object) -> np.ndarray:
    array = np.asarray(leaf)
    return array if array.dtype == np.int32 else np.asarray(array, np.float64)  # state numbers stay integers


def read_argument(name: str, value: object, shape: tuple[int, ...] | None) -> np.ndarray:
    """Check an argument of a closed form, which may be infinite, and return it in float64."""
    return as_array(name, value, finite=False) if shape is None else shaped(name, value, shape, finite=False)
