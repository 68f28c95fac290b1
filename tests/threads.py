"""The text for a GPU as a program for the CPU, its threads one after the other."""

import ctypes
import re
import subprocess

import jax
import numpy as np
import pytest

from twoclock import prng
from twoclock.codegen import compiler
from twoclock.codegen.compiler import pointers
from twoclock.engine import lane_program
from twoclock.engine.cuda_engine import pack_tables
from twoclock.engine.protocol import flatten_row, measure_lanes

needs_compiler = pytest.mark.skipif(isinstance(compiler.find(), str), reason="there is no C compiler")


def on_the_cpu(source, folder, optimise="-O1"):
    """What launches a kernel: ``launch(lanes, lo, hi, shape, tables, leaves, streams)`` with lists of arrays.

    One block after the other; the threads of a block that works together are threads of the CPU, in their number.
    """
    lanes, threads = source.block or (1, 1)
    text = source.text.replace('extern "C" __global__ ', "")
    text = re.sub(r"__launch_bounds__\(.*?\)", "", text).replace("__shared__", "static")
    text = text.replace("__syncthreads()", "pthread_barrier_wait(&barrier)")
    at = text.index("#define RESTRICT")
    names = "static _Thread_local struct{int64_t x;}blockIdx,threadIdx;static const struct{int64_t x;}blockDim={%d};\n"
    text = (
        f"#include <pthread.h>\n{text[:at]}{names % threads}static pthread_barrier_t barrier;\n"
        + text[at:].replace("__restrict__", "restrict")
        + BLOCKS.replace("THREADS", str(threads)).replace("LANES", str(lanes))
    )
    name = folder / f"{abs(hash(text))}.c"
    name.write_text(text)
    made = name.with_suffix(".so")
    command = [*compiler.find().command, optimise, "-ffp-contract=off", "-shared", "-fPIC", "-o", made, name, "-lm"]
    subprocess.run([*command, "-lpthread"], check=True, stderr=subprocess.DEVNULL)
    call = ctypes.CDLL(str(made)).launch
    call.argtypes = [*[ctypes.c_int64] * 5, *[ctypes.c_void_p] * 4]

    def launch(lanes, lo, hi, shape, tables, leaves, streams):
        given = np.asarray(pack_tables(*((i, tables[i]) for i in source.given)))
        call(lanes, lo, hi, *shape, pointers(tables), pointers(leaves), streams.ctypes.data, given.ctypes.data)

    return launch


BLOCKS = """
static struct{int64_t block,lo,hi,methods,seeds;const void*const*tables;void*const*leaves;const uint32_t*streams;
const void*small;}all;
static void*one(void*number){
blockIdx.x=all.block;threadIdx.x=(int64_t)number;
walk(all.lo,all.hi,all.methods,all.seeds,all.tables,all.leaves,all.streams,*(const struct Given*)all.small);
return 0;}
void launch(int64_t lanes,int64_t lo,int64_t hi,int64_t methods,int64_t seeds,const void*const*tables,
void*const*leaves,const uint32_t*streams,const void*small){
pthread_barrier_init(&barrier,0,THREADS);
all.lo=lo;all.hi=hi;all.methods=methods;all.seeds=seeds;
all.tables=tables;all.leaves=leaves;all.streams=streams;all.small=small;
for(all.block=0;all.block*LANES<lanes;all.block++){
pthread_t threads[THREADS];
for(int64_t i=1;i<THREADS;i++)pthread_create(&threads[i],0,one,(void*)i);
one(0);
for(int64_t i=1;i<THREADS;i++)pthread_join(threads[i],0);}
pthread_barrier_destroy(&barrier);}
"""


def shaken(carry):
    """A carry in which no two lanes are alike."""
    rng = np.random.default_rng(0)

    def other(leaf):
        leaf = np.array(leaf, order="C")
        if leaf.dtype.kind == "f":
            leaf *= 1 + 0.01 * rng.standard_normal(leaf.shape)
            leaf += 0.01 * rng.standard_normal(leaf.shape)
        return leaf

    return jax.tree.map(other, carry)


def measured(lanes, carry, folder):
    """The rows that the kernel for marks gives, and those of XLA."""
    made = lane_program.metrics_source(lanes)
    parts, structure = jax.tree.flatten(made.row)
    row = [np.full((*lanes.shape, *part.shape), 77, part.dtype) for part in parts]
    tables = list(map(np.ascontiguousarray, [*lane_program.tables(lanes), *made.source.constants]))
    leaves = [np.array(leaf, order="C") for leaf in jax.tree.leaves(carry)]
    streams = prng.stream_words(lanes.seeds)
    launch = on_the_cpu(made.source, folder, "-O0")
    launch(lanes.shape[0] * lanes.shape[1], 0, 1, lanes.shape, tables, [*leaves, *row], streams)
    for a, b in zip(leaves, jax.tree.leaves(carry), strict=True):
        np.testing.assert_array_equal(a, b)
    found = flatten_row(jax.tree.unflatten(structure, row), lanes=2)
    return found, measure_lanes(lanes.instances, lanes.methods, carry)


def assert_alike(found, expected):
    """Rows with the same names in the same order, types and shapes, and numbers that differ by rounding alone."""
    assert list(found) == list(expected)
    for name, there in expected.items():
        assert (found[name].dtype, found[name].shape) == (there.dtype, there.shape), name
        np.testing.assert_allclose(found[name], there, rtol=1e-9, atol=1e-11, err_msg=name)
