"""Many numbers into one: sums and other reductions, running sums, products of matrices, the place of the largest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from twoclock.codegen.arrays import Array, EntryAt, Rule, Scalars, Strided, row_strides, varies
from twoclock.codegen.equation import Equation, ShapedType
from twoclock.codegen.ir import Atom, Index, Unsupported, c_type, literal

if TYPE_CHECKING:
    from twoclock.codegen.lower import Generator

# Terms of a sum that are written out; of a longer one so many stand side by side in a loop.
_TERMS = 16
# Multiplications up to which a product of matrices is written out.
_WRITTEN_OUT = 8

_MAX = "({0}>={1})|({0}!={0})?{0}:{1}"
_MIN = "({0}<={1})|({0}!={0})?{0}:{1}"
_COMBINE = {
    "sum": ("{0}+{1}", 0),
    "prod": ("{0}*{1}", 1),
    "and": ("{0}&{1}", -1),
    "or": ("{0}|{1}", 0),
    "xor": ("{0}^{1}", 0),
    "max": (_MAX, None),
    "min": (_MIN, None),
}


def reduce_(g: Generator, eqn: Equation, array: Array) -> Array:
    name, axes, out = eqn.primitive.name.removeprefix("reduce_"), tuple(eqn.params["axes"]), eqn.outvars[0].aval
    form, start = _COMBINE[name]
    kept = [d for d in range(len(array.shape)) if d not in axes]
    along = tuple(array.shape[d] for d in axes)
    c = c_type(out.dtype)
    if math.prod(along) == 0:
        raise Unsupported(f"the {name} of an array without entries is taken")
    if start == -1 and out.dtype.kind == "b":
        start = 1

    def place(index: tuple[Index, ...], inner: tuple[Index, ...]) -> tuple[Index, ...]:
        both = dict(zip(kept, index, strict=True)) | dict(zip(axes, inner, strict=True))
        return tuple(both[d] for d in range(len(array.shape)))

    array = _ready(g, array, 1)

    def entry(index: tuple[Index, ...]) -> Atom:
        return total(
            g, along, c, form, lambda inner: g.shape.at(array, place(index, inner)), varies(array), (out.dtype, start)
        )

    return _made(g, out, entry, varies(array))


def total(
    g: Generator,
    along: tuple[int, ...],
    c: str,
    form: str,
    term: EntryAt,
    varying: bool,
    start: tuple[np.dtype, int | None],
) -> Atom:
    """All terms combined, always in the same order: written out where they are few, otherwise in a loop."""
    if math.prod(along) <= max(_TERMS, g.shape.small):
        terms = [term(i) for i in np.ndindex(*along)]
        while len(terms) > 1:  # by pairs, so that few have to wait for others
            pairs: list[Atom] = [g.build.let(c, form, a, b) for a, b in zip(terms[::2], terms[1::2], strict=False)]
            terms = [*pairs, terms[-1]] if len(terms) % 2 else pairs
        return terms[0]
    so_far = g.build.memory(c, 1, varying, mutable=True)
    g.build.store(so_far, 0, term((0,) * len(along)) if start[1] is None else literal(start[1], start[0]))

    def add(index: tuple[Index, ...]) -> None:
        g.build.store(so_far, 0, g.build.let(c, form, g.build.load(so_far, 0), term(index)))

    g.shape.each(along, add, unroll=8)
    return g.build.load(so_far, 0)


def dot_general(g: Generator, eqn: Equation, left: Array, right: Array) -> Array:
    out = eqn.outvars[0].aval
    (sum_l, sum_r), (batch_l, batch_r) = eqn.params["dimension_numbers"]
    free_l = [d for d in range(len(left.shape)) if d not in (*sum_l, *batch_l)]
    free_r = [d for d in range(len(right.shape)) if d not in (*sum_r, *batch_r)]
    along = tuple(left.shape[d] for d in sum_l)
    c, cut = c_type(out.dtype), len(batch_l) + len(free_l)
    g.count_product(math.prod(out.shape) * math.prod(along), bool(free_l) and bool(free_r))
    written_out = math.prod(out.shape) * math.prod(along) <= _WRITTEN_OUT * g.shape.small
    left, right = _ready(g, left, 2 if free_r else 1), _ready(g, right, 2 if free_l else 1)
    if not (written_out and g.shape.is_small(out.shape)):
        left, right = (g.shape.in_memory(x) if isinstance(x, Scalars) else x for x in (left, right))
    both = varies(left) or varies(right)

    def entry(index: tuple[Index, ...]) -> Atom:
        of_left = dict(zip((*batch_l, *free_l), index[:cut], strict=True))
        of_right = dict(zip((*batch_r, *free_r), (*index[: len(batch_l)], *index[cut:]), strict=True))

        def term(inner: tuple[Index, ...]) -> Atom:
            l_place, r_place = (
                of_left | dict(zip(sum_l, inner, strict=True)),
                of_right | dict(zip(sum_r, inner, strict=True)),
            )
            x = g.shape.at(left, [l_place[d] for d in range(len(left.shape))])
            y = g.shape.at(right, [r_place[d] for d in range(len(right.shape))])
            return g.build.let(c, "{0}*{1}" if out.dtype.kind != "b" else "{0}&{1}", x, y)

        if math.prod(along) == 0:
            return literal(0, out.dtype)
        return total(g, along, c, "{0}+{1}" if out.dtype.kind != "b" else "{0}|{1}", term, both, (out.dtype, 0))

    return _made(g, out, entry, both, written_out)


def running(g: Generator, eqn: Equation, array: Array) -> Array:
    """Running sums, products and extremes along an axis."""
    form, _ = _COMBINE[eqn.primitive.name.removeprefix("cum")]
    axis, backwards, c = eqn.params["axis"], eqn.params["reverse"], c_type(array.dtype)
    length = array.shape[axis]
    if g.shape.is_small(array.shape):
        source = np.moveaxis(g.shape.every(array).entries, axis, 0)
        entries = np.empty(source.shape, object)
        order = range(length - 1, -1, -1) if backwards else range(length)
        for i in np.ndindex(*source.shape[1:]):
            so_far: Atom | None = None
            for n in order:
                value = source[(n, *i)]
                so_far = value if so_far is None else g.build.let(c, form, so_far, value)
                entries[(n, *i)] = so_far
        return Scalars(np.moveaxis(entries, 0, axis), array.dtype)
    array = g.shape.in_memory(g.shape.settled(array))
    memory = g.build.memory(c, math.prod(array.shape), varies(array), mutable=True)
    target = Strided(memory, array.shape, row_strides(array.shape), 0, array.dtype)

    def put(index: tuple[Index, ...], at: Index, before: Index | None) -> None:
        here, value = (*index[:axis], at, *index[axis:]), None
        value = g.shape.at(array, here)
        if before is not None:
            old = g.build.load(memory, g.shape.place(target, (*index[:axis], before, *index[axis:])))
            value = g.build.let(c, form, old, value)
        g.build.store(memory, g.shape.place(target, here), value)

    def along(index: tuple[Index, ...]) -> None:
        put(index, length - 1 if backwards else 0, None)
        if length > 1:
            with g.build.loop(length - 1) as n:
                at = g.build.let("int32_t", f"{length - 2}-{{0}}" if backwards else "{0}+1", n)
                before = g.build.let("int32_t", "{0}+1" if backwards else "{0}-1", at)
                put(index, at, before)

    g.shape.each([n for d, n in enumerate(array.shape) if d != axis], along, unroll=1)
    memory.mutable = False
    return target


def arg_extreme(g: Generator, eqn: Equation, array: Array) -> Array:
    """The place of the largest or smallest entry, the first where there are several; a NaN counts as both."""
    (axis,), out, dtype = eqn.params["axes"], eqn.outvars[0].aval, array.dtype
    sign = ">" if eqn.primitive.name == "argmax" else "<"
    better = f"({{0}}{sign}{{1}})" + ("|(({0}!={0})&({1}=={1}))" if dtype.kind == "f" else "")
    array = _ready(g, array, 1)
    c, c_place, length = c_type(dtype), c_type(out.dtype), array.shape[axis]

    def entry(index: tuple[Index, ...]) -> Atom:
        best, place = g.shape.at(array, (*index[:axis], 0, *index[axis:])), literal(0, out.dtype)
        if length <= max(_TERMS, g.shape.small):
            for known in range(1, length):
                value = g.shape.at(array, (*index[:axis], known, *index[axis:]))
                wins = g.build.let("int", better, value, best)
                place = g.build.let(c_place, f"{{0}}?{known}:{{1}}", wins, place)  # type: ignore[assignment]
                best = g.build.let(c, "{0}?{1}:{2}", wins, value, best)
            return place
        top, where = (g.build.memory(t, 1, varies(array), mutable=True) for t in (c, c_place))
        g.build.store(top, 0, best)
        g.build.store(where, 0, place)
        with g.build.loop(length) as n:
            value, old = g.shape.at(array, (*index[:axis], n, *index[axis:])), g.build.load(top, 0)
            wins = g.build.let("int", better, value, old)
            g.build.store(where, 0, g.build.let(c_place, "{0}?{1}:{2}", wins, n, g.build.load(where, 0)))
            g.build.store(top, 0, g.build.let(c, "{0}?{1}:{2}", wins, value, old))
        return g.build.load(where, 0)

    return _made(g, out, entry, varies(array))


def _ready(g: Generator, array: Array, uses: int) -> Array:
    """An array that may be read in a loop; a rule that is read once stays one."""
    if isinstance(array, Rule) and uses > 1 and not g.shape.is_small(array.shape):
        return g.shape.in_memory(array)
    return g.shape.settled(array) if isinstance(array, Rule) and g.shape.is_small(array.shape) else array


def _made(g: Generator, out: ShapedType, entry: EntryAt, varying: bool, written_out: bool = True) -> Array:
    rule = Rule(out.shape, np.dtype(out.dtype), entry, varying)
    return g.shape.every(rule) if g.shape.is_small(out.shape) and written_out else g.shape.in_memory(rule)


RULES = {
    **dict.fromkeys([f"reduce_{name}" for name in _COMBINE], reduce_),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin"), running),
    **dict.fromkeys(("argmax", "argmin"), arg_extreme),
    "dot_general": dot_general,
}
