"""Every primitive that the generator takes, over its whole domain, beside XLA: the two agree, or the C is refused.

A lane is one choice of the operands, so one program computes many primitives of many values at once.
"""

import functools
import itertools

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from twoclock import codegen
from twoclock.codegen import compiler, elementwise, lower

pytestmark = pytest.mark.skipif(isinstance(compiler.find(), str), reason="there is no C compiler")

FLOATS, SIGNED, UNSIGNED = (
    ("float32", "float64"),
    ("int8", "int16", "int32", "int64"),
    ("uint8", "uint16", "uint32", "uint64"),
)
TYPES = (*FLOATS, *SIGNED, *UNSIGNED, "bool")
seen = set()  # the primitives of all programs


class Both:
    """Functions of a lane's operands, compiled by the generator and by XLA.

    Args:
        functions: by name; one that is approximate in XLA ends in "~".
        operands: shapes and types.
    """

    def __init__(self, functions, operands, width=4, quickly=False):
        self.names, self.width = list(functions), width

        def every(*values):
            with jax.numpy_dtype_promotion("standard"):
                return [f(*values) for f in functions.values()]

        self.outputs = jax.eval_shape(every, *operands)
        example = codegen.Example((), (), (*operands, *self.outputs))
        self.source = codegen.generate(
            lambda i, p, carry, *_: (*carry[: len(operands)], *every(*carry[: len(operands)])),
            example,
            codegen.CodeTarget(width),
        )
        self.walk = codegen.compile_text(self.source.text, width, compiler.find(), quickly=quickly).function()
        self.xla = jax.jit(jax.vmap(every))
        seen.update(lower.primitives(jax.make_jaxpr(every)(*operands).jaxpr))

    def __call__(self, *values):
        """Compute by both; yield the name of each function, and the two results."""
        count = len(values[0])
        mine = [np.array(v) for v in values] + [np.zeros((count, *o.shape), o.dtype) for o in self.outputs]
        constants, words = list(self.source.constants), np.zeros((count, 2), np.uint32)
        pointers = compiler.pointers(constants), compiler.pointers(mine), words.ctypes.data
        self.walk(0, 1, 0, -(-count // self.width), 1, count, *pointers)
        yield from zip(self.names, mine[len(values) :], map(np.asarray, self.xla(*values)), strict=True)


def flushed(x):
    """Numbers below the smallest normal one count as zero in both."""
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(np.zeros((), x.dtype), x), x)


def agree(mine, xla, operands, approximate):
    """Whether the results agree: whole numbers and arithmetic exactly, elementary functions up to rounding."""
    assert mine.dtype == xla.dtype
    if mine.dtype.kind != "f":
        return mine == xla
    info = np.finfo(mine.dtype)
    mine, xla = flushed(mine), flushed(xla)
    same = (mine == xla) & (np.signbit(mine) == np.signbit(xla)) | np.isnan(mine) & np.isnan(xla)
    if approximate:
        with np.errstate(all="ignore"):
            size = functools.reduce(np.fmax, map(np.abs, operands))
            off = 256 * info.eps * np.abs(xla) + 16 * info.eps * np.minimum(size, 1) + 4 * info.tiny
            same |= np.isfinite(mine) & np.isfinite(xla) & (np.abs(mine - xla) <= off)
        # An elementary function of XLA's takes what is below the smallest normal number for zero or for itself.
        for x in operands:
            same |= (flushed(x) == 0) & (x != 0)
    return same


def check(both, *values):
    for name, mine, xla in both(*values):
        good = agree(mine, xla, values, name.endswith("~"))
        where = np.argwhere(~good)
        words = [(*(v[tuple(i[: v.ndim])] for v in values), mine[tuple(i)], xla[tuple(i)]) for i in where[:3]]
        assert not len(where), f"{name} of {values[0].dtype}: operands, C and XLA {words}"


def edges(dtype):
    """The values at which types and functions change their ways."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind == "f":
        info = np.finfo(dtype)
        limits = [2.0**n + off for n in (7, 8, 15, 16, 31, 32, 63, 64) for off in (-1, 0)]
        tiny = [info.tiny * s for s in (info.eps, 0.5, 0.75, 1, 1.5)]
        some = [0, 0.5, 1, 1.5, 2, 2.5, 3, np.pi, 100, 88.5, 709.5, 745.2, 1e10, 1 - info.eps, 1 + info.eps, info.eps]
        positive = np.array([*some, *limits, *tiny, info.max, np.inf, np.nan], dtype)
        return np.concatenate([positive, -positive])
    info = np.iinfo(dtype)
    some = [
        0,
        1,
        2,
        3,
        7,
        8,
        15,
        16,
        31,
        32,
        63,
        64,
        100,
        info.max // 2,
        info.max - 1,
        info.max,
        info.min,
        info.min + 1,
    ]
    return np.array([n for n in [*some, *(-n for n in some)] if info.min <= n <= info.max], dtype)


def drawn(dtype, shape):
    """Arrays of edges and of numbers of any bits."""
    some = st.sampled_from(list(edges(dtype)))
    return hnp.arrays(dtype, shape, elements=st.one_of(some, hnp.from_dtype(np.dtype(dtype))), fill=some)


APPROXIMATE = (
    "exp exp2 log log1p expm1 logistic tanh sin cos tan asin acos atan sinh cosh asinh acosh atanh cbrt erf erfc"
)
POWERS = (0, 1, 2, 3, 5, 7, 16, 17, 23)


def scalar_functions(dtype):
    """All elementwise primitives of this type, as functions of three numbers."""

    def unary(f):
        return lambda a, b, c: f(a)

    def binary(f):
        return lambda a, b, c: f(a, b)

    kind = np.dtype(dtype).kind
    ones, twos = ["convert_element_type"], ["lt", "gt", "le", "ge", "eq", "ne", "max", "min"]
    if kind == "f":
        ones += ["neg", "abs", "sign", "square", "floor", "ceil", "sqrt", "is_finite", "stop_gradient"]
        twos += ["add", "sub", "mul", "div", "rem", "nextafter"]
    elif kind in "iu":
        ones += ["neg", "sign", "square", "population_count", "bitwise_not", *(["abs"] if kind == "i" else [])]
        twos += ["add", "sub", "mul", "div", "rem", "shift_left", "shift_right_logical", "shift_right_arithmetic"]
    if kind != "f":
        twos += ["bitwise_and", "bitwise_or", "bitwise_xor"]
        ones += ["bitwise_not"]
    functions = {name: unary(getattr(lax, name)) for name in ones[1:]}
    functions |= {name: binary(getattr(lax, name)) for name in twos}
    functions |= {f"to {new}": unary(functools.partial(lax.convert_element_type, new_dtype=new)) for new in TYPES}
    functions |= {
        "select": lambda a, b, c: lax.select(a != b, b, c),
        "select_n": lambda a, b, c: lax.select_n(lax.convert_element_type(b, np.int32), a, b, c, a),
        "total order": lambda a, b, c: jnp.searchsorted(a[None], b, method="compare_all"),
        "total order, right": lambda a, b, c: jnp.searchsorted(a[None], b, side="right", method="compare_all"),
    }
    if kind == "f":
        functions |= {f"{name}~": unary(getattr(lax, name)) for name in APPROXIMATE.split()}
        functions |= {f"{name}~": unary(getattr(lax, name)) for name in ("lgamma", "erf_inv", "rsqrt")}
        functions |= {f"{name}~": binary(getattr(lax, name)) for name in ("atan2", "pow")}
        functions |= {
            f"round {way}": unary(functools.partial(lax.round, rounding_method=way)) for way in lax.RoundingMethod
        }
        functions |= {f"power {-n}": unary(functools.partial(lax.integer_pow, y=-n)) for n in POWERS}
        functions["bits"] = unary(functools.partial(lax.bitcast_convert_type, new_dtype=f"int{dtype[5:]}"))
    if kind != "b":
        functions["clamp"] = lax.clamp
        functions |= {f"power {n}": unary(functools.partial(lax.integer_pow, y=n)) for n in POWERS}
    if dtype in ("uint32", "int64"):
        functions["float of bits"] = unary(functools.partial(lax.bitcast_convert_type, new_dtype=f"float{dtype[-2:]}"))
        functions["other sign"] = unary(
            functools.partial(lax.bitcast_convert_type, new_dtype="int32" if dtype == "uint32" else "uint64")
        )
    return functions


@functools.cache
def scalars(dtype, width=4):
    return Both(scalar_functions(dtype), [jax.ShapeDtypeStruct((), dtype)] * 3, width)


@pytest.mark.parametrize("dtype", TYPES)
def test_elementwise_primitives_agree_at_all_edges(dtype):
    every = edges(dtype)
    pairs = np.array(list(itertools.product(every, every)), dtype).T
    thirds = np.random.default_rng(0).choice(every, pairs.shape[1])
    check(scalars(dtype), *pairs, thirds)


@pytest.mark.parametrize("dtype", TYPES)
@hypothesis.settings(max_examples=15, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(data=st.data())
def test_elementwise_primitives_agree_on_any_numbers(dtype, data):
    check(scalars(dtype), *data.draw(drawn(dtype, (3, 64))))


def test_the_arithmetic_of_the_process_stays_as_it_is():
    check(scalars("float64"), *np.full((3, 4), 1e-310))
    assert np.float64(1e-310) / 2 > 0  # not flushed to zero, as inside of a program


def array_functions(dtype, size):
    """All primitives of arrays, as functions of two arrays of this type, an index and an array of indices."""
    kind, last = np.dtype(dtype).kind, max(size - 1, 0)
    dims = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(), start_index_map=(0,))
    into = lax.ScatterDimensionNumbers(
        update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )
    modes = ("clip", "fill", "promise_in_bounds")
    functions = {
        "broadcast": lambda x, y, i, j: lax.broadcast_in_dim(x, (2, size, 1), (1,))[1],
        "reshape": lambda x, y, i, j: x.reshape(1, size, 1).squeeze(0),
        "expand": lambda x, y, i, j: lax.expand_dims(x, (0,)),
        "transpose": lambda x, y, i, j: jnp.stack([x, y]).T,
        "slice": lambda x, y, i, j: lax.slice(x, (min(1, size),), (size,), (2,)),
        "rev": lambda x, y, i, j: lax.rev(x, (0,)),
        "split": lambda x, y, i, j: lax.split(x, (last, size - last))[1],
        "unstack": lambda x, y, i, j: jnp.unstack(jnp.stack([x, y]))[1],
        "concatenate": lambda x, y, i, j: jnp.concatenate([x, y[:0], y]),
        "pad": lambda x, y, i, j: lax.pad(x, x.dtype.type(1), [(2, 1, 1)]),
        "pad and cut": lambda x, y, i, j: lax.pad(x, x.dtype.type(1), [(-min(1, size), 1, 0)]),
        "iota": lambda x, y, i, j: lax.iota(dtype if kind != "b" else "int32", size),
        "select": lambda x, y, i, j: lax.select(x == y, x, y),
        "cast of a copy": lambda x, y, i, j: jnp.array(x, copy=True),
    }
    if size:
        functions |= {
            "slice at": lambda x, y, i, j: lax.dynamic_slice(x, (i,), (min(2, size),)),
            "write at": lambda x, y, i, j: lax.dynamic_update_slice(x, y[: min(2, size)], (i,)),
            **{
                f"gather, {mode}": lambda x, y, i, j, mode=mode: lax.gather(x, j[:, None], dims, (1,), mode=mode)
                for mode in modes
            },
            **{
                f"{how}, {mode}": lambda x, y, i, j, how=how, mode=mode: getattr(lax, how)(
                    x, j[:1, None], y[:1], into, mode=mode
                )
                for mode, how in itertools.product(
                    modes, ("scatter", "scatter_add", "scatter_mul") if kind != "b" else ("scatter",)
                )
            },
            "searchsorted": lambda x, y, i, j: jnp.searchsorted(jnp.asarray(edges(dtype)[:3]), x),
            "argmax": lambda x, y, i, j: lax.argmax(x, 0, np.int32),
            "argmin": lambda x, y, i, j: lax.argmin(x, 0, np.int64),
            "max": lambda x, y, i, j: lax.reduce_max(x, (0,)),
            "min": lambda x, y, i, j: lax.reduce_min(x, (0,)),
        }
    if kind != "b":
        functions |= {
            f"{name}, reverse {back}": lambda x, y, i, j, n=name, back=back: getattr(lax, n)(x, 0, reverse=back)
            for name in ("cummax", "cummin", *(() if kind == "f" else ("cumsum", "cumprod")))
            for back in (False, True)
        }
    if kind in "iu":
        functions["sum"] = lambda x, y, i, j: lax.reduce_sum(x, (0,)) if size else x
        functions["prod"] = lambda x, y, i, j: lax.reduce_prod(x, (0,)) if size else x
        functions["dot"] = lambda x, y, i, j: x @ y
        functions["outer"] = lambda x, y, i, j: jnp.stack([x, y]) @ jnp.stack([y, x], 1)
    if kind != "f" and size:
        functions |= {
            f"reduce {n}": lambda x, y, i, j, n=n: getattr(lax, f"reduce_{n}")(x, (0,)) for n in ("and", "or", "xor")
        }
    return functions


INDICES = {
    "float32": "int32",
    "float64": "int64",
    "int8": "int8",
    "uint8": "uint8",
    "int64": "uint64",
    "bool": "uint32",
}
LARGE = {"float32", "uint8"}


@functools.cache
def arrays(dtype, size):
    shapes = ((size,), dtype), ((size,), dtype), ((), INDICES[dtype]), ((size,), INDICES[dtype])
    # The longest programs are compiled with little optimisation, as the engine does.
    return Both(array_functions(dtype, size), [jax.ShapeDtypeStruct(*s) for s in shapes], quickly=size > 5)


@pytest.mark.parametrize(
    ("dtype", "size"), [(d, n) for d, n in itertools.product(INDICES, (0, 1, 5, 80)) if n < 80 or d in LARGE]
)
def test_primitives_of_arrays_agree(dtype, size):
    """Arrays without entries and with one; those of 5 become scalars, those of 80 go through loops."""
    rng = np.random.default_rng(size)
    values, index = edges(dtype), edges(INDICES[dtype])
    if values.dtype.kind == "f":
        values = flushed(values)  # which of several numbers that count as zero is the least depends on their order
    x, y = (rng.choice(values, (100, size)) for _ in range(2))
    near = rng.integers(0, size + 2, (100, size)).astype(index.dtype)
    j = np.where(rng.random((100, size)) < 0.5, near, rng.choice(index, (100, size)))
    check(arrays(dtype, size), x, y, rng.choice(index, 100), j)


SUMS = {
    "sum": lambda x, y: lax.reduce_sum(x, (0,)),
    "prod": lambda x, y: lax.reduce_prod(x, (0,)),
    "cumsum": lambda x, y: lax.cumsum(x, 0),
    "cumprod": lambda x, y: lax.cumprod(x, 0, reverse=True),
    "dot": lambda x, y: x @ y,
    "matrices": lambda x, y: jnp.stack([x, y]) @ jnp.stack([y, x], 1),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1, 3, 70])
def test_sums_agree_up_to_their_order(dtype, size):
    """With infinities and NaN, but without overflow, which depends on the order."""
    both = Both(SUMS, [jax.ShapeDtypeStruct((size,), dtype)] * 2)
    rng = np.random.default_rng(size)
    x, y = rng.choice([0, -0.0, 1, -1, 1.5, np.pi], (2, 200, size)) * rng.choice([1, 1.25], (2, 200, size))
    for array, odd in itertools.product((x, y), (np.inf, -np.inf, np.nan)):
        array[rng.random(array.shape) < 0.05 / size] = odd
    for name, mine, xla in both(x.astype(dtype), y.astype(dtype)):
        np.testing.assert_allclose(mine, xla, rtol=1e-4 if dtype == "float32" else 1e-12, atol=1e-4, err_msg=name)


def drawn_bits(words, k):
    key = jax.random.fold_in(jax.random.wrap_key_data(words), k)
    several = jax.random.split(key, 3)
    return [
        *(jax.random.bits(key, (2,), np.dtype(f"uint{n}")) for n in (8, 16, 32, 64)),
        jax.vmap(lambda key: jax.random.bits(key, (3,)))(several),
        jax.random.bits(several[k % 3]),
        jax.random.key_data(jax.random.split(several[1])),
        jax.random.key_data(jax.random.key(k)),
    ]


def test_random_bits_agree():
    operands = jax.ShapeDtypeStruct((2,), np.uint32), jax.ShapeDtypeStruct((), np.int32)
    functions = {f"{i}": lambda w, k, i=i: drawn_bits(w, k)[i] for i in range(8)}
    words = np.random.default_rng(0).integers(0, 2**32, (len(edges("int32")), 2), np.uint32)
    check(Both(functions, operands), words, edges("int32"))


def test_control_flow_agrees_for_any_selector_and_count():
    branches = [lambda x: x + 1, lambda x: x * 2, lambda x: -x]

    @jax.custom_jvp
    def custom(x):
        return x + 3

    @jax.custom_vjp
    def custom_vjp(x):
        return x + 4

    custom.defjvps(lambda g, y, x: g)
    custom_vjp.defvjp(lambda x: (x, x), lambda r, g: (g,))
    functions = {
        "switch": lambda i, x: lax.switch(i, branches, x),
        "switch with a loop": lambda i, x: lax.switch(
            i, [lambda x: lax.while_loop(lambda v: jnp.abs(v) > 1, lambda v: v / 2, x), *branches], x
        ),
        "loop": lambda i, x: lax.fori_loop(0, jnp.clip(i, -3, 9), lambda n, v: v + n, x),
        "no pass": lambda i, x: lax.fori_loop(0, 0, lambda n, v: v + n, x),
        "one pass": lambda i, x: lax.scan(lambda v, n: (v + n, v), x, jnp.arange(1.0))[1],
        "passes": lambda i, x: lax.scan(lambda v, n: (v + n, v), x, jnp.arange(300.0), reverse=True)[1],
        "functions": lambda i, x: custom(x) + custom_vjp(x) + jax.checkpoint(lambda v: v + 5)(x),
    }
    index = np.array([-(2**31), -1, 0, 1, 2, 3, 4, 2**31 - 1], np.int32)
    operands = jax.ShapeDtypeStruct((), np.int32), jax.ShapeDtypeStruct((), np.float64)
    check(Both(functions, operands), index, np.arange(8) - 3.5)


# Of other versions of JAX, or that no function here leads to.
OTHER_NAMES = (
    "add_any checkpoint closed_call copy copy_p core_call custom_linear_solve custom_vjp_call_jaxpr empty empty2 "
    "expand_dims one_minus_square optimization_barrier pjit real remat remat2"
)


def test_every_primitive_that_is_generated_is_tested_here():
    for dtype in TYPES:
        scalars(dtype)
    for dtype in INDICES:
        arrays(dtype, 5)
    Both(SUMS, [jax.ShapeDtypeStruct((3,), np.float32)] * 2)
    test_random_bits_agree()
    test_control_flow_agrees_for_any_selector_and_count()
    assert {*lower.RULES, *elementwise.TABLE, *elementwise.RARE} - seen <= {*OTHER_NAMES.split()}
