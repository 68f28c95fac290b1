"""Checks of what an environment returns; a fault is one line that names the seed, the step and what came back."""

from __future__ import annotations

from typing import NamedTuple, SupportsFloat

import numpy as np

from twoclock.protocols import InputError, PyTree
from twoclock.validation import short_repr


class EnvironmentFault(InputError):
    """An environment raised, hung, or gave back what no agent can learn from.

    Attributes:
        seed: whose environment; None where several step together.
        step: how many steps had been taken.
    """

    def __init__(self, what: object = "", seed: int | None = None, step: int = 0) -> None:
        super().__init__(what)
        self.seed, self.step = seed, step

    def at(self, seed: int | None, step: int, how: str = "") -> EnvironmentFault:
        """The same fault, with where it happened and what was saved."""
        where = f"seed {seed}, step {step:,}: " if seed is not None else f"step {step:,}: "
        return EnvironmentFault(f"{where}{self}{how}", seed, step)


class StepResult(NamedTuple):
    """What came of an action: the state after it, its reward (None where there is none), and whether this was the end.

    A state is an array, or the number of a state.
    """

    x: PyTree
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False


class NotFinite(EnvironmentFault):
    """A state or reward that is NaN or infinite."""


def check_number(value: SupportsFloat, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise EnvironmentFault(f"{what} must be a number, got {short_repr(value)}") from None
    if not np.isfinite(number):
        raise NotFinite(f"{what} must be finite, got {number}")
    return number


def named_error(error: Exception) -> str:
    """The class of an error, with its message if it has one."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def check_bool(value: object, what: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise EnvironmentFault(f"{what} must be True or False, got {short_repr(value)}")
    return bool(value)


def check_state(x: object, what: str, shape: tuple[int, ...] | None) -> PyTree:
    """A copy of a state, floats in float64: some simulators give the same array every time, changed.

    Args:
        shape: of the first state; None for any.
    """
    try:
        array = np.asarray(x)
    except (TypeError, ValueError):  # a ragged list
        array = np.empty((), object)
    if array.dtype.kind not in "biuf":
        raise EnvironmentFault(
            f"{what} must be a number or an array of numbers, got {short_repr(x)}; "
            "a wrapper such as gymnasium.wrappers.FlattenObservation makes one of it"
        )
    if shape not in (None, array.shape):
        raise EnvironmentFault(f"{what} must have the shape of the first state, {shape}, got {array.shape}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise NotFinite(f"{what} must be finite, got {short_repr(array.tolist())}")
        return array.astype(np.float64) if array.shape else np.float64(array)
    return array.copy() if array.shape else int(array)
