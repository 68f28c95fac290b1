"""The special functions of the generated programs, over their range, against NumPy in extended precision and SciPy."""

import ctypes

import numpy as np
import pytest
import scipy.special

from twoclock.codegen import compiler
from twoclock.codegen.templates import special_functions

ULP = np.finfo(float).eps
EDGES = np.array(
    [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 0.5, -0.5, 3, -3, 5e-324, 1e308, -1e308, 1e-310, 709.9, -745.2]
)
rng = np.random.default_rng(0)
wide = 10 ** rng.uniform(-300, 300, 2000)
small = 10 ** rng.uniform(-300, 0, 500) * rng.choice([-1, 1], 500)
# name: the function itself, its arguments, and how many units in the last place it may be off
FUNCTIONS = {
    "exp": (np.exp, np.concatenate([rng.uniform(-700, 709, 2000), small]), 1.5),
    "expm1": (np.expm1, np.concatenate([rng.uniform(-40, 700, 1000), rng.uniform(-1, 1, 1000), small]), 2.5),
    "log": (np.log, np.concatenate([wide, rng.uniform(0.5, 2, 2000)]), 1.5),
    "log1p": (np.log1p, np.concatenate([wide, rng.uniform(-0.999, 2, 2000), small[small > -0.9]]), 2.0),
    "logistic": (lambda x: 1 / (1 + np.exp(-x)), rng.uniform(-700, 700, 2000), 3.0),
    "tanh": (np.tanh, np.concatenate([rng.uniform(-25, 25, 2000), small]), 3.0),
    "sin": (np.sin, np.concatenate([rng.uniform(-10, 10, 1000), rng.uniform(-1e6, 1e6, 1000), small]), 1.5),
    "cos": (np.cos, np.concatenate([rng.uniform(-10, 10, 1000), rng.uniform(-1e6, 1e6, 1000)]), 1.5),
}


def build(folder, quickly):
    """Each function over an array, in a loop that the compiler takes several entries of at once."""
    found = compiler.find()
    if isinstance(found, str):
        pytest.skip(found)
    text = special_functions() + "double erf_inv(double x){double w=erf_inv_depth(x);"
    text += "return w<6.25?erf_inv_middle(x,w):erf_inv_tail(x,w);}\n"
    text += "void do_pow(int n,const double*x,const double*y,double*z){\n#pragma omp simd\n"
    text += "for(int i=0;i<n;i++)z[i]=tc_pow(x[i],y[i]);}\n"
    for name in (*FUNCTIONS, "erf_inv"):
        call = name if name == "erf_inv" else f"tc_{name}"
        text += f"void do_{name}(int n,const double*x,double*y){{\n#pragma omp simd\n"
        text += f"for(int i=0;i<n;i++)y[i]={call}(x[i]);}}\n"
    for c, kind in (("int32_t", "int32"), ("uint32_t", "uint32"), ("int64_t", "int64"), ("uint64_t", "uint64")):
        for what in ("div", "rem"):
            text += f"void {what}_{kind}_(int n,const {c}*x,const {c}*y,{c}*z){{\n#pragma omp simd\n"
            text += f"for(int i=0;i<n;i++)z[i]={what}_{kind}(x[i],y[i]);}}\n"
    source = folder / "special.c"
    source.write_text(text)
    compiler.finish(found.start(source, found.flags(8, quickly)), source)
    return ctypes.CDLL(source.with_suffix(".so"))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("special"), quickly=False)


def call(function, *arrays):
    arrays = [np.ascontiguousarray(a) for a in arrays]
    out = np.empty_like(arrays[0])
    function(len(out), *(ctypes.c_void_p(a.ctypes.data) for a in (*arrays, out)))
    return out


def off(got, exact):
    """By how many units in the last place of the exact value."""
    return np.abs(got.astype(np.longdouble) - exact) / np.spacing(np.abs(exact.astype(float)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_accurate_to_the_last_place(library, name):
    function, x, most = FUNCTIONS[name]
    got = call(getattr(library, f"do_{name}"), x)
    exact = function(x.astype(np.longdouble))
    normal = np.abs(exact) > 1e-300
    assert off(got[normal], exact[normal]).max() < most
    np.testing.assert_allclose(got, exact.astype(float), rtol=1e-12)


def test_power(library):
    x = np.concatenate([wide, rng.uniform(1, 1e7, 2000), rng.uniform(0.9, 1.1, 2000)])
    y = np.concatenate([rng.uniform(-1, 1, 2000), rng.uniform(-2, 2, 2000), rng.uniform(-3000, 3000, 2000)])
    exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    assert off(call(library.do_pow, x, y), exact).max() < 1.5


def test_inverse_of_the_error_function(library):
    """Out to the last double before one: what a normal number is made of."""
    tail = 1 - 10 ** rng.uniform(-15.9, 0, 2000)
    x = np.concatenate([rng.uniform(-1, 1, 4000), tail, -tail, small])
    np.testing.assert_allclose(call(library.do_erf_inv, x), scipy.special.erfinv(x), rtol=4e-15)


def test_a_program_that_is_compiled_quickly_has_the_same_bits(library, tmp_path):
    quick = build(tmp_path, quickly=True)
    for name, (_, x, _) in FUNCTIONS.items():
        for some in (x, EDGES):
            one, other = (call(getattr(each, f"do_{name}"), some) for each in (library, quick))
            np.testing.assert_array_equal(one.view(np.uint64), other.view(np.uint64), err_msg=name)


@pytest.mark.filterwarnings("ignore")
def test_edges_are_those_of_numpy(library):
    for name, function in {n: f for n, (f, *_) in FUNCTIONS.items()}.items():
        x = EDGES[~(np.abs(EDGES) >= 1e9)] if name in ("sin", "cos") else EDGES
        np.testing.assert_allclose(call(getattr(library, f"do_{name}"), x), function(x), rtol=1e-13, err_msg=name)
    x, y = (a.ravel() for a in np.meshgrid(EDGES, EDGES))
    np.testing.assert_allclose(call(library.do_pow, x, y), np.power(x, y), rtol=1e-13)
    np.testing.assert_array_equal(call(library.do_erf_inv, np.array([1.0, -1.0, 0.0])), [np.inf, -np.inf, 0])


@pytest.mark.parametrize("kind", ["int32", "uint32", "int64", "uint64"])
def test_whole_numbers_divide_without_a_trap(library, kind):
    info = np.iinfo(kind)
    edge = np.array([0, 1, 2, 3, 7, info.max, info.max - 1, info.min, info.min + 1, info.max // 2], kind)
    some = rng.integers(info.min, info.max, 3000, kind, endpoint=True)
    x = np.concatenate([np.repeat(edge, len(edge)), some, some])
    y = np.concatenate([np.tile(edge, len(edge)), some[::-1], (some[::-1] % np.asarray(1000, kind)).astype(kind)])
    quotient = [
        int(abs(int(a)) // abs(int(b))) * (1 if (a < 0) == (b < 0) else -1) if b else -1
        for a, b in zip(x, y, strict=True)
    ]
    wanted = np.array([q % 2**info.bits for q in quotient], np.uint64).astype(f"u{info.bits // 8}").view(kind)
    np.testing.assert_array_equal(call(getattr(library, f"div_{kind}_"), x, y), wanted)
    rest = np.array([int(a) - int(b) * q if b else int(a) for a, b, q in zip(x, y, quotient, strict=True)], object)
    np.testing.assert_array_equal(call(getattr(library, f"rem_{kind}_"), x, y), rest.astype(kind))
