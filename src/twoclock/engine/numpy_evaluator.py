"""A traced program taken by NumPy, one operation after the other, for many lanes at once.

It serves programs that run a few times: XLA needs a second to compile a step that NumPy takes in milliseconds. Every
array has the lanes as its first axis, or a first axis of length one if all lanes share it. A sum has the same order
whatever the number of lanes, so that the bits of a lane do not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxprs_in_params

from twoclock import prng

Parameters: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[..., np.ndarray]

# Numbers of one lane that a product of matrices may need in between.
_LARGEST = 1 << 20
_CALLS = {"jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2"} | {
    "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"
}  # fmt: skip


def evaluate(program: ClosedJaxpr, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a program whose equations are known; all arrays have the lanes as their first axis, or 1.

    A key of JAX is two words, its last axis.
    """
    with np.errstate(all="ignore"):
        return _call(program, args)


def add_results(equations: Sequence[JaxprEqn], values: dict[Var, np.ndarray]) -> None:
    """Add the results of known equations to the values."""
    for equation in equations:
        given = [_read(variable, values) for variable in equation.invars]
        values.update(zip(equation.outvars, _results(equation, given), strict=True))


def are_known(equations: Sequence[JaxprEqn]) -> bool:
    """Whether every operation of the equations, and of the programs inside, is known here; loops are not."""
    inside = (jaxprs_in_params(equation.params) for equation in equations)
    return all(map(_is_known, equations)) and all(
        are_known(getattr(part, "jaxpr", part).eqns) for parts in inside for part in parts
    )


def _is_known(equation: JaxprEqn) -> bool:
    name, p = equation.primitive.name, equation.params
    shapes = [variable.aval for variable in (*equation.invars, *equation.outvars)]
    if name == "pad":
        return all(low >= 0 and high >= 0 for low, high, _ in p["padding_config"])
    if name == "bitcast_convert_type":
        return len({aval.dtype.itemsize for aval in shapes}) == 1  # type: ignore[attr-defined]
    if name == "reshape":
        return p["dimensions"] is None
    if name == "dot_general":
        (along, _), _ = p["dimension_numbers"]
        terms = math.prod(shapes[0].shape[d] for d in along)  # type: ignore[attr-defined]
        return math.prod(shapes[-1].shape) * terms <= _LARGEST  # type: ignore[attr-defined]
    if any("key<" in str(getattr(aval, "dtype", "")) for aval in shapes) and name not in _CALLS | _OF_KEYS:
        return False
    if any("key<fry>" in str(getattr(aval, "dtype", "")) for aval in shapes):
        return bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]
    return name in _RULES or name in _CALLS or name in ("cond", "split", "optimization_barrier")


def shared(value: object) -> np.ndarray:
    """A constant of all lanes."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)[None]


def _read(variable: Var | Literal, values: dict[Var, np.ndarray]) -> np.ndarray:
    if isinstance(variable, Literal):
        return np.asarray(variable.val, variable.aval.dtype)[None]  # type: ignore[attr-defined]
    return values[variable]


def _call(program: ClosedJaxpr | Jaxpr, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    jaxpr = getattr(program, "jaxpr", program)
    consts = [shared(const) for const in getattr(program, "consts", ())]
    values: dict[Var, np.ndarray] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    add_results(jaxpr.eqns, values)
    return [_read(variable, values) for variable in jaxpr.outvars]


def _results(equation: JaxprEqn, given: list[np.ndarray]) -> list[np.ndarray]:
    name, p = equation.primitive.name, equation.params
    if name in _CALLS:
        (inner,) = (p[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in p)
        return _call(inner, given)
    if name == "cond":
        return _cond(p["branches"], given[0], given[1:])
    if name == "optimization_barrier":
        return given
    if name == "split":
        cuts = np.cumsum(p["sizes"])[:-1].tolist()
        return np.split(given[0], cuts, axis=p["axis"] + 1)
    (out,) = equation.outvars
    shape, dtype = out.aval.shape, out.aval.dtype  # type: ignore[attr-defined]
    if name in _ELEMENTWISE:
        rank = max(array.ndim for array in given)
        aligned = (a.reshape(len(a), *(1,) * (rank - a.ndim), *a.shape[1:]) for a in given)
        return [np.asarray(_ELEMENTWISE[name](*aligned)).astype(dtype, copy=False)]
    if name in ("convert_element_type", "integer_pow", "round"):
        return [_ONE[name](given[0], p, dtype)]
    if "key<" in str(dtype):
        return [_SHAPED[name](p, shape if name in _RANDOM else (*shape, 2), *given)]
    return [_SHAPED[name](p, shape, *given).astype(dtype, copy=False)]


def _cond(branches: Sequence[ClosedJaxpr], which: np.ndarray, given: list[np.ndarray]) -> list[np.ndarray]:
    which = np.clip(which.astype(int), 0, len(branches) - 1)
    if (which == which[0]).all():
        return _call(branches[which[0]], given)
    cases = zip(*(_call(branch, given) for branch in branches), strict=True)
    return [_pick(which.reshape(len(which), *(1,) * (case[0].ndim - 1)), *case) for case in cases]


def _pick(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    found = cases[0]
    for number, case in enumerate(cases[1:], 1):
        found = np.where(which >= number, case, found)
    return found


def _divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind not in "iu":
        return x / y
    safe = np.where(y == 0, 1, y)
    quotient = x // safe
    quotient = quotient + ((quotient < 0) & (quotient * safe != x))  # towards zero
    return np.where(y == 0, np.asarray(-1).astype(x.dtype), quotient)


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.fmod(x, y) if x.dtype.kind == "f" else np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y)))


def _shift(shift: Callable[..., np.ndarray], kind: str) -> Rule:
    """Shift words taken as signed or unsigned; an amount is never negative."""

    def shifted(x: np.ndarray, by: np.ndarray) -> np.ndarray:
        word, bits = np.dtype(f"{kind}{x.dtype.itemsize}"), 8 * x.dtype.itemsize
        amount = np.minimum(np.ascontiguousarray(by).view(f"u{x.dtype.itemsize}"), bits).astype(word)
        return shift(np.ascontiguousarray(x).view(word), amount).view(x.dtype)

    return shifted


def _convert(x: np.ndarray, p: Parameters, dtype: np.dtype) -> np.ndarray:
    if dtype.kind not in "iu" or x.dtype.kind != "f":
        return x != 0 if dtype.kind == "b" else x.astype(dtype)
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    inside = np.where((x > float(least)) & (x < float(most)), x, 0).astype(dtype)
    return np.where(x <= float(least), least, np.where(x >= float(most), most, inside)).astype(dtype)


def _power(x: np.ndarray, p: Parameters, dtype: np.dtype) -> np.ndarray:
    """By squaring, in the order of JAX."""
    product, left = np.ones_like(x), abs(p["y"])
    while left:
        product, x, left = (product * x if left & 1 else product), x * x, left >> 1
    return product if p["y"] >= 0 else 1 / product


def _round(x: np.ndarray, p: Parameters, dtype: np.dtype) -> np.ndarray:
    return np.rint(x) if int(p["rounding_method"]) == 1 else np.trunc(x + np.copysign(0.5, x))


# Coefficients of the inverse error function by M. Giles, *Approximating the erfinv function*, 2012, as XLA has them:
# for w = −log(1 − x²) below 6.25, below 16, and above.
_MIDDLE = (
    -3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18, 1.115787767802518096e-17,
    -1.333171662854620906e-16, 2.0972767875968561637e-17, 6.6376381343583238325e-15, -4.0545662729752068639e-14,
    -8.1519341976054721522e-14, 2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
    1.051212273321532285e-09, -4.1126339803469836976e-09, -2.9070369957882005086e-08, 4.2347877827932403518e-07,
    -1.3654692000834678645e-06, -1.3882523362786468719e-05, 0.0001867342080340571352, -0.00074070253416626697512,
    -0.0060336708714301490533, 0.24015818242558961693, 1.6536545626831027356,
)  # fmt: skip
_OUTER = (
    2.2137376921775787049e-09, 9.0756561938885390979e-08, -2.7517406297064545428e-07, 1.8239629214389227755e-08,
    1.5027403968909827627e-06, -4.013867526981545969e-06, 2.9234449089955446044e-06, 1.2475304481671778723e-05,
    -4.7318229009055733981e-05, 6.8284851459573175448e-05, 2.4031110387097893999e-05, -0.0003550375203628474796,
    0.00095328937973738049703, -0.0016882755560235047313, 0.0024914420961078508066, -0.0037512085075692412107,
    0.005370914553590063617, 1.0052589676941592334, 3.0838856104922207635,
)  # fmt: skip
_TAIL = (
    -2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-09, -3.7894654401267369937e-09,
    7.6157012080783393804e-09, -1.4960026627149240478e-08, 2.9147953450901080826e-08, -6.7711997758452339498e-08,
    2.2900482228026654717e-07, -9.9298272942317002539e-07, 4.5260625972231537039e-06, -1.9681778105531670567e-05,
    7.5995277030017761139e-05, -0.00021503011930044477347, -0.00013871931833623122026, 1.0103004648645343977,
    4.8499064014085844221,
)  # fmt: skip


def _inverse_erf(x: np.ndarray) -> np.ndarray:
    z = x.astype(float)
    w = -np.log((1 - z) * (1 + z))
    root = np.sqrt(w)
    inside = np.where(w < 6.25, np.polyval(_MIDDLE, w - 3.125), np.polyval(_OUTER, root - 3.25))
    found = np.where(w < 16, inside, np.polyval(_TAIL, root - 5)) * z
    return np.where(np.abs(z) == 1, np.copysign(np.inf, z), found)


def _last(array: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """The axes of a lane's array as one, the last in memory, so that a sum over them has one order for all lanes."""
    kept = [d for d in range(array.ndim) if d - 1 not in axes]
    turned = np.ascontiguousarray(array.transpose(*kept, *(d + 1 for d in axes)))
    return turned.reshape(*turned.shape[: len(kept)], -1)


def _reduce(combine: np.ufunc) -> Rule:
    def reduced(p: Parameters, shape: tuple[int, ...], x: np.ndarray) -> np.ndarray:
        rows = _last(x, p["axes"])
        if rows.shape[-1] == 0 and combine.identity is None:
            worst = -np.inf if combine is np.maximum else np.inf
            return np.full(rows.shape[:-1], worst)
        return np.asarray(combine.reduce(rows, axis=-1))

    return reduced


def _product(p: Parameters, shape: tuple[int, ...], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    (along_x, along_y), (batch_x, batch_y) = p["dimension_numbers"]

    def arranged(a: np.ndarray, batch: Sequence[int], along: Sequence[int]) -> np.ndarray:
        free = [d for d in range(a.ndim - 1) if d not in (*batch, *along)]
        rows = a.transpose(0, *(d + 1 for d in (*batch, *free, *along)))
        sizes = (len(a), *(a.shape[d + 1] for d in batch))
        return rows.reshape(*sizes, math.prod(a.shape[d + 1] for d in free), math.prod(a.shape[d + 1] for d in along))

    left, right = arranged(x, batch_x, along_x), arranged(y, batch_y, along_y)
    terms = np.ascontiguousarray(left[..., :, None, :] * right[..., None, :, :])
    total = np.logical_or.reduce(terms, axis=-1) if terms.dtype.kind == "b" else np.add.reduce(terms, axis=-1)
    return total.reshape(max(len(x), len(y)), *shape)


def _broadcast(p: Parameters, shape: tuple[int, ...], x: np.ndarray, *_: object) -> np.ndarray:
    sizes = [1] * len(shape)
    for d, place in enumerate(p["broadcast_dimensions"]):
        sizes[place] = x.shape[d + 1]
    return np.broadcast_to(x.reshape(len(x), *sizes), (len(x), *shape))


def _join(join: Callable[..., np.ndarray], axis: str) -> Rule:
    def joined(p: Parameters, shape: tuple[int, ...], *parts: np.ndarray) -> np.ndarray:
        lanes = max(map(len, parts))
        return join([np.broadcast_to(part, (lanes, *part.shape[1:])) for part in parts], axis=p[axis] + 1)

    return joined


def _slice(p: Parameters, shape: tuple[int, ...], x: np.ndarray) -> np.ndarray:
    strides = p["strides"] or (1,) * len(p["start_indices"])
    cuts = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
    return x[(slice(None), *(slice(*cut) for cut in cuts))]


def _dynamic_slice(p: Parameters, shape: tuple[int, ...], x: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    lanes = max(map(len, (x, *starts)))
    x = np.broadcast_to(x, (lanes, *x.shape[1:]))
    index: list[np.ndarray] = [np.arange(lanes).reshape(-1, *(1,) * len(shape))]
    for d, (start, size) in enumerate(zip(starts, shape, strict=True)):
        first = np.clip(start.astype(int), 0, x.shape[d + 1] - size)
        along = np.arange(size).reshape(-1, *(1,) * (len(shape) - d - 1))
        index.append(first.reshape(-1, *(1,) * len(shape)) + along)
    return x[tuple(index)]


def _dynamic_update(
    p: Parameters, shape: tuple[int, ...], x: np.ndarray, new: np.ndarray, *starts: np.ndarray
) -> np.ndarray:
    lanes = max(map(len, (x, new, *starts)))
    found = np.array(np.broadcast_to(x, (lanes, *shape)))
    for lane in range(lanes):
        sizes = zip(starts, new.shape[1:], shape, strict=True)
        firsts = [(int(np.clip(s[lane % len(s)], 0, whole - size)), size) for s, size, whole in sizes]
        place = tuple(slice(first, first + size) for first, size in firsts)
        found[lane][place or ...] = new[lane % len(new)]
    return found


def _pad(p: Parameters, shape: tuple[int, ...], x: np.ndarray, value: np.ndarray) -> np.ndarray:
    lanes = max(len(x), len(value))
    found = np.array(np.broadcast_to(value.reshape(-1, *(1,) * len(shape)), (lanes, *shape)))
    gaps = zip(p["padding_config"], x.shape[1:], strict=True)
    inside = (slice(low, low + max((n - 1) * (between + 1) + 1, 0), between + 1) for (low, _, between), n in gaps)
    found[(slice(None), *inside)] = x
    return found


def _count(p: Parameters, shape: tuple[int, ...], *_: object) -> np.ndarray:
    along = np.arange(shape[p["dimension"]]).reshape(-1, *(1,) * (len(shape) - p["dimension"] - 1))
    return np.broadcast_to(along, shape)[None]


def _cumulative(combine: np.ufunc) -> Rule:
    def found(p: Parameters, shape: tuple[int, ...], x: np.ndarray) -> np.ndarray:
        axis = p["axis"] + 1
        turned = np.flip(x, axis) if p["reverse"] else x
        sums = combine.accumulate(turned, axis=axis, dtype=x.dtype)
        return np.flip(sums, axis) if p["reverse"] else sums

    return found


def _words(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two words of keys at counters, with the axes of the keys first."""
    spread = keys.reshape(*keys.shape[:-1], *(1,) * (counts.ndim - keys.ndim + 1), 2)
    high, low = np.broadcast_arrays(spread[..., 0], spread[..., 1], counts)[:2]
    return prng.written_out(np.stack([high, low]), np.broadcast_to(counts, high.shape))


def _fold_in(p: Parameters, shape: tuple[int, ...], keys: np.ndarray, data: np.ndarray) -> np.ndarray:
    counts = data.astype(np.uint32).reshape(len(data), *data.shape[1:], *(1,) * (keys.ndim - 1 - data.ndim))
    return np.stack(_words(keys, counts), axis=-1)


def _bits(p: Parameters, shape: tuple[int, ...], keys: np.ndarray) -> np.ndarray:
    inner = shape[keys.ndim - 2 :]
    counts = np.arange(math.prod(inner), dtype=np.uint32).reshape(*(1,) * (keys.ndim - 1), *inner)
    high, low = _words(keys, counts)
    if p["bit_width"] == 64:
        return (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
    return high ^ low


def _split_keys(p: Parameters, shape: tuple[int, ...], keys: np.ndarray) -> np.ndarray:
    inner = shape[keys.ndim - 2 :]
    counts = np.arange(math.prod(inner), dtype=np.uint32).reshape(*(1,) * (keys.ndim - 1), *inner)
    return np.stack(_words(keys, counts), axis=-1)


def _seed(p: Parameters, shape: tuple[int, ...], seeds: np.ndarray) -> np.ndarray:
    low = seeds.astype(np.uint32)
    return np.stack([np.zeros_like(low), low], axis=-1)


_ELEMENTWISE: dict[str, Rule] = {
    **dict.fromkeys(("copy", "copy_p", "stop_gradient", "real"), lambda x: x),
    **dict.fromkeys(("add", "add_any"), np.add),
    **{name: getattr(np, name) for name in ("abs", "sign", "square", "sqrt", "exp", "log", "log1p", "expm1", "tanh")},
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "floor", "ceil", "nextafter", "exp2")},
    "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "max": np.maximum, "min": np.minimum,
    "pow": np.power, "cbrt": np.cbrt, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "is_finite": np.isfinite,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "not": np.invert,
    "div": _divide,
    "rem": _remainder,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "erf_inv": _inverse_erf,
    "select_n": _pick,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "shift_left": _shift(np.left_shift, "u"),
    "shift_right_logical": _shift(np.right_shift, "u"),
    "shift_right_arithmetic": _shift(np.right_shift, "i"),
}  # fmt: skip
_ONE = {"convert_element_type": _convert, "integer_pow": _power, "round": _round}
_RANDOM = {"random_wrap", "random_unwrap", "random_seed", "random_fold_in", "random_bits", "random_split"}
_OF_KEYS = _RANDOM | {"slice", "squeeze", "reshape", "expand_dims"}
_REDUCE: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
_SHAPED: dict[str, Rule] = {
    **{f"reduce_{name}": _reduce(combine) for name, combine in _REDUCE.items()},
    **{f"cum{name}": _cumulative(_REDUCE[name]) for name in ("sum", "prod", "max", "min")},
    **dict.fromkeys(
        ("reshape", "squeeze", "expand_dims"), lambda p, shape, x, *_: np.ascontiguousarray(x).reshape(len(x), *shape)
    ),
    **dict.fromkeys(("random_wrap", "random_unwrap"), lambda p, shape, x: x),
    "argmax": lambda p, shape, x: np.argmax(x, axis=p["axes"][0] + 1),
    "argmin": lambda p, shape, x: np.argmin(x, axis=p["axes"][0] + 1),
    "bitcast_convert_type": lambda p, shape, x: np.ascontiguousarray(x).view(p["new_dtype"]),
    "broadcast_in_dim": _broadcast,
    "concatenate": _join(np.concatenate, "dimension"),
    "dot_general": _product,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "iota": _count,
    "pad": _pad,
    "random_bits": _bits,
    "random_fold_in": _fold_in,
    "random_seed": _seed,
    "random_split": _split_keys,
    "rev": lambda p, shape, x: np.flip(x, tuple(d + 1 for d in p["dimensions"])),
    "slice": _slice,
    "stack": _join(np.stack, "axis"),
    "transpose": lambda p, shape, x: x.transpose(0, *(d + 1 for d in p["permutation"])),
}
_RULES = {*_ELEMENTWISE, *_ONE, *_SHAPED}
