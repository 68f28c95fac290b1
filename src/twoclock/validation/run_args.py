"""The arguments of a run: problem, method, steps, seeds, marks and progress."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.protocols import InputError, Key, Method, Problem, ProblemSource, PyTree
from twoclock.validation import as_whole, check_memory, choice, function, is_positive, short_repr, trace_shapes, whole

_HORIZON = 2**31 - 1
_INTEGER = 80  # bytes of a seed in a list, and of its row in a table
_MOST_PER_DECADE = 100_000
_LONGEST_STREAM = 10_000_000  # a longer iterator may never end


def check_problem(problem: object) -> ProblemSource:
    if not isinstance(problem, Problem) and (not callable(problem) or hasattr(problem, "F")):
        remedy = "derive its class from tc.Problem" if hasattr(problem, "F") else "try tc.problems.quadratic()"
        raise InputError(
            "`problem` must have init, noise, draw, F and G, or be a function of a key that makes one; "
            f"got {type(problem).__name__}; {remedy}"
        )
    if isinstance(problem, Problem):
        for leaf in jax.tree.leaves(problem):
            if jnp.issubdtype(getattr(leaf, "dtype", float), jax.dtypes.prng_key):
                raise InputError(
                    "`problem` must be made of numbers, got a key of JAX in it; pass `jax.random.key_data(key)`, and "
                    "`jax.random.wrap_key_data` makes a key of it again"
                )
            if not (hasattr(leaf, "dtype") or isinstance(leaf, numbers.Number)):
                raise InputError(
                    f"`problem` must be made of numbers, got {type(leaf).__name__} in it; write "
                    "`@twoclock.protocols.pytree` over its class, with `static()` for a field that is no number"
                )
    return problem


def check_factory(
    make: Callable[[Key], Problem], key: Key, trace: Callable[[str, Callable[..., object], Key], PyTree] = trace_shapes
) -> None:
    """Check, by tracing, that the function makes a problem from a key."""
    function("problem", make, "key")
    name = getattr(make, "__name__", type(make).__name__)
    try:
        made = trace(name, make, key)
    except InputError as error:
        raise InputError(
            f"`problem` cannot be made from a key ({error}); a factory is called first, `{name}()`"
        ) from error
    if not isinstance(made, Problem):
        raise InputError(
            "`problem` must have init, noise, draw, F and G, or be a function of a key that makes one; it made "
            f"{short_repr(made)}"
        )


def check_method(method: object, name: str = "method") -> Method:
    if isinstance(method, type):  # a class has the functions of its objects, so it would pass the test below
        raise InputError(f"`{name}` must be a method, got the class {method.__name__}; call it, `{method.__name__}()`")
    if not isinstance(method, Method):
        remedy = "derive its class from tc.Method" if hasattr(method, "step") else "try tc.Fast()"
        raise InputError(f"`{name}` must have init, step and estimate, got {type(method).__name__}; {remedy}")
    return method


def check_steps(steps: object) -> int:
    number = as_whole(steps)
    if number is None:
        raise InputError(f"`steps` must be a whole number, got {short_repr(steps)}; try steps=100_000")
    if not 0 < number <= _HORIZON:
        raise InputError(f"`steps` must lie in 1 … 2³¹−1, got {short_repr(number)}; try steps=100_000")
    return number


def check_seeds(seeds: object) -> list[int]:
    count = as_whole(seeds)
    numbers = _wholes(seeds, "seeds", 2**32) if count is None else [count]
    if numbers is None or (count is not None and not 0 < count <= 2**32):
        got = short_repr(seeds if count is None else count)
        raise InputError(f"`seeds` must be a positive count or a sequence of integers, got {got}; try seeds=20")
    if count is not None:
        check_memory(
            count * _INTEGER, f"`seeds`: {count:,} seeds", "run them in parts, seeds=range(0, 1_000_000) first"
        )
        return list(range(count))
    if not numbers or min(numbers) < 0 or max(numbers) >= 2**32 or len(set(numbers)) < len(numbers):
        raise InputError("`seeds` must be different integers from 0 to 2³²−1, one or more; try seeds=range(20)")
    return numbers


def check_marks(marks: object, steps: int) -> list[int]:
    if marks is None:
        return log_marks(steps)
    given = _wholes(marks, "marks", steps + 1)
    if given is None:
        raise InputError(
            f"`marks` must be a sequence of step numbers, got {short_repr(marks)}; leave it out for a log grid"
        )
    numbers = sorted({*given, steps})
    if numbers[0] < 0 or numbers[-1] > steps:
        raise InputError(
            f"`marks` must lie in 0 … steps={steps}, got {short_repr(numbers[0])} … {short_repr(numbers[-1])}"
        )
    return numbers


def _wholes(values: object, name: str, most: int) -> list[int] | None:
    """A sequence of whole numbers, or None; at most as many as there can be and as the memory holds."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        return None
    count = len(values) if isinstance(values, Sized) else 0
    most = most if isinstance(values, Sized) else min(most, _LONGEST_STREAM)
    if count > most:
        raise InputError(f"`{name}` must have at most {most:,} entries, got {count:,}")
    check_memory(count * _INTEGER, f"`{name}`: {count:,} entries", "take fewer, or run them in parts")
    numbers = [as_whole(value) for value in itertools.islice(values, most + 1)]
    return None if None in numbers or len(numbers) > most else numbers  # type: ignore[return-value]


def log_marks(steps: int, per_decade: int = 10) -> list[int]:
    """The start, the end, and about ``per_decade`` marks per decade between them.

    Args:
        steps: the end.
        per_decade: the number of marks in a decade.

    >>> log_marks(100, per_decade=2)
    [0, 1, 3, 10, 32, 100]
    """
    steps, per_decade = check_steps(steps), whole("per_decade", per_decade, most=_MOST_PER_DECADE)
    count = int(np.ceil(np.log10(steps) * per_decade)) + 1
    grid = np.round(10 ** (np.arange(count) / per_decade)).astype(int)
    return [0, *sorted({int(mark) for mark in grid if mark < steps} | {steps})]


def check_numbers(precision: object, bound: object, precisions: Sequence[str] = ("float64", "float32")) -> None:
    choice("precision", precision, precisions)
    if bound is not None and not is_positive(bound):
        raise InputError(f"`bound` must be positive, got {short_repr(bound)}; leave it out for none")


def check_pace(block: object, checkpoint_every: object, progress: object) -> None:
    """Check the options that do not change the result of a run."""
    if block is not None and (as_whole(block) or 0) < 1:
        raise InputError(f"`block` must be at least 1, got {short_repr(block)}; leave it out to have it chosen")
    if not is_positive(checkpoint_every, or_zero=True):
        raise InputError(
            f"`checkpoint_every` must be a number of seconds, got {short_repr(checkpoint_every)}; try 10.0"
        )
    check_progress(progress)


def check_progress(progress: object) -> None:
    # A step-size schedule is callable too, but it consists of numbers.
    if not isinstance(progress, bool) and not (callable(progress) and jax.tree_util.all_leaves([progress])):
        raise InputError(f"`progress` must be True, False or a function, got {short_repr(progress)}")
