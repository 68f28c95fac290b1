"""Passes over the statements of a step for a GPU: fuse, merge halves of symmetric matrices, split the step in two.

*Fusing.* A product that a single sum takes is computed with it, with one rounding, as XLA does on a GPU. This comes
first, so that all kernels of a step have the same bits.

*Merging.* Entries (i, j) and (j, i) of the state are twins if a step computes equal numbers for them whenever all twins
are equal. All pairs are candidates at first, and those that a step distinguishes are dropped until none is left to
drop, as in Moore's minimisation of automata (1956). The caller must check that twins are equal to begin with.

*Splitting.* Noise, samples that do not depend on the iterate, and step sizes are computed ahead of the state. A few
numbers are handed to the rest; or the inputs of a cheap number where that is less, such as an index for a row of a
table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from twoclock.codegen import ir
from twoclock.codegen.ir import Atom, Buffer, Let, Load, OffsetIndex, Plain, Statement, Store, Var

Entry = tuple[Buffer, int]
_COMMUTE = ("{0}+{1}", "{0}*{1}")
_LASTING = (*_COMMUTE, "{0}-{1}", "{0}/{1}", "-{0}")
_FUSED = {"double": "fma", "float": "fmaf"}
_WIDE = ("double", "int64_t", "uint64_t")
# A function or a quotient: many instructions, and for a quotient's rare cases a branch.
_EXPENSIVE = re.compile(r"\w\(|/")


def fuse_products(statements: list[Statement]) -> list[Statement]:
    """Compute each product that is used once, in a sum or a difference, together with it."""
    uses = Counter(a for s in ir.walk(statements) for a in ir.operands(s))
    return _fuse_block(statements, uses)


def _fuse_block(statements: list[Statement], uses: Counter[Atom | ir.Index]) -> list[Statement]:
    products = {s.var: s for s in statements if isinstance(s, Let) and s.form == "{0}*{1}" and uses[s.var] == 1}
    fused: set[Var] = set()

    def fuse(s: Let) -> Let:
        sign = s.form[3:4] if s.form in ("{0}+{1}", "{0}-{1}") and s.var.c in _FUSED else ""
        for i in (1, 0) if sign else ():
            product, other = products.get(cast(Var, s.args[i])), s.args[1 - i]
            if product is not None:
                fused.add(product.var)
                first, last = ("-{0}", "{2}") if (sign, i) == ("-", 1) else ("{0}", f"{sign}{{2}}".removeprefix("+"))
                return replace(s, form=f"{_FUSED[s.var.c]}({first},{{1}},{last})", args=(*product.args, other))
        return s

    done = [
        fuse(s) if isinstance(s, Let)
        else ir.map_blocks(s, lambda block: _fuse_block(block, uses)) if isinstance(s, ir.Nested)
        else s
        for s in statements
    ]  # fmt: skip
    return [s for s in done if not (isinstance(s, Let) and s.var in fused)]


def find_lasting(statements: Iterable[Statement], states: Container[Buffer]) -> Callable[[Atom], set[Entry]]:
    """Find the entries of the state that pass on to a number that they are not finite.

    Sums, differences and products do, and quotients to which such a number is the numerator.
    """
    known: dict[Atom, set[Entry]] = {}
    for s in statements:
        if isinstance(s, Load) and s.memory in states and isinstance(s.index, int):
            known[s.var] = {(s.memory, s.index)}
        elif isinstance(s, Let) and s.form in _LASTING:
            args = s.args[:1] if s.form == "{0}/{1}" else s.args
            known[s.var] = set[Entry]().union(*(known.get(a, set()) for a in args))
    return lambda atom: known.get(atom, set())


def merge_twins(
    statements: list[Statement], states: Mapping[Buffer, tuple[int, ...]]
) -> tuple[list[Statement], dict[Entry, Entry]]:
    """Remove what a step computes for entries below a diagonal, where their twins above it are equal.

    ``states`` are the buffers that persist from step to step, with the shapes of the arrays in them. Returned are the
    statements, and for each entry that is no longer computed its twin.
    """
    # The floating-point states whose entries are read and written one by one, at known places.
    entrywise = {id(s) for s in statements if isinstance(s, (Load, Store)) and isinstance(s.index, int)}
    others = {s.memory for s in ir.walk(statements) if isinstance(s, (Load, Store)) and id(s) not in entrywise}
    twins = {
        (memory, i * shape[0] + j): (memory, j * shape[0] + i)
        for memory, shape in states.items()
        if memory not in others and memory.c in ("double", "float") and len(shape) == 2 and shape[0] == shape[1]
        for i in range(shape[0])
        for j in range(i)
    }
    while twins:
        numbers = _ValueNumbers(twins)
        new = numbers.of_state(statements)
        equal = {entry: twin for entry, twin in twins.items() if entry in new and new[entry] == new.get(twin)}
        if len(equal) == len(twins):
            return _without_duplicates(statements, numbers), twins
        twins = equal
    return statements, {}


class _ValueNumbers:
    """Numbers for the values of a step: two values with the same number are equal as long as twins are."""

    def __init__(self, twins: Mapping[Entry, Entry]) -> None:
        self.twins, self.states = twins, {memory for memory, _ in twins}
        self.known: dict[Hashable, int] = {}
        self.number: dict[Var, int] = {}

    def of_state(self, statements: Iterable[Statement]) -> dict[Entry, Hashable]:
        """Number all values, and return those of the entries that are written."""
        new: dict[Entry, Hashable] = {}
        for s in statements:
            if isinstance(s, (Let, Load)):
                self.number[s.var] = self.known.setdefault(self._key(s), len(self.known))
            elif isinstance(s, Store) and isinstance(s.index, int):
                new[s.memory, s.index] = self._of(s.value)
        return new

    def _key(self, s: Let | Load) -> Hashable:
        if isinstance(s, Let):
            args = [self._of(a) for a in s.args]
            commute = len(args) if s.form in _COMMUTE else 2 if s.form.startswith("fma") else 0
            return s.var.c, s.form, *sorted(args[:commute], key=repr), *args[commute:]
        if isinstance(s.index, int) and s.memory in self.states:
            return self.twins.get((s.memory, s.index), (s.memory, s.index))
        if not s.memory.table:
            return s.var
        if isinstance(s.index, OffsetIndex):
            return s.memory, (self._of(s.index.index), s.index.offset)
        return s.memory, self._of(s.index) if isinstance(s.index, Var) else s.index

    def _of(self, atom: Atom) -> Hashable:
        return self.number.get(atom, atom) if isinstance(atom, Var) else atom.text


def _without_duplicates(statements: list[Statement], values: _ValueNumbers) -> list[Statement]:
    """Drop statements that repeat another one's value."""
    first: dict[int, Var] = {}

    def rename(part: Any) -> Any:
        """Replace equal values by the first of them, in a statement or a part of one."""
        match part:
            case Var():
                return first[values.number[part]] if part in values.number else part
            case list() | tuple():
                return type(part)(map(rename, part))
            case Load(index=int(i)):
                return replace(part, index=values.twins.get((part.memory, i), (part.memory, i))[1])
            case OffsetIndex() | Let() | Load() | Store() | ir.For() | ir.Branch() | ir.While() | ir.UnlikelyBlock():
                return replace(part, **{f.name: rename(getattr(part, f.name)) for f in fields(part)})
        return part

    rest: list[Statement] = []
    for s in statements:
        if isinstance(s, (Let, Load)):
            if values.number[s.var] in first:
                continue
            first[values.number[s.var]] = s.var
        elif isinstance(s, Store) and isinstance(s.index, int) and (s.memory, s.index) in values.twins:
            continue
        rest.append(rename(s))
    return rest


def order_by_outputs(statements: list[Statement], states: Container[Buffer]) -> list[Statement]:
    """Move each statement to where the first number of the new state needs it: fewer are then in flight at a time."""
    every = [s for s in ir.walk(statements) if isinstance(s, (Load, Store))]
    mixed = {s.memory for s in every if not (s.memory in states and isinstance(s.index, int))}

    def place(s: Load | Store) -> object:
        """What a load reads or a store writes: an entry of the state, or a whole other buffer."""
        return s.memory if s.memory in mixed else (s.memory, s.index)

    needs: list[set[int]] = []
    written: dict[object, int] = {}
    read: dict[object, set[int]] = {}
    for n, s in enumerate(statements):
        inside = [part for part in ir.walk([s]) if isinstance(part, Plain)]
        inputs: set[object] = {a for part in ir.walk([s]) for a in ir.operands(part) if isinstance(a, Var)}
        inputs |= {place(part) for part in inside if isinstance(part, Load)}
        outputs: set[object] = {place(p) if isinstance(p, Store) else p.var for p in inside}
        before = {written[value] for value in (inputs | outputs) & written.keys()}
        needs.append(before.union(*(read.get(value, set()) for value in outputs)) - {n})
        for value in inputs:
            read.setdefault(value, set()).add(n)
        written |= dict.fromkeys(outputs, n)
    order: dict[int, None] = {}
    ends = [n for n, s in enumerate(statements) if isinstance(s, Store) and s.memory in states]
    for end in (*ends, *range(len(statements))):
        waiting = [end]
        while waiting:
            more = sorted(needs[waiting[-1]] - order.keys())
            if more:
                waiting += reversed(more)
            else:
                order.setdefault(waiting.pop())
    return [statements[n] for n in order]


@dataclass(frozen=True)
class SplitStep:
    """The statements of a step in two parts, each in their order."""

    ahead: list[Statement]  # what does not depend on the state
    rows: list[Statement]  # between the two: reads of tables at indices that were handed over, and what these need
    rest: list[Statement]  # what depends on the state
    handed: list[Var | Buffer]  # what ``ahead`` hands over
    fetched: list[Var]  # what is read in ``rows``


def split_step(statements: list[Statement], states: Iterable[Buffer]) -> SplitStep:
    """Split a step with buffers that persist from step to step; raise ``Unsupported`` if nothing can be done ahead."""
    touched = [(_reads(s), _writes(s)) for s in statements]
    # Statements that depend on the state, "late" ones. A buffer that is written late anywhere is late everywhere.
    late: set[Var | Buffer] = set(states)
    while more := {value for read, written in touched if (read | written) & late for value in written} - late:
        late |= more
    ahead = [s for s, (_, written) in zip(statements, touched, strict=True) if not written & late]
    early = {value for _, written in touched if not written & late for value in written}
    needed = {value for read, written in touched if written & late for value in read} & early
    again = _recomputed({s.var: s for s in ahead if isinstance(s, (Let, Load))}, needed, early)
    rest = [s for s, (_, written) in zip(statements, touched, strict=True) if written & (late | again)]
    fetched = [s.var for s in rest if isinstance(s, Load) and s.var in again and not isinstance(s.index, int)]
    # Of the recomputed values: what is fetched, and what that depends on.
    rows, used = list[Statement](), set[Var | Buffer](fetched)
    for statement in reversed([s for s in rest if _writes(s) <= again]):
        if _writes(statement) & used:
            used |= _reads(statement)
            rows.insert(0, statement)
    needed = {value for s in rest for value in _reads(s)} & (early - again)
    rest = [s for s in rest if not _writes(s) <= set(fetched)]
    handed = [v for v in dict.fromkeys(value for _, written in touched for value in written) if v in needed]
    if not handed:
        raise ir.Unsupported("a step has nothing to do ahead of its state")
    return SplitStep(ahead, rows, rest, handed, fetched)


def _recomputed(
    computed_by: dict[Var | Buffer, Let | Load], needed: set[Var | Buffer], early: set[Var | Buffer]
) -> set[Var | Buffer]:
    """Choose what the second part recomputes, so that less is handed over."""
    needed, again = set(needed), set[Var | Buffer]()

    def inputs(value: Var | Buffer) -> set[Var | Buffer]:
        return (_reads(computed_by[value]) & early) - needed - again

    def cost(value: Var | Buffer) -> int:
        """Return the bytes to hand over for a value: its own, or those of its inputs if it is cheap."""
        s = computed_by.get(value)
        cheap = s.memory.table if isinstance(s, Load) else s is not None and not _EXPENSIVE.search(s.form)
        return min(_bytes(value), sum(map(cost, inputs(value)))) if cheap else _bytes(value)

    while True:
        before = len(again)
        for value in [v for v in computed_by if v in needed]:
            if cost(value) < _bytes(value):
                needed = (needed - {value}) | inputs(value)
                again.add(value)
        if len(again) == before:
            return again


def _bytes(value: Var | Buffer) -> int:
    return (8 if value.c in _WIDE else 4) * (value.size if isinstance(value, Buffer) else 1)


def _reads(statement: Statement) -> set[Var | Buffer]:
    """Return what a statement reads, inside its blocks too."""
    every = list(ir.walk([statement]))
    numbers = {a for s in every for a in ir.operands(s) if isinstance(a, Var)}
    return numbers | {s.memory for s in every if isinstance(s, Load)}


def _writes(statement: Statement) -> set[Var | Buffer]:
    """Return what a statement computes or writes, inside its blocks too."""
    plain = (s for s in ir.walk([statement]) if isinstance(s, Plain))
    return {s.memory if isinstance(s, Store) else s.var for s in plain}
