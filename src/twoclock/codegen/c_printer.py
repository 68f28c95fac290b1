"""From statements to C.

With several lanes side by side, statements that vary stand in loops over the lanes, which the compiler vectorises. A
number that one such loop computes and another reads is an array with an entry per lane.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from twoclock.codegen import ir
from twoclock.codegen.ir import Address, Atom, Buffer, LaneLoop, Let, Load, Plain, Statement, Store, Var, While, varies


class Printer:
    """Prints the statements of a step for ``width`` lanes side by side, or of a loop with a ``single`` one."""

    def __init__(
        self, width: int, statements: list[Statement], fetched: Iterable[Var] = (), single: bool = False
    ) -> None:
        self.single = single
        self.width, self.fetched = width, set(fetched)  # the latter must be read where their statement stands
        self.inside = width == 1  # whether a single lane is being printed
        self.statements = statements if width == 1 else _group(statements)
        self.shared = _shared(self.statements) if width > 1 else set()

    def declarations(self, memories: Iterable[Buffer], on_stack: float = math.inf) -> str:
        """Declare arrays; those of more bytes than ``on_stack`` have their place outside the stack of each thread."""
        own = [
            f"{'static _Thread_local ' if self._bytes(m) > on_stack else ''}{m.c} {m.name}[{self._entries(m)}];"
            for m in memories
            if not m.table
        ]
        crossing = [f"{v.c} {v.name}[{self.width}];" for v in sorted(self.shared, key=lambda v: int(v.name[1:]))]
        return "\n".join(own + crossing)

    def bytes_of(self, memories: Iterable[Buffer], at_most: float = math.inf) -> int:
        """The bytes of what is declared, without arrays of more bytes than ``at_most``."""
        sizes = [self._bytes(m) for m in memories if not m.table]
        return sum(size for size in sizes if size <= at_most) + 8 * self.width * len(self.shared)

    def _entries(self, memory: Buffer) -> int:
        return memory.size * (self.width if memory.varies else 1)

    def _bytes(self, memory: Buffer) -> int:
        return 8 * self._entries(memory)

    def text(self) -> str:
        return "\n".join(self._lines(self.statements))

    def _lines(self, statements: Sequence[Statement]) -> Iterator[str]:
        for statement in statements:
            if isinstance(statement, Plain):
                yield self._plain(statement)
            else:
                yield from self._nested(statement)

    def _nested(self, statement: ir.Nested) -> Iterator[str]:
        if isinstance(statement, ir.Branch):
            yield f"switch({self._atom(statement.selector)}){{"
            for number, case in enumerate(statement.cases):
                yield "default:{" if case is statement.cases[-1] else f"case {number}:{{"
                yield from self._lines(case)
                yield "}break;"
        elif isinstance(statement, While):
            yield "for(;;){"
            yield from self._lines(statement.test)
            yield f"if(!({self._atom(statement.outcome)}))break;"
            yield from self._lines(statement.body)
        elif isinstance(statement, ir.For):
            i = statement.index.name
            yield f"for(int32_t {i}=0;{i}<{statement.count};{i}+={statement.step}){{"
            yield from self._lines(statement.body)
        elif isinstance(statement, LaneLoop):
            if statement.vector:
                yield "#pragma omp simd"
            yield f"for(int l=0;l<{self.width};l++){{"
            self.inside = True
            yield from self._lines(statement.body)
            self.inside = False
        elif self.inside or not varies(statement.test):
            yield f"if({self._atom(statement.test)}){{"
            yield from self._lines(statement.body)
        else:
            yield f"{{int any=0;for(int l=0;l<{self.width};l++)any|={self._atom(statement.test)};"
            yield "if(any){"
            yield from self._lines(statement.body)
            yield "}}"
            return
        yield "}"

    def _plain(self, statement: Plain) -> str:
        if isinstance(statement, Store):
            return f"{self._cell(statement.memory, statement.index)}={self._atom(statement.value)};"
        var = statement.var
        name = self._atom(var)
        left = name if var in self.shared else f"{var.c} {name}"
        if isinstance(statement, Load):
            cell = self._cell(statement.memory, statement.index)
            return f"{left}=fetch(&{cell});" if var in self.fetched else f"{left}={cell};"
        return f"{left}={statement.form.format(*(self._atom(a) for a in statement.args))};"

    def _atom(self, atom: Atom | Address) -> str:
        if isinstance(atom, ir.Lit):
            return atom.text
        if isinstance(atom, int):
            return str(atom)
        if isinstance(atom, ir.OffsetIndex):
            return f"({self._atom(atom.index)}{atom.offset:+})"
        return f"{atom.name}[l]" if atom in self.shared else atom.name

    def _cell(self, memory: Buffer, index: Address) -> str:
        if self.single and isinstance(index, ir.OffsetIndex):  # a separate address, computed without wrapping around
            return f"({memory.name}+{self._atom(index.index)})[{index.offset}]"
        place = self._atom(index)
        if memory.base is not None:
            return f"{memory.name}[{memory.base.name}{'[l]' if self.width > 1 else ''}+{place}]"
        if memory.table or not memory.varies or self.width == 1:
            return f"{memory.name}[{place}]"
        # In one dimension, so that the compiler can fetch the entries of all lanes at once.
        return f"{memory.name}[{index * self.width if isinstance(index, int) else f'{place}*{self.width}'}+l]"


def _group(statements: list[Statement]) -> list[Statement]:
    """Gather statements that vary into loops over the lanes, as few as the order allows."""
    groups: list[Statement] = []
    loop: LaneLoop | None = None
    for statement in statements:
        plain = (s for s in ir.walk([statement]) if isinstance(s, Plain))
        if not any(s.memory.varies if isinstance(s, Store) else s.var.varies for s in plain):
            # What all lanes share never depends on what varies, so it may stand before the loop over the lanes.
            groups.insert(groups.index(loop) if loop else len(groups), statement)
            continue
        if isinstance(statement, Let):
            vector = not statement.call
        elif isinstance(statement, Plain):
            # Vector instructions for addresses that differ between lanes are slow or missing.
            vector = not varies(statement.index)
        elif isinstance(statement, (ir.Branch, While)) and any(map(varies, ir.operands(statement))):
            vector = False  # lanes may take different paths through it
        else:
            loop = None
            groups.append(ir.map_blocks(statement, _group))
            continue
        if loop is None or loop.vector != vector:
            loop = LaneLoop(vector)
            groups.append(loop)
        loop.body.append(statement)
    return groups


def _shared(statements: Sequence[Statement]) -> set[Var]:
    """Find the numbers that one loop over the lanes computes and another reads."""
    home: dict[Var, int] = {}
    shared: set[Var] = set()

    def visit(statements: Sequence[Statement], where: int) -> None:
        for s in statements:
            shared.update(a for a in ir.operands(s) if isinstance(a, Var) and a.varies and home.get(a, where) != where)
            if isinstance(s, ir.Nested):
                for block in ir.blocks(s):
                    visit(block, id(s) if isinstance(s, LaneLoop) else where)
            elif not isinstance(s, Store) and s.var.varies:
                home[s.var] = where

    visit(statements, 0)
    return shared
