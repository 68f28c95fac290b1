"""What an averaged method keeps, and tells at a mark, for the intervals of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twoclock.intervals.random_scaling import Path, advance, effective, scale
from twoclock.methods.schedule_tools import exponents
from twoclock.protocols import Floats, InputError, Method, PyTree, Scalar
from twoclock.tree_math import as_floats
from twoclock.validation import check_number, function, in_words, shown

Intervals = bool | Callable[[PyTree, PyTree], PyTree]
Outputs = Mapping[str, Floats]


def check(name: str, skip: Scalar, intervals: Intervals) -> None:
    """Complain of what cannot be a number of steps, or the outputs to have intervals for."""
    check_number(
        f"{name}(skip=…)", skip, lambda v: v >= 0 and v == int(v), "be a whole number that is not negative",
        "it counts the steps before the mean begins",
    )  # fmt: skip
    if isinstance(intervals, bool):
        return
    if not callable(intervals):
        raise InputError(
            f"`{name}(intervals=…)` must be True, False or a function (theta, omega) -> outputs, got {shown(intervals)}"
        )
    function(f"{name}(intervals=…)", intervals, "theta", "omega")


def averaged(k: Scalar, skip: Scalar) -> Float[Array, ""]:
    """How many iterates the mean is of after step k; 1 while all were skipped, for it then follows the iterate."""
    return jnp.maximum(jnp.asarray(k, float) + 1 - skip, 1)


def outputs(intervals: Intervals, theta: Floats, omega: Floats) -> Outputs:
    """The outputs to have intervals for, by name."""
    found = {"theta": theta} if isinstance(intervals, bool) else _called(intervals, theta, omega)
    found = found if isinstance(found, Mapping) else {"f": found}
    if not any(jnp.size(leaf) for leaf in jax.tree.leaves(found)):
        raise InputError(f"`intervals` must give at least one number, got {shown(found)}; return an array")
    return as_floats("intervals", dict(found))


def _called(f: Callable[[PyTree, PyTree], PyTree], theta: Floats, omega: Floats) -> PyTree:
    with in_words("intervals"):
        return f(theta, omega)


def follow(path: Path | None, before: Callable[[], Outputs], now: Callable[[], Outputs], n: Scalar) -> Path | None:
    """The path after one more iterate; ``before`` is asked only where the path does not keep its value."""
    if path is None:
        return None
    return advance(path, before() if path.value is None else path.value, now(), n)


def track(method: Method, path: Path, estimate: Outputs, n: Scalar, skip: Scalar, omega: PyTree) -> dict[str, PyTree]:
    """What an interval needs, and what tells whether to trust it, at a mark.

    n: the iterates in the mean · estimate: y_n · scale: √(V/n) · effective: how many independent iterates it
    is worth · exponent, memory: how fast the step sizes and the
    averaging weights fall; of β only where ω has an entry.
    """
    k = jnp.asarray(n, float) + skip - 1
    falling = exponents(method, k, weights=False)
    moves = any(jnp.size(leaf) for leaf in jax.tree.leaves(omega))
    steps = {path: p for path, p in falling.items() if moves or path.rpartition(".")[2] != "beta"}
    told = {"n": n, "estimate": estimate, "scale": scale(path, n), "effective": effective(path, n)}
    return {**told, "exponent": steps, "memory": exponents(method, k, weights=True)}
