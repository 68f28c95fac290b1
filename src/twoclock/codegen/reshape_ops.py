"""What JAX does to shapes: views, slices, pieces put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from twoclock.codegen.arrays import Array, Rule, Scalars, Strided, row_strides, varies
from twoclock.codegen.equation import Equation
from twoclock.codegen.ir import Atom, Index, Memory, Unsupported, Var, c_type, literal

if TYPE_CHECKING:
    from twoclock.codegen.lower import Generator

# Where an entry was, from where it is.
Back: TypeAlias = Callable[[tuple[Index, ...]], tuple[Index, ...]]


def broadcast_in_dim(g: Generator, eqn: Equation, array: Array, *_: Array) -> Array:
    shape, dims = tuple(eqn.params["shape"]), tuple(eqn.params["broadcast_dimensions"])
    if g.shape.is_small(shape) or (isinstance(array, Scalars) and array.entries.size == 1):
        spread = [array.shape[dims.index(d)] if d in dims else 1 for d in range(len(shape))]
        small = g.shape.every(array)
        if g.shape.is_small(shape):
            return Scalars(np.broadcast_to(small.entries.reshape(spread), shape), array.dtype)
        atom = small.entries.ravel()[0]
        return Rule(shape, array.dtype, lambda index: atom, varies(array), frozenset())
    kept = g.shape.in_memory(array)
    strides = [0] * len(shape)
    for d, to in enumerate(dims):
        strides[to] = kept.strides[d] if kept.shape[d] != 1 else 0
    return Strided(kept.memory, shape, tuple(strides), kept.offset, array.dtype)


def reshape(g: Generator, eqn: Equation, array: Array, *_: Array) -> Array:
    shape = eqn.outvars[0].aval.shape
    if eqn.primitive.name == "reshape" and eqn.params.get("dimensions") is not None:
        raise Unsupported("an array is given another shape in another order")
    if isinstance(array, Rule) and not g.shape.is_small(shape):
        old, new = ([d for d, n in enumerate(s) if n != 1] for s in (array.shape, shape))
        if [array.shape[d] for d in old] == [shape[d] for d in new]:
            return _moved(array, shape, lambda index: _spread(index, new, old, len(array.shape)), array.reads)
    return _reshaped(g, array, shape)


def transpose(g: Generator, eqn: Equation, array: Array) -> Array:
    order = tuple(eqn.params["permutation"])
    shape = tuple(array.shape[d] for d in order)
    if isinstance(array, Scalars):
        return Scalars(array.entries.transpose(order), array.dtype)
    if isinstance(array, Strided):
        return Strided(array.memory, shape, tuple(array.strides[d] for d in order), array.offset, array.dtype)
    return _moved(array, shape, lambda index: tuple(index[order.index(d)] for d in range(len(order))))


def slice_(g: Generator, eqn: Equation, array: Array) -> Array:
    starts, stops = eqn.params["start_indices"], eqn.params["limit_indices"]
    return sliced(g, array, starts, stops, eqn.params["strides"] or (1,) * len(starts))


def sliced(g: Generator, array: Array, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Array:
    """Entries start, start+step, … below stop along each axis."""
    if isinstance(array, Scalars):
        cut = tuple(slice(a, b, c) for a, b, c in zip(starts, stops, steps, strict=True))
        return Scalars(array.entries[cut], array.dtype)
    shape = tuple(max(0, -(-(b - a) // c)) for a, b, c in zip(starts, stops, steps, strict=True))
    if isinstance(array, Strided):
        offset = array.offset + sum(a * s for a, s in zip(starts, array.strides, strict=True))
        strides = tuple(c * s for c, s in zip(steps, array.strides, strict=True))
        return Strided(array.memory, shape, strides, offset, array.dtype)
    return _moved(
        array, shape, lambda index: tuple(_affine(g, i, c, a) for i, a, c in zip(index, starts, steps, strict=True))
    )


def rev(g: Generator, eqn: Equation, array: Array) -> Array:
    dims = eqn.params["dimensions"]
    if isinstance(array, Scalars):
        return Scalars(np.flip(array.entries, dims), array.dtype)
    kept = g.shape.in_memory(array)
    offset = kept.offset + sum((kept.shape[d] - 1) * kept.strides[d] for d in dims)
    strides = tuple(-s if d in dims else s for d, s in enumerate(kept.strides))
    return Strided(kept.memory, kept.shape, strides, offset, kept.dtype)


def split(g: Generator, eqn: Equation, array: Array) -> list[Array]:
    axis, parts, begin = eqn.params["axis"], [], 0
    for size in eqn.params["sizes"]:
        starts = [begin if d == axis else 0 for d in range(len(array.shape))]
        stops = [begin + size if d == axis else n for d, n in enumerate(array.shape)]
        parts.append(sliced(g, array, starts, stops, [1] * len(starts)))
        begin += size
    return parts


def unstack(g: Generator, eqn: Equation, array: Array) -> list[Array]:
    axis, parts = eqn.params["axis"], []
    for n in range(array.shape[axis]):
        starts = [n if d == axis else 0 for d in range(len(array.shape))]
        stops = [n + 1 if d == axis else size for d, size in enumerate(array.shape)]
        part = sliced(g, array, starts, stops, [1] * len(starts))
        shape = tuple(size for d, size in enumerate(array.shape) if d != axis)
        parts.append(_reshaped(g, part, shape))
    return parts


def _reshaped(g: Generator, array: Array, shape: tuple[int, ...]) -> Array:
    packed = g.shape.packed(array)
    if isinstance(packed, Scalars):
        return Scalars(packed.entries.reshape(shape), packed.dtype)
    assert isinstance(packed, Strided)
    return Strided(packed.memory, shape, row_strides(shape), packed.offset, packed.dtype)


def concatenate(g: Generator, eqn: Equation, *arrays: Array) -> Array:
    axis, out = eqn.params["dimension"], eqn.outvars[0].aval
    if g.shape.is_small(out.shape):
        return Scalars(np.concatenate([g.shape.every(a).entries for a in arrays], axis), out.dtype)
    memory = g.build.memory(c_type(out.dtype), math.prod(out.shape), any(varies(a) for a in arrays))
    strides, begin = row_strides(out.shape), 0
    for array in arrays:
        part = Strided(memory, array.shape, strides, begin * strides[axis], out.dtype)
        _fill(g, part, array)
        begin += array.shape[axis]
    return Strided(memory, out.shape, strides, 0, out.dtype)


def pad(g: Generator, eqn: Equation, array: Array, value: Array) -> Array:
    out = eqn.outvars[0].aval
    config = [tuple(int(n) for n in entry) for entry in eqn.params["padding_config"]]
    filler = g.shape.at(value, ())
    if any(low < 0 or high < 0 for low, high, _ in config):
        if any(gap for *_, gap in config):
            raise Unsupported("an array is padded inside and cut at its ends")
        starts = [max(-low, 0) for low, *_ in config]
        stops = [n - max(-high, 0) for n, (_, high, _) in zip(array.shape, config, strict=True)]
        array = sliced(g, array, starts, stops, [1] * len(starts))
        config = [(max(low, 0), max(high, 0), 0) for low, high, *_ in config]
    if g.shape.is_small(out.shape):
        entries = np.full(out.shape, filler, object)
        small = g.shape.every(array).entries
        for i in np.ndindex(*small.shape):
            entries[tuple(low + n * (gap + 1) for n, (low, _, gap) in zip(i, config, strict=True))] = small[i]
        return Scalars(entries, out.dtype)
    both = varies(array) or (isinstance(filler, Var) and filler.varies)
    memory = g.build.memory(c_type(out.dtype), math.prod(out.shape), both)
    strides = row_strides(out.shape)
    array = g.shape.settled(array)
    g.shape.write(memory, Rule(out.shape, out.dtype, lambda index: filler, both))
    inner = tuple((gap + 1) * s for (_, _, gap), s in zip(config, strides, strict=True))
    offset = sum(low * s for (low, _, _), s in zip(config, strides, strict=True))
    _fill(g, Strided(memory, array.shape, inner, offset, out.dtype), array)
    return Strided(memory, out.shape, strides, 0, out.dtype)


def iota(g: Generator, eqn: Equation, *_: Array) -> Array:
    shape, axis, dtype = tuple(eqn.params["shape"]), eqn.params["dimension"], np.dtype(eqn.params["dtype"])
    if g.shape.is_small(shape):
        along = np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))])
        return g.shape.constant(np.broadcast_to(along, shape).astype(dtype))

    def entry(index: tuple[Index, ...]) -> Atom:
        i = index[axis]
        return literal(i, dtype) if isinstance(i, int) else g.build.let(c_type(dtype), f"({c_type(dtype)}){{0}}", i)

    return Rule(shape, dtype, entry, False, frozenset())


def _affine(g: Generator, i: Index, step: int, start: int) -> Index:
    if isinstance(i, int):
        return start + step * i
    return i if (step, start) == (1, 0) else g.build.let("int32_t", f"{{0}}*{step}+{start}", i)


def _moved(array: Rule, shape: Sequence[int], back: Back, reads: frozenset[Memory] | None = None) -> Rule:
    """The same entries at other places: ``back`` says where an entry was."""
    return Rule(tuple(shape), array.dtype, lambda index: array.entry(back(index)), array.varies, reads)


def _spread(index: tuple[Index, ...], new: list[int], old: list[int], rank: int) -> tuple[Index, ...]:
    place: list[Index] = [0] * rank
    for n, o in zip(new, old, strict=True):
        place[o] = index[n]
    return tuple(place)


def _fill(g: Generator, target: Strided, array: Array) -> None:
    def put(index: tuple[Index, ...]) -> None:
        g.build.store(target.memory, g.shape.place(target, index), g.shape.at(array, index))

    if isinstance(array, Scalars):
        for index in np.ndindex(*array.shape):
            put(index)
    else:
        g.shape.each(array.shape, put)


RULES = {
    "broadcast_in_dim": broadcast_in_dim,
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), reshape),
    "transpose": transpose,
    "slice": slice_,
    "rev": rev,
    "split": split,
    "unstack": unstack,
    "concatenate": concatenate,
    "pad": pad,
    "iota": iota,
}
