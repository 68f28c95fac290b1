"""A step in two: what reads nothing of the state, and can be done ahead of it, and the rest.

Noise, samples that do not depend on the iterate, and step sizes come first; a few numbers are handed from there to the
rest. What a number is cheaply made from is handed over in its place where that is less to carry: an index, say, for a
row of a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from twoclock.codegen.ir import (
    Branch,
    Let,
    Load,
    Loop,
    Memory,
    OffsetIndex,
    Statement,
    Store,
    UnlikelyBlock,
    Unsupported,
    Var,
    While,
    blocks,
)

Thing = Var | Memory
_WIDE = ("double", "int64_t", "uint64_t")
# A function or a quotient: many instructions, and a quotient's rare cases are a branch besides.
_DEAR = re.compile(r"\w\(|/")


@dataclass(frozen=True)
class Split:
    """Statements for before and after, each in their order, and what the first hands to the second.

    Attributes:
        ahead, rest: the two.
        rows: what the rest reads of tables at places that were handed over, with all that this takes, between the two.
        handed: what ``ahead`` hands over.
        fetched: what is read in ``rows``.
    """

    ahead: list[Statement]
    rows: list[Statement]
    rest: list[Statement]
    handed: list[Thing]
    fetched: list[Var]


def split(statements: list[Statement], states: Iterable[Memory]) -> Split:
    """Cut a step in two; raises ``Unsupported`` where there is nothing to do ahead.

    Args:
        states: the memories that go from step to step.
    """
    touched = [(reads(s), writes(s)) for s in statements]
    late = _late(touched, set(states))
    ahead = [s for s, (_, made) in zip(statements, touched, strict=True) if not made & late]
    early = {thing for _, made in touched if not made & late for thing in made}
    asked = {thing for read, made in touched if made & late for thing in read} & early
    again = _again({s.var: s for s in ahead if isinstance(s, (Let, Load))}, asked, early)
    rest = [s for s, (_, made) in zip(statements, touched, strict=True) if made & (late | again)]
    fetched = [s.var for s in rest if isinstance(s, Load) and s.var in again and not isinstance(s.index, int)]
    rows = _rows([s for s in rest if writes(s) <= again], fetched)
    asked = {thing for s in rest for thing in reads(s)} & (early - again)
    rest = [s for s in rest if not writes(s) <= set(fetched)]
    handed = [thing for thing in dict.fromkeys(t for _, made in touched for t in made) if thing in asked]
    if not handed:
        raise Unsupported("a step has nothing to do ahead of its state")
    return Split(ahead, rows, rest, handed, fetched)


def _late(touched: list[tuple[set[Thing], set[Thing]]], states: set[Thing]) -> set[Thing]:
    """What depends on the state. A memory that is written late anywhere is late everywhere."""
    late = states
    while True:
        more = {thing for read, made in touched if (read | made) & late for thing in made}
        if more <= late:
            return late
        late = late | more


def _rows(again: list[Statement], fetched: Iterable[Var]) -> list[Statement]:
    """Of what is made again, that on which these depend, and they."""
    needed, rows = set[Thing](fetched), list[Statement]()
    for statement in reversed(again):
        if writes(statement) & needed:
            needed |= reads(statement)
            rows.insert(0, statement)
    return rows


def _again(made_by: dict[Thing, Let | Load], asked: set[Thing], early: set[Thing]) -> set[Thing]:
    """What the rest makes again, since less is handed over then."""
    asked, again = set(asked), set[Thing]()

    def needed(thing: Thing) -> set[Thing]:
        return (reads(made_by[thing]) & early) - asked - again

    def price(thing: Thing) -> int:
        """What it takes to have a thing in the rest: bytes of its own, or of what it is made from."""
        whole = _bytes(thing)
        return min(whole, sum(map(price, needed(thing)))) if thing in made_by and _cheap(made_by[thing]) else whole

    while True:
        before = len(again)
        for thing in [t for t in made_by if t in asked]:
            if price(thing) < _bytes(thing):
                asked = (asked - {thing}) | needed(thing)
                again.add(thing)
        if len(again) == before:
            return again


def _cheap(statement: Let | Load) -> bool:
    return statement.memory.table if isinstance(statement, Load) else not _DEAR.search(statement.form)


def _bytes(thing: Thing) -> int:
    return (8 if thing.c in _WIDE else 4) * (thing.size if isinstance(thing, Memory) else 1)


def reads(statement: Statement) -> set[Thing]:
    """What a statement reads, inside its blocks too."""
    if isinstance(statement, Let):
        return {a for a in statement.args if isinstance(a, Var)}
    if isinstance(statement, (Load, Store)):
        index = statement.index.index if isinstance(statement.index, OffsetIndex) else statement.index
        other = statement.memory if isinstance(statement, Load) else statement.value
        return {thing for thing in (index, other) if isinstance(thing, (Var, Memory))}
    steers = {
        Loop: lambda s: None, Branch: lambda s: s.selector, UnlikelyBlock: lambda s: s.test, While: lambda s: s.outcome
    }[type(statement)](statement)  # fmt: skip
    inside = {thing for block in blocks(statement) for s in block for thing in reads(s)}
    return inside | ({steers} if isinstance(steers, Var) else set())


def writes(statement: Statement) -> set[Thing]:
    """What it makes or writes."""
    if isinstance(statement, (Let, Load)):
        return {statement.var}
    if isinstance(statement, Store):
        return {statement.memory}
    return {thing for block in blocks(statement) for s in block for thing in writes(s)}
