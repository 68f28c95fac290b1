"""Does this problem fit this method? Told from shapes alone, once before a run, in one line."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.core import InputError, Method, Operator, Problem, PyTree
from twoclock.engine import keys


def check_fit(problem: Problem, method: Method) -> None:
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


def _same(operator: Operator, name: str, like: PyTree, of: str, args: tuple[PyTree, ...]) -> None:
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


def _check_schedules(method: object) -> None:
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


def _name(root: str, path: tuple[object, ...]) -> str:
    return root + jax.tree_util.keystr(path)


def _layout(tree: PyTree) -> str:
    return str(jax.tree.map(lambda leaf: leaf.shape, tree))
