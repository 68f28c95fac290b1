"""Every validator: a wrong argument is answered in one line that names it, the rule and the remedy."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from twoclock.core import InputError, Method, Problem, ProblemSource

T = TypeVar("T")

_HORIZON = 2**31 - 1


def check_problem(problem: object) -> ProblemSource:
    if not isinstance(problem, Problem) and (not callable(problem) or hasattr(problem, "F")):
        raise InputError(
            "`problem` must have init, noise, draw, F and G, or be a function of a key that makes one; "
            f"got {type(problem).__name__}"
        )
    return problem


def check_method(method: object, name: str = "method") -> Method:
    if isinstance(method, type):  # a class has the functions of its objects and would pass for one
        raise InputError(f"`{name}` must be a method, got the class {method.__name__}; call it, `{method.__name__}()`")
    if not isinstance(method, Method):
        raise InputError(f"`{name}` must have init, step and estimate, got {type(method).__name__}; try tc.Fast()")
    return method


def check_steps(steps: Any) -> int:
    if isinstance(steps, bool) or (not isinstance(steps, (int, np.integer)) and not (
        isinstance(steps, float) and steps.is_integer()
    )):  # fmt: skip
        raise InputError(f"`steps` must be a whole number, got {steps!r}; try steps=100_000")
    if not 0 < steps <= _HORIZON:
        raise InputError(f"`steps` must lie in 1 … 2³¹−1, got {steps:g}; try steps=100_000")
    return int(steps)


def check_seeds(seeds: Any) -> list[int]:
    if isinstance(seeds, (int, np.integer)):
        if seeds <= 0:
            raise InputError(f"`seeds` must be a positive count or a sequence of integers, got {seeds}; try seeds=20")
        return list(range(int(seeds)))
    try:
        numbers = [int(seed) for seed in seeds]
    except (TypeError, ValueError):
        raise InputError(f"`seeds` must be a positive count or a sequence of integers, got {seeds!r}") from None
    if not numbers or min(numbers) < 0 or max(numbers) >= 2**32 or len(set(numbers)) < len(numbers):
        raise InputError("`seeds` must be different integers from 0 to 2³²−1, one or more; try seeds=range(20)")
    return numbers


def check_marks(marks: Any, steps: int) -> list[int]:
    if marks is None:
        return log_marks(steps)
    try:
        numbers = sorted({int(mark) for mark in marks} | {steps})
    except (TypeError, ValueError):
        raise InputError(
            f"`marks` must be a sequence of step numbers, got {marks!r}; leave it out for a log grid"
        ) from None
    if numbers[0] < 0 or numbers[-1] > steps:
        raise InputError(f"`marks` must lie in 0 … steps={steps}, got {numbers[0]} … {numbers[-1]}")
    return numbers


def log_marks(steps: int, per_decade: int = 10) -> list[int]:
    """The start, the end and about ``per_decade`` marks a decade between them."""
    count = int(np.ceil(np.log10(steps) * per_decade)) + 1
    grid = np.round(10 ** (np.arange(count) / per_decade)).astype(int)
    return [0, *sorted({int(mark) for mark in grid if mark < steps} | {steps})]


def check_numbers(precision: Any, bound: Any) -> None:
    if precision not in ("float64", "float32"):
        raise InputError(f"`precision` must be 'float64' or 'float32', got {precision!r}")
    if bound is not None and not bound > 0:
        raise InputError(f"`bound` must be positive, got {bound}; leave it out for none")


def pick(found: Mapping[str, T], name: str, what: str) -> T:
    """The entry of that name, or a complaint that suggests the nearest."""
    if name in found:
        return found[name]
    near = difflib.get_close_matches(name, found, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(found)}"
    raise InputError(f"`{what}` has no {name!r}; {hint}")


def number(name: str, value: Any, least: int, *, above: bool = False) -> float:
    """The value as a float that is at least ``least``, or above it."""
    try:
        new = float(value)
    except (TypeError, ValueError):
        raise InputError(f"`{name}` must be one number, got {value!r}") from None
    if not np.isfinite(new) or new < least or (above and new == least):
        raise InputError(
            f"`{name}` must be a finite number {'above' if above else 'of at least'} {least:g}, got {new:g}"
        )
    return new


def check_number(what: str, value: Any, rule: Callable[[float], bool], words: str, remedy: str = "") -> None:
    """Complain unless ``value`` is one finite number that keeps the rule; a tracer was checked when it was a number."""
    if getattr(value, "ndim", 0):
        raise InputError(
            f"`{what}` must be one number, got an array of shape {tuple(value.shape)}; "
            + (remedy or "for a grid of step sizes use `tc.grid`")
        )
    if isinstance(value, jax.core.Tracer):
        return
    real = isinstance(value, numbers.Real) or (hasattr(value, "dtype") and np.issubdtype(value.dtype, np.number))
    if not real or isinstance(value, (bool, np.bool)) or np.iscomplexobj(value):
        raise InputError(f"`{what}` must be a number, got {value!r}")
    if not (math.isfinite(value) and rule(float(value))):
        raise InputError(f"`{what}` must {words}, got {float(value):g}" + (f"; {remedy}" if remedy else ""))


def matrix(name: str, value: Any) -> np.ndarray:
    """The value as a float64 matrix, or a complaint about ``name``."""
    try:
        matrix = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"`{name}` must be a matrix of numbers, got {type(value).__name__}") from None
    if matrix.ndim != 2 or not matrix.size:
        raise InputError(f"`{name}` must be a matrix, got shape {matrix.shape}; write a column as [[a], [b]]")
    if not np.isfinite(matrix).all():
        raise InputError(f"`{name}` must be finite, got an entry that is not")
    return matrix


def definite(name: str, value: np.ndarray, floor: float) -> None:
    """Complain unless the matrix is symmetric and its eigenvalues lie above ``floor``, relative to its size."""
    kind = "definite" if floor == 0 else "semidefinite"
    if not np.allclose(value, value.T, rtol=0, atol=1e-10 * np.abs(value).max()):
        raise InputError(f"`{name}` must be symmetric positive {kind}, got one that is not symmetric; try (M + Mᵀ)/2")
    smallest = np.linalg.eigvalsh(value)[0]
    if smallest <= floor * max(1.0, np.abs(value).max()):
        raise InputError(f"`{name}` must be symmetric positive {kind}, got the smallest eigenvalue {smallest:.3g}")


def stabilisable(A: np.ndarray, B: np.ndarray) -> None:
    """Complain unless some gain stabilises. Hautus: B must move every eigenvalue that is not inside the circle."""
    n = len(A)
    for mode in np.linalg.eigvals(A):
        if abs(mode) >= 1 - 1e-12:
            singular = np.linalg.svd(np.hstack([A - mode * np.eye(n), B]), compute_uv=False)
            if singular[n - 1] <= 1e-10 * singular[0]:
                raise InputError(f"`(A, B)` must be stabilisable: no gain moves the mode {mode:.4g} of `A`")
