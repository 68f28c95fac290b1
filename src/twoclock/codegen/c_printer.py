"""From statements to C.

With one lane at a time every number is a scalar. With several side by side, statements that vary stand in loops over
the lanes, which the compiler turns into vector instructions; a number that one such loop makes and another one reads is
an array with an entry a lane. What does not vary is computed once, outside of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from twoclock.codegen.ir import (
    Atom,
    Branch,
    Let,
    Lit,
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
    varies,
)


@dataclass
class _Side:
    """Statements for all lanes side by side; ``vector`` where the compiler may take the lanes together."""

    vector: bool
    statements: list[Statement] = field(default_factory=list)


@dataclass
class _Nested:
    """A statement with blocks of its own, which hold parts in turn."""

    statement: Loop | Branch | While | UnlikelyBlock
    blocks: list[list[_Part]]


_Part = _Side | _Nested | Let | Load | Store


class Printer:
    """Prints statements for a number of lanes.

    Args:
        width: lanes side by side.
        statements: the step.
        fetched: numbers that are to be read where it says so, and not when they are needed.
    """

    def __init__(self, width: int, statements: list[Statement], fetched: Iterable[Var] = ()) -> None:
        self.width, self.inside = width, width == 1  # inside: where one lane is looked at
        self.fetched = set(fetched)
        self.parts: list[_Part] = list(statements) if width == 1 else _parts(statements)  # type: ignore[arg-type]
        self.shared = _shared(self.parts) if width > 1 else set()

    def declarations(self, memories: Iterable[Memory]) -> str:
        own = [f"{m.c} {m.name}[{m.size * (self.width if m.varies else 1)}];" for m in memories if not m.table]
        crossing = [f"{v.c} {v.name}[{self.width}];" for v in sorted(self.shared, key=lambda v: int(v.name[1:]))]
        return "\n".join(own + crossing)

    def bytes_on_stack(self, memories: Iterable[Memory]) -> int:
        sizes = sum(m.size * (self.width if m.varies else 1) for m in memories if not m.table)
        return 8 * (sizes + self.width * len(self.shared))

    def text(self) -> str:
        return "\n".join(self._lines(self.parts))

    def _lines(self, parts: Sequence[_Part | Statement]) -> Iterator[str]:
        for part in parts:
            if isinstance(part, _Side):
                if part.vector:
                    yield "#pragma omp simd"
                yield f"for(int l=0;l<{self.width};l++){{"
                self.inside = True
                yield from self._lines(part.statements)
                self.inside = False
                yield "}"
            elif isinstance(part, _Nested):
                yield from self._nested(part.statement, part.blocks)
            elif isinstance(part, (Loop, Branch, While, UnlikelyBlock)):
                yield from self._nested(part, blocks(part))
            else:
                yield self._plain(part)

    def _nested(
        self, statement: Loop | Branch | While | UnlikelyBlock, blocks: Sequence[Sequence[_Part | Statement]]
    ) -> Iterator[str]:
        if isinstance(statement, Loop):
            i = statement.index.name
            yield f"for(int32_t {i}=0;{i}<{statement.count};{i}++){{"
            yield from self._lines(blocks[0])
            yield "}"
        elif isinstance(statement, UnlikelyBlock):
            yield from self._rarely(statement, blocks[0])
        elif isinstance(statement, While):
            yield "for(;;){"
            yield from self._lines(blocks[0])
            yield f"if(!({self._atom(statement.outcome)}))break;"
            yield from self._lines(blocks[1])
            yield "}"
        else:
            yield f"switch({self._atom(statement.selector)}){{"
            for case, block in enumerate(blocks):
                yield "default:{" if case == len(blocks) - 1 else f"case {case}:{{"
                yield from self._lines(block)
                yield "}break;"
            yield "}"

    def _rarely(self, statement: UnlikelyBlock, block: Sequence[_Part | Statement]) -> Iterator[str]:
        test = self._atom(statement.test)
        if self.inside or not varies(statement.test):
            yield f"if({test}){{"
        else:
            yield f"{{int any=0;for(int l=0;l<{self.width};l++)any|={test};"
            yield "if(any){"
        yield from self._lines(block)
        yield "}" if self.inside or not varies(statement.test) else "}}"

    def _plain(self, statement: Let | Load | Store) -> str:
        if isinstance(statement, Store):
            return f"{self._cell(statement.memory, statement.index)}={self._atom(statement.value)};"
        var = statement.var
        name = self._atom(var)
        left = name if var in self.shared else f"{var.c} {name}"
        if isinstance(statement, Load):
            cell = self._cell(statement.memory, statement.index)
            return f"{left}=fetch(&{cell});" if var in self.fetched else f"{left}={cell};"
        return f"{left}={statement.form.format(*(self._atom(a) for a in statement.args))};"

    def _atom(self, atom: Atom | Place) -> str:
        if isinstance(atom, Lit):
            return atom.text
        if isinstance(atom, int):
            return str(atom)
        if isinstance(atom, OffsetIndex):
            return f"({self._atom(atom.index)}{atom.offset:+})"
        return f"{atom.name}[l]" if atom in self.shared else atom.name

    def _cell(self, memory: Memory, index: Place) -> str:
        place = self._atom(index)
        if memory.base is not None:
            return f"{memory.name}[{memory.base.name}{'[l]' if self.width > 1 else ''}+{place}]"
        if memory.table or not memory.varies or self.width == 1:
            return f"{memory.name}[{place}]"
        # In one dimension: a compiler knows how to fetch from this, lane by lane, at once.
        return f"{memory.name}[{index * self.width if isinstance(index, int) else f'{place}*{self.width}'}+l]"


def _touches_lanes(statement: Statement) -> bool:
    """Whether anything in it varies."""
    if isinstance(statement, (Let, Load)):
        return statement.var.varies
    if isinstance(statement, Store):
        return statement.memory.varies
    return any(_touches_lanes(s) for block in blocks(statement) for s in block)


def _steered_by_lanes(statement: Loop | Branch | While | UnlikelyBlock) -> bool:
    """Whether lanes may take different ways through it."""
    if isinstance(statement, Branch):
        return varies(statement.selector)
    return isinstance(statement, While) and varies(statement.outcome)


def _parts(statements: Sequence[Statement]) -> list[_Part]:
    """Statements that vary gathered into loops over the lanes, as few as the order allows."""
    parts: list[_Part] = []
    side: _Side | None = None
    for statement in statements:
        if not _touches_lanes(statement):
            # What all lanes share never waits for what varies: it may stand before the loop over the lanes.
            at = parts.index(side) if side else len(parts)
            parts.insert(at, _uniform(statement))
            continue
        if isinstance(statement, (Let, Load, Store)):
            vector = not _one_by_one(statement)
        elif _steered_by_lanes(statement):
            vector = False
        else:
            side = None
            parts.append(_Nested(statement, [_parts(block) for block in blocks(statement)]))
            continue
        if side is None or side.vector != vector:
            side = _Side(vector)
            parts.append(side)
        side.statements.append(statement)
    return parts


def _one_by_one(statement: Let | Load | Store) -> bool:
    """Library calls, and memory wherever a lane likes: vectors have slow instructions for it, or none."""
    return statement.call if isinstance(statement, Let) else varies(statement.index)


def _uniform(statement: Statement) -> _Part:
    if isinstance(statement, (Let, Load, Store)):
        return statement
    return _Nested(statement, [[_uniform(s) for s in block] for block in blocks(statement)])


def _shared(parts: Sequence[_Part]) -> set[Var]:
    """Numbers that one loop over the lanes makes and another reads."""
    home: dict[Var, int] = {}
    shared: set[Var] = set()

    def visit(part: _Part | Statement, where: int) -> None:
        for atom in _atoms(part):
            if varies(atom) and home.get(atom, where) != where:  # type: ignore[arg-type]
                shared.add(atom)  # type: ignore[arg-type]
        if isinstance(part, (Let, Load)) and part.var.varies:
            home[part.var] = where
        if isinstance(part, _Side):
            for s in part.statements:
                visit(s, id(part))
        elif isinstance(part, _Nested):
            for block in part.blocks:
                for p in block:
                    visit(p, where)
        elif isinstance(part, (Loop, Branch, While, UnlikelyBlock)):
            for inner in blocks(part):
                for s in inner:
                    visit(s, where)

    for part in parts:
        visit(part, 0)
    return shared


def _atoms(part: _Part | Statement) -> list[Atom | Place]:
    """What a statement reads itself, its blocks not counted."""
    if isinstance(part, _Nested):
        return _atoms(part.statement)
    if isinstance(part, Let):
        return list(part.args)
    if isinstance(part, (Load, Store)):
        index = part.index.index if isinstance(part.index, OffsetIndex) else part.index
        return [index] if isinstance(part, Load) else [index, part.value]
    if isinstance(part, Branch):
        return [part.selector]
    if isinstance(part, UnlikelyBlock):
        return [part.test]
    return [part.outcome] if isinstance(part, While) else []
