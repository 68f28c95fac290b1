"""Closed forms that answer in float64 whatever JAX's default, and that can be part of a program being traced."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Fn = TypeVar("Fn", bound=Callable[..., Any])


def in_float64(function: Fn) -> Fn:
    """Outside a trace, compute in float64, as one program, and give back NumPy arrays; inside one, be part of it."""
    compiled = jax.jit(function)

    @functools.wraps(function)
    def wrapped(self: object, *args: Any, **kwargs: Any) -> Any:
        if _is_traced((self, args, kwargs)):
            return function(self, *args, **kwargs)
        with jax.enable_x64(True):
            self = jax.tree.map(float64, self)
            out = compiled(self, *map(float64, args), **{name: float64(value) for name, value in kwargs.items()})
            return jax.tree.map(lambda leaf: np.asarray(leaf)[()], out)

    return wrapped  # type: ignore[return-value]


def float64(value: object) -> np.ndarray:
    return np.asarray(value, np.float64)


def _is_traced(values: object) -> bool:
    """Whether what is computed from these values now is recorded rather than computed.

    Tracers among the values are one sign of it. But inside a ``jit`` an operation on constants is recorded too, so one
    such operation is tried.
    """
    return any(isinstance(leaf, jax.core.Tracer) for leaf in (*jax.tree.leaves(values), jnp.zeros(())))
