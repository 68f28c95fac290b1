"""Reductions: sums and extremes, cumulative sums, matrix products, argmax and argmin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from twoclock.codegen.arrays import Array, EntryAt, Equation, LazyArray, LoweringRule, Scalars, Strided, varies
from twoclock.codegen.elementwise import c_form
from twoclock.codegen.ir import Atom, Index, Unsupported, c_type, literal

if TYPE_CHECKING:
    from twoclock.codegen.lower import Lowering

# The longest sum that is written out; a longer one is a loop over blocks of this many terms.
_TERMS = 16
# Multiplications up to which a matrix product is written out, for each entry that a small array may have.
_WRITTEN_OUT = 8
# Multiplications in one matrix product from which XLA's library of matrices is faster.
_LARGE_PRODUCT = 1 << 15

# For each reduction, the operation that combines two numbers, and the initial value.
_COMBINE = {"sum": "add", "prod": "mul", "and": "and", "or": "or", "xor": "xor", "max": "max", "min": "min"}
_START = {"sum": 0, "prod": 1, "and": -1, "or": 0, "xor": 0}


def _reduce(g: Lowering, eqn: Equation, array: Array) -> Array:
    name, axes, out = eqn.name.removeprefix("reduce_"), tuple(eqn.params["axes"]), eqn.outputs[0]
    form, start = c_form(_COMBINE[name], eqn), _START.get(name)
    remaining = [d for d in range(len(array.shape)) if d not in axes]
    along = tuple(array.shape[d] for d in axes)
    c = c_type(out.dtype)
    if math.prod(along) == 0 and start is None:
        raise Unsupported(f"the {name} of an array without entries is taken")
    array = _prepare(g, array)

    def entry(index: tuple[Index, ...]) -> Atom:
        def term(inner: tuple[Index, ...]) -> Atom:
            return g.arrays.entry(array, _interleave((remaining, index), (axes, inner)))

        first = None if start is None else literal(np.asarray(start).astype(out.dtype), out.dtype)
        if first is not None and math.prod(along) == 0:
            return first
        return _combine(g, along, c, form, term, varies(array), first)

    return _result(g, eqn, entry, varies(array))


def _combine(
    g: Lowering, along: tuple[int, ...], c: str, form: str, term: EntryAt, varying: bool, start: Atom | None
) -> Atom:
    """Combine all terms, always in the same order: written out if they are few, otherwise in a loop."""
    if math.prod(along) <= max(_TERMS, g.arrays.small):
        terms = [term(i) for i in np.ndindex(*along)]
        while len(terms) > 1:  # by pairs, so that few have to wait for others
            pairs: list[Atom] = [g.build.let(c, form, a, b) for a, b in zip(terms[::2], terms[1::2], strict=False)]
            terms = [*pairs, terms[-1]] if len(terms) % 2 else pairs
        return terms[0]
    so_far = g.build.memory(c, 1, varying, mutable=True)
    g.build.store(so_far, 0, term((0,) * len(along)) if start is None else start)

    def add(index: tuple[Index, ...]) -> None:
        g.build.store(so_far, 0, g.build.let(c, form, g.build.load(so_far, 0), term(index)))

    g.arrays.for_each_index(along, add, unroll=8)
    return g.build.load(so_far, 0)


def _dot_general(g: Lowering, eqn: Equation, left: Array, right: Array) -> Array:
    out = eqn.outputs[0]
    (sum_l, sum_r), (batch_l, batch_r) = eqn.params["dimension_numbers"]
    free_l = [d for d in range(len(left.shape)) if d not in (*sum_l, *batch_l)]
    free_r = [d for d in range(len(right.shape)) if d not in (*sum_r, *batch_r)]
    along = tuple(left.shape[d] for d in sum_l)
    c, cut = c_type(out.dtype), len(batch_l) + len(free_l)
    multiplications = math.prod(out.shape) * math.prod(along)
    if free_l and free_r and multiplications > _LARGE_PRODUCT:
        raise Unsupported("XLA's library is faster with matrices as large as these")
    written_out = multiplications <= _WRITTEN_OUT * g.arrays.small
    left, right = _prepare(g, left, bool(free_r)), _prepare(g, right, bool(free_l))
    if not (written_out and g.arrays.is_small(out.shape)):
        left, right = (g.arrays.to_memory(x) if isinstance(x, Scalars) else x for x in (left, right))
    times, plus = ("{0}&{1}", "{0}|{1}") if out.dtype.kind == "b" else ("{0}*{1}", "{0}+{1}")
    varying = varies(left) or varies(right)

    def entry(index: tuple[Index, ...]) -> Atom:
        of_left = (*batch_l, *free_l), index[:cut]
        of_right = (*batch_r, *free_r), (*index[: len(batch_l)], *index[cut:])

        def term(inner: tuple[Index, ...]) -> Atom:
            x = g.arrays.entry(left, _interleave(of_left, (sum_l, inner)))
            y = g.arrays.entry(right, _interleave(of_right, (sum_r, inner)))
            return g.build.let(c, times, x, y)

        zero = literal(0, out.dtype)
        return zero if math.prod(along) == 0 else _combine(g, along, c, plus, term, varying, zero)

    return _result(g, eqn, entry, varying, written_out)


def _interleave(*parts: tuple[Sequence[int], Sequence[Index]]) -> list[Index]:
    """Build an index from parts, each of some axes and their indices."""
    place = {axis: i for axes, index in parts for axis, i in zip(axes, index, strict=True)}
    return [place[axis] for axis in range(len(place))]


def _cumulative(g: Lowering, eqn: Equation, array: Array) -> Array:
    """Compute cumulative sums, products and extremes along an axis."""
    form = c_form(_COMBINE[eqn.name.removeprefix("cum")], eqn)
    axis, backwards, c = eqn.params["axis"], eqn.params["reverse"], c_type(array.dtype)
    length = array.shape[axis]
    if g.arrays.is_small(array.shape):
        source = np.flip(g.arrays.to_scalars(array).entries, axis) if backwards else g.arrays.to_scalars(array).entries
        combine = np.frompyfunc(lambda a, b: g.build.let(c, form, a, b), 2, 1)
        entries = combine.accumulate(source, axis, dtype=object)
        return Scalars(np.flip(entries, axis) if backwards else entries, array.dtype)
    array = g.arrays.to_memory(array)
    memory = g.build.memory(c, math.prod(array.shape), varies(array), mutable=True)
    target = Strided.contiguous(memory, array)

    def put(index: tuple[Index, ...], at: Index, before: Index | None) -> None:
        here = (*index[:axis], at, *index[axis:])
        value = g.arrays.entry(array, here)
        if before is not None:
            old = g.build.load(memory, g.arrays.address(target, (*index[:axis], before, *index[axis:])))
            value = g.build.let(c, form, old, value)
        g.build.store(memory, g.arrays.address(target, here), value)

    def along(index: tuple[Index, ...]) -> None:
        put(index, length - 1 if backwards else 0, None)
        if length > 1:
            with g.build.loop(length - 1) as loop:
                n = loop.index
                at = g.build.let("int32_t", f"{length - 2}-{{0}}" if backwards else "{0}+1", n)
                before = g.build.let("int32_t", "{0}+1" if backwards else "{0}-1", at)
                put(index, at, before)

    g.arrays.for_each_index([n for d, n in enumerate(array.shape) if d != axis], along, unroll=1)
    memory.mutable = False
    return target


def _arg_extreme(g: Lowering, eqn: Equation, array: Array) -> Array:
    """Find the first place of the largest or smallest entry; a NaN counts as both."""
    (axis,), out, dtype = eqn.params["axes"], eqn.outputs[0], array.dtype
    sign = ">" if eqn.name == "argmax" else "<"
    better = f"({{0}}{sign}{{1}})" + ("|(({0}!={0})&({1}=={1}))" if dtype.kind == "f" else "")
    array = _prepare(g, array)
    c, c_place, length = c_type(dtype), c_type(out.dtype), array.shape[axis]
    unroll = length if length <= max(_TERMS, g.arrays.small) else 1

    def entry(index: tuple[Index, ...]) -> Atom:
        top, where = (g.build.memory(t, 1, varies(array), mutable=True) for t in (c, c_place))

        def visit(along: tuple[Index, ...]) -> None:
            (n,) = along
            value, old = g.arrays.entry(array, (*index[:axis], n, *index[axis:])), g.build.load(top, 0)
            wins = g.build.let("int", better, value, old)
            place = literal(n, out.dtype) if isinstance(n, int) else n
            g.build.store(where, 0, g.build.let(c_place, "{0}?{1}:{2}", wins, place, g.build.load(where, 0)))
            g.build.store(top, 0, g.build.let(c, "{0}?{1}:{2}", wins, value, old))

        g.build.store(top, 0, g.arrays.entry(array, (*index[:axis], 0, *index[axis:])))
        g.build.store(where, 0, literal(0, out.dtype))
        g.arrays.for_each_index((length,), visit, unroll)
        return g.build.load(where, 0)

    return _result(g, eqn, entry, varies(array))


def _prepare(g: Lowering, array: Array, again: bool = False) -> Array:
    """Compute an array that is read again or is small; a large one that is read once need not be in memory."""
    return g.arrays.compute(array) if again or g.arrays.is_small(array.shape) else array


def _result(g: Lowering, eqn: Equation, entry: EntryAt, varying: bool, written_out: bool = True) -> Array:
    (out,) = eqn.outputs
    result = LazyArray(out.shape, np.dtype(out.dtype), entry, varying)
    return g.arrays.to_scalars(result) if g.arrays.is_small(out.shape) and written_out else g.arrays.to_memory(result)


RULES: dict[str, LoweringRule] = {
    **dict.fromkeys([f"reduce_{name}" for name in _COMBINE], _reduce),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin"), _cumulative),
    **dict.fromkeys(("argmax", "argmin"), _arg_extreme),
    "dot_general": _dot_general,
}
