"""The text for a GPU, tried on the CPU: its threads one after the other, to the bits of the engine "c"."""

import ctypes
import subprocess

import jax
import numpy as np
import pytest

import twoclock as tc
from twoclock.engine import compiler, traced
from twoclock.engine.codegen.frame import Target
from twoclock.engine.codegen.ir import Unsupported
from twoclock.engine.cpu import C, pointers
from twoclock.engine.instances import instances
from twoclock.engine.lanes import Lanes
from twoclock.engine.xla import start

needs_compiler = pytest.mark.skipif(isinstance(compiler.find(), str), reason="there is no C compiler")


def lqr():
    return tc.problems.lqr_actor_critic(tc.models.Lqr(np.eye(2) * 0.5, np.eye(2), np.eye(2), np.eye(2)), sigma=1.0)


def on_the_cpu(source, folder):
    """What launches a kernel: ``launch(lanes, lo, hi, shape, tables, leaves, streams)``."""
    text = source.text.replace('extern "C" __global__ ', "")
    at = text.index("#define RESTRICT")
    threads = "static _Thread_local struct{int64_t x;}blockIdx,blockDim={1},threadIdx;\n"
    text = text[:at] + threads + text[at:].replace("__restrict__", "restrict")
    text += """void launch(int64_t lanes,int64_t lo,int64_t hi,int64_t methods,int64_t seeds,const void*const*tables,
    void*const*leaves,const uint32_t*streams){
    for(blockIdx.x=0;blockIdx.x<lanes;blockIdx.x++)walk(lo,hi,methods,seeds,tables,leaves,streams);}\n"""
    name = folder / f"{abs(hash(text))}.c"
    name.write_text(text)
    made = name.with_suffix(".so")
    subprocess.run([*compiler.find().command, "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-o", made, name, "-lm"],
                   check=True, stderr=subprocess.DEVNULL)  # fmt: skip
    launch = ctypes.CDLL(str(made)).launch
    launch.argtypes = [*[ctypes.c_int64] * 5, *[ctypes.c_void_p] * 3]
    return launch


@needs_compiler
@pytest.mark.parametrize("make", [lqr, tc.problems.boyan], ids=["normal noise", "random words"])
def test_noise_drawn_ahead_gives_the_same_bits(make, tmp_path):
    methods, seeds, steps = [tc.Fast(), tc.Fast(lam="30/(k+160)")], (3, 5, 8), 40
    with jax.enable_x64(True):
        lanes = Lanes.of(instances(make(), seeds), methods, seeds, 1e6)
        begin = start(lanes)
        (program,) = C().compile(lanes)
        expected = jax.tree.leaves(program.advance(program.place(begin), 0, steps))
        tables, streams = list(map(np.ascontiguousarray, traced.tables(lanes))), np.asarray(traced.streams(lanes))
        ahead, whole = traced.ahead(lanes), traced.source(lanes, Target(cuda=True))
        leaves, split = ([np.array(leaf, order="C") for leaf in jax.tree.leaves(begin)] for _ in range(2))

    def launch(source, count, lo, hi, given, into):
        kernel = on_the_cpu(source, tmp_path)
        given = [*given, *map(np.ascontiguousarray, source.constants)]
        kernel(count, lo, hi, 2, 3, pointers(given), pointers(into), streams.ctypes.data)

    launch(whole, 6, 0, steps, tables, leaves)
    own = tables[: len(jax.tree.leaves(lanes.instances.batched))]
    for lo, hi in ((0, 25), (25, steps)):
        drawn = [np.zeros((hi - lo, 3, *leaf.shape), leaf.dtype) for leaf in ahead.drawn]
        launch(ahead.noise, (hi - lo) * 3, lo, hi, own, drawn)
        launch(ahead.steps, 6, lo, hi, [*tables, *drawn], split)
    assert not np.array_equal(expected[0], jax.tree.leaves(begin)[0])
    for a, b, c in zip(expected, leaves, split, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def test_nothing_is_drawn_ahead_where_there_is_no_noise():
    still = tc.problems.custom(lambda t, w, x: t - w, lambda t, w, x: w - 1, lambda key: (), 0.0, 0.0)
    with pytest.raises(Unsupported, match="no numbers to draw"):
        traced.ahead(Lanes.of(instances(still, (0,)), [tc.Fast()], (0,), None))
