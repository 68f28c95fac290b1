"""Moves of a variable along a direction (a transformation, a step, a projection), and states of methods.

A transformation is optax's pair (init, update) and turns a direction into a direction: ``optax.scale_by_adam()``,
``optax.clip_by_global_norm(1.0)`` or a chain of such. The step size stays the method's own, so ``optax.adam(1e-3)``,
which brings its own and flips the sign, is refused. A projection is any function from the variable to itself. Either
may be None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from twoclock import tree_math
from twoclock.protocols import InputError, Method, PyTree, Scalar, State, checked, pytree
from twoclock.tree_math import Sum
from twoclock.validation.run_args import check_method


@runtime_checkable
class Transformation(Protocol):
    """What optax calls a ``GradientTransformation``."""

    @property
    def init(self) -> Callable[[PyTree], PyTree]: ...
    @property
    def update(self) -> Callable[..., tuple[PyTree, PyTree]]: ...


Projection = Callable[[PyTree], PyTree]


@pytree
class MovedVariable:
    """θ or ω: the sum of its steps, and the state of the transformation (None where there is none)."""

    sum: Sum
    memory: PyTree

    @property
    def value(self) -> PyTree:
        return self.sum.value


class Slow:
    """A state whose θ is the value of its slow variable."""

    slow: MovedVariable | Sum

    @property
    def theta(self) -> PyTree:
        return self.slow.value


class Both(Slow):
    """A state whose θ and ω are the values of its slow and its fast variable."""

    fast: MovedVariable | Sum

    @property
    def omega(self) -> PyTree:
        return self.fast.value


class WrapperState:
    """The state of a method that runs another one as it is."""

    inner: State

    @property
    def theta(self) -> PyTree:
        return self.inner.theta

    @property
    def omega(self) -> PyTree:
        return self.inner.omega


def start(name: str, x: PyTree, transform: Transformation | None, project: Projection | None) -> MovedVariable:
    """The variable before its first move, inside its set."""
    x = tree_math.as_floats(name, x)
    inside = tree_math.start(x if project is None else project(x), name)
    return MovedVariable(inside, None if transform is None else transform.init(inside.value))


def move(
    x: MovedVariable, size: Scalar, direction: PyTree, transform: Transformation | None, project: Projection | None
) -> MovedVariable:
    """``project(x − size·transform(direction))``."""
    memory = x.memory
    if transform is not None:
        direction, memory = transform.update(direction, memory, x.value)
    moved = tree_math.descend(x.sum, size, direction)
    if project is not None:
        inside, kept = project(moved.value), moved.residue
        if kept is not None:
            # Where the projection has moved an entry, what rounding dropped from it before means nothing any more.
            kept = jax.tree.map(lambda r, a, b: jnp.where(a == b, r, jnp.zeros_like(r)), kept, moved.value, inside)
        moved = Sum(inside, kept)
    return MovedVariable(moved, memory)


def wrapped_method(default: Method) -> Any:
    """A field for the method that a wrapper runs."""
    return checked(lambda what, method: check_method(method, what), default=default)


def check_projection(what: str, project: object) -> None:
    """Complain of a projection that is no function."""
    if project is not None and not callable(project):
        raise InputError(
            f"`{what}` must be a function from the variable to itself, got {type(project).__name__}; "
            "try `optax.projections.projection_non_negative`"
        )


def check_transformation(what: str, transform: object) -> None:
    """Complain of a transformation that is none, or that turns descent into ascent."""
    if transform is None:
        return
    if not isinstance(transform, Transformation):
        raise InputError(
            f"`{what}` must be an optax transformation, got {type(transform).__name__}; try `optax.scale_by_adam()`"
        )
    with jax.ensure_compile_time_eval():
        one = jnp.ones(())
        if float(transform.update(one, transform.init(one), one)[0]) < 0:
            raise InputError(
                f"`{what}` must keep the sign of a direction, and this one turns descent into ascent; "
                "the step size is the method's own, so write `optax.scale_by_adam()` for `optax.adam(…)`"
            )
