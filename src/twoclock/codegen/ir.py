"""The generated program before it is text: numbers, buffers and statements, and the builder that writes them.

A value either *varies* from lane to lane or is the same for all lanes that run side by side. The printer computes the
latter once, so every value carries the distinction from the start.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

Tree: TypeAlias = Any  # a pytree of arrays, or of their shapes
T = TypeVar("T")
_WHOLE = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
C_TYPES = {"bool": "int", **{name: f"{name}_t" for name in _WHOLE}, "float32": "float", "float64": "double"}
# In memory shared with JAX a truth value is one byte.
STORED_TYPES = {**C_TYPES, "bool": "uint8_t"}
_SUFFIXES = {"uint32": "u", "uint64": "ull", "int64": "ll", "float32": "f"}


class CodegenError(Exception):
    """A program cannot be generated, compiled or loaded."""


class Unsupported(CodegenError):
    """The reason why a program cannot be generated, as a clause after "because"."""


class ProgramTooLong(Unsupported):
    """Too many statements; with more loops and fewer scalars there may be fewer."""


def c_type(dtype: np.dtype) -> str:
    name = np.dtype(dtype).name
    if name not in C_TYPES:
        raise Unsupported(f"numbers of type {name} are not generated")
    return C_TYPES[name]


@dataclass(frozen=True, eq=False)
class Var:
    """A number with a name, assigned once."""

    name: str
    c: str
    varies: bool


@dataclass(frozen=True)
class Lit:
    """A number known when the program is generated."""

    text: str
    value: int | float | bool


Atom: TypeAlias = Var | Lit
Index: TypeAlias = int | Var


@dataclass(frozen=True)
class OffsetIndex:
    """An address at a known distance from another: neighbours share one computed number."""

    index: Var
    offset: int


Address: TypeAlias = Index | OffsetIndex


def literal(value: object, dtype: np.dtype) -> Lit:
    """Write the number in C, exactly."""
    dtype, c = np.dtype(dtype), c_type(dtype)
    number, suffix = np.asarray(value, dtype), _SUFFIXES.get(dtype.name, "")
    if dtype.kind == "b":
        return Lit(str(int(number)), bool(number))
    if dtype.kind in "iu":
        whole = int(number)
        lowest = dtype.kind == "i" and whole == np.iinfo(dtype).min
        text = f"({whole + 1}{suffix}-1)" if lowest else f"{whole}{suffix}"
        return Lit(f"({text})" if whole < 0 else text, whole)
    real = float(number)
    if not np.isfinite(real):
        return Lit(f"(({c}){'NAN' if np.isnan(real) else '-INFINITY' if real < 0 else 'INFINITY'})", real)
    text = real.hex() + suffix
    return Lit(f"({text})" if text.startswith("-") else text, real)


@dataclass(eq=False)
class Buffer:
    """An array that the program reads by index: a table from the caller, or an array on the stack."""

    name: str
    c: str
    size: int
    varies: bool  # each lane has its own
    mutable: bool = False  # written more than once: two reads may differ
    table: bool = False  # passed by the caller; otherwise it lives on the stack
    base: Var | None = None  # for a table with one part per lane, where the lane's part begins
    stored: str = ""  # the type in memory, where it differs from that of a number once read


@dataclass(frozen=True)
class Let:
    var: Var
    form: str
    args: tuple[Atom, ...]
    call: bool = False  # a library function, which keeps a loop from being vectorised


@dataclass(frozen=True)
class Load:
    var: Var
    memory: Buffer
    index: Address


@dataclass(frozen=True)
class Store:
    memory: Buffer
    index: Address
    value: Atom


@dataclass
class For:
    """``for (index = 0; index < count; index += step)``."""

    index: Var
    count: int
    step: int = 1
    body: list[Statement] = field(default_factory=list)


@dataclass
class Branch:
    """Blocks of which the one with the selector's number runs."""

    selector: Atom
    cases: list[list[Statement]]


@dataclass
class UnlikelyBlock:
    """A block that runs only if the test holds for at least one of the lanes. It may then run for all of them."""

    test: Atom
    body: list[Statement] = field(default_factory=list)


@dataclass
class While:
    """Run ``test``; while its outcome holds, run ``body`` and repeat."""

    test: list[Statement] = field(default_factory=list)
    outcome: Atom = Lit("0", 0)
    body: list[Statement] = field(default_factory=list)


@dataclass
class LaneLoop:
    """A loop over lanes side by side, made by the printer; ``vector`` if the compiler may take the lanes together."""

    vector: bool
    body: list[Statement] = field(default_factory=list)


Plain: TypeAlias = Let | Load | Store
Nested: TypeAlias = For | Branch | While | UnlikelyBlock | LaneLoop
Statement: TypeAlias = Plain | Nested


class Builder:
    """Appends up to ``most`` statements; a number that is already computed, and in scope, is not computed again."""

    def __init__(self, most: int) -> None:
        self.statements: list[Statement] = []
        self.memories: list[Buffer] = []
        self.written, self.most = 0, most
        self._definitions: dict[Var, Let] = {}
        self._scopes: list[dict[object, object]] = [{}]
        self._numbers = itertools.count(1)

    def name(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers)}"

    def let(self, c: str, form: str, *args: Atom, call: bool = False) -> Var:
        """Compute a number from others: ``form`` is C with the arguments as {0}, {1}, …"""
        key = (c, form, *(id(a) if isinstance(a, Var) else a.text for a in args))
        return self._append(key, c, any(map(varies, args)), lambda var: Let(var, form, args, call))

    def is_below_zero(self, test: Atom, value: Atom) -> bool:
        """Recognise the test for a negative number: JAX counts a negative index from the end, which is rare."""
        made = self._definitions.get(test) if isinstance(test, Var) else None
        zero = made.args[-1] if made is not None and made.form == "{0}<{1}" and made.args[0] is value else None
        return isinstance(zero, Lit) and zero.value == 0

    def load(self, memory: Buffer, index: Address) -> Var:
        key = object() if memory.mutable else (memory.name, index)
        return self._append(key, memory.c, memory.varies or varies(index), lambda var: Load(var, memory, index))

    def store(self, memory: Buffer, index: Address, value: Atom) -> None:
        self._count()
        self.statements.append(Store(memory, index, value))

    def once(self, key: object, make: Callable[[], T], keep: object) -> T:
        """Return the value of ``make`` for this key in this scope, computed once; ``keep`` lives as long as the key."""
        found = self._look_up(key)
        if found is None:
            found = self._scopes[-1][key] = make(), keep
        return cast(tuple[T, object], found)[0]

    def memory(self, c: str, size: int, varies: bool, *, mutable: bool = False) -> Buffer:
        new = Buffer(self.name("a"), c, size, varies, mutable)
        self.memories.append(new)
        return new

    def select_rarely(self, c: str, test: Atom, usual: Atom, other: Callable[[], Atom]) -> Atom:
        """Select the usual number, or the other in the rare lanes where the test holds."""
        chosen = self.memory(c, 1, varies(test) or varies(usual), mutable=True)
        self.store(chosen, 0, usual)
        unlikely = UnlikelyBlock(test)
        with self.block(unlikely.body):
            self.store(chosen, 0, self.let(c, "{0}?{1}:{2}", test, other(), usual))
        self.statements.append(unlikely)
        return self.load(chosen, 0)

    @contextmanager
    def loop(self, count: int, step: int = 1) -> Iterator[For]:
        loop = For(Var(self.name("i"), "int32_t", False), count, step)
        with self.block(loop.body):
            yield loop
        self.statements.append(loop)

    @contextmanager
    def block(self, body: list[Statement]) -> Iterator[None]:
        """Append to a block, which is a scope: a number computed there cannot be used outside."""
        outer, self.statements = self.statements, body
        self._scopes.append({})
        try:
            yield
        finally:
            self._scopes.pop()
            self.statements = outer

    def _look_up(self, key: object) -> object:
        return next((scope[key] for scope in reversed(self._scopes) if key in scope), None)

    def _append(self, key: object, c: str, varying: bool, make: Callable[[Var], Let | Load]) -> Var:
        found = self._look_up(key)
        if not isinstance(found, Var):
            self._count()
            self._scopes[-1][key] = found = Var(self.name("v"), c, varying)
            self.statements.append(made := make(found))
            if isinstance(made, Let):
                self._definitions[found] = made
        return found

    def _count(self) -> None:
        self.written += 1
        if self.written > self.most:
            raise ProgramTooLong(f"one step takes more than {self.most:,} lines of C")


def varies(value: Atom | Address) -> bool:
    """Return whether a value differs from lane to lane."""
    value = value.index if isinstance(value, OffsetIndex) else value
    return isinstance(value, Var) and value.varies


def blocks(statement: Nested) -> list[list[Statement]]:
    if isinstance(statement, Branch):
        return statement.cases
    return [statement.test, statement.body] if isinstance(statement, While) else [statement.body]


def walk(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Yield all statements, those inside of others too."""
    for statement in statements:
        yield statement
        if isinstance(statement, Nested):
            for block in blocks(statement):
                yield from walk(block)


def map_blocks(statement: Nested, change: Callable[[list[Statement]], list[Statement]]) -> Nested:
    if isinstance(statement, Branch):
        return replace(statement, cases=[change(case) for case in statement.cases])
    if isinstance(statement, While):
        return replace(statement, test=change(statement.test), body=change(statement.body))
    return replace(statement, body=change(statement.body))


def operands(statement: Statement) -> list[Atom | Index]:
    """Return what a statement reads itself, not in its blocks and not from buffers."""
    match statement:
        case Let():
            return list(statement.args)
        case Load() | Store():
            index = statement.index.index if isinstance(statement.index, OffsetIndex) else statement.index
            return [index] if isinstance(statement, Load) else [index, statement.value]
        case Branch(selector=atom) | UnlikelyBlock(test=atom) | While(outcome=atom):
            return [atom]
    return []
