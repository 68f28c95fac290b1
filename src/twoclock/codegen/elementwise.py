"""Elementwise operations: arithmetic, as a table of C with operands {0}, {1}, …, and random bits.

Where C and XLA differ, the C follows XLA: a maximum propagates NaN, whole numbers divide by zero without a trap, casts
saturate. Random bits are those of Threefry-2x32 with 20 rounds, with the counters of JAX's partitionable keys.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np

from twoclock.codegen.arrays import Array, Equation, Keys, LazyArray, Scalars, Strided, row_strides, varies
from twoclock.codegen.ir import Atom, Buffer, Index, Lit, Unsupported, c_type, literal

if TYPE_CHECKING:
    from twoclock.codegen.arrays import LoweringRule
    from twoclock.codegen.lower import Lowering

Form: TypeAlias = str | Callable[[Equation], str]

# Forms for nearly all arguments {x} and {y}, and others for the rare ones that a test finds: a number {h} for all, the
# usual form, the test, the rare form, and whether that is a call. The rare form is computed only if a lane needs it.
_LARGE_ANGLE = "!(fabs({h})<1e9)"
RARE = {
    "erf_inv": ("erf_inv_depth({x})", "erf_inv_middle({x},{h})", "!({h}<6.25)", "erf_inv_tail({x},{h})", False),
    "sin": ("{x}", "tc_sin({h})", _LARGE_ANGLE, "sin({h})", True),
    "cos": ("{x}", "tc_cos({h})", _LARGE_ANGLE, "cos({h})", True),
    "pow": ("{y}", "{x}", "{h}!=1", "tc_pow({x},{h})", False),  # most step sizes fall as 1/k
}


def lower_elementwise(g: Lowering, eqn: Equation, *operands: Array) -> Array:
    """Compute an array entry by entry; a scalar operand serves all entries, and an axis of length one is stretched."""
    out, compute = eqn.outputs[0], _formula(g, eqn)
    small = g.arrays.is_small(out.shape)
    large = [not small and isinstance(a, Scalars) and a.entries.size > 1 for a in operands]
    arrays = [g.arrays.to_memory(a) if spill else a for a, spill in zip(operands, large, strict=True)]

    def entry(index: tuple[Index, ...]) -> Atom:
        places = ([0 if n == 1 else i for n, i in zip(a.shape, index, strict=True)] if a.shape else () for a in arrays)
        return compute(*map(g.arrays.entry, arrays, places))

    return g.arrays.lazy(out, entry, any(varies(a) for a in arrays), _reads(arrays))


def _iota(g: Lowering, eqn: Equation, *_: Array) -> Array:
    axis, out = eqn.params["dimension"], jax.ShapeDtypeStruct(eqn.params["shape"], eqn.params["dtype"])
    c = c_type(out.dtype)

    def entry(index: tuple[Index, ...]) -> Atom:
        i = index[axis]
        return literal(i, out.dtype) if isinstance(i, int) else g.build.let(c, f"({c}){{0}}", i)

    return g.arrays.lazy(out, entry, False, frozenset())


def _formula(g: Lowering, op: Equation) -> Callable[..., Atom]:
    """Return what computes one entry from the entries of the operands."""
    c = c_type(op.result)
    if op.name in RARE:
        return lambda *atoms: _rare(g, op, *atoms)
    if op.name == "integer_pow":
        return lambda atom: _power(g, c, atom, int(op.params["y"]))
    form = c_form(op.name, op)
    if form == "{0}":
        return lambda *atoms: atoms[0]
    # A function of the mathematical library runs one lane after the other.
    call = op.name in (*_LIBRARY, "atan2", "nextafter") or (op.name == "rem" and op.dtype.kind == "f")
    folds = op.name in _FOLD and all(v.dtype.kind != "f" for v in (*op.outputs, *op.inputs))

    def compute(*atoms: Atom) -> Atom:
        if g.jumps and op.name == "select_n" and g.build.is_below_zero(*atoms[:2]):
            return g.build.let(c, "RARELY({0})?{2}:{1}", *atoms)
        if op.name == "add_any" and any(zeros := [isinstance(a, Lit) and a.value == 0 for a in atoms]):
            return atoms[zeros.index(False)] if False in zeros else atoms[0]  # most cotangents are zero
        known = [atom.value for atom in atoms if isinstance(atom, Lit)]
        if not folds or len(known) < len(atoms):
            return g.build.let(c, form, *atoms, call=call)
        # Known whole numbers are computed here; floats are left to the compiler.
        with np.errstate(over="ignore"):
            values = (np.asarray(value, v.dtype) for value, v in zip(known, op.inputs, strict=True))
            return literal(np.asarray(_FOLD[op.name](*values)).astype(op.result), op.result)

    return compute


def c_form(name: str, op: Equation) -> str:
    """Return the C of an operation on numbers of the types of an equation."""
    if name not in TABLE:
        raise Unsupported(f"the operation {name} is not generated")
    form = TABLE[name]
    return form if isinstance(form, str) else form(op)


def _rare(g: Lowering, op: Equation, *atoms: Atom) -> Atom:
    c, call = c_type(op.result), RARE[op.name][-1]
    if op.dtype.kind != "f":
        raise Unsupported(f"the operation {op.name} on whole numbers is not generated")
    wide = [
        atom if v.dtype.name == "float64" else g.build.let("double", "(double){0}", atom)
        for atom, v in zip(atoms, op.inputs, strict=True)
    ]
    helper, main, test, other = (
        form.format(x="{0}", y="{1}", h=f"{{{len(wide)}}}") for form in RARE[op.name] if isinstance(form, str)
    )
    wide.append(g.build.let("double", helper, *wide))
    usual, rare = g.build.let("double", main, *wide), g.build.let("int", test, *wide)
    chosen = g.build.select_rarely("double", rare, usual, lambda: g.build.let("double", other, *wide, call=call))
    return chosen if c == "double" else g.build.let(c, f"({c}){{0}}", chosen)


def _power(g: Lowering, c: str, square: Atom, y: int) -> Atom:
    """Multiply by squaring, in the order of JAX."""
    product: Atom | None = None
    for bit in reversed(f"{abs(y):b}"):
        if bit == "1":
            product = square if product is None else g.build.let(c, "{0}*{1}", product, square)
        square = g.build.let(c, "{0}*{0}", square)
    if product is None or y > 0:
        return product or g.build.let(c, "1")
    return g.build.let(c, "1/{0}", product)


def _reads(arrays: Sequence[Array]) -> frozenset[Buffer] | None:
    """Find the buffers that are read at the entry's own index alone; None if one may be read elsewhere."""
    reads: set[Buffer] = set()
    for array in arrays:
        if isinstance(array, LazyArray):
            if array.reads is None:
                return None
            reads |= array.reads
        elif isinstance(array, Strided):
            if not (array.is_contiguous and array.offset == 0 and math.prod(array.shape) == array.memory.size):
                return None
            reads.add(array.memory)
    return frozenset(reads)


def _by_kind(floating: str, whole: str) -> Form:
    return lambda op: (floating if op.dtype.kind == "f" else whole).replace("BITS", str(op.bits))


def _function(name: str, *arguments: str) -> Callable[[Equation], str]:
    """Call a function on doubles; floats are widened, which rounds them correctly."""
    given = arguments or ("{0}",)
    double, single = (f"{name}({','.join(cast + a for a in given)})" for cast in ("", "(double)"))
    return lambda op: double if op.bits == 64 else f"(float){single}"


def _convert(op: Equation) -> str:
    old, new = op.dtype, op.result
    if new.kind == "b":
        return "{0}!=0"
    if old.kind == "f" and new.kind in "iu":
        return f"to_{new.name}((double){{0}})"
    return f"({c_type(new)}){{0}}"


def _bitcast(op: Equation) -> str:
    old, new = op.dtype, op.result
    if old.itemsize != new.itemsize:
        raise Unsupported("numbers are reinterpreted at another width")
    if (old.kind == "f") == (new.kind == "f"):
        return f"({c_type(new)}){{0}}"
    if old.itemsize < 4:
        raise Unsupported(f"numbers of type {old.name} are reinterpreted")
    return f"({c_type(new)})bits{op.bits}({{0}})" if old.kind == "f" else f"float{op.bits}({{0}})"


def _select(op: Equation) -> str:
    if op.inputs[0].dtype.kind == "b":
        return "{0}?{2}:{1}"
    *cases, chain = (f"{{{i}}}" for i in range(1, len(op.inputs)))
    for number, case in reversed(list(enumerate(cases, 1))):
        chain = f"({{0}}<{number}?{case}:{chain})"
    return chain


def _shift(sign: str, kind: str, beyond: str) -> Form:
    """Shift a word of a kind; ``beyond`` is the outcome for more bits than it has."""

    def form(op: Equation) -> str:
        word = c_type(np.dtype(f"{kind}{op.dtype.itemsize}"))
        return f"(uint64_t){{1}}<{op.bits}u?({word}){{0}}{sign}{{1}}:{beyond.format(word, op.bits - 1)}"

    return form


_LIBRARY = ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "cbrt", "erf", "erfc", "lgamma")
_INFIX = dict(
    zip(
        ("add", "add_any", "sub", "mul", "lt", "gt", "le", "ge", "eq", "ne", "and", "or", "xor"),
        ("+", "+", "-", "*", "<", ">", "<=", ">=", "==", "!=", "&", "|", "^"),
        strict=True,
    )
)
TABLE: dict[str, Form] = {
    **dict.fromkeys(("copy", "copy_p", "stop_gradient", "optimization_barrier", "real"), "{0}"),
    **{name: f"{{0}}{sign}{{1}}" for name, sign in _INFIX.items()},
    "div": lambda op: "{0}/{1}" if op.dtype.kind == "f" else f"div_{op.result.name}({{0}},{{1}})",
    "rem": lambda op: (
        _function("fmod", "{0}", "{1}")(op) if op.dtype.kind == "f" else f"rem_{op.result.name}({{0}},{{1}})"
    ),
    "neg": "-{0}",
    "abs": _by_kind("fabs({0})", "{0}<0?-{0}:{0}"),
    "sign": _by_kind("{0}>0?1:({0}<0?-1:{0})", "({0}>0)-({0}<0)"),
    "square": "{0}*{0}",
    "one_minus_square": "(1+{0})*(1-{0})",
    "max": _by_kind("largerBITS({0},{1})", "{0}>{1}?{0}:{1}"),
    "min": _by_kind("smallerBITS({0},{1})", "{0}<{1}?{0}:{1}"),
    "clamp": _by_kind("smallerBITS(largerBITS({0},{1}),{2})", "{1}<{0}?({0}>{2}?{2}:{0}):({1}>{2}?{2}:{1})"),
    "lt_to": _by_kind("orderedBITS({0})<orderedBITS({1})", "{0}<{1}"),
    "le_to": _by_kind("orderedBITS({0})<=orderedBITS({1})", "{0}<={1}"),
    "not": lambda op: "!{0}" if op.result.kind == "b" else "~{0}",
    "shift_left": _shift("<<", "u", "0"),
    "shift_right_logical": _shift(">>", "u", "0"),
    "shift_right_arithmetic": _shift(">>", "i", "({0}){{0}}>>{1}"),
    "population_count": lambda op: f"popcount64((uint64_t)({c_type(np.dtype(f'u{op.result.itemsize}'))}){{0}})",
    "select_n": _select,
    "convert_element_type": _convert,
    "bitcast_convert_type": _bitcast,
    "is_finite": "fabs({0})<INFINITY",
    "round": lambda op: _function("rint" if int(op.params["rounding_method"]) == 1 else "round_away")(op),
    "rsqrt": lambda op: "1/sqrt({0})" if op.bits == 64 else "(float)(1/sqrt((double){0}))",
    "exp2": lambda op: _function("tc_exp", f"({{0}}*{literal(math.log(2), op.result).text})")(op),
    "atan2": _function("atan2", "{0}", "{1}"),
    "nextafter": lambda op: f"nextafter{'' if op.bits == 64 else 'f'}({{0}},{{1}})",
    **{name: _function(name) for name in ("floor", "ceil", "sqrt", *_LIBRARY)},
    **{name: _function(f"tc_{name}") for name in ("exp", "log", "log1p", "expm1", "logistic", "tanh")},
}

_FOLD: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "lt", "le", "gt", "ge", "eq", "ne")},
    "and": operator.and_,
    "or": operator.or_,
    "max": np.maximum,
    "min": np.minimum,
    "convert_element_type": lambda x: x,
    "select_n": lambda which, *cases: cases[np.clip(int(which), 0, len(cases) - 1)],
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
}

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_WORD = np.dtype(np.uint32)


def _wrap(g: Lowering, eqn: Equation, words: Array) -> Keys:
    _check(eqn.outputs[0].dtype)
    part = jax.ShapeDtypeStruct(words.shape[:-1], _WORD)
    varying = varies(words)
    high = g.arrays.lazy(part, lambda index: g.arrays.entry(words, (*index, 0)), varying)
    return Keys((high, g.arrays.lazy(part, lambda index: g.arrays.entry(words, (*index, 1)), varying)))


def _unwrap(g: Lowering, eqn: Equation, keys: Keys) -> Array:
    if not g.arrays.is_small((*keys.shape, 2)):
        raise Unsupported("many random keys are taken apart")
    return Scalars(np.stack([g.arrays.to_scalars(half).entries for half in keys.halves], axis=-1), _WORD)


def _seed(g: Lowering, eqn: Equation, seeds: Array) -> Keys:
    _check(eqn.outputs[0].dtype)
    words = jax.ShapeDtypeStruct(seeds.shape, _WORD)
    low = g.arrays.lazy(words, lambda i: _as_word(g, g.arrays.entry(seeds, i)), varies(seeds), frozenset())
    return Keys((g.arrays.constant(np.zeros(seeds.shape, _WORD)), low))


def _derive(g: Lowering, eqn: Equation, words_at: Callable[[tuple[Index, ...]], tuple[Atom, Atom]]) -> Keys:
    """Make keys from the two words of each; work that both halves share is done once."""
    _check(eqn.outputs[0].dtype)
    words = jax.ShapeDtypeStruct(tuple(eqn.outputs[0].shape), _WORD)
    high = g.arrays.lazy(words, lambda index: words_at(index)[0], True, frozenset())
    return Keys((high, g.arrays.lazy(words, lambda index: words_at(index)[1], True, frozenset())))


def _fold_in(g: Lowering, eqn: Equation, keys: Keys, data: Array) -> Keys:
    def words(index: tuple[Index, ...]) -> tuple[Atom, Atom]:
        count = _as_word(g, g.arrays.entry(data, index if data.shape else ()))
        return _threefry(g, keys, index if keys.shape else (), count)

    return _derive(g, eqn, words)


def _split(g: Lowering, eqn: Equation, keys: Keys) -> Keys:
    return _derive(g, eqn, lambda index: _words(g, keys, index, tuple(eqn.outputs[0].shape)))


def _bits(g: Lowering, eqn: Equation, keys: Keys) -> Array:
    _check(eqn.inputs[0].dtype)
    out = eqn.outputs[0]
    c = c_type(out.dtype)
    form = "((uint64_t){0}<<32)|(uint64_t){1}" if eqn.params["bit_width"] == 64 else f"({c})({{0}}^{{1}})"
    shape = tuple(out.shape)
    return g.arrays.lazy(out, lambda i: g.build.let(c, form, *_words(g, keys, i, shape)), True, frozenset())


def _words(g: Lowering, keys: Keys, index: tuple[Index, ...], shape: tuple[int, ...]) -> tuple[Atom, Atom]:
    """Compute the two words of an entry: the first axes of its index are those of the keys, the others count."""
    rank = len(keys.shape)
    place = g.arrays.linear_index(index[rank:], row_strides(shape[rank:]))
    count = literal(place, _WORD) if isinstance(place, int) else g.build.let("uint32_t", "(uint32_t){0}", place)
    return _threefry(g, keys, index[:rank], count)


def _threefry(g: Lowering, keys: Keys, index: tuple[Index, ...], count: Atom) -> tuple[Atom, Atom]:
    """Compute the two words of a key at the counter (0, count)."""
    k0, k1 = (g.arrays.entry(half, index) for half in keys.halves)

    def word(form: str, *atoms: Atom) -> Atom:
        return g.build.let("uint32_t", form, *atoms)

    schedule = (k0, k1, word("{0}^{1}^0x1BD11BDAu", k0, k1))
    x, y = k0, word("{0}+{1}", count, k1)
    for i in range(5):
        for r in _ROTATIONS[i % 2]:
            x = word("{0}+{1}", x, y)
            y = word(f"{{0}}^rotate({{1}},{r})", x, y)
        x = word("{0}+{1}", x, schedule[(i + 1) % 3])
        y = word(f"{{0}}+{{1}}+{i + 1}u", y, schedule[(i + 2) % 3])
    return x, y


def _as_word(g: Lowering, atom: Atom) -> Atom:
    if isinstance(atom, Lit):
        return literal(int(atom.value) & 0xFFFFFFFF, _WORD)
    return atom if atom.c == "uint32_t" else g.build.let("uint32_t", "(uint32_t){0}", atom)


def _check(dtype: np.dtype) -> None:
    """Refuse keys of another generator; those of JAX give the same bits unless their counters are set otherwise."""
    name = str(dtype)
    partitionable = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    if name != "key<tc>" and not (name == "key<fry>" and partitionable):
        raise Unsupported(f"random numbers of the kind {name} are not generated")


RULES: dict[str, LoweringRule] = {
    "iota": _iota,
    "random_wrap": _wrap,
    "random_unwrap": _unwrap,
    "random_seed": _seed,
    "random_fold_in": _fold_in,
    "random_split": _split,
    "random_bits": _bits,
}
