"""The protocols of problems, methods, schedules and indexed batches; frozen classes as pytrees; the repr of objects."""

from __future__ import annotations

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import islice
from typing import Any, ClassVar, Protocol, TypeVar, dataclass_transform, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Float, Int, ScalarLike
from jaxtyping import PyTree as PyTree

Key = Array
Scalar = ScalarLike
Floats = PyTree[Float[Array | np.ndarray, "..."]]
Operator = Callable[[PyTree, PyTree, PyTree], PyTree]

C = TypeVar("C")


class InputError(ValueError):
    """A wrong argument. The message is one line: the argument, the rule, the remedy.

    Characters in it that would break the line or control a terminal are escaped.

    Args:
        message: the line; an error without one is possible.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(" ".join(str(message).split())))


def printable(text: str) -> str:
    """Escape characters that would break a line, control a terminal, or cannot be encoded."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


@runtime_checkable
class Schedule(Protocol):
    """A step size as a function of the step number, ``schedule(k) -> scalar`` for k = 0, 1, …"""

    def __call__(self, k: Scalar) -> Array: ...


class Problem(ABC):
    """Noisy operators and their source of noise, which is all that a method may use.

    A problem is a frozen pytree (``@pytree``) that defines the five abstract members. ``h``, ``omega_star`` and
    ``measure`` give known parts of its answer, for tests and records alone; ``report`` records the environment. A
    problem whose samples depend on ω too, such as a mean field, declares ``draw(u, theta, omega, env)``.
    """

    omega_is_trace: ClassVar[bool] = False  # ω is an eligibility trace: E G = 0 has no meaning
    on_host: ClassVar[tuple[str, ...]] = ()  # fields that ``init`` alone reads: they take no memory of a device
    instead_of_roots: ClassVar[str] = ""  # what to use instead of methods that find roots with derivatives

    @abstractmethod
    def init(self, key: Key) -> tuple[PyTree, PyTree, PyTree]:
        """The start: θ₀, ω₀ and the state of the environment (None where samples are independent)."""

    @abstractmethod
    def noise(self, key: Key) -> PyTree:
        """The randomness of one step, independent of the iterates."""

    @abstractmethod
    def draw(self, u: PyTree, theta: PyTree, env: PyTree) -> tuple[PyTree, PyTree]:
        """The sample X from the noise u, and the next environment. Deterministic."""

    @abstractmethod
    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        """The slow operator: its mean at ω*(θ) is ∇h(θ)."""

    @abstractmethod
    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        """The fast operator: its mean is strongly monotone in ω with the root ω*(θ)."""

    def sample(self, u: PyTree, theta: PyTree, omega: PyTree, env: PyTree) -> tuple[PyTree, PyTree]:
        """The sample at these iterates, by ``draw`` with its declared arguments."""
        draw: Callable[..., tuple[PyTree, PyTree]] = self.draw
        return draw(u, theta, omega, env) if self.samples_see_omega else draw(u, theta, env)

    @property
    def samples_see_omega(self) -> bool:
        """Whether ``draw`` takes ω."""
        return "omega" in inspect.signature(self.draw).parameters

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

    def confine(self, theta: PyTree) -> PyTree:
        """The nearest θ at which the constants of the theory hold; θ itself by default."""
        return theta

    def pl_constants(self, thetas: Sequence[PyTree]) -> Mapping[str, Any]:
        """The PL constant ``mu_h`` at these points, if a formula is known; else {}.

        Where the mean of F at ω* is ∇h in another metric only, also ``metric``, as in ``theory.certify``.
        """
        return {}

    def measure(self, theta: PyTree, omega: PyTree) -> Mapping[str, Scalar]:
        """The metrics to record, by name."""
        return {}

    def report(self, env: PyTree) -> Mapping[str, Scalar]:
        """The records of the environment, by name."""
        return {}

    def knows(self, member: str) -> bool:
        """Whether the problem defines an optional member itself."""
        return getattr(type(self), member) is not getattr(Problem, member)


def forwarded(part: str, *names: str) -> Iterator[Callable[..., Any]]:
    """Methods that call those of a field: ``h, measure = forwarded("problem", "h", "measure")`` in a class.

    Args:
        part: the name of the field.
        names: the names of its methods.
    """
    return ((lambda self, *args, name=name: getattr(getattr(self, part), name)(*args)) for name in names)


# A problem, or a function of a key that makes one, so that each seed has its own instance.
ProblemSource = Problem | Callable[[Key], Problem]


@runtime_checkable
class State(Protocol):
    """The state of a method between steps; only its iterates are public."""

    @property
    def theta(self) -> PyTree: ...
    @property
    def omega(self) -> PyTree: ...


class Method(ABC):
    """One step of an algorithm, as a pure function of its state.

    A method is a frozen pytree (``@pytree``) whose leaves are its step sizes. ``state`` is of the type that its own
    ``init`` returns.
    """

    finds_roots: ClassVar[bool] = False  # it solves E F = 0, E G = 0 with derivatives, so ω must solve E G = 0

    # Whether ``estimate`` and ``report`` also take NumPy arrays of many lanes at once, without compilation.
    reads_on_host: ClassVar[bool] = False

    @abstractmethod
    def init(self, theta: PyTree, omega: PyTree) -> State:
        """A state with ``.theta`` and ``.omega``, the current iterates."""

    @abstractmethod
    def step(self, F: Operator, G: Operator, state: Any, x: PyTree, k: Scalar) -> State:
        """The state after step k on the sample x."""

    # Whether some steps, known in advance, end with work on the state alone, such as solving equations: ``step`` is
    # ``between`` and, where it is due, ``refine``. A compiled loop then needs no more than ``between``.
    refines: ClassVar[bool] = False

    def between(self, F: Operator, G: Operator, state: Any, x: PyTree, k: Scalar) -> State:
        """Step k without what ``refine`` does."""
        return self.step(F, G, state, x, k)

    def is_due(self, state: Any, k: Any) -> Any:
        """Whether step k ends with ``refine``. It depends on k and on the shapes of the state alone.

        Args:
            state: of one lane or of many.
            k: a step of JAX, or NumPy's array of steps.
        """
        return k != k

    def refine(self, state: Any, k: Any) -> Any:
        """The state at the end of such a step; of one lane in JAX, or of many in NumPy, with leading axes.

        Args:
            state: what ``between`` returned.
            k: the step.
        """
        return state

    def estimate(self, state: Any) -> tuple[PyTree, PyTree]:
        """The θ, ω to report: the iterates, unless a method averages them."""
        return state.theta, state.omega

    def report(self, state: Any) -> Mapping[str, Scalar]:
        """The method's own metrics, recorded beside the problem's."""
        return {}

    def track(self, state: Any) -> dict[str, PyTree]:
        """The data for the intervals of its outputs, by kind; recorded too (see ``intervals``)."""
        return {}

    @property
    def stays_infinite(self) -> bool:
        """Whether a state that is not finite is followed by such states alone."""
        return False

    def knows(self, member: str) -> bool:
        """Whether the method defines ``report`` or ``track`` itself."""
        return getattr(type(self), member) is not getattr(Method, member)


def static(default: object = dataclasses.MISSING) -> Any:
    """A field that is part of the program (a name, a function, a flag) rather than a number in it.

    Args:
        default: the default of the field; none if left out.

    >>> @pytree
    ... class Scaled:
    ...     factor: float
    ...     name: str = static("plain")
    >>> jax.tree.leaves(Scaled(2.0))
    [2.0]
    """
    return dataclasses.field(default=default, metadata={"static": True})


def checked(
    check: Callable[..., object], *rule: object, default: object = dataclasses.MISSING, static: bool = False
) -> Any:
    """A field that a constructor checks: ``check("Power(c=…)", value, *rule)`` raises, or returns what to store.

    A check that returns None leaves the value unchanged. Checks run before ``__post_init__``, which is for rules that
    concern several fields.

    >>> @pytree
    ... class Ball:
    ...     radius: float = checked(lambda what, value: float(value), default=1)
    >>> Ball("2").radius
    2.0
    """

    def read(owner: str, name: str, value: object) -> object:
        return check(f"{owner}({name}=…)", value, *rule)

    return dataclasses.field(default=default, metadata={"static": static, "check": read})


@dataclass_transform(frozen_default=True, field_specifiers=(static, checked, dataclasses.field))
def pytree(cls: type[C]) -> type[C]:
    """Make a class a frozen dataclass and a pytree: plain fields are leaves, ``static`` ones belong to the structure.

    Unflattening does not call ``__init__``: JAX rebuilds objects with tracers or stacked arrays in their fields, which
    the checks of a constructor would refuse.

    >>> @pytree
    ... class Point:
    ...     x: float
    ...     y: float
    >>> jax.tree.map(lambda leaf: 2 * leaf, Point(1, 2)).y
    4
    """
    if "__repr__" not in vars(cls):
        cls.__repr__ = _short  # type: ignore[method-assign]
    declared = [(name, field) for name, field in vars(cls).items() if isinstance(field, dataclasses.Field)]
    checks = {name: field.metadata["check"] for name, field in declared if "check" in field.metadata}
    own = getattr(cls, "__post_init__", None)

    def run_checks(self: C) -> None:
        for name, check in checks.items():
            value = check(type(self).__name__, name, getattr(self, name))
            if value is not None:
                object.__setattr__(self, name, value)
        if own is not None:
            own(self)

    if checks:
        cls.__post_init__ = run_checks  # type: ignore[attr-defined]
    new = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    fields = dataclasses.fields(new)  # type: ignore[arg-type]
    leaves = tuple(f.name for f in fields if not f.metadata.get("static"))
    fixed = tuple(f.name for f in fields if f.metadata.get("static"))

    def flatten(obj: C) -> tuple[tuple[object, ...], tuple[object, ...]]:
        return tuple(getattr(obj, n) for n in leaves), tuple(getattr(obj, n) for n in fixed)

    def flatten_with_keys(obj: C) -> tuple[tuple[tuple[object, object], ...], tuple[object, ...]]:
        children, aux = flatten(obj)
        return tuple((jax.tree_util.GetAttrKey(n), c) for n, c in zip(leaves, children, strict=True)), aux

    def unflatten(aux: tuple[object, ...], children: Iterable[object]) -> C:
        obj = object.__new__(new)
        for name, value in zip(leaves + fixed, tuple(children) + aux, strict=True):
            object.__setattr__(obj, name, value)
        return obj

    jax.tree_util.register_pytree_with_keys(new, flatten_with_keys, unflatten, flatten)
    return new


_FEW, _LONGEST = 6, 60
_LETTERS = {"alpha": "α", "beta": "β", "lam": "λ", "lam_g": "λ_g"}


def _short(obj: Any) -> str:
    """Show the class, its methods and schedules, and other fields that differ from their default."""
    shown = []
    for field in dataclasses.fields(obj):
        value = getattr(obj, field.name)
        plain = value is None or isinstance(value, (bool, int, float, str))
        if not (value is field.default or (plain and value == field.default)) or isinstance(value, Method):
            shown.append(f"{_LETTERS.get(field.name, field.name)}={brief(value)}")
    return f"{type(obj).__name__}({', '.join(shown)})"


def brief(value: Any) -> str:
    """Show a field's value: numbers to six digits, an array by its type and shape, a function by its name."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        concrete = value.shape == () and not isinstance(value, jax.core.Tracer)
        return f"{value.item():g}" if concrete else f"{value.dtype}{list(value.shape)}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str):
        return repr(value) if len(value) <= _LONGEST else repr(value[:_LONGEST] + "…")
    if isinstance(value, dict):
        return (
            "{"
            + _few([f"{printable(str(key)):.40}: {brief(item)}" for key, item in islice(value.items(), _FEW + 1)])
            + "}"
        )
    if hasattr(value, "init") and hasattr(value, "update"):  # an optax transformation, named by its factory
        return getattr(value.init, "__qualname__", type(value).__name__).split(".")[0]
    if isinstance(value, (tuple, list)):
        return f"({_few([brief(item) for item in value[: _FEW + 1]])})"
    if dataclasses.is_dataclass(value):  # methods and schedules matter; of other objects the name
        return str(value) if isinstance(value, Method) or callable(value) else f"{type(value).__name__}(…)"
    value = getattr(value, "func", value)  # of a partial
    return getattr(value, "__qualname__", None) or f"{value!r:.{_LONGEST}}"


def _few(shown: list[str]) -> str:
    return ", ".join(shown[:_FEW] + ["…"] * (len(shown) > _FEW))


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """Write a table of plain text for a notebook, with a line above it and perhaps a note below."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    below = f"<p><small>{escape(note)}</small></p>" if note else ""
    return f"<p>{escape(title)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def list_names(names: Sequence[str], most: int = 8) -> str:
    """Join names by commas; if there are many, the first few.

    >>> list_names(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return printable(", ".join(names[:most])) + rest


@pytree
class RowTable:
    """Stored rows of a method, of which a step changes a few.

    Elsewhere a lane that diverges keeps its last finite state. For a table, the check and the copy would cost the whole
    table at every step. Engines do neither, so the table of a diverged lane is meaningless.
    """

    rows: PyTree


@pytree
class IndexedBatch:
    """A batch of finite data with the indices of its items, for methods that store an item's earlier values.

    A sample is one such batch, or a tuple of them (the inner data and the outer ones) where F and G are sums of shares:
    with the other batches left out, they give the share of one.

    Attributes:
        batch: the data of the items, along the first axis; None where the batch is left out.
        index: the numbers of the items.
        items: the number of items in the data.
        replace: whether they are drawn with replacement; otherwise every item comes once per epoch.
    """

    batch: PyTree
    index: Int[Array, ...] | None
    items: int = static()
    replace: bool = static(default=False)

    def without(self) -> IndexedBatch:
        """The batch left out."""
        return IndexedBatch(None, None, self.items, self.replace)

    def one_by_one(self) -> IndexedBatch:
        """The batch as stacked batches of one item each."""
        return jax.tree.map(lambda leaf: leaf[:, None], self)


def indexed_batches(x: PyTree) -> tuple[IndexedBatch, ...] | None:
    """The indexed batches of a sample; None if it is anything else."""
    parts = x if isinstance(x, tuple) else (x,)
    return parts if parts and all(isinstance(part, IndexedBatch) for part in parts) else None
