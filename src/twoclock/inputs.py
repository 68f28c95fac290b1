"""Every validator: a wrong argument is answered in one line that names it, the rule and the remedy."""

from __future__ import annotations

import difflib
import itertools
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any, TypeVar

import jax
import numpy as np

from twoclock import memory
from twoclock.core import InputError, Method, Problem, ProblemSource

T = TypeVar("T")

_HORIZON = 2**31 - 1
_INTEGER = 80  # bytes of one in a list, and of its row in a table
_LONGEST_STREAM = 10_000_000  # an iterator that gives more may never end


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
    number = _whole(steps)
    if number is None:
        raise InputError(f"`steps` must be a whole number, got {shown(steps)}; try steps=100_000")
    if not 0 < number <= _HORIZON:
        raise InputError(f"`steps` must lie in 1 … 2³¹−1, got {shown(number)}; try steps=100_000")
    return number


def check_seeds(seeds: Any) -> list[int]:
    count = _whole(seeds)
    if count is not None:
        if not 0 < count <= 2**32:
            raise InputError(
                f"`seeds` must be a positive count or a sequence of integers, got {shown(count)}; try seeds=20"
            )
        memory.check(
            count * _INTEGER, f"`seeds`: {count:,} seeds", "run them in parts, seeds=range(0, 1_000_000) first"
        )
        return list(range(count))
    numbers = _wholes(seeds, "seeds", 2**32)
    if numbers is None:
        raise InputError(
            f"`seeds` must be a positive count or a sequence of integers, got {shown(seeds)}; try seeds=20"
        )
    if not numbers or min(numbers) < 0 or max(numbers) >= 2**32 or len(set(numbers)) < len(numbers):
        raise InputError("`seeds` must be different integers from 0 to 2³²−1, one or more; try seeds=range(20)")
    return numbers


def check_marks(marks: Any, steps: int) -> list[int]:
    if marks is None:
        return log_marks(steps)
    given = _wholes(marks, "marks", steps + 1)
    if given is None:
        raise InputError(f"`marks` must be a sequence of step numbers, got {shown(marks)}; leave it out for a log grid")
    numbers = sorted({*given, steps})
    if numbers[0] < 0 or numbers[-1] > steps:
        raise InputError(f"`marks` must lie in 0 … steps={steps}, got {shown(numbers[0])} … {shown(numbers[-1])}")
    return numbers


def shown(value: Any) -> str:
    """A wrong value as a message shows it: short, on one line, whatever it is."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # its own repr fails
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"


def _whole(value: Any) -> int | None:
    """A whole number, also one that is written as a float; None for anything else, and truth values are no numbers."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return int(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    if getattr(value, "ndim", None) == 0 and np.issubdtype(getattr(value, "dtype", object), np.integer):
        return int(value)
    return None


def _wholes(values: Any, name: str, most: int) -> list[int] | None:
    """Whole numbers one after the other, or None; never more of them than there can be, nor than the memory holds."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        return None
    count = len(values) if isinstance(values, Sized) else 0
    most = most if isinstance(values, Sized) else min(most, _LONGEST_STREAM)
    if count > most:
        raise InputError(f"`{name}` must have at most {most:,} entries, got {count:,}")
    memory.check(count * _INTEGER, f"`{name}`: {count:,} entries", "take fewer, or run them in parts")
    try:
        numbers = [_whole(value) for value in itertools.islice(values, most + 1)]
    except TypeError:  # an array without dimensions
        return None
    return None if None in numbers or len(numbers) > most else numbers  # type: ignore[return-value]


def log_marks(steps: int, per_decade: int = 10) -> list[int]:
    """The start, the end and about ``per_decade`` marks a decade between them."""
    count = int(np.ceil(np.log10(steps) * per_decade)) + 1
    grid = np.round(10 ** (np.arange(count) / per_decade)).astype(int)
    return [0, *sorted({int(mark) for mark in grid if mark < steps} | {steps})]


def check_numbers(precision: Any, bound: Any) -> None:
    if not isinstance(precision, str) or precision not in ("float64", "float32"):
        raise InputError(f"`precision` must be 'float64' or 'float32', got {shown(precision)}")
    if bound is not None and not is_positive(bound):
        raise InputError(f"`bound` must be positive, got {shown(bound)}; leave it out for none")


def check_pace(block: Any, checkpoint_every: Any, progress: Any) -> None:
    """How a run goes about it; none of these changes what it computes."""
    if block is not None and (_whole(block) or 0) < 1:
        raise InputError(f"`block` must be at least 1, got {shown(block)}; leave it out to have it chosen")
    if not is_positive(checkpoint_every, or_zero=True):
        raise InputError(f"`checkpoint_every` must be a number of seconds, got {shown(checkpoint_every)}; try 10.0")
    check_progress(progress)


def check_progress(progress: Any) -> None:
    if not isinstance(progress, bool) and not callable(progress):
        raise InputError(f"`progress` must be True, False or a function, got {shown(progress)}")


def is_positive(value: Any, *, or_zero: bool = False) -> bool:
    """Whether it is one number above 0 that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    return bool(value > 0 or (or_zero and value == 0)) and (isinstance(value, float) or value < 10**308)


def pick(found: Mapping[str, T], name: Any, what: str) -> T:
    """The entry of that name, or a complaint that suggests the nearest."""
    if isinstance(name, str) and name in found:
        return found[name]
    near = difflib.get_close_matches(name, found, n=1, cutoff=0.4) if isinstance(name, str) else None
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(found)}"
    raise InputError(f"`{what}` has no {shown(name)}; {hint}")


def number(name: str, value: Any, least: int, *, above: bool = False) -> float:
    """The value as a float that is at least ``least``, or above it."""
    try:
        new = float(value)
    except (TypeError, ValueError):
        raise InputError(f"`{name}` must be one number, got {shown(value)}") from None
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
        raise InputError(f"`{what}` must be a number, got {shown(value)}")
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
