"""How a variable moves along a direction: a transformation of the direction, a step, a projection.

A transformation is optax's pair (init, update) and turns a direction into a direction: ``optax.scale_by_adam()``,
``optax.clip_by_global_norm(1.0)`` or a chain of such. The step size stays the method's own, so ``optax.adam(1e-3)``,
which brings its own and flips the sign, is refused. A projection is any function from the variable to itself. Either
may be None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from twoclock import tree_math
from twoclock.protocols import InputError, PyTree, Scalar, pytree
from twoclock.tree_math import Sum


@runtime_checkable
class Transformation(Protocol):
    """What optax calls a ``GradientTransformation``."""

    @property
    def init(self) -> Callable[[PyTree], PyTree]: ...
    @property
    def update(self) -> Callable[..., tuple[PyTree, PyTree]]: ...


Projection = Callable[[PyTree], PyTree]

# The four fields of a method that moves its variables so; before version 0.2 they had other names.
OLD_NAMES = {
    "slow": "transform_theta",
    "fast": "transform_omega",
    "project_slow": "project_theta",
    "project_fast": "project_omega",
}


@pytree
class Variable:
    """θ or ω on its way: the sum of its steps, and what the transformation remembers (None where there is none)."""

    sum: Sum
    memory: PyTree

    @property
    def value(self) -> PyTree:
        return self.sum.value


class Slow:
    """Of a state: θ is the value of its slow variable."""

    slow: Variable | Sum

    @property
    def theta(self) -> PyTree:
        return self.slow.value


class Both(Slow):
    """Of a state: θ and ω are the values of its slow and its fast variable."""

    fast: Variable | Sum

    @property
    def omega(self) -> PyTree:
        return self.fast.value


def start(name: str, x: PyTree, transform: Transformation | None, project: Projection | None) -> Variable:
    """The variable before its first move, inside its set."""
    x = tree_math.as_floats(name, x)
    inside = tree_math.start(x if project is None else project(x), name)
    return Variable(inside, None if transform is None else transform.init(inside.value))


def move(
    x: Variable, size: Scalar, direction: PyTree, transform: Transformation | None, project: Projection | None
) -> Variable:
    """``project(x − size·transform(direction))``."""
    memory = x.memory
    if transform is not None:
        direction, memory = transform.update(direction, memory, x.value)
    moved = tree_math.descend(x.sum, size, direction)
    return Variable(moved if project is None else _projected(project, moved), memory)


def _projected(project: Projection, x: Sum) -> Sum:
    inside = project(x.value)
    if x.residue is None:
        return Sum(inside, None)
    # Where the projection has moved an entry, what rounding dropped from it before means nothing any more.
    kept = jax.tree.map(lambda r, a, b: jnp.where(a == b, r, jnp.zeros_like(r)), x.residue, x.value, inside)
    return Sum(inside, kept)


def check(method: object) -> None:
    """Complain of transformations and projections of a method that are none."""
    for name in ("transform_theta", "transform_omega"):
        _check_transformation(f"`{type(method).__name__}({name}=…)`", getattr(method, name))
    for name in ("project_theta", "project_omega"):
        project = getattr(method, name)
        if project is not None and not callable(project):
            raise InputError(
                f"`{type(method).__name__}({name}=…)` must be a function from the variable to itself, got "
                f"{type(project).__name__}; try `optax.projections.projection_non_negative`"
            )


def _check_transformation(what: str, transform: Transformation | None) -> None:
    if transform is None:
        return
    if not (hasattr(transform, "init") and hasattr(transform, "update")):
        raise InputError(
            f"{what} must be an optax transformation, got {type(transform).__name__}; try `optax.scale_by_adam()`"
        )
    with jax.ensure_compile_time_eval():
        one = jnp.ones(())
        if float(transform.update(one, transform.init(one), one)[0]) < 0:
            raise InputError(
                f"{what} must keep the sign of a direction, and this one turns descent into ascent; "
                "the step size is the method's own, so write `optax.scale_by_adam()` for `optax.adam(…)`"
            )
