"""Arrays inside the generator: numbers one by one, memory with strides, or a rule that computes an entry when asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from twoclock.codegen.ir import Atom, Builder, Index, Lit, Memory, OffsetIndex, Place, Unsupported, Var, c_type, literal

# Copies of a loop's body side by side: enough to hide what a pass of the loop costs.
UNROLL = 4


@dataclass(eq=False)
class Scalars:
    """A small array, a number each; ``entries`` is an array of atoms."""

    entries: Any
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entries.shape


@dataclass(eq=False)
class Strided:
    """An array in memory: the entry (i, j, …) is at offset + i·strides[0] + j·strides[1] + …"""

    memory: Memory
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: np.dtype

    @property
    def contiguous(self) -> bool:
        return self.strides == row_strides(self.shape)


@dataclass(eq=False)
class Rule:
    """An array that is nowhere yet. Asked twice it computes twice, so it is asked once or written to memory.

    Args:
        reads: the memories from which an entry reads only the entry of its own place; None if it may read others.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    entry: EntryAt
    varies: bool
    reads: frozenset[Memory] | None = None


EntryAt: TypeAlias = Callable[[tuple[Index, ...]], Atom]  # what stands at a place
Array: TypeAlias = Scalars | Strided | Rule


def row_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


class Shaper:
    """Reads, writes and converts arrays with a builder.

    Args:
        build: where the statements go.
        small: entries up to which an array is kept as scalars.
        constant: hands large constants over to the program as tables.
    """

    def __init__(self, build: Builder, small: int, constant: Callable[[np.ndarray], Memory]) -> None:
        self.build, self.small, self._constant = build, small, constant

    def is_small(self, shape: Sequence[int]) -> bool:
        return math.prod(shape) <= self.small

    def constant(self, value: np.ndarray) -> Array:
        if self.is_small(value.shape):
            entries = np.empty(value.shape, object)
            for i in np.ndindex(*value.shape):
                entries[i] = literal(value[i], value.dtype)
            return Scalars(entries, value.dtype)
        memory = self._constant(value)
        return Strided(memory, value.shape, row_strides(value.shape), 0, value.dtype)

    def scalar(self, atom: Atom, dtype: np.dtype) -> Scalars:
        entries = np.empty((), object)
        entries[()] = atom
        return Scalars(entries, dtype)

    def at(self, array: Array, index: Sequence[Index]) -> Atom:
        """One entry."""
        if isinstance(array, Rule):
            return array.entry(tuple(index))
        if isinstance(array, Scalars):
            if all(isinstance(i, int) for i in index):
                return array.entries[tuple(index)]
            array = self.in_memory(array)
        if math.prod(array.shape) == 0:
            raise Unsupported("an array without entries is read")
        return self.build.load(array.memory, self.place(array, index))

    def place(self, array: Strided, index: Sequence[Index]) -> Place:
        """Where an entry is, counted from the start of its memory."""
        known = int(array.offset + sum(i * s for i, s in zip(index, array.strides, strict=True) if isinstance(i, int)))
        rest = self.combined([0 if isinstance(i, int) else i for i in index], array.strides, 0)
        if isinstance(rest, int):
            return known
        return OffsetIndex(rest, known) if known else rest

    def combined(self, index: Sequence[Index], strides: Sequence[int], offset: int) -> Index:
        """offset + index · strides."""
        known = int(offset + sum(i * s for i, s in zip(index, strides, strict=True) if isinstance(i, int)))
        terms = [(i, s) for i, s in zip(index, strides, strict=True) if isinstance(i, Var) and s]
        if not terms:
            return known
        form = "+".join(f"{{{n}}}*{s}" if s != 1 else f"{{{n}}}" for n, (_, s) in enumerate(terms))
        if known == 0 and form == "{0}":
            return terms[0][0]
        return self.build.let("int32_t", form + (f"+{known}" if known else ""), *(i for i, _ in terms))

    def every(self, array: Array) -> Scalars:
        """All entries as scalars."""
        if isinstance(array, Scalars):
            return array
        entries = np.empty(array.shape, object)
        for i in np.ndindex(*array.shape):
            entries[i] = self.at(array, i)
        return Scalars(entries, array.dtype)

    def settled(self, array: Array) -> Array:
        """The array, computed: entries may be asked for as often as one likes."""
        if not isinstance(array, Rule):
            return array
        return self.every(array) if self.is_small(array.shape) else self.in_memory(array)

    def in_memory(self, array: Array) -> Strided:
        """The array with its entries in memory, for an index that is not known here."""
        if isinstance(array, Strided):
            return array
        if isinstance(array, Scalars):
            return self.build.once(("spilled", id(array)), lambda: self._spill(array), array)
        memory = self.build.memory(c_type(array.dtype), math.prod(array.shape), array.varies)
        self.write(memory, array)
        return Strided(memory, array.shape, row_strides(array.shape), 0, array.dtype)

    def packed(self, array: Array) -> Array:
        """The array as scalars or as memory in plain order, so that it can be given another shape."""
        if isinstance(array, Strided) and not array.contiguous:
            if self.is_small(array.shape):
                return self.every(array)
            copied = array
            array = Rule(array.shape, array.dtype, lambda index: self.at(copied, index), copied.memory.varies)
        return self.settled(array)

    def write(self, memory: Memory, array: Array) -> None:
        """All entries into a memory, in plain order."""
        if isinstance(array, Scalars) or self.is_small(array.shape):
            for n, atom in enumerate(self.every(array).entries.ravel()):
                self.build.store(memory, n, atom)
            return
        target = Strided(memory, array.shape, row_strides(array.shape), 0, array.dtype)
        self.each(array.shape, lambda index: self.build.store(memory, self.place(target, index), self.at(array, index)))

    def each(self, shape: Sequence[int], body: Callable[[tuple[Index, ...]], None], unroll: int = UNROLL) -> None:
        """Nested loops over all indices, a few passes of the innermost side by side."""
        if not shape:
            body(())
            return
        *outer, last = shape

        def along(index: tuple[Index, ...]) -> None:
            if last <= unroll:
                for i in range(last):
                    body((*index, i))
                return
            with self.build.loop(last // unroll) as block:
                for u in range(unroll):
                    body((*index, self.build.let("int32_t", f"{{0}}*{unroll}+{u}", block)))
            for i in range(last - last % unroll, last):
                body((*index, i))

        self._nest(outer, (), along)

    def _nest(self, shape: Sequence[int], index: tuple[Index, ...], body: Callable[[tuple[Index, ...]], None]) -> None:
        if not shape:
            body(index)
        elif shape[0] == 1:
            self._nest(shape[1:], (*index, 0), body)
        else:
            with self.build.loop(shape[0]) as i:
                self._nest(shape[1:], (*index, i), body)

    def _spill(self, array: Scalars) -> Strided:
        atoms = list(array.entries.ravel())
        if all(isinstance(a, Lit) for a in atoms):
            values = np.array([a.value for a in atoms], array.dtype).reshape(array.shape)
            memory = self._constant(values)
        else:
            memory = self.build.memory(c_type(array.dtype), len(atoms), varies(array))
            for n, atom in enumerate(atoms):
                self.build.store(memory, n, atom)
        return Strided(memory, array.shape, row_strides(array.shape), 0, array.dtype)


def varies(array: Array) -> bool:
    if isinstance(array, Scalars):
        return any(isinstance(a, Var) and a.varies for a in array.entries.ravel())
    return array.memory.varies if isinstance(array, Strided) else array.varies
