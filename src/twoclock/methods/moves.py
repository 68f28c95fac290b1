"""How a variable moves along a direction: a transformation of the direction, a step, a projection; each optional.

A transformation is optax's pair (init, update) and turns a direction into a direction: ``optax.scale_by_adam()``,
``optax.clip_by_global_norm(1.0)`` or a chain of such. The step size stays the method's own, so ``optax.adam(1e-3)``,
which brings its own and flips the sign, is refused. A projection is any function from the variable to itself.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from twoclock.core import InputError, PyTree, Scalar
from twoclock.trees import descend


def check(method: Any) -> None:
    """Complain of transformations and projections that are none."""
    name = type(method).__name__
    for field in ("slow", "fast"):
        transform = getattr(method, field)
        if transform is None:
            continue
        if not (hasattr(transform, "init") and hasattr(transform, "update")):
            raise InputError(
                f"`{name}({field}=…)` must be an optax transformation, got {type(transform).__name__}; "
                "try `optax.scale_by_adam()`"
            )
        with jax.ensure_compile_time_eval():
            one = jnp.ones(())
            if float(transform.update(one, transform.init(one), one)[0]) < 0:
                raise InputError(
                    f"`{name}({field}=…)` must keep the sign of a direction, and this one turns descent into ascent; "
                    "the step size is the method's own, so write `optax.scale_by_adam()` for `optax.adam(…)`"
                )
    for field in ("project_slow", "project_fast"):
        if getattr(method, field) is not None and not callable(getattr(method, field)):
            raise InputError(
                f"`{name}({field}=…)` must be a function from the variable to itself, got "
                f"{type(getattr(method, field)).__name__}; try `optax.projections.projection_non_negative`"
            )


def start(method: Any, theta: PyTree, omega: PyTree) -> tuple[PyTree, PyTree, tuple[PyTree, PyTree]]:
    """The variables inside their sets, and what the transformations remember; None where there are none."""
    theta, omega = _inside(method.project_slow, theta), _inside(method.project_fast, omega)
    return theta, omega, (_memory(method.slow, theta), _memory(method.fast, omega))


def move(
    x: PyTree, size: Scalar, direction: PyTree, low: PyTree, transform: Any, memory: PyTree, project: Any
) -> tuple[PyTree, PyTree, PyTree]:
    """``project(x − size·transform(direction))``, the new residue and the transformation's new memory."""
    if transform is not None:
        direction, memory = transform.update(direction, memory, x)
    x, low = descend(x, size, direction, low)
    if project is None:
        return x, low, memory
    inside = project(x)
    if low is not None:  # what rounding dropped is void where the projection has moved the sum
        low = jax.tree.map(lambda r, a, b: jnp.where(a == b, r, jnp.zeros_like(r)), low, x, inside)
    return inside, low, memory


def _inside(project: Any, x: PyTree) -> PyTree:
    return x if project is None else project(x)


def _memory(transform: Any, x: PyTree) -> PyTree:
    return None if transform is None else transform.init(x)
