"""A pytree as JSON and named arrays: dicts, lists and tuples keep their shape, other nodes become dicts of fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from twoclock.protocols import InputError, PyTree


def encode(tree: PyTree, arrays: dict[str, np.ndarray]) -> Any:
    """The layout of a tree, as JSON can hold it; its arrays are added to ``arrays``."""
    if isinstance(tree, dict):
        return {"dict": {str(key): encode(value, arrays) for key, value in tree.items()}}
    if isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields"):
        kind = "tuple" if isinstance(tree, tuple) else "list"
        return {kind: [encode(value, arrays) for value in tree]}
    if tree is None:
        return None
    if hasattr(tree, "__dataclass_fields__"):
        return encode({name: getattr(tree, name) for name in tree.__dataclass_fields__}, arrays)
    if hasattr(tree, "_fields"):
        return encode(tree._asdict(), arrays)
    array = np.asarray(tree)
    if array.dtype == object:  # a function or the like inside a network: part of the code, not of the numbers
        return None
    name = f"a{len(arrays)}"
    if array.dtype.kind == "V":  # bfloat16 and its kin, which NumPy's files do not know
        arrays[name] = array.view(f"u{array.dtype.itemsize}")
        return {array.dtype.name: name}
    arrays[name] = array
    return name


def decode(layout: Any, arrays: Mapping[str, np.ndarray]) -> PyTree:
    """The tree that ``encode`` was given, of NumPy arrays."""
    if layout is None:
        return None
    if isinstance(layout, str):
        return arrays[layout]
    ((kind, value),) = layout.items()
    if kind == "dict":
        return {key: decode(item, arrays) for key, item in value.items()}
    if isinstance(value, str):
        return arrays[value].view(np.dtype(kind))
    items = [decode(item, arrays) for item in value]
    return tuple(items) if kind == "tuple" else items


def shaped_like(name: str, saved: PyTree, like: PyTree, seeds: int) -> PyTree:
    """A tree as it was before ``encode``, by the example of one without the seed axis.

    Leaves of the example that are no numbers (the activation of a network) are taken from it.

    Args:
        name: of the variable, for the complaint where the example does not fit.
        saved: what ``decode`` gave.
        like: the example; its numbers may be arrays or just shapes.
        seeds: the length of the leading axis of what was saved.
    """
    used: set[int] = set()

    def fill(path: tuple[Any, ...], leaf: object) -> Any:
        if not (hasattr(leaf, "shape") or isinstance(leaf, (int, float))):
            return leaf
        where, found = name + jax.tree_util.keystr(path), _at(saved, path)
        shape = found.shape if isinstance(found, np.ndarray) else None
        if shape != (seeds, *np.shape(leaf)):
            if shape is None and not hasattr(leaf, "shape"):
                return leaf  # a plain number inside a module, which was no part of the variable
            has = "nothing" if shape is None else f"shape {shape[1:]}"
            raise InputError(
                f"`like` must have the structure of {name}: `{where}` has shape {np.shape(leaf)}, saved is {has}"
            )
        used.add(id(found))
        return found

    whole = jax.tree_util.tree_map_with_path(fill, like)
    for path, leaf in jax.tree_util.tree_leaves_with_path(saved):
        # What is static in a module was saved too, without seeds.
        if id(leaf) not in used and leaf.dtype.kind in "fV" and leaf.shape[:1] == (seeds,):
            raise InputError(f"`like` must have the structure of {name}: it lacks `{name}{jax.tree_util.keystr(path)}`")
    return whole


def _at(saved: PyTree, path: tuple[Any, ...]) -> PyTree:
    """What was saved at a place, None if there is nothing."""
    for key in path:
        step: Any = next((getattr(key, part) for part in ("name", "key", "idx") if hasattr(key, part)), None)
        try:
            saved = saved[step] if isinstance(saved, (list, tuple)) else saved[str(step)]
        except (KeyError, IndexError, TypeError):
            return None
    return saved
