"""Operations that only move entries: views, slices, concatenation, gathers and scatters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.lax import GatherDimensionNumbers, GatherScatterMode

from twoclock.codegen import ir
from twoclock.codegen.arrays import Array, Equation, LazyArray, LoweringRule, Scalars, Strided, row_strides, varies
from twoclock.codegen.elementwise import lower_elementwise
from twoclock.codegen.ir import Atom, Index, Lit, Unsupported, Var, c_type, literal

if TYPE_CHECKING:
    from twoclock.codegen.lower import Lowering

# Comparisons up to which entries are scattered by selection, so that the array stays in registers.
_COMPARISONS = 64
_SCATTER = {"scatter": "{1}", "scatter-add": "{0}+{1}", "scatter-mul": "{0}*{1}"}
# Operations that change some entries of their first operand.
UPDATES = (*_SCATTER, "dynamic_update_slice")


def _broadcast_in_dim(g: Lowering, eqn: Equation, array: Array, *_: Array) -> Array:
    shape, dims = tuple(eqn.params["shape"]), tuple(eqn.params["broadcast_dimensions"])
    if g.arrays.is_small(shape) or (isinstance(array, Scalars) and array.entries.size == 1):
        small = g.arrays.to_scalars(array)
        if g.arrays.is_small(shape):
            spread = [array.shape[dims.index(d)] if d in dims else 1 for d in range(len(shape))]
            return Scalars(np.broadcast_to(small.entries.reshape(spread), shape), array.dtype)
        atom = small.entries.ravel()[0]
        return LazyArray(shape, array.dtype, lambda index: atom, varies(array), frozenset())
    source = g.arrays.to_memory(array)
    strides = [0] * len(shape)
    for d, to in enumerate(dims):
        strides[to] = source.strides[d] if source.shape[d] != 1 else 0
    return Strided(source.memory, shape, tuple(strides), source.offset, array.dtype)


def _reshape(g: Lowering, eqn: Equation, array: Array, *_: Array) -> Array:
    shape = eqn.outputs[0].shape
    if eqn.name == "reshape" and eqn.params.get("dimensions") is not None:
        raise Unsupported("an array is given another shape in another order")
    if isinstance(array, LazyArray) and not g.arrays.is_small(shape):
        old, new = ([d for d, n in enumerate(s) if n != 1] for s in (array.shape, shape))
        if [array.shape[d] for d in old] == [shape[d] for d in new]:
            # Only axes of length one change: the array may stay a rule.
            back = dict(zip(old, new, strict=True))
            rank = len(array.shape)
            return array.moved(shape, lambda i: tuple(i[back[d]] if d in back else 0 for d in range(rank)), array.reads)
    return _reshaped(g, array, shape)


def _reshaped(g: Lowering, array: Array, shape: tuple[int, ...]) -> Array:
    packed = g.arrays.compute(array)
    if isinstance(packed, Strided) and not packed.is_contiguous:
        packed = g.arrays.copy(packed)
    if isinstance(packed, Scalars):
        return Scalars(packed.entries.reshape(shape), packed.dtype)
    return Strided(packed.memory, shape, row_strides(shape), packed.offset, packed.dtype)


def _transpose(g: Lowering, eqn: Equation, array: Array) -> Array:
    order = tuple(eqn.params["permutation"])
    shape = tuple(array.shape[d] for d in order)
    if isinstance(array, Scalars):
        return Scalars(array.entries.transpose(order), array.dtype)
    if isinstance(array, Strided):
        return Strided(array.memory, shape, tuple(array.strides[d] for d in order), array.offset, array.dtype)
    return array.moved(shape, lambda index: tuple(index[order.index(d)] for d in range(len(order))))


def _sliced(
    g: Lowering, array: Array, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int] | None = None
) -> Array:
    """Take the entries start, start+step, … below stop along each axis."""
    steps = steps or (1,) * len(starts)
    if isinstance(array, Scalars):
        cut = tuple(slice(a, b, c) for a, b, c in zip(starts, stops, steps, strict=True))
        return Scalars(array.entries[cut], array.dtype)
    shape = tuple(max(0, -(-(b - a) // c)) for a, b, c in zip(starts, stops, steps, strict=True))
    if isinstance(array, Strided):
        offset = array.offset + sum(a * s for a, s in zip(starts, array.strides, strict=True))
        strides = tuple(c * s for c, s in zip(steps, array.strides, strict=True))
        return Strided(array.memory, shape, strides, offset, array.dtype)

    def back(i: Index, step: int, start: int) -> Index:
        if isinstance(i, int):
            return start + step * i
        return i if (step, start) == (1, 0) else g.build.let("int32_t", f"{{0}}*{step}+{start}", i)

    return array.moved(shape, lambda index: tuple(map(back, index, steps, starts)))


def _along(g: Lowering, array: Array, axis: int, start: int, stop: int) -> Array:
    starts = [start if d == axis else 0 for d in range(len(array.shape))]
    stops = [stop if d == axis else n for d, n in enumerate(array.shape)]
    return _sliced(g, array, starts, stops)


def _split(g: Lowering, eqn: Equation, array: Array) -> list[Array]:
    axis, sizes = eqn.params["axis"], [int(size) for size in eqn.params["sizes"]]  # JAX gives NumPy's integers
    return [_along(g, array, axis, end - n, end) for n, end in zip(sizes, accumulate(sizes), strict=True)]


def _unstack(g: Lowering, eqn: Equation, array: Array) -> list[Array]:
    axis = eqn.params["axis"]
    shape = tuple(size for d, size in enumerate(array.shape) if d != axis)
    return [_reshaped(g, _along(g, array, axis, n, n + 1), shape) for n in range(array.shape[axis])]


def _rev(g: Lowering, eqn: Equation, array: Array) -> Array:
    dims = eqn.params["dimensions"]
    if isinstance(array, Scalars):
        return Scalars(np.flip(array.entries, dims), array.dtype)
    source = g.arrays.to_memory(array)
    offset = source.offset + sum((source.shape[d] - 1) * source.strides[d] for d in dims)
    strides = tuple(-s if d in dims else s for d, s in enumerate(source.strides))
    return Strided(source.memory, source.shape, strides, offset, source.dtype)


def concatenate(g: Lowering, eqn: Equation, *arrays: Array) -> Array:
    axis, out = eqn.params["axis" if eqn.name == "stack" else "dimension"], eqn.outputs[0]
    if eqn.name == "stack":
        arrays = tuple(_reshaped(g, a, (*a.shape[:axis], 1, *a.shape[axis:])) for a in arrays)
    if g.arrays.is_small(out.shape):
        entries = [g.arrays.to_scalars(a).entries for a in arrays] or [np.empty(out.shape, object)]
        return Scalars(np.concatenate(entries, axis), out.dtype)
    memory = g.build.memory(c_type(out.dtype), math.prod(out.shape), any(map(varies, arrays)))
    strides, begin = row_strides(out.shape), 0
    for array in arrays:
        g.arrays.fill(Strided(memory, array.shape, strides, begin * strides[axis], out.dtype), array)
        begin += array.shape[axis]
    return Strided.contiguous(memory, out)


def _pad(g: Lowering, eqn: Equation, array: Array, value: Array) -> Array:
    out = eqn.outputs[0]
    config = [tuple(int(n) for n in entry) for entry in eqn.params["padding_config"]]
    filler = g.arrays.entry(value, ())
    if any(low < 0 or high < 0 for low, high, _ in config):
        if any(gap for *_, gap in config):
            raise Unsupported("an array is padded inside and cut at its ends")
        starts = [max(-low, 0) for low, *_ in config]
        stops = [n - max(-high, 0) for n, (_, high, _) in zip(array.shape, config, strict=True)]
        array = _sliced(g, array, starts, stops)
        config = [(max(low, 0), max(high, 0), 0) for low, high, *_ in config]
    if g.arrays.is_small(out.shape):
        entries = np.full(out.shape, filler, object)
        places = zip(array.shape, config, strict=True)
        inside = tuple(slice(low, low + n * (gap + 1), gap + 1) for n, (low, _, gap) in places)
        entries[inside] = g.arrays.to_scalars(array).entries
        return Scalars(entries, out.dtype)
    varying, strides = varies(array) or ir.varies(filler), row_strides(out.shape)
    memory = g.build.memory(c_type(out.dtype), math.prod(out.shape), varying)
    array = g.arrays.compute(array)
    g.arrays.write(memory, LazyArray(out.shape, out.dtype, lambda index: filler, varying))
    inner = tuple((gap + 1) * s for (_, _, gap), s in zip(config, strides, strict=True))
    offset = sum(low * s for (low, _, _), s in zip(config, strides, strict=True))
    g.arrays.fill(Strided(memory, array.shape, inner, offset, out.dtype), array)
    return Strided.contiguous(memory, out)


def _dynamic_slice(g: Lowering, eqn: Equation, array: Array, *starts: Array) -> Array:
    out = jax.ShapeDtypeStruct(eqn.params["slice_sizes"], array.dtype)
    first = _starts(g, array, starts, out.shape)
    array = _prepare(g, array, not g.arrays.is_small(out.shape))
    varying = varies(array) or any(map(ir.varies, first))
    return g.arrays.lazy(out, lambda index: g.arrays.entry(array, g.arrays.add_indices(first, index)), varying)


def _dynamic_update_slice(g: Lowering, eqn: Equation, array: Array, update: Array, *starts: Array) -> Array:
    first = _starts(g, array, starts, update.shape)
    known = [i for i in first if isinstance(i, int)]
    if g.arrays.is_small(array.shape) and len(known) == len(first) and not _is_free(g, array):
        entries = g.arrays.to_scalars(array).entries.copy()
        window = tuple(slice(a, a + m) for a, m in zip(known, update.shape, strict=True))
        entries[window] = g.arrays.to_scalars(update).entries
        return Scalars(entries, array.dtype)
    update = _prepare(g, update, True)
    target = _copy(g, array, varies(update) or any(map(ir.varies, first)))

    def put(index: tuple[Index, ...]) -> None:
        place = g.arrays.address(target, g.arrays.add_indices(first, index))
        g.build.store(target.memory, place, g.arrays.entry(update, index))

    g.arrays.for_each_index(update.shape, put)
    target.memory.mutable = _is_free(g, target)
    return target


def _window(
    g: Lowering, array: Array, indices: Array, shape: Sequence[int], d: Any, starts: Sequence[int], checked: bool
) -> Callable[[tuple[Index, ...]], tuple[list[Index], Atom | None]]:
    """Return a function that computes the clipped index of an entry in the array and, if ``checked``, whether it lies
    inside.

    Args:
        shape: the shape of what is gathered or scattered.
        d: JAX's dimension numbers.
        starts: the axes of the array along which the indices say where a window begins.
    """
    gathers = isinstance(d, GatherDimensionNumbers)
    in_window = d.offset_dims if gathers else d.update_window_dims
    without = d.collapsed_slice_dims if gathers else d.inserted_window_dims
    follows = d.start_indices_batching_dims if gathers else d.scatter_indices_batching_dims
    batch = [i for i in range(len(shape)) if i not in in_window]  # axes of the entry's index that choose the window
    window = [i for i in range(len(array.shape)) if i not in (*without, *d.operand_batching_dims)]
    axes = dict(zip(window, in_window, strict=True))  # axes of the array, each with the axis of the entry's index
    last = {dim: array.shape[dim] - (shape[axes[dim]] if dim in axes else 1) for dim in starts}
    axes |= {dim: batch[n] for dim, n in zip(d.operand_batching_dims, follows, strict=True)}

    def place(index: tuple[Index, ...]) -> tuple[list[Index], Atom | None]:
        found: list[Index] = [index[axes[dim]] if dim in axes else 0 for dim in range(len(array.shape))]
        inside: Atom | None = None
        for j, (dim, most) in enumerate(last.items()):
            start = g.arrays.entry(indices, (*(index[i] for i in batch), j))
            if checked and isinstance(start, Lit):
                inside = _both(g, inside, literal(0 <= start.value <= most, np.dtype(bool)))
            elif checked:
                inside = _both(g, inside, g.build.let("int", f"({{0}}>=0)&({{0}}<={most})", start))
            (found[dim],) = g.arrays.add_indices([_clip(g, start, most)], [found[dim]])
        return found, inside

    return place


def _gather(g: Lowering, eqn: Equation, array: Array, indices: Array) -> Array:
    p, out = eqn.params, eqn.outputs[0]
    d, fills = p["dimension_numbers"], GatherScatterMode.from_any(p["mode"]) is GatherScatterMode.FILL_OR_DROP
    if fills:  # JAX compares indices of 32 bits with the bounds
        narrow = jax.ShapeDtypeStruct(indices.shape, np.dtype(np.int32))
        indices = lower_elementwise(g, Equation("convert_element_type", {}, [indices], [narrow]), indices)
    array, indices = (_prepare(g, a, not g.arrays.is_small(out.shape)) for a in (array, indices))
    where = _window(g, array, indices, out.shape, d, d.start_index_map, fills)
    kind, fill_value = out.dtype.kind, p["fill_value"]
    if fill_value is None:  # as JAX does
        whole = np.iinfo(out.dtype if kind in "iu" else np.int32)
        fill_value = {"f": np.nan, "b": True, "i": whole.min, "u": whole.max}[kind]
    fill = literal(fill_value, out.dtype)

    def entry(index: tuple[Index, ...]) -> Atom:
        place, inside = where(index)
        value = g.arrays.entry(array, place)
        return value if inside is None else g.build.let(c_type(out.dtype), "{0}?{1}:{2}", inside, value, fill)

    return g.arrays.lazy(out, entry, varies(array) or varies(indices))


def _scatter(g: Lowering, eqn: Equation, array: Array, indices: Array, updates: Array) -> Array:
    """Set or add entries at the indices; those out of bounds are dropped, or clipped if asked."""
    form, p, c = _SCATTER[eqn.name], eqn.params, c_type(array.dtype)
    d, checked = p["dimension_numbers"], GatherScatterMode.from_any(p["mode"]) is not GatherScatterMode.CLIP
    size, count = math.prod(array.shape), math.prod(updates.shape)
    selects = g.arrays.is_small(array.shape) and size * count <= _COMPARISONS and not _is_free(g, array)
    indices, updates = _prepare(g, indices, not selects), _prepare(g, updates, not selects)
    where = _window(g, array, indices, updates.shape, d, d.scatter_dims_to_operand_dims, checked)
    if selects:
        entries = g.arrays.to_scalars(array).entries.copy()
        for index in np.ndindex(*updates.shape):
            place, inside = where(index)
            new = g.arrays.entry(updates, index)
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
    target = _copy(g, array, varies(indices) or varies(updates))

    def put(index: tuple[Index, ...]) -> None:
        place, inside = where(index)
        address = g.arrays.address(target, place)
        old = g.build.load(target.memory, address)
        new = g.build.let(c, form, old, g.arrays.entry(updates, index))
        value = new if inside is None else g.build.let(c, "{0}?{1}:{2}", inside, new, old)
        g.build.store(target.memory, address, value)

    g.arrays.for_each_index(updates.shape, put, unroll=1)
    target.memory.mutable = _is_free(g, target)
    return target


def _starts(g: Lowering, array: Array, starts: Sequence[Array], sizes: Sequence[int]) -> list[Index]:
    most = [n - size for n, size in zip(array.shape, sizes, strict=True)]
    return [_clip(g, g.arrays.entry(start, ()), last) for start, last in zip(starts, most, strict=True)]


def _clip(g: Lowering, start: Atom, most: int) -> Index:
    """Clip an index between 0 and the last at which a slice fits."""
    if isinstance(start, Lit):
        return max(min(int(start.value), most), 0)
    if g.jumps and not start.c.startswith("u"):
        return g.build.let("int32_t", f"clip{64 if start.c == 'int64_t' else 32}({{0}},{most})", start)
    if start.c.startswith("u"):
        return g.build.let("int32_t", f"(int32_t)({{0}}>{most}u?{most}u:{{0}})", start)
    return g.build.let("int32_t", f"(int32_t)({{0}}<0?0:({{0}}>{most}?{most}:{{0}}))", start)


def _both(g: Lowering, a: Atom | None, b: Atom) -> Atom:
    return b if a is None else g.build.let("int", "{0}&{1}", a, b)


def _prepare(g: Lowering, array: Array, looped: bool) -> Array:
    """Compute an array so that it may be read repeatedly; in memory if a loop reads it."""
    array = g.arrays.compute(array)
    return g.arrays.to_memory(array) if looped and isinstance(array, Scalars) and array.entries.size > 1 else array


def _is_free(g: Lowering, array: Array) -> bool:
    """Say whether an update may be written over the array."""
    return isinstance(array, Strided) and array.memory in g.free


def _copy(g: Lowering, array: Array, varying: bool) -> Strided:
    """Copy an array that is going to be changed, unless nothing else reads it."""
    if isinstance(array, Strided) and _is_free(g, array):
        array.memory.mutable = True
        return array
    memory = g.build.memory(c_type(array.dtype), math.prod(array.shape), varies(array) or varying, mutable=True)
    g.arrays.write(memory, array)
    return Strided.contiguous(memory, array)


RULES: dict[str, LoweringRule] = {
    "broadcast_in_dim": _broadcast_in_dim,
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    "transpose": _transpose,
    "slice": lambda g, eqn, array: _sliced(
        g, array, *(eqn.params[name] for name in ("start_indices", "limit_indices", "strides"))
    ),
    "rev": _rev,
    "split": _split,
    "unstack": _unstack,
    **dict.fromkeys(("concatenate", "stack"), concatenate),
    "pad": _pad,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    **dict.fromkeys(_SCATTER, _scatter),
}
