"""The text for a GPU as a program for the CPU, its threads one after the other."""

import ctypes
import re
import subprocess

import pytest

from twoclock.engine import compiler

needs_compiler = pytest.mark.skipif(isinstance(compiler.find(), str), reason="there is no C compiler")


def on_the_cpu(source, folder):
    """What launches a kernel: ``launch(lanes, lo, hi, shape, tables, leaves, streams)``."""
    text = source.text.replace('extern "C" __global__ ', "")
    text = re.sub(r"__launch_bounds__\(.*?\)|__syncthreads\(\);|__shared__", "", text)
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
