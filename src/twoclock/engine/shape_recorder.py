"""What the functions of a lane return, noted while the lane is traced: one trace tells it of all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from twoclock.protocols import Method, Problem, PyTree

_OF_PROBLEM = ("init", "noise", "draw", "F", "G", "measure", "report")
_OF_METHOD = ("init", "estimate", "report")


class Noted:
    """The shapes that functions returned, by their names and the shapes of what they were given.

    Attributes:
        arguments: those that the lane was traced with; empty where tracing failed.
        digest: of what it was traced to; None where tracing failed.
    """

    def __init__(self, arguments: tuple[PyTree, ...] = ()) -> None:
        self.arguments = arguments
        self.digest: str | None = None
        self._shapes: dict[Hashable, PyTree] = {}

    def find(self, name: str, args: tuple[PyTree, ...]) -> tuple[PyTree, bool]:
        """What a function returned for arguments of these shapes, and whether it was called with such."""
        if self.digest is None:
            return None, False
        key = _key(name, args)
        return self._shapes.get(key), key in self._shapes

    def watched(self, problem: Problem, method: Method) -> tuple[Any, Any]:
        """The same problem and method, as a lane sees them; what they return is noted."""
        name = type(method).__name__

        def step(F: Any, G: Any, *args: PyTree) -> PyTree:
            return self._note(f"{name}.step", (method, *args), method.step(F, G, *args))

        def noting(name: str, function: Callable[..., Any], *first: PyTree) -> Callable[..., Any]:
            return lambda *args: self._note(name, (*first, *args), function(*args))

        of_problem = {n: noting(n, getattr(problem, n)) for n in _OF_PROBLEM}
        of_method = {n: noting(f"{name}.{n}", getattr(method, n), method) for n in _OF_METHOD}
        return SimpleNamespace(**of_problem), SimpleNamespace(**of_method, step=step, track=method.track)

    def _note(self, name: str, args: tuple[PyTree, ...], out: PyTree) -> PyTree:
        self._shapes.setdefault(_key(name, args), jax.tree.map(_shape, out))
        return out


def _key(name: str, args: tuple[PyTree, ...]) -> Hashable:
    leaves, structure = jax.tree.flatten(args)
    return name, structure, tuple((jnp.shape(leaf), str(jnp.result_type(leaf))) for leaf in leaves)


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))
