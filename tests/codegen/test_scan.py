"""``tc.scan`` beside ``lax.scan``: random programs, derivatives, batches, updates in place, and what falls back."""

import functools
import warnings

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import twoclock as tc
from twoclock import codegen
from twoclock.codegen import compiler
from twoclock.codegen.scan_loop import ScanWarning

pytestmark = pytest.mark.skipif(isinstance(compiler.find(), str), reason="there is no C compiler")
compiled = functools.partial(tc.scan, engine="c")


def same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        if jnp.issubdtype(a.dtype, jnp.floating):
            tight = 1e-9 if a.dtype == np.float64 else 2e-4
            np.testing.assert_allclose(a, b, rtol=tight, atol=tight)
        else:
            np.testing.assert_array_equal(a, b)


def both(step, init, xs=None, length=None, reverse=False):
    """Run by both, directly and under jit, and compare."""
    expected = lax.scan(step, init, xs, length, reverse)
    same(jax.jit(lambda init, xs: compiled(step, init, xs, length, reverse))(init, xs), expected)
    return expected


# Steps of a leaf from itself and from a number made of all leaves.
MIXES = {
    "tanh": lambda leaf, number: jnp.tanh(leaf * number + leaf[..., ::-1] if leaf.ndim else leaf * number),
    "where": lambda leaf, number: jnp.where(leaf > number, leaf / 2, leaf + jnp.sin(number)),
    "cumulative": lambda leaf, number: jnp.cumsum(leaf, -1) / 4 + number if leaf.ndim else leaf - number,
    "scatter": lambda leaf, number: leaf.at[..., :1].add(number) / 2 if leaf.ndim else leaf / 2,
    "branch": lambda leaf, number: lax.cond(number > 0, lambda x: x * 0.5, lambda x: jnp.cos(x), leaf),
}
SHAPES = [(), (1,), (0,), (3,), (2, 2), (70,)]
leaves = st.tuples(st.sampled_from(["float32", "float64", "int32", "bool"]), st.sampled_from(SHAPES))


@st.composite
def programs(draw):
    return {
        "carry": draw(st.lists(leaves, min_size=1, max_size=4)),
        "xs": draw(st.lists(leaves, max_size=2)),
        "mixes": draw(st.lists(st.sampled_from(sorted(MIXES)), min_size=4, max_size=4)),
        "length": draw(st.sampled_from([0, 1, 2, 9])),
        "reverse": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
    }


def numbers(rng, dtype, shape):
    values = rng.normal(size=shape) if dtype.startswith("float") else rng.integers(0, 2, shape)
    return jnp.asarray(np.asarray(values).astype(dtype))


def random_step(mixes):
    def total(tree):
        return sum((jnp.sum(leaf.astype(jnp.float64)) for leaf in jax.tree.leaves(tree)), jnp.zeros(()))

    def step(carry, x):
        number = jnp.tanh(total(carry["inner"]) / 8 + total(x) / 4 + carry["count"].astype(jnp.float64) * 0.1)

        def new(leaf, mix):
            if leaf.dtype == bool:
                return leaf ^ (number > 0)
            if leaf.dtype == np.int32:
                return (leaf * 3 + (number > 0).astype(jnp.int32)) % 7
            return MIXES[mix](leaf, number.astype(leaf.dtype)).astype(leaf.dtype)

        inner = tuple(new(leaf, mix) for leaf, mix in zip(carry["inner"], mixes, strict=False))
        return {"inner": inner, "count": carry["count"] + 1}, (number, {"old": carry["inner"][0], "x": x})

    return step


@hypothesis.settings(max_examples=6, deadline=None, derandomize=True, phases=[hypothesis.Phase.generate])
@hypothesis.given(programs())
def test_random_programs_agree_with_lax_scan_and_so_do_their_derivatives(program):
    rng = np.random.default_rng(program["seed"])
    init = {"inner": tuple(numbers(rng, *leaf) for leaf in program["carry"]), "count": jnp.int32(0)}
    length = program["length"]
    xs = [numbers(rng, dtype, (length, *shape)) for dtype, shape in program["xs"]]
    step = random_step(program["mixes"])
    both(step, init, xs, length, program["reverse"])

    def loss(scan, scale, init, xs):
        inner = tuple(leaf * scale.astype(leaf.dtype) if leaf.dtype.kind == "f" else leaf for leaf in init["inner"])
        last, (number, _) = scan(step, {**init, "inner": inner}, xs, length, program["reverse"])
        floats = [leaf for leaf in jax.tree.leaves(last) if leaf.dtype.kind == "f"]
        return jnp.sum(number) + sum((jnp.sum(leaf).astype(jnp.float64) for leaf in floats), jnp.zeros(()))

    ours, theirs = (jax.grad(functools.partial(loss, scan))(jnp.ones(()), init, xs) for scan in (compiled, lax.scan))
    same(ours, theirs)


def test_keys_are_carried_and_scanned_with_the_same_bits():
    def chain(key, _):
        key, other = jax.random.split(key)
        return key, (jax.random.normal(other, (3,)), other)

    both(chain, jax.random.key(3), None, 5)
    both(lambda total, key: (total + jax.random.uniform(key), key), 0.0, jax.random.split(jax.random.key(1), 4))
    both(lambda key, _: (jax.random.fold_in(key, 1), jax.random.bits(key)), jax.random.PRNGKey(3), None, 5)


TABLE = np.arange(200.0)
INDICES = np.random.default_rng(0).integers(-250, 250, 40)


@pytest.mark.parametrize(
    "step",
    [
        lambda V, i: (V.at[i].add(1.0), V[i]),
        lambda V, i: (V.at[i].set(V[::-1][i]), V),
        lambda V, i: (V.at[i].add(1.0).at[-i].multiply(0.5), V[:3]),
        lambda V, i: (V.at[i].set(jnp.sum(V) / 200), V * 2),
        lambda V, i: (V.at[:100].set(V[100:] + i.astype(float)), V.reshape(20, 10).T),
        lambda V, i: (jax.jit(lambda V: V.at[i].add(V[0]))(V), V[5]),
        lambda V, i: (lax.dynamic_update_slice(V, V[50:60] + 1, (i,)), V[0]),
        lambda V, i: (V.reshape(20, 10).at[i % 20].add(1.0).ravel(), V[i]),
    ],
)
def test_updates_in_place_lose_no_number_that_is_still_read(step):
    both(lambda pair, i: ((pair[1], step(pair[0], i)[0]), pair[0][i]), (TABLE, TABLE / 2), INDICES)


def test_a_large_table_is_updated_in_place_in_constant_time():
    import time

    def seconds(size):
        V, at = jnp.zeros(size), jnp.arange(20_000) % 100
        run = jax.jit(lambda V: compiled(lambda V, i: (V.at[i].add(1.0), V[i + 1]), V, at)[1])
        run(V).block_until_ready()
        best = np.inf
        for _ in range(5):
            start = time.process_time()
            run(V).block_until_ready()
            best = min(best, time.process_time() - start)
        return best

    assert seconds(100_000) < 30 * seconds(1_000)  # a copy for each step takes a hundred times as long


def test_closed_over_numbers_are_arguments_and_not_part_of_the_program():
    def run(scan, a, b):
        return scan(lambda c, x: (a * c + b @ c, jnp.sum(c) * x), jnp.ones(3), jnp.arange(4.0))

    for a in (0.25, 0.5):
        same(run(compiled, a, jnp.eye(3)), run(lax.scan, a, jnp.eye(3)))
        same(jax.jit(functools.partial(run, compiled))(a, jnp.eye(3)), run(lax.scan, a, jnp.eye(3)))
    of_both = [
        jax.grad(lambda a, b, scan=s: run(scan, a, b)[1].sum(), (0, 1))(0.5, jnp.eye(3)) for s in (compiled, lax.scan)
    ]
    same(*of_both)


def network(scan, W, h, xs):
    def step(h, x):
        h = jnp.tanh(W @ h + x)
        return h, h[0] * h[1]

    return scan(step, h, xs)[1].sum()


def arguments(*batch):
    rng = np.random.default_rng(4)
    return [jnp.asarray(rng.normal(size=(*batch, *shape)) / 2) for shape in ((3, 3), (3,), (6, 3))]


def test_batches_of_any_nesting_and_their_gradients():
    ours, theirs = (functools.partial(network, scan) for scan in (compiled, lax.scan))
    W, h, xs = arguments(2, 4)
    one = [v[0] for v in (W, h, xs)]
    for axes in ((None, 0, 0), (0, None, None), (0, 0, None)):
        some = [v if axis == 0 else v[1] for axis, v in zip(axes, one, strict=True)]
        same(jax.vmap(ours, axes)(*some), jax.vmap(theirs, axes)(*some))
        same(*(jax.vmap(jax.grad(f, (0, 1, 2)), axes)(*some) for f in (ours, theirs)))
    nested = [jax.vmap(jax.vmap(f, (0, None, 0)), (None, 0, 0)) for f in (ours, theirs)]
    same(*(f(one[0], h[:, 0], xs) for f in nested))


def test_second_derivatives_by_reverse_mode():
    W, h, xs = arguments()

    def twice(scan, W):
        return jnp.sum(jnp.sin(jax.grad(functools.partial(network, scan))(W, h, xs)))

    same(*(jax.grad(functools.partial(twice, scan))(W) for scan in (compiled, lax.scan)))


def test_loops_and_branches_inside_a_step():
    def step(c, x):
        c = lax.fori_loop(0, 3, lambda i, c: c * 0.5 + jnp.float64(i), c)
        c = lax.while_loop(lambda c: c > 1.0, lambda c: c / 2, c)
        return c, lax.switch(jnp.int32(x), [jnp.sin, jnp.cos, jnp.tanh], c)

    both(step, 3.0, jnp.arange(5.0) % 3)


def test_what_cannot_be_compiled_runs_as_lax_scan_and_says_why():
    def step(c, x):
        return jnp.sort(c)[::-1] + x, c[0]

    expected = lax.scan(step, TABLE, jnp.arange(3.0))
    with pytest.warns(ScanWarning, match="lax.scan, because the operation sort is not generated"):
        same(tc.scan(step, TABLE, jnp.arange(3.0)), expected)
    with pytest.raises(codegen.Unsupported, match="sort"):
        compiled(step, TABLE, jnp.arange(3.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(tc.scan(step, TABLE, jnp.arange(3.0), engine="xla"), expected)


def test_without_a_compiler_it_runs_as_lax_scan(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.warns(ScanWarning, match="there is no C compiler"):
        same(
            tc.scan(lambda c, x: (c * 1.25 + x, c), 0.5, jnp.arange(3.0)),
            lax.scan(lambda c, x: (c * 1.25 + x, c), 0.5, jnp.arange(3.0)),
        )


def test_a_program_that_differs_from_xla_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv("TWOCLOCK_CACHE", str(tmp_path))
    front = __import__("sys").modules["twoclock.codegen.scan_loop"]
    original = front.generate_scan

    def wrong(*arguments):
        source = original(*arguments)
        return type(source)(source.text.replace("0x1.8000000000000p+0", "0x1.9p+0"), source.constants)

    monkeypatch.setattr(front, "generate_scan", wrong)
    with pytest.warns(ScanWarning, match="fails its self-check: it differs from XLA by"):
        found = tc.scan(lambda c, x: (c * 1.5 + x, c), 0.5, jnp.arange(3.0))
    same(found, lax.scan(lambda c, x: (c * 1.5 + x, c), 0.5, jnp.arange(3.0)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tc.scan(lambda c, x: (c, x), 0.0), "`length` must be given where `xs` has no arrays"),
        (lambda: tc.scan(lambda c, x: (c, x), 0.0, 1.0), "`xs` must have a leading axis"),
        (lambda: tc.scan(lambda c, x: (c, x), 0.0, (jnp.ones(2), jnp.ones(3))), "one leading length, got [2, 3]"),
        (lambda: tc.scan(lambda c, x: (c, x), 0.0, jnp.ones(2), 3), "`length` must be that of `xs`, 2, got 3"),
        (lambda: tc.scan(lambda c, x: (c, x), 0.0, None, -1), "`length` must be at least 0"),
        (lambda: tc.scan(lambda c, x: (c, x), 0.0, None, 2.5), "`length` must be a whole number"),
        (lambda: tc.scan(lambda c, x: (c, x), 0.0, None, jnp.zeros(2)), "`length` must be a whole number"),
        (lambda: tc.scan(lambda c, x: (c, x), 0.0, None, np.ones(3, bool)), "`length` must be a whole number"),
        (lambda: tc.scan(3, 0.0, jnp.ones(2)), "`step` must be a function"),
        (lambda: tc.scan(lambda c, x: c, 0.0, jnp.ones(2)), "`step` must return a pair"),
        (lambda: tc.scan(lambda c, x: (jnp.ones(2), x), 0.0, jnp.ones(2)), "`step` must return a pair"),
        (lambda: tc.scan(lambda c, x: ((c, c), x), 0.0, jnp.ones(2)), "`step` must return a pair"),
        (lambda: tc.scan(lambda c, x: (c, x), 0.0, jnp.ones(2), engine="cuda"), "`engine` must be"),
        (lambda: tc.scan(lambda c, x: (c, x), 0.0, jnp.ones(2), engine=[]), "`engine` must be"),
        (lambda: tc.scan(lambda c, x: (c, x), object(), jnp.ones(2)), "`init` must hold arrays"),
        (lambda: tc.scan(lambda c, x: (c, x), 10**400, jnp.ones(2)), "`init` must hold arrays"),
        (lambda: tc.scan(lambda c, x: (c, x), range(3), jnp.ones(2)), "`init` must hold arrays"),
        (lambda: tc.scan(lambda c, x: (c, x), 0.0, np.asarray(["a", "b"])), "`xs` must hold arrays"),
        (lambda: tc.scan(lambda c, x: (c, x), 0.0, jnp.ones(2), unroll="a"), "`unroll` must be"),
    ],
)  # fmt: skip
def test_wrong_arguments_get_one_line(call, message):
    with pytest.raises(ValueError, match="must") as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_step_without_arrays_or_outputs_is_left_to_lax_scan():
    with pytest.warns(ScanWarning, match="nothing to compute"):
        assert tc.scan(lambda c, x: (None, None), None, None, 3) == (None, None)


def test_an_error_of_the_step_itself_is_not_renamed():
    with pytest.raises(KeyError, match="missing"):
        tc.scan(lambda c, x: ({}["missing"], x), 0.0, jnp.ones(2))
