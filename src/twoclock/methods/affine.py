"""Whether operators are affine in the iterate, as their traced program shows it.

Where they are, one sample's Jacobian is the same at every point, so that derivatives are exact and nothing needs to be
compared with tangents. The answer is never wrong, but may be "not seen": a program is affine if every operation that
the iterate enters is one of a short list. Steps, kinks, ``stop_gradient`` and rules of a user's own are not on it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var, jaxprs_in_params

from twoclock.protocols import PyTree


class Slopes(IntEnum):
    """What the Jacobian of the operators depends on."""

    NOTHING = 0
    SAMPLE = 1
    POINT = 2


class _Traced(NamedTuple):
    """Of a variable: whether the point enters it, and what its slopes depend on; without the point, its value."""

    moves: bool
    on: Slopes


# Linear in all of their arguments together.
_LINEAR = {
    "add", "add_any", "broadcast_in_dim", "concatenate", "copy", "copy_p", "cumsum", "expand_dims", "neg", "pad",
    "reduce_sum", "reshape", "rev", "slice", "split", "squeeze", "sub", "transpose",
}  # fmt: skip
# Linear in each of two arguments.
_BILINEAR = {"dot_general", "mul"}
# Linear in some arguments, by position; the others say where or by how much.
_LINEAR_IN = {"div": {0}, "dynamic_slice": {0}, "dynamic_update_slice": {0, 1}, "gather": {0}, "scatter-add": {0, 2}}
_CALLS = {"jit", "pjit", "closed_call", "core_call", "remat", "checkpoint"}


def slopes(function: Callable[[PyTree, PyTree], PyTree], z: PyTree, x: PyTree) -> Slopes:
    """What the Jacobian of ``function(z, x)`` in z depends on, at most.

    Args:
        function: all that it reads besides its arguments is constant.
        z, x: the point and the sample, or anything with their shapes.

    >>> import jax.numpy as jnp
    >>> [slopes(f, 1.0, 2.0).name for f in (lambda z, x: 3 * z + x, lambda z, x: x * z, lambda z, x: jnp.abs(z))]
    ['NOTHING', 'SAMPLE', 'POINT']
    """
    jaxpr = jax.make_jaxpr(function)(z, x).jaxpr
    count = len(jax.tree.leaves(z))
    given = [_Traced(i < count, Slopes.NOTHING if i < count else Slopes.SAMPLE) for i in range(len(jaxpr.invars))]
    return max((out.on for out in _read(jaxpr, given) if out.moves), default=Slopes.NOTHING)


def _read(jaxpr: Jaxpr, given: list[_Traced]) -> list[_Traced]:
    """What a program's results are, from what its arguments are."""
    known: dict[Var, _Traced] = dict(zip(jaxpr.invars, given, strict=True))

    def look(variable: Var | Literal) -> _Traced:
        constant = _Traced(False, Slopes.NOTHING)
        return constant if isinstance(variable, Literal) else known.get(variable, constant)

    for equation in jaxpr.eqns:
        found = _results(equation, [look(variable) for variable in equation.invars])
        known.update(zip(equation.outvars, found, strict=True))
    return [look(variable) for variable in jaxpr.outvars]


def _results(equation: JaxprEqn, given: list[_Traced]) -> list[_Traced]:
    name, moving = equation.primitive.name, {i for i, part in enumerate(given) if part.moves}
    inside = [getattr(part, "jaxpr", part) for part in jaxprs_in_params(equation.params)]
    everything = max((part.on for part in given), default=Slopes.NOTHING)
    slopes_of = max((given[i].on for i in moving), default=Slopes.NOTHING)
    if not moving:
        out = _Traced(False, everything)
    elif name in _CALLS and len(inside) == 1:
        return _read(inside[0], given)
    elif name in _LINEAR or (name == "convert_element_type" and _keeps_values(equation)):
        out = _Traced(True, slopes_of)
    elif name in _BILINEAR and len(moving) == 1:
        out = _Traced(True, everything)
    elif moving <= _LINEAR_IN.get(name, set()) or (name == "select_n" and 0 not in moving):
        others = (part.on for i, part in enumerate(given) if i not in moving)
        out = _Traced(True, max(slopes_of, *others, Slopes.NOTHING))
    else:
        out = _Traced(True, Slopes.POINT)
    return [out] * len(equation.outvars)


def _keeps_values(equation: JaxprEqn) -> bool:
    before, after = (equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype)  # type: ignore[attr-defined]
    both = all(jnp.issubdtype(dtype, jnp.floating) for dtype in (before, after))
    return both and jnp.finfo(after).bits >= jnp.finfo(before).bits
