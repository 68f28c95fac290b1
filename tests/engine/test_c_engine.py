"""The engine c: steps agree with XLA up to rounding, and their bits depend on (seed, step) alone."""

import functools
import re
import subprocess
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twoclock as tc
from twoclock.codegen import compiler
from twoclock.engine import c_engine, engines, lane_program
from twoclock.engine.c_engine import CEngine, choose_target
from twoclock.engine.loop import drive
from twoclock.engine.run_batch import Lanes, make_instances

pytestmark = pytest.mark.skipif(isinstance(compiler.find(), str), reason="there is no C compiler")

rng = np.random.default_rng(0)
TABLE = rng.random((7, 3))


def place(x, n):
    return jnp.abs((97 * x).astype(jnp.int32)) % n


def fold(x):
    return jax.random.fold_in(jax.random.key(0), jnp.abs(100 * x[0]).astype(jnp.int32))


def network(p, x):
    hidden = jnp.tanh(jnp.outer(jnp.asarray(TABLE[:, 0]), p) @ jnp.ones(p.shape) * x[0] / p.size)
    return jnp.sum(hidden**2) + jnp.sum(jax.nn.softplus(p - x))


def halving(t, x):
    return jax.lax.while_loop(lambda c: jnp.sum(c**2) > 1, lambda c: c / 2, t + x)


def count_up(t):
    return jax.lax.iota(t.dtype, 40 * t.size)


STEPS = {
    "plain": lambda t, x: 0.9 * t + x,
    "noise unused": lambda t, x: 0.9 * t,
    "state unused": lambda t, x: x,
    "branch": lambda t, x: jax.lax.cond(x[0] > 0, lambda v: v / 2, lambda v: v - 1, t),
    "branch by step": lambda t, x: jax.lax.switch(place(x[:1], 3)[0], [lambda v: v / 2, lambda v: v - 1, jnp.sin], t),
    "scan": lambda t, x: jax.lax.scan(lambda c, a: (0.9 * c + a, c[0]), t, jnp.ones((4, t.size)))[1].sum() / 9 + x,
    "long loop": lambda t, x: jax.lax.fori_loop(0, 100, lambda i, c: 0.9 * c + 0.1 * jnp.cos(c + i), t + x),
    "while": halving,
    "loop in a branch": lambda t, x: jax.lax.cond(x[0] > 0, lambda v: halving(v, x), lambda v: v / 2, t),
    "gather": lambda t, x: jnp.asarray(TABLE)[place(x, 7), place(x, 3)] + t / 2,
    "gather from the state": lambda t, x: t[place(x, t.size)] / 2 + x,
    "scatter": lambda t, x: t.at[place(x[:1], t.size)[0]].add(1.0) / 2,
    "scatter many": lambda t, x: t.at[place(x, t.size)].set(x) / 2,
    "parts of a range": lambda t, x: jnp.split(count_up(t), np.asarray([t.size]))[1][3] / 99 + x,
    "slice": lambda t, x: jax.lax.dynamic_update_slice(t, x[1:3] / 2, (place(x[:1], t.size)[0],)) * 0.9,
    "softmax": lambda t, x: jax.nn.softmax(t + x),
    "extremes": lambda t, x: (t + jnp.max(x) - jnp.min(t) + jnp.argmax(x) - jnp.argmin(t + x)) / t.size,
    "running sum": lambda t, x: jnp.cumsum(t + x) / 99 + jnp.cumsum(x[::-1])[::-1] / 99,
    "network": lambda t, x: jax.grad(network)(t, x) / t.size,
    "curvature": lambda t, x: jax.jvp(jax.grad(lambda p: jnp.sum(jnp.exp(-(p**2)))), (t,), (x,))[1],
    "matrices": lambda t, x: (
        jnp.outer(t, x) @ jnp.outer(x, t[:3]) @ jnp.ones(3) / t.size**2 + jnp.outer(x, t).T @ x / 99
    ),
    "pieces": lambda t, x: jnp.concatenate([t[2:], x[:2]]) / 2 + jnp.pad(t[1:-1], (1, 1)) / 3 + jnp.roll(x, 1),
    "drawn inside": lambda t, x: t / 2 + jax.random.normal(fold(x), t.shape) + jax.random.uniform(fold(x)),
    "chosen inside": lambda t, x: (
        t / 2 + jax.random.randint(fold(x), t.shape, 0, 10) + jax.random.categorical(fold(x), x)
    ),
    "split keys": lambda t, x: t / 2 + sum(jax.random.normal(k) for k in jax.random.split(fold(x), 3)),
    "place in a sorted table": lambda t, x: t / 2 + jnp.searchsorted(jnp.cumsum(jnp.asarray(TABLE[:, 0])), x),
    "saturating casts": lambda t, x: t / 2 + ((300 * x).astype(jnp.int8) + (300 * x).astype(jnp.uint8)).astype(t.dtype),
    "low above high": lambda t, x: t / 2 + jax.lax.clamp(jnp.abs(x), t, -jnp.abs(x)),
    "whole numbers": lambda t, x: ((100 * x).astype(jnp.int32) // 7 + (100 * x).astype(jnp.int32) % 5) * 0.01 + t / 2,
    "small types": lambda t, x: (
        ((9 * x).astype(jnp.int8) + (30 * x**2).astype(jnp.uint16).astype(jnp.int8)) / 200.0 + t / 2
    ),
    "mixed types": lambda t, x: (t.astype(jnp.float32) / 2).astype(t.dtype) + x,
    "functions": lambda t, x: sum(f(t / 3 + x) for f in (jnp.sin, jnp.cos, jnp.tanh, jnp.expm1, jnp.arctan)) / 9,
    "more functions": lambda t, x: jnp.log1p(t**2) + jnp.abs(x) ** 1.3 + jnp.sqrt(jnp.abs(t)) + jax.lax.erf(x) + x**3,
    "large angles": lambda t, x: (
        jnp.sin(1e10 * jnp.round(9 * x)) + jnp.round(x) / 2 + jnp.sign(x) * jnp.floor(9 * x) / 3
    ),
    "not a number": lambda t, x: jnp.nan_to_num(jnp.log(x)) / 9 + jnp.where(jnp.isnan(jnp.sqrt(x)), 0.0, t / 2),
}
PARTS = [list(STEPS)[i::4] for i in range(4)]


def several(names, size):
    """One problem that takes all these steps, each on a separate part of θ."""

    def F(theta, omega, x):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return {name: theta[name] - STEPS[name](theta[name], x).astype(theta[name].dtype) for name in names}

    return tc.problems.custom(
        F=F,
        G=lambda theta, omega, x: omega,
        noise=lambda key: jax.random.normal(key, (size,)),
        theta={name: np.full(size, 0.3) for name in names},
        omega=0.0,
    )


@pytest.mark.parametrize("size", [4, 80])
@pytest.mark.parametrize("part", range(len(PARTS)))
def test_every_operation_of_a_step_agrees_with_xla(part, size, monkeypatch):
    """Arrays of 4 numbers become scalars, those of 80 go through loops; a single seed has its own program."""
    monkeypatch.setattr(lane_program, "difference_from_xla", lambda *_, **__: None)  # compared below, at all steps
    problem, run = several(PARTS[part], size), {"steps": 12, "marks": [12]}
    want = tc.solve(problem, tc.Standard(1.0, 1.0), seeds=20, engine="xla", **run)
    for seeds in (1, 20) if size == 4 else (20,):
        got = tc.solve(problem, tc.Standard(1.0, 1.0), seeds=seeds, engine="c", **run)
        assert got.spec["engine"] == "c"
        for name in PARTS[part]:
            there = want.theta[name][:seeds]
            np.testing.assert_allclose(got.theta[name], there, rtol=1e-9, atol=1e-11, err_msg=name)


METHODS = [tc.Fast(tc.Power(c, p=0.75), "2/(k+8)", "4/(k+16)") for c in (0.1, 0.5, 1.0)]
SEEDS = tuple(range(37))


@functools.cache
def chain():
    return tc.problems.random_policy_evaluation(jax.random.key(0), states=6, actions=3, features=4)


def walk(width, methods=METHODS, seeds=SEEDS, marks=(300,), **options):
    lanes = Lanes.of(make_instances(chain(), seeds), methods, seeds, None)
    return drive(lanes, marks, engine=CEngine(width), **options).carry


def same(a, b, where=np.s_[:, :]):
    return all(np.array_equal(x, y[where]) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_bits_depend_on_seed_and_step_alone(monkeypatch):
    """Any width, any company, any number of threads, any cut."""
    reference = walk(1)
    assert same(walk(4), reference)
    assert same(walk(16), reference)  # 37 seeds leave the last group half empty: lanes of several methods share one
    assert same(walk(16, METHODS[:1]), reference, np.s_[:1])
    assert same(walk(8, METHODS[1:], SEEDS[3:7]), reference, np.s_[1:, 3:7])
    assert same(walk(16, marks=(0, 1, 7, 150, 151, 300)), reference)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert same(walk(16), reference)


def test_a_resumed_run_has_the_same_bits(tmp_path):
    options = {"steps": 400, "seeds": 20, "engine": "c"}
    whole = tc.solve(chain(), METHODS[0], **options)

    class Enough(Exception):
        pass

    def stop(tick):
        if tick.step >= 100:
            raise Enough

    with pytest.raises(Enough):
        tc.solve(chain(), METHODS[0], **options, checkpoint=tmp_path, checkpoint_every=0.0, progress=stop)
    again = tc.solve(chain(), METHODS[0], 400, 20, checkpoint=tmp_path)  # a short run, but it stays on its engine
    assert again.spec["engine"] == "c"
    np.testing.assert_array_equal(again.theta, whole.theta)
    np.testing.assert_array_equal(again.history, whole.history)


def test_each_seed_can_have_its_own_problem():
    def drawn(key):
        return tc.problems.random_policy_evaluation(key, states=6, actions=3, features=4)

    got, want = (tc.solve(drawn, METHODS[2], 2000, 20, engine=engine) for engine in ("c", "xla"))
    assert got.spec["engine"] == "c"
    np.testing.assert_allclose(got.theta, want.theta, rtol=1e-10, atol=1e-13)


def test_other_hyperparameters_compile_nothing():
    walk(16)
    before = len(compiler._builds), len(lane_program._cache)
    walk(16, [tc.Fast(tc.Power(c, p=0.6), "1/(k+3)", "4/(k+9)") for c in (0.2, 0.3, 0.4)])
    assert (len(compiler._builds), len(lane_program._cache)) == before


def test_lanes_diverge_at_the_same_step_as_on_xla():
    problem = tc.problems.custom(
        F=lambda t, w, x: -t * jnp.abs(x), G=lambda t, w, x: w, noise=jax.random.normal, theta=1.0, omega=0.0
    )
    for bound in (None, 1e6):
        runs = [tc.solve(problem, tc.Standard(3.0, 0.1), 1500, 20, bound=bound, engine=name) for name in ("c", "xla")]
        assert runs[0].diverged.all()
        np.testing.assert_array_equal(runs[0].last_step, runs[1].last_step)
        np.testing.assert_allclose(runs[0].theta, runs[1].theta, rtol=1e-9)


def test_compensated_sums_survive_the_compiler():
    """Ten thousand steps, each below half a unit in the last place of θ."""
    problem = tc.problems.custom(
        F=lambda t, w, x: -jnp.ones_like(t), G=lambda t, w, x: w, noise=lambda key: 0.0, theta=1.0, omega=0.0
    )
    result = tc.solve(problem, tc.Standard(1e-8, 0.1), 10_000, 20, precision="float32", engine="c")
    assert result.spec["engine"] == "c"
    assert result.theta.dtype == np.float32
    np.testing.assert_allclose(result.theta, 1 + 1e-4, rtol=0, atol=2e-7)


@pytest.mark.skipif(not getattr(compiler.find(), "gcc", False), reason="GCC alone says which loops it made vectors of")
def test_lanes_go_side_by_side_in_vectors(tmp_path):
    """GCC would turn a clamp into a branch, which lanes take one by one."""

    def draw(key):
        place = 7 * jax.random.uniform(key)
        whole = place.astype(jnp.int32)
        return whole, place - whole.astype(place.dtype)

    with jax.enable_x64(True):
        problem = tc.problems.custom(
            F=lambda t, w, x: t - jnp.asarray(TABLE)[x[0], 0], G=lambda t, w, x: w - x[1],
            noise=draw, theta=1.0, omega=0.0,
        )  # fmt: skip
        lanes = Lanes.of(make_instances(problem, (0,)), [tc.Fast()], (0,), None)
        source, found = lane_program.checked_source(lanes, c_engine.choose_target(lanes, 8)), compiler.find()
    path = tmp_path / "step.c"
    path.write_text(source.text)
    command = [*found.command, *found.flags(8), "-fopt-info-vec", "-o", tmp_path / "step.so", path]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    in_vectors = {int(line) for line in re.findall(r"step\.c:(\d+):\d+: optimized: loop vectorized", output)}
    loops = list(re.finditer(r"#pragma omp simd\nfor[^\n]*\n(.*?)\n}", source.text, re.DOTALL))
    spans = [[source.text.count("\n", 0, at) + 1 for at in loop.span()] for loop in loops]
    long = [(first, last) for first, last in spans if last - first > 10]  # shorter ones may be a plain copy
    assert long
    assert [span for span in long if in_vectors.isdisjoint(range(span[0], span[1] + 1))] == []


def test_names_of_the_user_are_not_in_the_text():
    name = '";system("reboot");//'
    problem = tc.problems.custom(
        F=lambda t, w, x: t, G=lambda t, w, x: w, noise=lambda key: 0.0, theta={name: 1.5}, omega={name: 2.5}
    )
    lanes = Lanes.of(make_instances(problem, (0,)), [tc.Standard()], (0,), None)
    text = lane_program.checked_source(lanes, c_engine.choose_target(lanes, 1)).text
    assert "reboot" not in text
    assert "system(" not in text


def test_lanes_with_much_state_run_side_by_side_on_the_small_stack_of_a_thread():
    seeds = tuple(range(8))
    work = Lanes.of(make_instances(tc.problems.quadratic(dim=24), seeds), [tc.Zap()], seeds, None)
    (program,) = CEngine(width=8).compile(work)
    source = lane_program.usual_source(work, choose_target(work, 8)).source
    assert source.target.width == 8
    assert "static _Thread_local double" in source.text
    walk, begin = program.build.function(), program.place(engines.start(work))
    begin = lane_program.step_on_xla(work, program.streams, begin, 0)  # takes the Jacobian
    found = []
    before = threading.stack_size(512 << 10)
    try:
        thread = threading.Thread(target=lambda: found.append(program._run(walk, begin, 1, 4)))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    expected = begin
    for k in range(1, 4):
        expected = lane_program.step_on_xla(work, program.streams, expected, k)
    for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
