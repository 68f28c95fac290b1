"""Programs taken by NumPy: every operation beside XLA, whole steps beside XLA, and bits that do not depend on lanes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import twoclock as tc
from twoclock import prng
from twoclock.engine import engines, lane_program, numpy_evaluator
from twoclock.engine.c_engine import CEngine, choose_target
from twoclock.engine.run_batch import Lanes, make_instances

FLOATS, WHOLE = ("float32", "float64"), ("int8", "int32", "int64", "uint8", "uint32", "uint64")


def edges(dtype):
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        limits = [2.0**n + off for n in (7, 31, 32, 63, 64) for off in (-1, 0)]
        some = np.array([0, 0.3, 0.5, 1, 1.5, 2, 2.5, 3.7, 17, 88, 1e10, 1e-3, *limits, np.inf, np.nan], dtype)
        return np.concatenate([some, -some])
    info = np.iinfo(dtype)
    some = (0, 1, 2, 3, 7, 8, 31, 32, 63, 64, 100, -1, -2, -7, -100, info.max, info.max - 1, info.min, info.min + 1)
    return np.unique(np.array([n for n in some if info.min <= n <= info.max], dtype))


def both(function, *operands):
    """The function of each lane by NumPy and by XLA; operands have the lanes first."""
    program = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in operands))
    assert numpy_evaluator.are_known(program.jaxpr.eqns), program
    mine = numpy_evaluator.evaluate(program, operands)
    xla = jax.tree.leaves(jax.jit(jax.vmap(function))(*operands))
    for a, b in zip(mine, xla, strict=True):
        assert a.dtype == b.dtype
        yield np.broadcast_to(a, b.shape), np.asarray(b)


def same(function, *operands, name=""):
    for mine, xla in both(function, *operands):
        if mine.dtype.kind == "f":
            far = 64 * np.finfo(mine.dtype).eps
            np.testing.assert_allclose(mine, xla, rtol=far, atol=far, err_msg=name)
        else:
            np.testing.assert_array_equal(mine, xla, err_msg=name)


ARITHMETIC = {
    "add": lax.add, "sub": lax.sub, "mul": lax.mul, "div": lax.div, "rem": lax.rem, "max": lax.max, "min": lax.min,
    "eq": lax.eq, "ne": lax.ne, "lt": lax.lt, "le": lax.le, "gt": lax.gt, "ge": lax.ge,
    "select": lambda x, y: lax.select(x < y, y, x), "clamp": lambda x, y: lax.clamp(x, y, x),
}  # fmt: skip
OF_ONE = {"neg": lax.neg, "sign": lax.sign, "abs": lax.abs, "square": lax.square, "cube": lambda x: x**3}
FUNCTIONS = {
    name: getattr(lax, name)
    for name in ("sqrt", "rsqrt", "exp", "log", "log1p", "expm1", "tanh", "logistic", "erf_inv", "floor", "ceil",
                 "is_finite", "atan2", "cbrt", "asinh", "pow")
}  # fmt: skip
BITS = {
    "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor, "left": lax.shift_left,
    "logical": lax.shift_right_logical, "arithmetic": lax.shift_right_arithmetic,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
def test_arithmetic_is_that_of_xla_at_the_edges_of_each_type(dtype):
    with jax.enable_x64(True):
        x, y = (part.ravel() for part in np.meshgrid(edges(dtype), edges(dtype)))
        for name, function in ARITHMETIC.items():
            same(function, x, y, name=name)
        for name, function in OF_ONE.items():
            if name not in ("neg", "abs") or not dtype.startswith("u"):
                same(function, x, name=name)
        for to in (*FLOATS, *WHOLE, "bool"):
            same(lambda x, to=to: lax.convert_element_type(x, to), x, name=f"to {to}")
        if dtype in WHOLE:
            for name, function in BITS.items():
                same(function, x, y, name=name)
            same(lax.bitwise_not, x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_are_those_of_xla_up_to_rounding(dtype):
    x = np.concatenate([np.linspace(-3, 3, 61), np.linspace(-0.9999, 0.9999, 41), [0.0, 1.0, -1.0, 20.0, -20.0]])
    x = x.astype(dtype)
    with jax.enable_x64(True):
        for name, function in FUNCTIONS.items():
            if name in ("atan2", "pow"):
                same(function, np.abs(x) if name == "pow" else x, x[::-1].copy(), name=name)
            else:
                same(function, x, name=name)
        for method in (lax.RoundingMethod.TO_NEAREST_EVEN, lax.RoundingMethod.AWAY_FROM_ZERO):
            same(lambda x, m=method: lax.round(x, m), x)
        same(lambda x: lax.bitcast_convert_type(x, np.uint32 if dtype == "float32" else np.uint64), x)


SHAPES = {
    "sum": lambda x, i: (x.sum(), x.sum(0), x.sum((1, 2)), jnp.prod(x, 1), x.max((0, 2)), x.min(), (x > 0).all(1)),
    "extremes": lambda x, i: (jnp.argmax(x, 1), jnp.argmin(x, 2), (x > 1).any()),
    "cumulative": lambda x, i: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 2, reverse=True)),
    "products": lambda x, i: (
        x[0] @ x[1].T, jnp.einsum("abc,adc->adb", x, x), jnp.einsum("abc,bc->a", x, x[0]), x[0, 0] @ x[1, 1],
        jnp.einsum("abc,dbe->", x, x),
    ),
    "axes": lambda x, i: (x.T, x[..., None], x.reshape(4, 6), jnp.flip(x, (0, 2)), x[:, 1:3:2], jnp.squeeze(x[:1])),
    "parts": lambda x, i: (jnp.split(x, 3, axis=1), jnp.concatenate([x, 2 * x], 2), jnp.stack([x, x], 1)),
    "ranges": lambda x, i: (jnp.arange(5, dtype=np.int32) + i, jnp.eye(3), jnp.broadcast_to(x[0, 0], (2, 4))),
    "pad": lambda x, i: lax.pad(x, 7.0, ((1, 0, 0), (0, 2, 1), (1, 1, 2))),
    "slices": lambda x, i: (
        lax.dynamic_slice(x, (0 * i, i, 0 * i + 2), (2, 2, 1)), lax.dynamic_slice(x, (0, 1, 1), (1, 1, 2)),
        lax.dynamic_update_slice(x, x[:1, :2] * 3, (i - 1, 0 * i + 1, i)),
        lax.dynamic_update_slice(jnp.zeros(5), x[0, 0, :1], (i,)),
    ),
    "cond": lambda x, i: (
        lax.cond(i > 1, lambda: x.sum(0), lambda: x[0]),
        lax.switch(i, [lambda: x, lambda: -x, lambda: 2 * x]),
        lax.cond(jnp.int32(1) > 0, lambda: x, lambda: -x), jax.nn.softplus(x), jax.jit(jnp.clip)(x, 0, 1),
    ),
    "derivatives": lambda x, i: (jax.jacfwd(lambda z: jnp.sin(z) @ z)(x[0, 0]), jax.grad(lambda z: (z**3).sum())(x)),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_arrays_of_lanes_are_those_of_xla(name):
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        same(SHAPES[name], rng.standard_normal((5, 2, 3, 4)), np.arange(5, dtype=np.int32) - 1)


@pytest.mark.parametrize("key", [prng.step_stream, jax.random.key])
def test_random_bits_are_those_of_jax(key):
    def draw(seed, k):
        here = jax.random.fold_in(key(seed), k)
        a, b = jax.random.split(here)
        return (
            jax.random.normal(here, (3,)), jax.random.uniform(a, ()), jax.random.randint(b, (2, 2), 0, 100),
            jax.random.bits(a, (5,), "uint8"), jax.random.exponential(b),
        )  # fmt: skip

    with jax.enable_x64(True):
        same(draw, np.arange(6, dtype=np.uint32), np.arange(6, dtype=np.int32))


@pytest.mark.parametrize(
    "function",
    [lambda x: jnp.sort(x), lambda x: lax.fori_loop(0, 3, lambda i, x: x + i, x), lambda x: x[jnp.int32(x)]],
)
def test_what_is_not_known_is_left_to_xla(function):
    assert not numpy_evaluator.are_known(jax.make_jaxpr(function)(np.ones(4)).jaxpr.eqns)


def custom(**more):
    return tc.problems.custom(
        F=lambda theta, omega, x: jnp.tanh(theta) + omega - x[0], G=lambda theta, omega, x: omega - theta + x[1] * x,
        noise=lambda key: jax.random.normal(key, (2,)), theta=np.zeros(2), omega=np.ones(2), **more,
    )  # fmt: skip


RUNS = {
    "default": (tc.problems.quadratic(dim=3), tc.methods.Auto()),
    "curved": (custom(), tc.Zap()),
    "averaged": (custom(), tc.Polyak(tc.Standard(tc.Power(0.1, 0.6), tc.Power(0.2, 0.5)))),
    "chain": (tc.problems.boyan("tdc", "markov"), tc.Fast()),
    "per seed": (lambda key: tc.problems.custom(
        F=lambda theta, omega, x: omega - x, G=lambda theta, omega, x: omega - theta, noise=jax.random.normal,
        theta=jax.random.normal(key), omega=0.0), tc.Fast()),
}  # fmt: skip


def lanes_of(problem, method, seeds, count=1, bound=None):
    return Lanes.of(make_instances(problem, seeds), [method] * count, seeds, bound)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("bound", [None, 50.0])
def test_steps_of_lanes_are_those_of_xla(name, bound):
    with jax.enable_x64(True):
        lanes = lanes_of(*RUNS[name], range(3), 2, bound)
        usual = lane_program.usual_source(lanes, choose_target(lanes, None))
        assert usual.by_numpy is not None
        words, mine = prng.stream_words(lanes.seeds), jax.device_get(engines.start(lanes))
        xla = mine
        for k in range(4):
            mine = lane_program.step_apart(lanes, words, mine, k, usual.by_numpy)
            xla = lane_program.step_on_xla(lanes, words, xla, k)
        for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(xla), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


def test_the_bits_of_a_lane_do_not_depend_on_how_many_there_are():
    def step_0(seeds):
        lanes = lanes_of(tc.problems.quadratic(dim=7), tc.methods.Auto(), seeds)
        program = lane_program.usual_source(lanes, choose_target(lanes, 1)).by_numpy
        begin = jax.device_get(engines.start(lanes))
        return lane_program.step_apart(lanes, prng.stream_words(seeds), begin, 0, program)

    with jax.enable_x64(True):
        many = jax.tree.leaves(step_0(range(300)))
        for seeds in ([5], [299], range(4, 9)):
            for one, of_many in zip(jax.tree.leaves(step_0(seeds)), many, strict=True):
                np.testing.assert_array_equal(one, of_many[:, seeds[0] : seeds[-1] + 1])


def test_a_program_is_checked_without_a_program_of_xla(monkeypatch):
    monkeypatch.setattr(lane_program, "_xla_step", None)
    with jax.enable_x64(True):
        lanes = lanes_of(tc.problems.quadratic(dim=4, seed=77), tc.methods.Auto(), range(3))
        (program,) = CEngine().compile(lanes)
        program.advance(program.place(engines.start(lanes)), 0, 100)
        assert program.build.is_checked()


def test_xla_decides_where_numpy_and_the_program_differ(monkeypatch):
    asked, evaluate = [], numpy_evaluator.evaluate
    monkeypatch.setattr(numpy_evaluator, "evaluate", lambda *args: [leaf + 1 for leaf in evaluate(*args)])
    step_on_xla = lane_program.step_on_xla
    monkeypatch.setattr(lane_program, "step_on_xla", lambda *args: asked.append(args[-1]) or step_on_xla(*args))
    with jax.enable_x64(True):
        lanes = lanes_of(tc.problems.quadratic(dim=4, seed=78), tc.Fast(), range(3))
        (program,) = CEngine().compile(lanes)
        program.advance(program.place(engines.start(lanes)), 0, 100)
    assert asked == list(range(lane_program.CHECKED_STEPS))


def test_xla_takes_a_step_at_which_numpy_fails(monkeypatch):
    def fails(*args):
        raise TypeError("an operation in a form that is not known")

    with jax.enable_x64(True):
        lanes = lanes_of(tc.problems.quadratic(dim=3), tc.methods.Auto(), range(3))
        program = lane_program.usual_source(lanes, choose_target(lanes, 1)).by_numpy
        words, begin = prng.stream_words(lanes.seeds), jax.device_get(engines.start(lanes))
        expected = lane_program.step_on_xla(lanes, words, begin, 0)
        monkeypatch.setattr(numpy_evaluator, "evaluate", fails)
        found = lane_program.step_apart(lanes, words, begin, 0, program)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
