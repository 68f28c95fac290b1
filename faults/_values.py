"""Wrong values that a user might pass by mistake, and worse ones."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import twoclock as tc


class Rude:
    """An object whose methods all raise."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


# Made again for each call: generators and arrays are used up or written to.
WRONG: dict[str, Any] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "3": lambda: 3,
    "0.5": lambda: 0.5,
    "1.7": lambda: 1.7,
    "-0.0": lambda: -0.0,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "1e308": lambda: 1e308,
    "5e-324": lambda: 5e-324,
    "10**400": lambda: 10**400,
    "10**5000": lambda: 10**5000,
    "2**31": lambda: 2**31,
    "-2**63": lambda: -(2**63),
    "10**9": lambda: 10**9,
    "complex": lambda: 1 + 2j,
    "empty text": lambda: "",
    "text": lambda: "nonsense",
    "number as text": lambda: "7",
    "lines": lambda: "a\nb\x1b[31m",
    "long text": lambda: "x" * 5000,
    "null byte": lambda: "a\0b",
    "surrogate": lambda: "\udcff",
    "formula": lambda: "1/(k",
    "markup": lambda: "[/bold]$\\frac{$<script>",
    "bytes": lambda: b"\xff\x00",
    "path": lambda: Path("/proc/nowhere"),
    "empty list": list,
    "list": lambda: [1.7, "a", None],
    "nested": lambda: _deep(2000),
    "dict": lambda: {"a": 1},
    "empty dict": dict,
    "odd keys": lambda: {3: tc.Fast(), None: 1},
    "set": lambda: {1, 2},
    "range": lambda: range(3),
    "for ever": itertools.count,
    "generator": lambda: (i for i in (1, "b")),
    "object": object,
    "rude": Rude,
    "class": lambda: tc.Fast,
    "module": lambda: math,
    "function": lambda: lambda *a: None,
    "raises": lambda: _raises,
    "array": lambda: np.arange(3.0),
    "empty array": lambda: np.empty((0, 3)),
    "nan array": lambda: np.full(3, np.nan),
    "text array": lambda: np.asarray(["a", "b"]),
    "object array": lambda: np.asarray([None, {}], object),
    "matrix": lambda: np.eye(3),
    "cube": lambda: np.ones((2, 2, 2)),
    "jax": lambda: jnp.zeros(2),
    "0d": lambda: np.asarray(4),
    "int8": lambda: np.int8(3),
    "bool array": lambda: np.ones(3, bool),
    "problem": lambda: tc.problems.quadratic(dim=2),
    "method": lambda: tc.Standard(),
    "schedule": lambda: tc.Power(1.0),
    "ragged": lambda: [[1, 2], [3]],
}


def _deep(depth: int) -> Any:
    tree: Any = 1.0
    for _ in range(depth):
        tree = [tree]
    return tree


def _raises(*args: Any, **options: Any) -> Any:
    raise ZeroDivisionError("of the user's own making")
