"""Arrays inside the generator: numbers one by one, memory with strides, or a rule that computes an entry on demand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from twoclock.codegen import ir
from twoclock.codegen.ir import Address, Atom, Buffer, Builder, Index, OffsetIndex, Unsupported, Var, c_type, literal

# How often a loop's body is unrolled: enough to hide the cost of the loop itself.
UNROLL = 4
# Statements of a body from which the cost of the loop does not matter: it is not unrolled on a CPU, since its length
# decides how long the C compiler takes.
_LONG = 16


ShapedType: TypeAlias = Any  # the type of an array: JAX's own, a ``jax.ShapeDtypeStruct``, or an array itself


@dataclass(frozen=True)
class Equation:
    """The parts of a jaxpr's equation that a rule reads: ``outputs = name[params](*inputs)``."""

    name: str
    params: Mapping[str, Any]
    inputs: Sequence[ShapedType]
    outputs: Sequence[ShapedType]

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.inputs[-1].dtype)

    @property
    def result(self) -> np.dtype:
        return np.dtype(self.outputs[0].dtype)

    @property
    def bits(self) -> int:
        return self.dtype.itemsize * 8


@dataclass(eq=False)
class Scalars:
    """A small array with a number for each entry; ``entries`` is a NumPy array of atoms."""

    entries: Any
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entries.shape


@dataclass(eq=False)
class Strided:
    """An array in memory: the entry (i, j, …) is at offset + i·strides[0] + j·strides[1] + …"""

    memory: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: np.dtype

    @classmethod
    def contiguous(cls, memory: Buffer, like: ShapedType) -> Strided:
        """Take all of a buffer as an array, in row-major order."""
        return cls(memory, tuple(like.shape), row_strides(like.shape), 0, np.dtype(like.dtype))

    @property
    def is_contiguous(self) -> bool:
        return self.strides == row_strides(self.shape)


@dataclass(eq=False)
class LazyArray:
    """An array that is not computed yet. Each read computes the entry, so it is read once or written to memory."""

    shape: tuple[int, ...]
    dtype: np.dtype
    entry: EntryAt
    varies: bool
    reads: frozenset[Buffer] | None = None  # buffers read at the entry's own index only; None if at others too

    def moved(self, shape: tuple[int, ...], back: IndexMap, reads: frozenset[Buffer] | None = None) -> LazyArray:
        """Move the entries; ``back`` computes the old index of an entry."""
        return LazyArray(shape, self.dtype, lambda index: self.entry(back(index)), self.varies, reads)


IndexMap: TypeAlias = Callable[[tuple[Index, ...]], tuple[Index, ...]]
EntryAt: TypeAlias = Callable[[tuple[Index, ...]], Atom]  # computes the entry of an index
Array: TypeAlias = Scalars | Strided | LazyArray


@dataclass(eq=False)
class Keys:
    """An array of random keys: their first words and their second."""

    halves: tuple[Array, Array]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.halves[0].shape


Value: TypeAlias = Array | Keys
LoweringRule: TypeAlias = Callable[..., Value | Sequence[Value]]  # of the lowering, an equation and its inputs


def map_halves(change: Callable[..., Array], *values: Value) -> Value:
    """Apply a function to arrays; if there are keys among them, to their first words and to their second."""
    if not any(isinstance(value, Keys) for value in values):
        return change(*values)
    high, low = (change(*(v.halves[half] if isinstance(v, Keys) else v for v in values)) for half in (0, 1))
    return Keys((high, low))


def row_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def varies(value: Value) -> bool:
    """Say whether any entry differs from lane to lane."""
    if isinstance(value, Keys):
        return any(map(varies, value.halves))
    if isinstance(value, Scalars):
        return any(map(ir.varies, value.entries.ravel()))
    return value.memory.varies if isinstance(value, Strided) else value.varies


class ArrayBuilder:
    """Reads, writes and converts arrays with a builder; those of up to ``small`` entries are held as scalars."""

    def __init__(
        self, build: Builder, small: int, constant: Callable[[np.ndarray], Buffer], longest_unrolled: float = _LONG
    ) -> None:
        self.build, self.small, self._constant = build, small, constant  # the last passes a constant as a table
        self.longest_unrolled, self.unrolls = longest_unrolled, True

    @contextmanager
    def in_loops(self) -> Iterator[None]:
        """Meanwhile, hold no array as scalars, and unroll no loop."""
        usual = self.small, self.unrolls
        self.small, self.unrolls = 1, False
        try:
            yield
        finally:
            self.small, self.unrolls = usual

    def is_small(self, shape: Sequence[int]) -> bool:
        return math.prod(shape) <= self.small

    def constant(self, value: np.ndarray) -> Array:
        if value.dtype.kind == "f" and np.any((value != 0) & (np.abs(value) < np.finfo(value.dtype).tiny)):
            raise Unsupported("a constant is below the smallest normal number, which XLA does not always take for zero")
        if self.is_small(value.shape):
            entries = np.empty(value.shape, object)
            for i in np.ndindex(*value.shape):
                entries[i] = literal(value[i], value.dtype)
            return Scalars(entries, value.dtype)
        return Strided.contiguous(self._constant(value), value)

    def lazy(self, like: ShapedType, entry: EntryAt, varying: bool, reads: frozenset[Buffer] | None = None) -> Array:
        """Make an array of a rule; a small one is computed now."""
        array = LazyArray(tuple(like.shape), np.dtype(like.dtype), entry, varying, reads)
        return self.to_scalars(array) if self.is_small(array.shape) else array

    def entry(self, array: Array, index: Sequence[Index]) -> Atom:
        if isinstance(array, LazyArray):
            return array.entry(tuple(index))
        if isinstance(array, Scalars):
            if all(isinstance(i, int) for i in index):
                return array.entries[tuple(index)]
            array = self.to_memory(array)
        if math.prod(array.shape) == 0:
            raise Unsupported("an array without entries is read")
        return self.build.load(array.memory, self.address(array, index))

    def address(self, array: Strided, index: Sequence[Index]) -> Address:
        """Compute where an entry is, counted from the start of its buffer."""
        known = int(array.offset + sum(i * s for i, s in zip(index, array.strides, strict=True) if isinstance(i, int)))
        rest = self.linear_index([0 if isinstance(i, int) else i for i in index], array.strides)
        if isinstance(rest, int):
            return known
        return OffsetIndex(rest, known) if known else rest

    def linear_index(self, index: Sequence[Index], strides: Sequence[int]) -> Index:
        """Compute index · strides."""
        known = int(sum(i * s for i, s in zip(index, strides, strict=True) if isinstance(i, int)))
        terms = [(i, s) for i, s in zip(index, strides, strict=True) if isinstance(i, Var) and s]
        if not terms:
            return known
        form = "+".join(f"{{{n}}}*{s}" if s != 1 else f"{{{n}}}" for n, (_, s) in enumerate(terms))
        if known == 0 and form == "{0}":
            return terms[0][0]
        return self.build.let("int32_t", form + (f"+{known}" if known else ""), *(i for i, _ in terms))

    def add_indices(self, first: Sequence[Index], second: Sequence[Index]) -> list[Index]:
        return [self.linear_index(both, (1, 1)) for both in zip(first, second, strict=True)]

    def to_scalars(self, array: Array) -> Scalars:
        if isinstance(array, Scalars):
            return array
        entries = np.empty(array.shape, object)
        for i in np.ndindex(*array.shape):
            entries[i] = self.entry(array, i)
        return Scalars(entries, array.dtype)

    def to_memory(self, array: Array) -> Strided:
        """Put the entries into memory, so that they can be read at a computed index."""
        if isinstance(array, Strided):
            return array
        if isinstance(array, Scalars):
            return self.build.once(("spilled", id(array)), lambda: self._spill(array), array)
        memory = self.build.memory(c_type(array.dtype), math.prod(array.shape), array.varies)
        self.write(memory, array)
        return Strided.contiguous(memory, array)

    def compute(self, array: Array) -> Scalars | Strided:
        """Compute an array that is not computed yet, so that its entries may be read any number of times."""
        if not isinstance(array, LazyArray):
            return array
        return self.to_scalars(array) if self.is_small(array.shape) else self.to_memory(array)

    def copy(self, array: Strided) -> Scalars | Strided:
        """Copy an array, so that it shares no memory."""
        again = LazyArray(array.shape, array.dtype, lambda index: self.entry(array, index), array.memory.varies)
        return self.compute(again)

    def write(self, memory: Buffer, array: Array) -> None:
        """Write all entries to a buffer, in row-major order."""
        self.fill(Strided.contiguous(memory, array), self.to_scalars(array) if self.is_small(array.shape) else array)

    def fill(self, target: Strided, array: Array, first: tuple[Index, ...] = (), unroll: bool = False) -> None:
        """Write all entries to a part of another array, at ``first`` of its leading axes; without loops if asked."""

        def put(index: tuple[Index, ...]) -> None:
            self.build.store(target.memory, self.address(target, (*first, *index)), self.entry(array, index))

        if isinstance(array, Scalars) or unroll:
            for index in np.ndindex(*array.shape):
                put(index)
        else:
            self.for_each_index(array.shape, put)

    def for_each_index(
        self, shape: Sequence[int], body: Callable[[tuple[Index, ...]], None], unroll: int = UNROLL
    ) -> None:
        """Write nested loops over all indices; the innermost is unrolled a little, if its body is short."""

        def nest(index: tuple[Index, ...]) -> None:
            if len(index) == len(shape):
                body(index)
                return
            count, innermost = shape[len(index)], len(index) == len(shape) - 1
            step = unroll if innermost and self.unrolls else 1
            looped = count - count % step if count > step else 0
            if looped:
                with self.build.loop(looped, step) as loop:
                    before = self.build.written
                    nest((*index, loop.index))
                    if self.build.written - before > self.longest_unrolled:
                        loop.count, loop.step = count, 1
                    for u in range(1, loop.step):
                        nest((*index, self.build.let("int32_t", f"{{0}}+{u}", loop.index)))
                looped = loop.count
            for known in range(looped, count):
                nest((*index, known))

        nest(())

    def _spill(self, array: Scalars) -> Strided:
        atoms = list(array.entries.ravel())
        if all(isinstance(a, ir.Lit) for a in atoms):
            values = np.array([a.value for a in atoms], array.dtype).reshape(array.shape)
            return Strided.contiguous(self._constant(values), array)
        memory = self.build.memory(c_type(array.dtype), len(atoms), varies(array))
        for n, atom in enumerate(atoms):
            self.build.store(memory, n, atom)
        return Strided.contiguous(memory, array)
