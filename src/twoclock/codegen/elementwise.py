"""What JAX computes entry by entry, in C: a table from the name of the operation to a form with {0}, {1}, … in it.

Where C and XLA differ, C is made to agree: a maximum passes NaN on, whole numbers divide by zero without a trap, shifts
by more than the width give zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from twoclock.codegen.ir import Unsupported, c_type


@dataclass(frozen=True)
class Operation:
    """One application: what goes in, what comes out, and its settings."""

    name: str
    given: tuple[np.dtype, ...]
    made: np.dtype
    params: Mapping[str, Any]

    @property
    def floating(self) -> bool:
        return self.given[-1].kind == "f"

    @property
    def bits(self) -> int:
        return self.given[-1].itemsize * 8


@dataclass(frozen=True)
class Rare:
    """A form for nearly all arguments, and another for the few for which ``test`` holds.

    Lanes walk side by side, so the second is worked out for all of them, but only when one of them asks.
    """

    helper: str  # a number that all three need, {h} in them; the operands are {x} and {y}
    main: str
    test: str
    other: str
    call: bool


Form: TypeAlias = str | Callable[[Operation], str]

_LARGE_ANGLE = "!(fabs({h})<1e9)"
RARE = {
    "erf_inv": Rare("erf_inv_depth({x})", "erf_inv_middle({x},{h})", "!({h}<6.25)", "erf_inv_tail({x},{h})", False),
    "sin": Rare("{x}", "tc_sin({h})", _LARGE_ANGLE, "sin({h})", True),
    "cos": Rare("{x}", "tc_cos({h})", _LARGE_ANGLE, "cos({h})", True),
    "pow": Rare("{y}", "{x}", "{h}!=1", "tc_pow({x},{h})", False),  # steps that fall as 1/k are what most runs have
}


def form(op: Operation) -> str:
    """The operation in C."""
    found = TABLE.get(op.name)
    if found is None:
        raise Unsupported(f"the operation {op.name} is not generated")
    return found if isinstance(found, str) else found(op)


def is_call(op: Operation) -> bool:
    """Whether the operation calls the mathematical library, one lane after the other."""
    return op.name in _LIBRARY or (op.name == "rem" and op.floating)


def folded(op: Operation, values: Sequence[Any]) -> Any:
    """The outcome of an operation on whole numbers that are known already; None where it is left to the compiler."""
    if op.name not in _FOLD or op.made.kind == "f" or any(dtype.kind == "f" for dtype in op.given):
        return None
    with np.errstate(over="ignore"):
        return np.asarray(_FOLD[op.name](*(np.asarray(v, d) for v, d in zip(values, op.given, strict=True)))).astype(
            op.made
        )


def _by_kind(floating: str, whole: str) -> Form:
    return lambda op: floating if op.floating else whole


def _function(name: str) -> Form:
    """A function of ours on doubles; floats are widened, which leaves them the last bit."""
    return lambda op: f"{name}({{0}})" if op.bits == 64 else f"(float){name}((double){{0}})"


def _convert(op: Operation) -> str:
    (old,), new = op.given, op.made
    if new.kind == "b":
        return "{0}!=0"
    if old.kind == "f" and new.kind in "iu":
        if new.itemsize < 4:
            return f"({c_type(new)})to_int32((double){{0}})"
        return f"to_{new.name}((double){{0}})"
    return f"({c_type(new)}){{0}}"


def _bitcast(op: Operation) -> str:
    (old,), new = op.given, op.made
    if old.itemsize != new.itemsize:
        raise Unsupported("numbers are reinterpreted at another width")
    if (old.kind == "f") == (new.kind == "f"):
        return f"({c_type(new)}){{0}}"
    if old.itemsize < 4:
        raise Unsupported(f"numbers of type {old.name} are reinterpreted")
    width = old.itemsize * 8
    return f"({c_type(new)})bits{width}({{0}})" if old.kind == "f" else f"float{width}({{0}})"


def _power(op: Operation) -> str:
    y = int(op.params["y"])
    if y == 0:
        return "1"
    if abs(y) > 16:
        return _function_of_two("tc_pow", f"(double){y}")(op)
    return _product("{0}", abs(y)) if y > 0 else f"1/{_product('{0}', -y)}"


def _product(x: str, times: int) -> str:
    """A product by squaring, as XLA multiplies it out."""
    if times == 1:
        return x
    half = _product(x, times // 2)
    return f"({half}*{half})" if times % 2 == 0 else f"({half}*{half}*{x})"


def _function_of_two(name: str, second: str = "{1}") -> Callable[[Operation], str]:
    def of(op: Operation) -> str:
        return f"{name}({{0}},{second})" if op.bits == 64 else f"(float){name}((double){{0}},(double){second})"

    return of


def _select(op: Operation) -> str:
    if len(op.given) == 3:
        return "{0}?{2}:{1}"
    last = len(op.given) - 1
    chain = f"{{{last}}}"
    for case in range(last - 1, 0, -1):
        chain = f"({{0}}=={case - 1}?{{{case}}}:{chain})"
    return chain


def _shift(c_operator: str, beyond: str) -> Form:
    def of(op: Operation) -> str:
        word = op.given[0]
        if c_operator == ">>" and beyond == "0" and word.kind == "i":
            return f"({c_type(word)})({{1}}<{op.bits}u?({c_type(np.dtype(f'u{word.itemsize}'))}){{0}}>>{{1}}:0)"
        return f"(uint64_t){{1}}<{op.bits}u?{{0}}{c_operator}{{1}}:{beyond}"

    return of


def _divide(op: Operation) -> str:
    return "{0}/{1}" if op.floating else f"div_{op.made.name}({{0}},{{1}})"


def _remainder(op: Operation) -> str:
    return _function_of_two("fmod")(op) if op.floating else f"rem_{op.made.name}({{0}},{{1}})"


def _round(op: Operation) -> str:
    to_even = int(op.params["rounding_method"]) == 1
    name = "rint" if to_even else "round_away"
    return f"{name}({{0}})" if op.bits == 64 else f"(float){name}((double){{0}})"


TABLE: dict[str, Form] = {
    **dict.fromkeys(("copy", "copy_p", "stop_gradient", "optimization_barrier", "real"), "{0}"),
    "add": "{0}+{1}",
    "add_any": "{0}+{1}",
    "sub": "{0}-{1}",
    "mul": "{0}*{1}",
    "div": _divide,
    "rem": _remainder,
    "neg": "-{0}",
    "abs": _by_kind("fabs({0})", "{0}<0?-{0}:{0}"),
    "sign": _by_kind("{0}>0?1:({0}<0?-1:{0})", "({0}>0)-({0}<0)"),
    "square": "{0}*{0}",
    "one_minus_square": "(1+{0})*(1-{0})",
    "integer_pow": _power,
    "max": _by_kind("({0}>={1})|({0}!={0})?{0}:{1}", "{0}>{1}?{0}:{1}"),
    "min": _by_kind("({0}<={1})|({0}!={0})?{0}:{1}", "{0}<{1}?{0}:{1}"),
    "clamp": _by_kind("{1}<{0}?{0}:({1}>{2}?{2}:{1})", "{1}<{0}?{0}:({1}>{2}?{2}:{1})"),
    "lt": "{0}<{1}",
    "gt": "{0}>{1}",
    "le": "{0}<={1}",
    "ge": "{0}>={1}",
    "eq": "{0}=={1}",
    "ne": "{0}!={1}",
    "and": "{0}&{1}",
    "or": "{0}|{1}",
    "xor": "{0}^{1}",
    "not": lambda op: "!{0}" if op.made.kind == "b" else "~{0}",
    "shift_left": _shift("<<", "0"),
    "shift_right_logical": _shift(">>", "0"),
    "shift_right_arithmetic": lambda op: f"{{0}}>>((uint64_t){{1}}<{op.bits}u?{{1}}:{op.bits - 1})",
    "population_count": lambda op: f"popcount64((uint64_t)({c_type(np.dtype(f'u{op.made.itemsize}'))}){{0}})",
    "select_n": _select,
    "convert_element_type": _convert,
    "bitcast_convert_type": _bitcast,
    "is_finite": "fabs({0})<INFINITY",
    "floor": _function("floor"),
    "ceil": _function("ceil"),
    "round": _round,
    "sqrt": _function("sqrt"),
    "rsqrt": lambda op: "1/sqrt({0})" if op.bits == 64 else "(float)(1/sqrt((double){0}))",
    "exp": _function("tc_exp"),
    "exp2": lambda op: "tc_pow(2.0,{0})" if op.bits == 64 else "(float)tc_pow(2.0,(double){0})",
    "log": _function("tc_log"),
    "log1p": _function("tc_log1p"),
    "expm1": _function("tc_expm1"),
    "logistic": _function("tc_logistic"),
    "tanh": _function("tc_tanh"),
    "atan2": _function_of_two("atan2"),
    "nextafter": lambda op: f"nextafter{'' if op.bits == 64 else 'f'}({{0}},{{1}})",
    **{name: _function(name) for name in ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")},
    **{name: _function(name) for name in ("cbrt", "erf", "erfc", "lgamma")},
}

_FOLD: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "max": np.maximum,
    "min": np.minimum,
    "convert_element_type": lambda x: x,
    "select_n": lambda which, *cases: cases[int(which)],
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
}

_LIBRARY = frozenset(
    ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "cbrt", "erf", "erfc", "lgamma")
) | {"atan2", "nextafter"}
