"""Checks of numbers, counts, choices, paths, functions and memory, with one-line messages.

A message names the argument, the rule and the remedy. Frozen classes state a check with their field.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import math
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata

from twoclock.protocols import InputError, PyTree

T = TypeVar("T")

_GROUP = Path("/sys/fs/cgroup")
# What XLA reserves when it starts: stacks and heaps of its threads, of which there are some for each core.
_ADDRESSES = (2 << 30) + min(max((os.cpu_count() or 2) - 2, 0) * (200 << 20), 6 << 30)
_traces = itertools.count()


def short_repr(value: object) -> str:
    """A short text of any wrong value, on one line, for a message."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # its own repr fails
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"


def as_whole(value: Any) -> int | None:
    """The value as a whole number, also if it is a float; None for anything else, truth values included."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return int(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    if getattr(value, "ndim", None) == 0 and jnp.issubdtype(getattr(value, "dtype", object), np.integer):
        return int(value)
    return None


def check_path(name: str, value: object) -> None:
    if not isinstance(value, (str, os.PathLike)):
        raise InputError(f"`{name}` must be the path of a folder, got {short_repr(value)}")


def is_positive(value: object, *, or_zero: bool = False) -> bool:
    """Whether it is one number above 0 that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    return bool((value > 0 or (or_zero and value == 0)) and (isinstance(value, float) or value < 10**308))


def is_text(value: object) -> bool:
    """Whether it is text that a file can hold: without a lone surrogate."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def check_labels(name: str, labelled: Iterable[object]) -> None:
    """Refuse a label that is not text, or that cannot be stored in a file."""
    for label in labelled:
        if not is_text(label):
            raise InputError(f"`{name}` must map text labels to {name.rstrip('s')}s, got the label {short_repr(label)}")


def lookup(found: Mapping[str, T], name: object, what: str) -> T:
    """The entry of that name; otherwise an error suggests the nearest."""
    if isinstance(name, str) and name in found:
        return found[name]
    near = difflib.get_close_matches(name, found, n=1, cutoff=0.4) if isinstance(name, str) else None
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(found)}"
    raise InputError(f"`{what}` has no {short_repr(name)}; {hint}")


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
    """The value as a float from ``least`` to ``most``; ``above`` and ``below`` exclude the ends."""
    if isinstance(value, jax.core.Tracer):
        raise InputError(
            f"`{name}` must be one number, got a traced value; a problem is made, as in `forest()`, before it is solved"
        )
    # Text is no number, though Python would read it, nor are truth values and arrays.
    kind = getattr(value, "dtype", None)
    plain = (
        isinstance(value, numbers.Real) if kind is None else np.ndim(value) == 0 and getattr(kind, "kind", "O") in "iuf"
    )
    if not plain or isinstance(value, bool):
        raise InputError(f"`{name}` must be one number, got {short_repr(value)}")
    new = _as_float(value)
    if not least <= new <= most or (above and new == least) or (below and new == most) or not math.isfinite(new):
        if math.isfinite(most):
            rule = f"lie in {'(' if above else '['}{least:g}, {most:g}{')' if below else ']'}"
        else:
            bound = "" if least == -math.inf else f" {'above' if above else 'of at least'} {least:g}"
            rule = f"be a finite number{bound}"
        raise InputError(f"`{name}` must {rule}, got {new:g}" + (f"; {remedy}" if remedy else ""))
    return new


# Rules for ``check_number``, and their words.
NOT_NEGATIVE = (lambda v: v >= 0, "be a finite number that is not negative")
POSITIVE = (lambda v: v > 0, "be positive")
FRACTION = (lambda v: 0 <= v <= 1, "lie in [0, 1]")
POSITIVE_FRACTION = (lambda v: 0 < v <= 1, "lie in (0, 1]")
BELOW_ONE = (lambda v: 0 <= v < 1, "lie in [0, 1)")
AT_LEAST_ONE = (lambda v: v >= 1, "be at least 1")


def _is_numeric(dtype: Any) -> bool:
    """Whether arrays of the type hold numbers; also for types that NumPy does not know (bfloat16, PRNG keys)."""
    return bool(jnp.issubdtype(dtype, np.number))


def check_number(what: str, value: Any, rule: Callable[[float], bool], words: str, remedy: str = "") -> float | None:
    """Check that ``value`` is one finite number that obeys the rule; a tracer was checked when it was a number.

    Returns a float for a number that JAX does not accept (a fraction, an integer beyond 32 bits), else None.
    """
    if getattr(value, "ndim", 0):
        raise InputError(
            f"`{what}` must be one number, got an array of shape {tuple(value.shape)}; "
            + (remedy or "for a grid of step sizes use `tc.grid`")
        )
    if isinstance(value, jax.core.Tracer):
        return None
    is_array = hasattr(value, "dtype")
    real = _is_numeric(value.dtype) if is_array else isinstance(value, numbers.Real)
    if not real or isinstance(value, (bool, np.bool)) or np.iscomplexobj(value):
        raise InputError(f"`{what}` must be a number, got {short_repr(value)}")
    new = _as_float(value)
    if not (math.isfinite(new) and rule(new)):
        raise InputError(f"`{what}` must {words}, got {new:g}" + (f"; {remedy}" if remedy else ""))
    plain = is_array or isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**31)
    return None if plain else new


def _as_float(value: Any) -> float:
    """The number; an integer beyond all floats is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value > 0 or -1)


def whole(name: str, value: object, least: int = 1, most: int = 2**63 - 1) -> int:
    """The value as an integer from ``least`` to ``most``; by default it must fit in 64 bits."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        got = "a traced value" if isinstance(value, jax.core.Tracer) else short_repr(value)
        raise InputError(f"`{name}` must be a whole number, got {got}; try {least}")
    if not least <= value <= most:
        rule = (
            f"at least {least}" if value < least and most == 2**63 - 1 else f"a whole number from {least} to {most:,}"
        )
        raise InputError(f"`{name}` must be {rule}, got {short_repr(value)}")
    return int(value)


def seed_number(name: str, value: object) -> int:
    """The value as a seed."""
    return whole(name, value, 0, 2**32 - 1)


def flag(name: str, value: object) -> bool:
    """The value, which must be True or False."""
    if not isinstance(value, (bool, np.bool)):
        raise InputError(f"`{name}` must be True or False, got {short_repr(value)}")
    return bool(value)


def check_key(value: object) -> None:
    """Check that it is a key of JAX, typed or a pair of 32-bit words, from which this process can draw."""
    check_process()
    kind = getattr(value, "dtype", None)
    typed = kind is not None and jnp.issubdtype(kind, jax.dtypes.prng_key)
    if not typed and not (kind == np.uint32 and getattr(value, "shape", None) == (2,)):
        raise InputError(f"`key` must be a key of JAX, got {short_repr(value)}; try jax.random.key(0)")


def choice(name: str, value: object, options: Iterable[str]) -> str:
    """The value, which must be one of the words."""
    words = list(options)
    if not isinstance(value, str) or value not in words:
        listed = " or ".join(filter(None, (", ".join(map(repr, words[:-1])), repr(words[-1]))))
        raise InputError(f"`{name}` must be {listed}, got {short_repr(value)}")
    return value


def function(name: str, value: object, *arguments: str) -> None:
    """Check that the value is a function that can be called with these positional arguments."""
    if not callable(value):
        raise InputError(f"`{name}` must be a function, got {type(value).__name__}")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        given = ", ".join(signature.parameters)
        raise InputError(f"`{name}` must be a function of ({', '.join(arguments)}), got one of ({given:.60})") from None


_NUMBER_ASKED = (
    "must not ask for the number in an array that is only known in the run (by float, int or range); keep it an array"
)
# JAX's errors for forbidden operations in a traced function, special cases first.
_TRACE_ERRORS = {
    jax.errors.TracerBoolConversionError: "must not branch on a value that is only known in the run; write "
    "`jnp.where(condition, a, b)`, or `jax.lax.cond`",
    jax.errors.TracerArrayConversionError: "must compute with jax.numpy, it makes a NumPy array of a value that is "
    "only known in the run; write `jnp.` for `np.`",
    jax.errors.ConcretizationTypeError: _NUMBER_ASKED,
    jax.errors.TracerIntegerConversionError: _NUMBER_ASKED,
}


@contextmanager
def readable_trace_errors(name: str) -> Iterator[None]:
    """Report in one line the error of a user's function ``name`` while it is traced."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        why = " ".join(str(error).split("\n")[0].split())
        fails = f"fails when it is traced, with {type(error).__name__}: {why:.200}"
        if isinstance(error, (TypeError, ValueError)) and " dtypes" in why:
            fails += "; if it reads a NumPy array that a function jitted before reads, too, give it a copy, `a.copy()`"
        rule = next((rule for kind, rule in _TRACE_ERRORS.items() if isinstance(error, kind)), fails)
        raise InputError(f"`{name}` {rule}") from error


class CallbackFailed(InputError):
    """A callback into a user's function failed."""


@contextmanager
def readable_callback_errors() -> Iterator[None]:
    """Report in one line the error of a callback into a user's function."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        lines = str(error).strip().splitlines()
        if "allback" not in lines[0]:
            raise
        raise CallbackFailed(
            f"a function that the run calls in Python (`jax.pure_callback` and its like) failed with {lines[-1]:.200}"
        ) from error


def trace_anew() -> AbstractContextManager[object]:
    """A context in which JAX retraces a user's own jitted functions, since a constant in them may have changed."""
    return set_xla_metadata(twoclock_trace=f"anew {next(_traces)}")


def trace_shapes(name: str, f: Callable[..., object], *args: object) -> PyTree:
    """Trace a user's function for the shapes that it returns for these arguments."""
    with readable_trace_errors(name):
        return jax.eval_shape(lambda *given: f(*given), *args)  # whose trace JAX does not keep


_jax_in_use = _forked = (
    False  # whether this library started JAX in this process; whether this process was forked from such a one
)


def check_process() -> None:
    """Refuse to compute where JAX would hang or end the process: in a forked child, and with too few addresses."""
    global _jax_in_use
    if _forked:
        raise InputError(
            "this process was forked after JAX had started, whose threads a fork does not copy; "
            'make it with multiprocessing.get_context("spawn")'
        )
    if not _jax_in_use:
        _note_jax()  # the user's own code may have started it
    left = None if _jax_in_use else _addresses_left()
    if left is not None and left < _ADDRESSES:
        raise InputError(
            f"the limit on addresses (ulimit -v) leaves {_bytes(left)} and JAX, which ends the process where it gets "
            f"none, reserves about {_bytes(_ADDRESSES)}; raise it, or limit the memory of a container instead"
        )
    _jax_in_use = True


def _addresses_left() -> int | None:
    """The bytes of addresses that this process may still reserve; None without a limit, or if the system hides it."""
    return _left("RLIMIT_AS", 0)


def _left(limit: str, place: int) -> int | None:
    """What is left of a limit of this process, in bytes; ``place`` of its use in Linux's list of pages."""
    with suppress(ImportError, AttributeError, OSError, ValueError):
        import resource

        most = resource.getrlimit(getattr(resource, limit))[0]
        if most != resource.RLIM_INFINITY:
            used = int(Path("/proc/self/statm").read_text().split()[place]) * resource.getpagesize()
            return max(most - used, 0)
    return None


def _note_jax() -> None:
    """Detect whether the user's own code started JAX, by the names of its threads on Linux."""
    global _jax_in_use
    with suppress(OSError):
        _jax_in_use |= any(name.read_bytes().startswith(b"tf_") for name in Path("/proc/self/task").glob("*/comm"))


def _note_fork() -> None:
    global _forked
    _forked = _jax_in_use


if hasattr(os, "register_at_fork"):  # Windows has none
    os.register_at_fork(before=_note_jax, after_in_child=_note_fork)


def check_memory(needed: float | int, what: str, remedy: str) -> None:
    """Raise an error if ``needed`` bytes are not free: the system kills a process that takes too much."""
    free = available_memory()
    if free is not None and needed > free:
        raise InputError(f"{what} takes about {_bytes(needed)} of memory and there are {_bytes(free)}; {remedy}")


def check_size(what: str, numbers: int) -> None:
    """Raise an error if a problem of that many numbers does not fit in memory."""
    check_memory(8 * numbers, f"{what}: a problem of that size", "take a smaller one")


def available_memory() -> int | None:
    """The bytes that this process can still allocate, or None if the system does not report them."""
    found = []
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        with suppress(AttributeError, OSError, ValueError):
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    # The rest of a container's share; without a limit there is no such file, or it says "max".
    for folder, limit, used in ((_GROUP, "max", "current"), (_GROUP / "memory", "limit_in_bytes", "usage_in_bytes")):
        with suppress(OSError, ValueError):
            left = int((folder / f"memory.{limit}").read_text()) - int((folder / f"memory.{used}").read_text())
            found.append(max(left, 0))
    of_process = _left("RLIMIT_AS", 0), _left("RLIMIT_DATA", 5)  # ulimit -v and -d, which batch systems set
    return min((*found, *(left for left in of_process if left is not None)), default=None)


def _bytes(size: float | int) -> str:
    if size >= 2**70:
        return "more than 1,000 EiB"
    power = min(max(int(size).bit_length() - 1, 0) // 10, 5)
    unit, size = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")[power], size / 1024**power
    return f"{size:,.3g} {unit}" if size < 1e6 else f"{size:.1e} {unit}"
