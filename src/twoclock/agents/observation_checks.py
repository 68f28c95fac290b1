"""What an agent is shown of the world, as numbers: observations, features, rewards."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from twoclock import validation
from twoclock.protocols import InputError, PyTree
from twoclock.validation.arrays import as_array

Seen = Float[np.ndarray, "*shape"]
See = Callable[[str, Any], Seen]
Features = Float[np.ndarray, "s d"] | Callable[[Any], ArrayLike] | None


def seeing(features: ArrayLike | Callable[[Any], ArrayLike] | None) -> tuple[Features, See]:
    """The features, checked, and what looks them up: from the name of an argument and an observation to numbers."""
    if features is None:
        return None, as_array
    if callable(features):
        validation.function("features", features, "x")
        return features, lambda name, x: as_array(f"features({name})", features(x))
    table = as_array("features", features)
    if table.ndim != 2 or not table.size:
        raise InputError(f"`features` must have one row a state, got the shape {table.shape}; or give a function of x")
    if not table.any():
        raise InputError("`features` must not all be zero: every θ would give the same values; try np.eye(states)")
    return table, lambda name, x: table[index(name, x, len(table))]


def observations(at: Any, features: Features, see: See) -> tuple[np.ndarray, Seen]:
    """The observations at which a value is told, and what is seen there."""
    if at is None:
        if not isinstance(features, np.ndarray):
            raise InputError("`at` must be given: observations at which the value is told, such as `[env.reset()[0]]`")
        at = np.arange(len(features))
    try:
        given = np.asarray(at)
    except ValueError:
        given = np.asarray(None)
    if given.ndim == 0 or not len(given) or given.dtype.kind not in "biuf":
        raise InputError(
            f"`at` must be a list of observations, numbers or arrays alike, got {validation.short_repr(at)}"
        )
    shown = [see("at", x) for x in given]
    if len({phi.shape for phi in shown}) > 1:
        raise InputError("`features` must have the same shape everywhere, and has not at `at`")
    return given, np.stack(shown)


def index(name: str, value: int, size: int) -> int:
    """The number of a state or an action."""
    try:
        i = operator.index(value)
    except TypeError:
        raise InputError(f"`{name}` must be a whole number, got {validation.short_repr(value)}") from None
    if not 0 <= i < size:
        raise InputError(f"`{name}` must lie between 0 and {size - 1}, got {validation.short_repr(i)}")
    return i


def known_reward(value: float | None) -> float:
    """The reward as a finite number."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"`reward` must be a number, got {validation.short_repr(value)}; pass what the environment gave"
        ) from None
    if not math.isfinite(number):
        raise InputError(f"`reward` must be finite, got {number}")
    return number


def numbers_of(tree: PyTree) -> PyTree:
    """The tree with float64 arrays for leaves."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)
