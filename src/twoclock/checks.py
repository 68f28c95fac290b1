"""Is this problem, with this method, something that can run? Asked once before a run, answered in one line."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import keys
from twoclock.core import InputError, PyTree

_HORIZON = 2**31 - 1


def check_steps(steps: Any) -> int:
    if isinstance(steps, bool) or (not isinstance(steps, (int, np.integer)) and not (
        isinstance(steps, float) and steps.is_integer()
    )):  # fmt: skip
        raise InputError(f"`steps` must be a whole number, got {steps!r}; try steps=100_000")
    if not 0 < steps <= _HORIZON:
        raise InputError(f"`steps` must lie in 1 … 2³¹−1, got {steps:g}; try steps=100_000")
    return int(steps)


def check_seeds(seeds: Any) -> list[int]:
    if isinstance(seeds, (int, np.integer)):
        if seeds <= 0:
            raise InputError(f"`seeds` must be a positive count or a sequence of integers, got {seeds}; try seeds=20")
        return list(range(int(seeds)))
    try:
        numbers = [int(seed) for seed in seeds]
    except (TypeError, ValueError):
        raise InputError(f"`seeds` must be a positive count or a sequence of integers, got {seeds!r}") from None
    if not numbers or min(numbers) < 0 or max(numbers) >= 2**32 or len(set(numbers)) < len(numbers):
        raise InputError("`seeds` must be different integers from 0 to 2³²−1, one or more; try seeds=range(20)")
    return numbers


def check_marks(marks: Any, steps: int) -> list[int]:
    if marks is None:
        return log_marks(steps)
    try:
        numbers = sorted({int(mark) for mark in marks} | {steps})
    except (TypeError, ValueError):
        raise InputError(
            f"`marks` must be a sequence of step numbers, got {marks!r}; leave it out for a log grid"
        ) from None
    if numbers[0] < 0 or numbers[-1] > steps:
        raise InputError(f"`marks` must lie in 0 … steps={steps}, got {numbers[0]} … {numbers[-1]}")
    return numbers


def log_marks(steps: int, per_decade: int = 10) -> list[int]:
    """The start, the end and about ``per_decade`` marks a decade between them."""
    count = int(np.ceil(np.log10(steps) * per_decade)) + 1
    grid = np.round(10 ** (np.arange(count) / per_decade)).astype(int)
    return [0, *sorted({int(mark) for mark in grid if mark < steps} | {steps})]


def check_numbers(precision: Any, bound: Any) -> None:
    if precision not in ("float64", "float32"):
        raise InputError(f"`precision` must be 'float64' or 'float32', got {precision!r}")
    if bound is not None and not bound > 0:
        raise InputError(f"`bound` must be positive, got {bound}; leave it out for none")


def check_fit(problem: Any, method: Any) -> None:
    """The operators must fit the variables, and every schedule must give one number."""
    key = keys.start_key(0)
    theta, omega, env = jax.eval_shape(problem.init, key)
    u = jax.eval_shape(problem.noise, key)
    x, _ = jax.eval_shape(problem.draw, u, theta, env)
    for name, tree in {"theta": theta, "omega": omega}.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise InputError(f"`{_name(name, path)}` must be floating point, got {leaf.dtype}; write 0.0 for 0")
    _same(problem.F, "F", theta, "theta", (theta, omega, x))
    _same(problem.G, "G", omega, "omega", (theta, omega, x))
    _check_schedules(method)


def check_start(theta: PyTree, omega: PyTree) -> None:
    for name, tree in {"theta": theta, "omega": omega}.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if not np.isfinite(leaf).all():
                raise InputError(f"`{_name(name, path)}` must start from finite numbers, got NaN or infinity in it")


def _same(operator: Any, name: str, like: PyTree, of: str, args: tuple[PyTree, ...]) -> None:
    out = jax.eval_shape(operator, *args)
    have, want = (jax.tree_util.tree_leaves_with_path(tree) for tree in (out, like))
    if str(jax.tree.structure(out)) != str(jax.tree.structure(like)):
        raise InputError(f"`{name}` must return the structure of {of}, {_layout(like)}, got {_layout(out)}")
    for (path, got), (_, wanted) in zip(have, want, strict=True):
        if got.shape != wanted.shape:
            raise InputError(
                f"`{name}` must return the shapes of {of}: at `{_name(of, path)}` it returns {got.shape}, "
                f"{of} has {wanted.shape}"
            )


def _check_schedules(method: Any) -> None:
    for field in dataclasses.fields(method) if dataclasses.is_dataclass(method) else ():
        value = getattr(method, field.name)
        if hasattr(value, "step"):
            _check_schedules(value)
        elif callable(value) and "static" not in field.metadata:
            shape = jax.eval_shape(value, jax.ShapeDtypeStruct((), jnp.int32)).shape
            if shape != ():
                raise InputError(
                    f"`{field.name}` must give one number a step, got shape {shape} at k=0; return a scalar"
                )


def _name(root: str, path: Any) -> str:
    return root + jax.tree_util.keystr(path)


def _layout(tree: PyTree) -> str:
    return str(jax.tree.map(lambda leaf: leaf.shape, tree))
