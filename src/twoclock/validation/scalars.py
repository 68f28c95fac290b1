"""One value: a number, a count, a choice, a function, a path; and how a wrong one is shown."""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.protocols import InputError, PyTree
from twoclock.validation import memory

T = TypeVar("T")
_DEEPEST = 100  # JAX gives up on deeper trees with an error that names no argument


def shown(value: object) -> str:
    """A wrong value as a message shows it: short, on one line, whatever it is."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # its own repr fails
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"


def as_whole(value: Any) -> int | None:
    """A whole number, also one that is written as a float; None for anything else, and truth values are no numbers."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return int(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    if getattr(value, "ndim", None) == 0 and np.issubdtype(getattr(value, "dtype", object), np.integer):
        return int(value)
    return None


def check_path(name: str, value: object) -> None:
    if not isinstance(value, (str, os.PathLike)):
        raise InputError(f"`{name}` must be the path of a folder, got {shown(value)}")


def is_positive(value: object, *, or_zero: bool = False) -> bool:
    """Whether it is one number above 0 that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    return bool((value > 0 or (or_zero and value == 0)) and (isinstance(value, float) or value < 10**308))


def pick(found: Mapping[str, T], name: object, what: str) -> T:
    """The entry of that name, or a complaint that suggests the nearest."""
    if isinstance(name, str) and name in found:
        return found[name]
    near = difflib.get_close_matches(name, found, n=1, cutoff=0.4) if isinstance(name, str) else None
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(found)}"
    raise InputError(f"`{what}` has no {shown(name)}; {hint}")


def number(
    name: str,
    value: object,
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


# Rules for ``check_number``, and their words.
NOT_NEGATIVE = (lambda v: v >= 0, "be a finite number that is not negative")
POSITIVE = (lambda v: v > 0, "be positive")
FRACTION = (lambda v: 0 <= v <= 1, "lie in [0, 1]")
POSITIVE_FRACTION = (lambda v: 0 < v <= 1, "lie in (0, 1]")
BELOW_ONE = (lambda v: 0 <= v < 1, "lie in [0, 1)")
AT_LEAST_ONE = (lambda v: v >= 1, "be at least 1")


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


def whole(name: str, value: object, least: int = 1, most: int | None = None) -> int:
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


def seed_number(name: str, value: object) -> int:
    """The value as a seed."""
    return whole(name, value, 0, 2**32 - 1)


def flag(name: str, value: object) -> bool:
    """The value, which must be True or False."""
    if not isinstance(value, (bool, np.bool)):
        raise InputError(f"`{name}` must be True or False, got {shown(value)}")
    return bool(value)


def check_key(value: object) -> None:
    """Complain unless it is a key of JAX, a typed one or a pair of 32-bit words."""
    kind = getattr(value, "dtype", None)
    typed = kind is not None and jnp.issubdtype(kind, jax.dtypes.prng_key)
    if not typed and not (kind == np.uint32 and getattr(value, "shape", None) == (2,)):
        raise InputError(f"`key` must be a key of JAX, got {shown(value)}; try jax.random.key(0)")


def choice(name: str, value: object, options: Iterable[str]) -> str:
    """The value, which must be one of the words."""
    words = list(options)
    if not isinstance(value, str) or value not in words:
        listed = " or ".join(filter(None, (", ".join(map(repr, words[:-1])), repr(words[-1]))))
        raise InputError(f"`{name}` must be {listed}, got {shown(value)}")
    return value


def function(name: str, value: object, *arguments: str) -> None:
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


def flattened(name: str, tree: PyTree) -> tuple[list[tuple[Any, Any]], jax.tree_util.PyTreeDef]:
    """The leaves of a tree with their paths, and its structure, if JAX can take it apart."""
    try:
        leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    except (ValueError, TypeError, RecursionError, SystemError):
        leaves, structure = [], None
    if structure is None or any(len(path) > _DEEPEST for path, _ in leaves):
        raise InputError(
            f"`{name}` must be an array or a dict, list or tuple of them, not too deep and with keys of one kind"
        )
    return leaves, structure


def as_numpy(name: str, tree: PyTree) -> Any:
    """The leaves of a tree as NumPy arrays."""
    flattened(name, tree)
    return jax.tree.map(np.asarray, tree)


def start_of(name: str, tree: PyTree, *, may_be_empty: bool = False) -> None:
    """Complain unless the start of a variable is a pytree of numbers."""
    leaves, _ = flattened(name, tree)
    if not leaves and not may_be_empty:
        raise InputError(f"`{name}` must hold at least one number, got {shown(tree)}; try np.zeros(1)")
    for path, leaf in leaves:
        where, hint = name + jax.tree_util.keystr(path), "call it first" if callable(leaf) else "write 0.0 or so"
        if getattr(getattr(leaf, "dtype", None), "kind", "f") in "OSUmM":
            raise InputError(f"`{where}` must be an array of numbers, got one of {leaf.dtype}; {hint}")
        if not (hasattr(leaf, "dtype") or isinstance(leaf, numbers.Real)) or isinstance(leaf, bool):
            raise InputError(f"`{where}` must be a number or an array, got {type(leaf).__name__}; {hint}")
        if isinstance(leaf, int) and abs(leaf) >= 10**308:
            raise InputError(f"`{where}` must be a number that a float can hold, got {shown(leaf)}")
