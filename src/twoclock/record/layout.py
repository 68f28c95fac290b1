"""A pytree as JSON and named arrays: dicts, lists and tuples keep their shape, other nodes become dicts of fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from twoclock.core import PyTree


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
