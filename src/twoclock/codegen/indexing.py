"""Entries fetched or stored at places that only the step knows: slices that move, gathers and scatters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.lax import GatherScatterMode

from twoclock.codegen.arrays import Array, Rule, Scalars, Strided, row_strides, varies
from twoclock.codegen.equation import Equation
from twoclock.codegen.ir import Atom, Index, Lit, Unsupported, Var, c_type, literal

if TYPE_CHECKING:
    from twoclock.codegen.lower import Generator

# Comparisons up to which entries are stored by selection, so that the array stays in registers.
_COMPARISONS = 64


@dataclass(frozen=True)
class _Window:
    """Where a window lies in an array, and an entry of it.

    Args:
        offsets: (axis of the entry's index, axis of the array) inside the window.
        batch: axes of the index that choose the window.
        batched: (axis of the array, which of the batch it follows).
        starts: for each number that the indices hold the axis it is for, and the last place at which the window fits.
        rank: of the array.
    """

    offsets: list[tuple[int, int]]
    batch: list[int]
    batched: list[tuple[int, int]]
    starts: list[tuple[int, int]]
    rank: int

    def place(
        self, g: Generator, indices: Array, index: tuple[Index, ...], checked: bool
    ) -> tuple[list[Index], Atom | None]:
        """The place in the array, clipped; where that is asked for, also whether it lies inside without."""
        of_batch = [index[i] for i in self.batch]
        place: list[Index] = [0] * self.rank
        for i, dim in self.offsets:
            place[dim] = index[i]
        for dim, follows in self.batched:
            place[dim] = of_batch[follows]
        inside: Atom | None = None
        for j, (dim, most) in enumerate(self.starts):
            start = g.shape.at(indices, (*of_batch, j))
            if checked:
                inside = _both(g, inside, within(g, start, most))
            place[dim] = _plus(g, clipped(g, start, most), place[dim])
        return place, inside


def dynamic_slice(g: Generator, eqn: Equation, array: Array, *starts: Array) -> Array:
    sizes = tuple(eqn.params["slice_sizes"])
    first = [clipped(g, g.shape.at(s, ()), n - size) for s, n, size in zip(starts, array.shape, sizes, strict=True)]
    array = _ready(g, array, not g.shape.is_small(sizes))
    shifted = Rule(
        sizes,
        array.dtype,
        lambda index: g.shape.at(array, [_plus(g, a, i) for a, i in zip(first, index, strict=True)]),
        varies(array) or any(isinstance(i, Var) and i.varies for i in first),
    )
    return g.shape.every(shifted) if g.shape.is_small(sizes) else shifted


def dynamic_update_slice(g: Generator, eqn: Equation, array: Array, update: Array, *starts: Array) -> Array:
    first = [clipped(g, g.shape.at(s, ()), n - m) for s, n, m in zip(starts, array.shape, update.shape, strict=True)]
    known = [i for i in first if isinstance(i, int)]
    if g.shape.is_small(array.shape) and len(known) == len(first):
        entries = g.shape.every(array).entries.copy()
        window = tuple(slice(a, a + m) for a, m in zip(known, update.shape, strict=True))
        entries[window] = g.shape.every(update).entries
        return Scalars(entries, array.dtype)
    update = _ready(g, update, True)
    target = _copied(g, array, varies(update) or any(isinstance(i, Var) and i.varies for i in first))

    def put(index: tuple[Index, ...]) -> None:
        place = g.shape.place(target, [_plus(g, a, i) for a, i in zip(first, index, strict=True)])
        g.build.store(target.memory, place, g.shape.at(update, index))

    g.shape.each(update.shape, put)
    target.memory.mutable = False
    return target


def gather(g: Generator, eqn: Equation, array: Array, indices: Array) -> Array:
    p, out = eqn.params, eqn.outvars[0].aval
    d, sizes, mode = p["dimension_numbers"], p["slice_sizes"], GatherScatterMode.from_any(p["mode"])
    fill = literal(_fill_value(p["fill_value"], out.dtype), out.dtype)
    looped = not g.shape.is_small(out.shape)
    array, indices = _ready(g, array, looped), _ready(g, indices, looped)
    batch = [i for i in range(len(out.shape)) if i not in d.offset_dims]
    kept = [i for i in range(len(array.shape)) if i not in (*d.collapsed_slice_dims, *d.operand_batching_dims)]

    batched = list(zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True))
    starts = [(dim, array.shape[dim] - sizes[dim]) for dim in d.start_index_map]
    where = _Window(list(zip(d.offset_dims, kept, strict=True)), batch, batched, starts, len(array.shape))

    def entry(index: tuple[Index, ...]) -> Atom:
        place, inside = where.place(g, indices, index, mode is GatherScatterMode.FILL_OR_DROP)
        value = g.shape.at(array, place)
        return value if inside is None else g.build.let(c_type(out.dtype), "{0}?{1}:{2}", inside, value, fill)

    rule = Rule(out.shape, out.dtype, entry, varies(array) or varies(indices))
    return g.shape.every(rule) if g.shape.is_small(out.shape) else rule


def scatter(g: Generator, eqn: Equation, array: Array, indices: Array, updates: Array) -> Array:
    """Entries put, or added, where the indices say; those out of bounds are dropped unless clipping is asked for."""
    combine = {"scatter": "{1}", "scatter-add": "{0}+{1}", "scatter_add": "{0}+{1}", "scatter_mul": "{0}*{1}"}
    if eqn.primitive.name not in combine:
        raise Unsupported(f"the operation {eqn.primitive.name} is not generated")
    form, p = combine[eqn.primitive.name], eqn.params
    d, mode = p["dimension_numbers"], GatherScatterMode.from_any(p["mode"])
    size, count, c = math.prod(array.shape), math.prod(updates.shape), c_type(array.dtype)
    selects = g.shape.is_small(array.shape) and size * count <= _COMPARISONS
    indices, updates = _ready(g, indices, not selects), _ready(g, updates, not selects)
    batch = [i for i in range(len(updates.shape)) if i not in d.update_window_dims]
    kept = [i for i in range(len(array.shape)) if i not in (*d.inserted_window_dims, *d.operand_batching_dims)]
    window = {dim: updates.shape[i] for i, dim in zip(d.update_window_dims, kept, strict=True)}

    batched = list(zip(d.operand_batching_dims, d.scatter_indices_batching_dims, strict=True))
    starts = [(dim, array.shape[dim] - window.get(dim, 1)) for dim in d.scatter_dims_to_operand_dims]
    where = _Window(list(zip(d.update_window_dims, kept, strict=True)), batch, batched, starts, len(array.shape))

    def place_of(index: tuple[Index, ...]) -> tuple[list[Index], Atom | None]:
        return where.place(g, indices, index, mode is not GatherScatterMode.CLIP)

    if selects:
        entries = g.shape.every(array).entries.copy()
        for index in np.ndindex(*updates.shape):
            place, inside = place_of(index)
            new = g.shape.at(updates, index)
            for i in np.ndindex(*array.shape):
                here = inside
                for known, at in zip(i, place, strict=True):
                    if isinstance(at, int) and at != known:
                        break
                    if isinstance(at, Var):
                        here = _both(g, here, g.build.let("int", f"{{0}}=={known}", at))
                else:
                    value = g.build.let(c, form, entries[i], new)
                    entries[i] = value if here is None else g.build.let(c, "{0}?{1}:{2}", here, value, entries[i])
        return Scalars(entries, array.dtype)

    target = _copied(g, array, varies(indices) or varies(updates))

    def put(index: tuple[Index, ...]) -> None:
        place, inside = place_of(index)
        where = g.shape.place(target, place)
        old = g.build.load(target.memory, where)
        new = g.build.let(c, form, old, g.shape.at(updates, index))
        g.build.store(target.memory, where, new if inside is None else g.build.let(c, "{0}?{1}:{2}", inside, new, old))

    g.shape.each(updates.shape, put, unroll=1)
    target.memory.mutable = False
    return target


def clipped(g: Generator, start: Atom, most: int) -> Index:
    """An index held between 0 and the last at which a slice fits."""
    if isinstance(start, Lit):
        return max(min(int(start.value), most), 0)
    if start.c.startswith("u"):
        return g.build.let("int32_t", f"(int32_t)({{0}}>{most}u?{most}u:{{0}})", start)
    return g.build.let("int32_t", f"(int32_t)({{0}}<0?0:({{0}}>{most}?{most}:{{0}}))", start)


def within(g: Generator, start: Atom, most: int) -> Atom:
    if isinstance(start, Lit):
        return Lit(str(int(0 <= start.value <= most)), 0 <= start.value <= most)
    return g.build.let("int", f"({{0}}>=0)&({{0}}<={most})", start)


def _both(g: Generator, a: Atom | None, b: Atom) -> Atom:
    return b if a is None else g.build.let("int", "{0}&{1}", a, b)


def _plus(g: Generator, a: Index, b: Index) -> Index:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if isinstance(a, int):
        a, b = b, a
    if isinstance(b, int):
        assert isinstance(a, Var)
        return a if b == 0 else g.build.let("int32_t", f"{{0}}+{b}", a)
    assert isinstance(a, Var)
    return g.build.let("int32_t", "{0}+{1}", a, b)


def _ready(g: Generator, array: Array, looped: bool) -> Array:
    """An array whose entries may be read more than once, and in a loop by an index that only the loop knows."""
    array = g.shape.settled(array)
    return g.shape.in_memory(array) if looped and isinstance(array, Scalars) and array.entries.size > 1 else array


def _copied(g: Generator, array: Array, more: bool) -> Strided:
    """A copy in memory of its own, to be written to."""
    memory = g.build.memory(c_type(array.dtype), math.prod(array.shape), varies(array) or more, mutable=True)
    g.shape.write(memory, array)
    return Strided(memory, array.shape, row_strides(array.shape), 0, array.dtype)


def _fill_value(given: object, dtype: np.dtype) -> Any:
    if given is not None:
        return given
    if dtype.kind == "f":
        return np.nan
    return True if dtype.kind == "b" else np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max


RULES = {
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "gather": gather,
    **dict.fromkeys(("scatter", "scatter-add", "scatter_add", "scatter_mul"), scatter),
}
