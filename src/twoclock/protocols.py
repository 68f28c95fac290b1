"""The contracts: what a problem, a method and a schedule are, and how a frozen class becomes a pytree."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, dataclass_transform, runtime_checkable

import jax
from jaxtyping import Array, Float, ScalarLike
from jaxtyping import PyTree as PyTree

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    from typing import TypeVar as _TypeVar

    def TypeVar(name: str, default: object = None, **options: object) -> _TypeVar:
        """A type variable; its default is for type checkers (Python has it from 3.13 on)."""
        return _TypeVar(name, **options)


Key = Array
Scalar = ScalarLike
Floats = PyTree[Float[Array, "..."]]
Operator = Callable[[PyTree, PyTree, PyTree], PyTree]

C = TypeVar("C")
T = TypeVar("T")


class InputError(ValueError):
    """A wrong argument. The message is one line: the argument, the rule, the remedy.

    A name in it may hold anything; what would break the line or steer a terminal is written out.
    """

    def __init__(self, message: object = "") -> None:
        line = " ".join(str(message).split())
        super().__init__("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line))


@runtime_checkable
class Schedule(Protocol):
    """A step size as a function of the step number, ``schedule(k) -> scalar`` for k = 0, 1, …"""

    def __call__(self, k: Scalar) -> Array: ...


class Problem(ABC):
    """Noisy operators and where their noise comes from: all that a method may see.

    A problem is a frozen pytree (``@pytree``) that defines the five abstract members. ``h``, ``omega_star`` and
    ``measure`` say what is known of its answer, for tests and records alone; ``report`` what to record of its
    environment.
    """

    omega_is_trace: ClassVar[bool] = False  # ω is an eligibility trace: E G = 0 has no meaning

    @abstractmethod
    def init(self, key: Key) -> tuple[PyTree, PyTree, PyTree]:
        """The start: θ₀, ω₀ and the state of the environment (None where samples are independent)."""

    @abstractmethod
    def noise(self, key: Key) -> PyTree:
        """The randomness of one step, independent of the iterates."""

    @abstractmethod
    def draw(self, u: PyTree, theta: PyTree, env: PyTree) -> tuple[PyTree, PyTree]:
        """The sample X that the noise u makes, and the next environment. Deterministic."""

    @abstractmethod
    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        """The slow operator: its mean at ω*(θ) is ∇h(θ)."""

    @abstractmethod
    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        """The fast operator: its mean is strongly monotone in ω with the root ω*(θ)."""

    def h(self, theta: PyTree) -> Scalar:
        """The objective that θ minimises, where it is known."""
        raise NotImplementedError

    def omega_star(self, theta: PyTree) -> PyTree:
        """The root of the mean of G in ω, which ω tracks, where it is known."""
        raise NotImplementedError

    def field(self, theta: PyTree) -> PyTree:
        """The mean of F at ω*(θ), where it is known; ∇h(θ) unless a problem says otherwise."""
        return jax.grad(self.h)(theta)

    def mean_F(self, theta: PyTree, omega: PyTree) -> PyTree:
        """The mean of F over samples, where it is known."""
        raise NotImplementedError

    def mean_G(self, theta: PyTree, omega: PyTree) -> PyTree:
        """The mean of G over samples, where it is known."""
        raise NotImplementedError

    def constants(self) -> Mapping[str, Scalar]:
        """The constants of the theory, L, mu_h, mu_g and noise, where they are known."""
        raise NotImplementedError

    def measure(self, theta: PyTree, omega: PyTree) -> Mapping[str, Scalar]:
        """The metrics to record, by name."""
        return {}

    def report(self, env: PyTree) -> Mapping[str, Scalar]:
        """What to record of the environment, by name."""
        return {}

    def knows(self, member: str) -> bool:
        """Whether the problem defines an optional member itself."""
        return getattr(type(self), member) is not getattr(Problem, member)


# A problem, or a function of a key that makes one, so that each seed has its own instance.
ProblemSource = Problem | Callable[[Key], Problem]


@runtime_checkable
class State(Protocol):
    """What a method carries from step to step; the iterates are all that others may ask of it."""

    @property
    def theta(self) -> PyTree: ...
    @property
    def omega(self) -> PyTree: ...


S = TypeVar("S", bound=State, default=Any)


class Method(ABC, Generic[S]):
    """One step of an algorithm, as a pure function of its state.

    A method is a frozen pytree (``@pytree``) whose leaves are its step sizes.
    """

    finds_roots: ClassVar[bool] = False  # it solves E F = 0, E G = 0 with derivatives, so ω must solve E G = 0

    @abstractmethod
    def init(self, theta: PyTree, omega: PyTree) -> S:
        """A state with ``.theta`` and ``.omega``, the current iterates."""

    @abstractmethod
    def step(self, F: Operator, G: Operator, state: S, x: PyTree, k: Scalar) -> S:
        """The state after step k on the sample x."""

    @abstractmethod
    def estimate(self, state: S) -> tuple[PyTree, PyTree]:
        """The θ, ω to report; averaged methods differ here from the iterates."""

    def report(self, state: S) -> Mapping[str, Scalar]:
        """What the method knows of its own progress, recorded beside the problem's metrics."""
        return {}

    def track(self, state: S) -> dict[str, PyTree]:
        """What the intervals of its outputs need, by kind; recorded too (``intervals``)."""
        return {}

    def knows(self, member: str) -> bool:
        """Whether the method defines ``report`` or ``track`` itself."""
        return getattr(type(self), member) is not getattr(Method, member)


def static(default: object = dataclasses.MISSING) -> Any:
    """A field that is part of the program (a name, a function, a flag) rather than a number in it."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def pytree(cls: type[C]) -> type[C]:
    """Make a class a frozen dataclass and a pytree: plain fields are leaves, ``static`` ones belong to the structure.

    Unflattening does not call ``__init__``: JAX rebuilds objects with tracers or stacked arrays in their fields, which
    the checks of a constructor would refuse.
    """
    if "__repr__" not in vars(cls):
        cls.__repr__ = _short  # type: ignore[method-assign]
    new = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
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


_FEW, _LONGEST = 6, 60
_LETTERS = {"alpha": "α", "beta": "β", "lam": "λ", "lam_g": "λ_g"}


def _short(obj: Any) -> str:
    """One line: the class, its methods and schedules, and of its other fields those that differ from their default."""
    shown = []
    for field in dataclasses.fields(obj):
        value = getattr(obj, field.name)
        plain = value is None or isinstance(value, (bool, int, float, str))
        if not (value is field.default or (plain and value == field.default)) or isinstance(value, Method):
            shown.append(f"{_LETTERS.get(field.name, field.name)}={brief(value)}")
    return f"{type(obj).__name__}({', '.join(shown)})"


def brief(value: Any) -> str:
    """A field's value in a word: numbers to six digits, an array by its type and shape, a function by its name."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        concrete = value.shape == () and not isinstance(value, jax.core.Tracer)
        return f"{value.item():g}" if concrete else f"{value.dtype}{list(value.shape)}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str):
        return repr(value) if len(value) <= _LONGEST else repr(value[:_LONGEST] + "…")
    if isinstance(value, dict):
        return "{" + _few([f"{key!s:.40}: {brief(item)}" for key, item in islice(value.items(), _FEW + 1)]) + "}"
    if hasattr(value, "init") and hasattr(value, "update"):  # an optax transformation, named by what made it
        return getattr(value.init, "__qualname__", type(value).__name__).split(".")[0]
    if isinstance(value, (tuple, list)):
        return f"({_few([brief(item) for item in value[: _FEW + 1]])})"
    if dataclasses.is_dataclass(value):  # methods and schedules are what matters; of the rest the name
        return str(value) if isinstance(value, Method) or callable(value) else f"{type(value).__name__}(…)"
    value = getattr(value, "func", value)  # of a partial
    return getattr(value, "__qualname__", None) or f"{value!r:.{_LONGEST}}"


def _few(shown: list[str]) -> str:
    return ", ".join(shown[:_FEW] + ["…"] * (len(shown) > _FEW))


@pytree
class Table:
    """What a method remembers of many things, of which a step changes a few rows.

    Elsewhere a lane that diverges keeps its last finite state. Looking through a table for that at every step, and
    keeping the one before, would cost the whole of it a step: an engine does neither, and what a diverged lane's table
    holds means nothing.
    """

    rows: PyTree


def renamed(**new_names: str) -> Callable[[type[C]], type[C]]:
    """Accept the old names of fields, in the constructor and as attributes, with a DeprecationWarning.

    Args:
        new_names: old name → new name, for fields whose default is None.
    """

    def decorate(cls: type[C]) -> type[C]:
        init = cls.__init__

        @functools.wraps(init)
        def accepting(self: C, *args: Any, **given: Any) -> None:
            for old in new_names.keys() & given.keys():
                new = new_names[old]
                warn_renamed(f"`{cls.__name__}({old}=…)`", f"`{new}=`")
                value = given.pop(old)
                if given.get(new) is not None and value is not None:
                    raise InputError(f"`{cls.__name__}({new}=…)` is given twice, also as `{old}`; leave out `{old}`")
                given[new] = given.get(new) if value is None else value
            init(self, *args, **given)

        def alias(old: str, new: str) -> property:
            def read(self: C) -> Any:
                warn_renamed(f"`{cls.__name__}.{old}`", f"`.{new}`")
                return getattr(self, new)

            return property(read, doc=f"The old name of ``{new}``.")

        cls.__init__ = accepting  # type: ignore[method-assign, assignment]
        for old, new in new_names.items():
            setattr(cls, old, alias(old, new))
        return cls

    return decorate


def warn_renamed(old: str, new: str) -> None:
    """Say that a name is deprecated, at the line that used it."""
    warnings.warn(f"{old} is deprecated; write {new}", DeprecationWarning, stacklevel=3)
