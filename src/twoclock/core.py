"""The contracts: what a problem, a method and a schedule are, and how a frozen class becomes a pytree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, dataclass_transform, runtime_checkable

import jax

PyTree = Any
Key = jax.Array
Scalar = Any
Operator = Callable[[PyTree, PyTree, PyTree], PyTree]

C = TypeVar("C")


class InputError(ValueError):
    """A wrong argument. The message is one line: the argument, the rule, the remedy."""


@runtime_checkable
class Schedule(Protocol):
    """A step size as a function of the step number, ``schedule(k) -> scalar`` for k = 0, 1, …"""

    def __call__(self, k: Any) -> Any: ...


@runtime_checkable
class Problem(Protocol):
    """Two noisy operators and where their noise comes from.

    This is the oracle half, all that a method may see. The truth half is optional and goes by name: ``h(theta)``,
    ``omega_star(theta)`` and ``measure(theta, omega) -> {name: scalar}``; only tests and the recorder look at it.
    """

    def init(self, key: Key) -> tuple[PyTree, PyTree, PyTree]:
        """The start: θ₀, ω₀ and the state of the environment (None where samples are independent)."""

    def noise(self, key: Key) -> PyTree:
        """The randomness of one step, independent of the iterates."""

    def draw(self, u: PyTree, theta: PyTree, env: PyTree) -> tuple[PyTree, PyTree]:
        """The sample X that the noise u makes, and the next environment. Deterministic."""

    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        """The slow operator: its mean at ω*(θ) is ∇h(θ)."""

    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        """The fast operator: its mean is strongly monotone in ω with the root ω*(θ)."""


# A problem, or a function of a key that makes one, so that each seed has its own instance.
ProblemSource = Problem | Callable[[Key], Problem]


@runtime_checkable
class Method(Protocol):
    """One step of an algorithm, as a pure function of its state.

    A method may also have ``report(state) -> {name: scalar}``: what it knows of its own progress, recorded beside the
    problem's metrics.
    """

    def init(self, theta: PyTree, omega: PyTree) -> Any:
        """A state with ``.theta`` and ``.omega``, the current iterates."""

    def step(self, F: Operator, G: Operator, state: Any, x: PyTree, k: Any) -> Any:
        """The state after step k on the sample x."""

    def estimate(self, state: Any) -> tuple[PyTree, PyTree]:
        """The θ, ω to report; averaged methods differ here from the iterates."""


def static(default: Any = dataclasses.MISSING) -> Any:
    """A field that is part of the program (a name, a function, a flag) rather than a number in it."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def pytree(cls: type[C]) -> type[C]:
    """Make a class a frozen dataclass and a pytree: plain fields are leaves, ``static`` ones belong to the structure.

    Unflattening does not call ``__init__``: a pytree of tracers or of stacked numbers is not argued with.
    """
    new = dataclasses.dataclass(frozen=True, eq=False)(cls)
    fields = dataclasses.fields(new)  # type: ignore[arg-type]
    leaves = tuple(f.name for f in fields if not f.metadata.get("static"))
    fixed = tuple(f.name for f in fields if f.metadata.get("static"))

    def flatten(obj: C) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(obj, n) for n in leaves), tuple(getattr(obj, n) for n in fixed)

    def flatten_with_keys(obj: C) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        children, aux = flatten(obj)
        return tuple((jax.tree_util.GetAttrKey(n), c) for n, c in zip(leaves, children, strict=True)), aux

    def unflatten(aux: tuple[Any, ...], children: Any) -> C:
        obj = object.__new__(new)
        for name, value in zip(leaves + fixed, tuple(children) + aux, strict=True):
            object.__setattr__(obj, name, value)
        return obj

    jax.tree_util.register_pytree_with_keys(new, flatten_with_keys, unflatten, flatten)
    return new
