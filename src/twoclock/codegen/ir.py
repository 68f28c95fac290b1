"""What the generated program is made of, before it is text: numbers, memory, and statements in blocks.

A value either *varies* from lane to lane or is the same for all lanes that walk side by side. The printer computes the
latter once, so the two are told apart from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np

C_TYPES = {
    "bool": "int",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint8": "uint8_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "uint64": "uint64_t",
    "float32": "float",
    "float64": "double",
}
# In memory shared with JAX a truth value is one byte.
STORED_TYPES = {**C_TYPES, "bool": "uint8_t"}
T = TypeVar("T")
_SUFFIXES = {"uint32": "u", "uint64": "ull", "int64": "ll", "float32": "f"}


class Unsupported(Exception):
    """The reason why a program cannot be generated, in words that fit after "because"."""


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
    """A place in memory a known distance from another: neighbours share the one number that has to be computed."""

    index: Var
    offset: int


Place: TypeAlias = Index | OffsetIndex


def literal(value: object, dtype: np.dtype) -> Lit:
    """The number in C, to the last bit."""
    dtype = np.dtype(dtype)
    number = np.asarray(value, dtype)
    if dtype.kind == "b":
        return Lit(str(int(number)), bool(number))
    if dtype.kind in "iu":
        whole = int(number)
        lowest = dtype.kind == "i" and whole == np.iinfo(dtype).min
        text = (
            f"({whole + 1}{_SUFFIXES.get(dtype.name, '')}-1)" if lowest else f"{whole}{_SUFFIXES.get(dtype.name, '')}"
        )
        return Lit(f"({text})" if whole < 0 else text, whole)
    if dtype.kind != "f" or dtype.name not in C_TYPES:
        raise Unsupported(f"numbers of type {dtype.name} are not generated")
    real = float(number)
    if np.isnan(real):
        return Lit(f"({c_type(dtype)})NAN", real)
    if np.isinf(real):
        return Lit(f"({'-' if real < 0 else ''}({c_type(dtype)})INFINITY)", real)
    text = real.hex() + _SUFFIXES.get(dtype.name, "")
    return Lit(f"({text})" if text.startswith("-") else text, real)


@dataclass(eq=False)
class Memory:
    """An array that the program reads by index: a table handed over, or one of its own.

    Args:
        varies: whether each lane has its own.
        mutable: written more than once, so that no two reads may be taken for one.
        table: handed over from outside; otherwise it lives on the stack.
        base: for a table with one part a lane, where the lane's part begins.
        stored: the type in memory, where it differs from that of a number once read.
    """

    name: str
    c: str
    size: int
    varies: bool
    mutable: bool = False
    table: bool = False
    base: Var | None = None
    stored: str = ""


@dataclass(frozen=True)
class Let:
    var: Var
    form: str
    args: tuple[Atom, ...]
    call: bool = False  # a library function, which keeps a loop from being vectorised


@dataclass(frozen=True)
class Load:
    var: Var
    memory: Memory
    index: Place


@dataclass(frozen=True)
class Store:
    memory: Memory
    index: Place
    value: Atom


@dataclass
class Loop:
    """``for (index = first; index < count; index += 1)``."""

    index: Var
    count: int
    body: list[Statement] = field(default_factory=list)


@dataclass
class Branch:
    """Blocks of which the one with the number of the selector is walked."""

    selector: Atom
    cases: list[list[Statement]]


@dataclass
class UnlikelyBlock:
    """A block that is walked only if the test holds for one of the lanes at least. It may be walked for all of them."""

    test: Atom
    body: list[Statement] = field(default_factory=list)


@dataclass
class While:
    """Walk ``test``; as long as its outcome holds, walk ``body`` and begin again."""

    test: list[Statement] = field(default_factory=list)
    outcome: Atom = Lit("0", 0)
    body: list[Statement] = field(default_factory=list)


Statement: TypeAlias = Let | Load | Store | Loop | Branch | While | UnlikelyBlock


class Builder:
    """Writes statements one after the other; what was computed before, and is still in sight, is not computed again."""

    def __init__(self, most: int) -> None:
        self.statements: list[Statement] = []
        self.memories: list[Memory] = []
        self.written, self.most = 0, most
        self._known: list[dict[object, Any]] = [{}]
        self._names = 0

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def let(self, c: str, form: str, *args: Atom, call: bool = False) -> Var:
        """A number computed from others: ``form`` is C with the arguments as {0}, {1}, …"""
        key = (c, form, *(id(a) if isinstance(a, Var) else a.text for a in args))
        return self._seen(key) or self._add(
            key, Let(Var(self.name("v"), c, any(varies(a) for a in args)), form, args, call)
        )

    def load(self, memory: Memory, index: Place) -> Var:
        key = (memory.name, index)
        var = None if memory.mutable else self._seen(key)
        return var or self._add(key, Load(Var(self.name("v"), memory.c, memory.varies or varies(index)), memory, index))

    def store(self, memory: Memory, index: Place, value: Atom) -> None:
        self._count()
        self.statements.append(Store(memory, index, value))

    def once(self, key: object, make: Callable[[], T], keep: object) -> T:
        """What ``make`` made under this key, if that can still be seen from here; ``keep`` lives as long as the key."""
        found = self._seen(key)
        if found is None:
            found = self._known[-1][key] = make(), keep
        return found[0]

    def memory(self, c: str, size: int, varies: bool, *, mutable: bool = False) -> Memory:
        """A new array of the program's own."""
        new = Memory(self.name("a"), c, size, varies, mutable)
        self.memories.append(new)
        return new

    def rarely(self, c: str, asked: Atom, usual: Atom, other: Callable[[], Atom]) -> Atom:
        """The usual number, or the other where it is asked for."""
        varying = any(varies(a) for a in (asked, usual))
        chosen = self.memory(c, 1, varying, mutable=True)
        self.store(chosen, 0, usual)
        rarely = UnlikelyBlock(asked)
        with self.block(rarely.body):
            self.store(chosen, 0, self.let(c, "{0}?{1}:{2}", asked, other(), usual))
        self.statements.append(rarely)
        return self.load(chosen, 0)

    @contextmanager
    def loop(self, count: int) -> Iterator[Var]:
        index = Var(self.name("i"), "int32_t", False)
        loop = Loop(index, count)
        with self.block(loop.body):
            yield index
        self.statements.append(loop)

    @contextmanager
    def block(self, body: list[Statement]) -> Iterator[None]:
        """Write into a block of its own; what is computed there cannot be seen from outside."""
        outer, self.statements = self.statements, body
        self._known.append({})
        try:
            yield
        finally:
            self._known.pop()
            self.statements = outer

    def _seen(self, key: object) -> Any:
        return next((known[key] for known in reversed(self._known) if key in known), None)

    def _add(self, key: object, statement: Let | Load) -> Var:
        self._count()
        self.statements.append(statement)
        self._known[-1][key] = statement.var
        return statement.var

    def _count(self) -> None:
        self.written += 1
        if self.written > self.most:
            raise TooLong(f"one step takes more than {self.most:,} lines of C")


class TooLong(Unsupported):
    """Too many statements; with more loops and fewer scalars there may be fewer."""


def varies(thing: Atom | Place) -> bool:
    """Whether it differs from lane to lane."""
    thing = thing.index if isinstance(thing, OffsetIndex) else thing
    return isinstance(thing, Var) and thing.varies


def blocks(statement: Loop | Branch | While | UnlikelyBlock) -> list[list[Statement]]:
    """The blocks of a statement that has some."""
    if isinstance(statement, Branch):
        return statement.cases
    return [statement.test, statement.body] if isinstance(statement, While) else [statement.body]
