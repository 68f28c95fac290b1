"""Every validator: a wrong argument is answered in one line that names it, the rule and the remedy."""

from __future__ import annotations

import difflib
import inspect
import itertools
import math
import numbers
import os
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
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
    if isinstance(problem, Problem):
        for leaf in jax.tree.leaves(problem):
            if not (hasattr(leaf, "dtype") or isinstance(leaf, numbers.Number)):
                raise InputError(
                    f"`problem` must be made of numbers, got {type(leaf).__name__} in it; write "
                    "`@twoclock.core.pytree` over its class, with `static()` for a field that is no number"
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
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
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


def check_path(name: str, value: Any) -> None:
    if not isinstance(value, (str, os.PathLike)):
        raise InputError(f"`{name}` must be the path of a folder, got {shown(value)}")


def check_progress(progress: Any) -> None:
    if not isinstance(progress, bool) and not callable(progress):
        raise InputError(f"`progress` must be True, False or a function, got {shown(progress)}")


def is_positive(value: Any, *, or_zero: bool = False) -> bool:
    """Whether it is one number above 0 that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    return bool((value > 0 or (or_zero and value == 0)) and (isinstance(value, float) or value < 10**308))


def pick(found: Mapping[str, T], name: Any, what: str) -> T:
    """The entry of that name, or a complaint that suggests the nearest."""
    if isinstance(name, str) and name in found:
        return found[name]
    near = difflib.get_close_matches(name, found, n=1, cutoff=0.4) if isinstance(name, str) else None
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(found)}"
    raise InputError(f"`{what}` has no {shown(name)}; {hint}")


def number(
    name: str,
    value: Any,
    least: float | int = -math.inf,
    most: float | int = math.inf,
    *,
    above: bool = False,
    below: bool = False,
    remedy: str = "",
) -> float:
    """The value as a float from ``least`` to ``most``, ``above`` the one and ``below`` the other if so wished."""
    new = _real(name, value)
    if not least <= new <= most or (above and new == least) or (below and new == most) or not math.isfinite(new):
        if math.isfinite(most):
            rule = f"lie in {'(' if above else '['}{least:g}, {most:g}{')' if below else ']'}"
        else:
            bound = "" if least == -math.inf else f" {'above' if above else 'of at least'} {least:g}"
            rule = f"be a finite number{bound}"
        raise InputError(f"`{name}` must {rule}, got {new:g}" + (f"; {remedy}" if remedy else ""))
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
    new = _as_float(value)
    if not (math.isfinite(new) and rule(new)):
        raise InputError(f"`{what}` must {words}, got {new:g}" + (f"; {remedy}" if remedy else ""))


def _real(name: str, value: Any) -> float:
    """One number. Text is none, though Python would read it, nor are truth values and arrays."""
    kind = getattr(value, "dtype", None)
    if isinstance(value, jax.core.Tracer):
        raise InputError(
            f"`{name}` must be one number, got a traced value; a problem is made, as in `forest()`, before it is solved"
        )
    plain = isinstance(value, numbers.Real) if kind is None else np.ndim(value) == 0 and np.dtype(kind).kind in "iuf"
    if not plain or isinstance(value, bool):
        raise InputError(f"`{name}` must be one number, got {shown(value)}")
    return _as_float(value)


def _as_float(value: Any) -> float:
    """The number; an integer beyond all floats is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value > 0 or -1)


def whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """The value as an integer from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        got = "a traced value" if isinstance(value, jax.core.Tracer) else shown(value)
        raise InputError(f"`{name}` must be a whole number, got {got}; try {least}")
    if value < least or (most is not None and value > most):
        raise InputError(
            f"`{name}` must be at least {least}, got {shown(value)}"
            if most is None
            else f"`{name}` must be a whole number from {least} to {most:,}, got {shown(value)}"
        )
    return int(value)


def check_size(what: str, numbers: int) -> None:
    """Complain if a problem with so many numbers cannot be held."""
    memory.check(8 * numbers, f"{what}: a problem of that size", "take a smaller one")


def seed_number(name: str, value: Any) -> int:
    """The value as a seed."""
    return whole(name, value, 0, 2**32 - 1)


def flag(name: str, value: Any) -> bool:
    """The value, which must be True or False."""
    if not isinstance(value, (bool, np.bool)):
        raise InputError(f"`{name}` must be True or False, got {shown(value)}")
    return bool(value)


def check_key(value: Any) -> None:
    """Complain unless it is a key of JAX, a typed one or a pair of 32-bit words."""
    kind = getattr(value, "dtype", None)
    typed = kind is not None and jnp.issubdtype(kind, jax.dtypes.prng_key)
    if not typed and not (kind == np.uint32 and getattr(value, "shape", None) == (2,)):
        raise InputError(f"`key` must be a key of JAX, got {shown(value)}; try jax.random.key(0)")


def choice(name: str, value: Any, options: Iterable[str]) -> str:
    """The value, which must be one of the words."""
    words = list(options)
    if not isinstance(value, str) or value not in words:
        listed = " or ".join(filter(None, (", ".join(map(repr, words[:-1])), repr(words[-1]))))
        raise InputError(f"`{name}` must be {listed}, got {shown(value)}")
    return value


def function(name: str, value: Any, *arguments: str) -> None:
    """Complain unless the value is a function that can be called with these positional arguments."""
    if not callable(value):
        raise InputError(f"`{name}` must be a function, got {type(value).__name__}")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # some built-in functions do not say what they take
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        given = ", ".join(signature.parameters)
        raise InputError(f"`{name}` must be a function of ({', '.join(arguments)}), got one of ({given:.60})") from None


def _leaves(name: str, tree: Any) -> list[tuple[Any, Any]]:
    """The leaves of a tree with their paths, if JAX can take it apart."""
    try:
        return jax.tree_util.tree_leaves_with_path(tree)
    except (ValueError, TypeError, RecursionError, SystemError):
        raise InputError(
            f"`{name}` must be an array or a dict, list or tuple of them, not too deep and with keys of one kind"
        ) from None


def start_of(name: str, tree: Any, *, may_be_empty: bool = False) -> None:
    """Complain unless the start of a variable is a pytree of numbers."""
    leaves = _leaves(name, tree)
    if not leaves and not may_be_empty:
        raise InputError(f"`{name}` must hold at least one number, got {shown(tree)}; try np.zeros(1)")
    for path, leaf in leaves:
        if not (hasattr(leaf, "dtype") or isinstance(leaf, numbers.Real)) or isinstance(leaf, bool):
            where, hint = name + jax.tree_util.keystr(path), "call it first" if callable(leaf) else "write 0.0 or so"
            raise InputError(f"`{where}` must be a number or an array, got {type(leaf).__name__}; {hint}")
