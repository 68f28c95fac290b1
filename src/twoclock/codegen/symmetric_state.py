"""Symmetric matrices of the state, whose two halves a step would compute twice: one of them is enough.

A pair of entries (i, j) and (j, i) are twins if a step makes equal numbers of them whenever all twins are equal. All
pairs are taken for twins at first, and those that a step tells apart are let go, as often as there are any: so states
of an automaton are told apart (Moore, *Gedanken-experiments on sequential machines*, 1956). Whether twins are equal to
begin with is for whoever walks to see.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from twoclock.codegen.ir import (
    Atom,
    Branch,
    Let,
    Load,
    Loop,
    Memory,
    OffsetIndex,
    Place,
    Statement,
    Store,
    UnlikelyBlock,
    Var,
    While,
    blocks,
)

Entry = tuple[Memory, int]
_COMMUTE = ("{0}+{1}", "{0}*{1}")


@dataclass(frozen=True)
class Merged:
    """A step in which twins are one.

    Attributes:
        twins: of each entry below a diagonal that is not computed, the one above it that stands for it.
    """

    statements: list[Statement]
    twins: dict[Entry, Entry]


def merged(statements: list[Statement], states: Mapping[Memory, tuple[int, ...]]) -> Merged:
    """The step without what twins have in common.

    Args:
        states: the memories that go from step to step, and the shapes of the arrays in them.
    """
    twins = {
        (memory, i * n + j): (memory, j * n + i)
        for memory in _apart(statements, states)
        for n in states[memory][:1]
        if states[memory] == (n, n)
        for i in range(n)
        for j in range(i)
    }
    while twins:
        values = _Values(twins)
        made = values.of_state(statements)
        held = {entry: twin for entry, twin in twins.items() if entry in made and made[entry] == made.get(twin)}
        if len(held) == len(twins):
            return Merged(_without(statements, values), twins)
        twins = held
    return Merged(statements, {})


def _apart(statements: Iterable[Statement], states: Iterable[Memory]) -> list[Memory]:
    """The floating-point states whose entries are read and written one by one, at known places."""
    hidden = set[Memory]()

    def visit(inner: Iterable[Statement], nested: bool) -> None:
        for s in inner:
            if isinstance(s, (Load, Store)):
                if nested or not isinstance(s.index, int):
                    hidden.add(s.memory)
            elif not isinstance(s, Let):
                for block in blocks(s):
                    visit(block, True)

    visit(statements, False)
    return [memory for memory in states if memory not in hidden and memory.c in ("double", "float")]


class _Values:
    """Numbers the values of a step: two that have the same number are equal as long as twins are."""

    def __init__(self, twins: Mapping[Entry, Entry]) -> None:
        self.twins, self.states = twins, {memory for memory, _ in twins}
        self.known: dict[Hashable, int] = {}
        self.number: dict[Var, int] = {}

    def of_state(self, statements: Iterable[Statement]) -> dict[Entry, Hashable]:
        """What becomes of each entry that is written."""
        made: dict[Entry, Hashable] = {}
        for s in statements:
            if isinstance(s, (Let, Load)):
                self.number[s.var] = self.known.setdefault(self._key(s), len(self.known))
            elif isinstance(s, Store) and isinstance(s.index, int):
                made[s.memory, s.index] = self._of(s.value)
        return made

    def _key(self, s: Let | Load) -> Hashable:
        if isinstance(s, Let):
            given = [self._of(a) for a in s.args]
            return s.var.c, s.form, *(sorted(given, key=repr) if s.form in _COMMUTE else given)
        if isinstance(s.index, int) and s.memory in self.states:
            return self.twins.get((s.memory, s.index), (s.memory, s.index))
        return (s.memory, self._at(s.index)) if s.memory.table else s.var

    def _of(self, atom: Atom) -> Hashable:
        return self.number.get(atom, atom) if isinstance(atom, Var) else atom.text

    def _at(self, place: Place) -> Hashable:
        if isinstance(place, OffsetIndex):
            return self._of(place.index), place.offset
        return self._of(place) if isinstance(place, Var) else place


def _without(statements: list[Statement], values: _Values) -> list[Statement]:
    """The statements without those that compute what another one has."""
    stands: dict[int, Var] = {}

    def atom(a: Atom) -> Atom:
        return stands[values.number[a]] if isinstance(a, Var) and a in values.number else a

    def place(at: Place) -> Place:
        if isinstance(at, OffsetIndex):
            index = atom(at.index)
            assert isinstance(index, Var)
            return OffsetIndex(index, at.offset)
        found = atom(at) if isinstance(at, Var) else at
        assert isinstance(found, (int, Var))
        return found

    def renamed(s: Statement) -> Statement:
        if isinstance(s, Let):
            return replace(s, args=tuple(map(atom, s.args)))
        if isinstance(s, Load):
            if isinstance(s.index, int):
                return replace(s, index=values.twins.get((s.memory, s.index), (s.memory, s.index))[1])
            return replace(s, index=place(s.index))
        if isinstance(s, Store):
            return replace(s, index=place(s.index), value=atom(s.value))
        if isinstance(s, Loop):
            return replace(s, body=[*map(renamed, s.body)])
        if isinstance(s, Branch):
            return Branch(atom(s.selector), [[*map(renamed, case)] for case in s.cases])
        if isinstance(s, UnlikelyBlock):
            return UnlikelyBlock(atom(s.test), [*map(renamed, s.body)])
        assert isinstance(s, While)
        return While([*map(renamed, s.test)], atom(s.outcome), [*map(renamed, s.body)])

    kept: list[Statement] = []
    for s in statements:
        if isinstance(s, (Let, Load)):
            if values.number[s.var] in stands:
                continue
            stands[values.number[s.var]] = s.var
        elif isinstance(s, Store) and isinstance(s.index, int) and (s.memory, s.index) in values.twins:
            continue
        kept.append(renamed(s))
    return kept
