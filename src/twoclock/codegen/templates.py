"""The C and CUDA code around a step: which lanes a group or a thread runs, what it loads before and stores after.

On a GPU a lane is a thread. A check of every step would slow down all lanes. So an *unchecked* program runs them and
only marks a lane that was not finite; a *checked* program then runs that lane again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import jax
import numpy as np

from twoclock.codegen import ir
from twoclock.codegen.c_printer import Printer
from twoclock.codegen.ir import STORED_TYPES, Buffer, For, Load, Statement, Tree, Unsupported, Var, While, blocks

if TYPE_CHECKING:
    from twoclock.codegen.build import Example
    from twoclock.codegen.passes import SplitStep

# The number of sums in which the numbers of a lane are watched.
WATCHES = 4
# From this many statements on XLA, with many threads, measures a lane faster than one thread: a millisecond of an H200.
LONG_MEASURE = 1 << 18
# Threads in a block of unchecked lanes that fill the device, and in a warp; and in a block of fewer lanes, by how many
# of these it runs: a warp runs them, and the others work ahead of it.
MANY, WARP = 128, 32
THREADS = {8: 128, 32: 256}
# Shared memory of a block for what is computed ahead, in bytes, and the most steps in one half of it.
_SHARED, MOST_AHEAD = 48 << 10, 64
# The assumed number of passes of a loop without a known end.
_PASSES = 16
# Steps of up to this many lines run two at a time, so that independent work of the second overlaps with the first. For
# longer ones the registers do not suffice. The limit for what others have worked ahead of is lower, since it has more
# in flight.
SHORT, _SHORT_REST = 800, 360
# The lines up to which the registers of a processor must suffice for three blocks, and how this is said.
_BOUNDED, _BOUNDS = 1_200, f" __launch_bounds__({MANY},3)"
# Bytes of a table that a block copies to shared memory, and of all such tables.
_TABLE, _TABLES = 1 << 13, 1 << 14
# Bytes of the tables that a kernel takes as an argument, of 4 kB for all arguments.
_GIVEN = 3 << 10
_DTYPES = {**{c: name for name, c in ir.C_TYPES.items()}, "int": "int32"}
_ARGUMENTS = "int64_t methods,int64_t seeds,const void*const*tables,void*const*leaves,const uint32_t*streams"
_SPAN = "int64_t lo,int64_t hi,int64_t first,int64_t last"
_EACH_STEP = "step<hi;step++){int32_t k=(int32_t)step;"
# The lanes of a group. Beyond the last seed, the last one runs again and is stored once.
_LANE = "int64_t method=lane/seeds,seed=lane%seeds;(void)method;(void)seed;"
_ALIKE = """int64_t per=(seeds+WIDTH-1)/WIDTH,method=group/per,begin=group%per*WIDTH;
int64_t lane[WIDTH],seed[WIDTH];int used[WIDTH];
(void)method;
for(int l=0;l<WIDTH;l++){used[l]=begin+l<seeds;seed[l]=used[l]?begin+l:seeds-1;lane[l]=method*seeds+seed[l];}"""
_MIXED = """int64_t lane[WIDTH],seed[WIDTH],method[WIDTH];int used[WIDTH];
for(int l=0;l<WIDTH;l++){int64_t i=group*WIDTH+l;used[l]=i<methods*seeds;lane[l]=used[l]?i:methods*seeds-1;
method[l]=lane[l]/seeds;seed[l]=lane[l]%seeds;}"""


@dataclass(frozen=True)
class CodeTarget:
    """The target of the code."""

    width: int = 1  # lanes side by side; one on a GPU
    mixed: bool = False  # lanes side by side may belong to different methods
    cuda: bool = False  # for a GPU


@dataclass(frozen=True)
class ProgramParts:
    """The C code of each part of a program."""

    outside: Iterable[str]  # before all groups of lanes
    before: Iterable[str]  # before the steps of a group or a thread
    each_step: Iterable[str]  # at the beginning of a step
    declarations: str  # of the arrays on a lane's stack
    step: str
    lines: int  # of the step
    after: Iterable[str] = ()  # after all steps
    given: Sequence[Buffer] = ()  # tables that are an argument of a kernel


@cache
def special_functions() -> str:
    return resources.files("twoclock.codegen").joinpath("special.h").read_text()


def copy_to_stack(width: int, name: str, stored: str, size: int, source: str, of: str) -> str:
    """Write C that copies each lane's part of a table to an array on the stack."""
    part, to = (of, "j") if width == 1 else (f"{of}[l]", f"j*{width}+l")
    copy = f"for(int j=0;j<{size};j++){name}[{to}]=((const {stored}*){source})[(int64_t){part}*{size}+j];"
    return copy if width == 1 else f"for(int l=0;l<{width};l++){copy}"


def c_text(target: CodeTarget, carry: Tree, parts: ProgramParts, kept: Iterable[tuple[bool, bool]]) -> str:
    """Write the program in C.

    ``carry`` has the shapes of what a lane stores, ``s0``, ``s1``, … in the step, and ``kept`` says of each whether the
    step reads or changes it at all, and whether it changes it.
    """
    width, both, kept = target.width, _load_and_store(carry, target.width), list(kept)
    load, store = ([line for line, of in zip(both[i], kept, strict=True) if of[i]] for i in (0, 1))
    lanes = _LANE if width == 1 else _MIXED if target.mixed else _ALIKE
    lines = [
        special_functions(),
        "#define RESTRICT restrict",
        # A separate function, since a compiler may move arithmetic past the change of the floating-point mode.
        f"static __attribute__((noinline)) void steps({_SPAN},{_ARGUMENTS}){{",
        *parts.outside,
        "for(int64_t group=first;group<last;group++){" + ("int64_t lane=group;" if width == 1 else ""),
        lanes.replace("WIDTH", str(width)),
        parts.declarations,
        *parts.before,
        *load,
        "for(int64_t step=lo;" + _EACH_STEP,
        *parts.each_step,
        parts.step,
        "}",
        *store,
        "}}",
        f"void walk({_SPAN},{_ARGUMENTS}){{uint64_t old=flush_subnormals();",
        "steps(lo,hi,first,last,methods,seeds,tables,leaves,streams);restore_arithmetic(old);}",
    ]
    return "\n".join(lines) + "\n"


def cuda_text(example: Example, parts: ProgramParts, statements: Iterable[Statement]) -> str:
    """Write the kernel that does all of a step at once; ``statements`` are those of the step."""
    load, store = _load_and_store(example.carry)
    if example.only_read:
        if _executed(statements) > LONG_MEASURE:
            raise Unsupported("XLA is faster with metrics as large as these")
        measure = [*load[: example.only_read], parts.step, *store[example.only_read :]]
        return _kernel("if(lane<count){int32_t k=0;(void)k;", parts, measure)
    if example.unchecked is None:
        steps = ["for(int64_t step=from[lane];" + _EACH_STEP, parts.step, "}"]
        return _kernel("if(lane<count&&from[lane]>=0){", parts, [*load, *steps, *store], len(load))
    short = parts.lines <= SHORT
    steps = ["#pragma unroll 2"] if short else []
    steps += ["for(int64_t step=lo;" + _EACH_STEP, parts.step, "}", *parts.after]
    return _unchecked_kernel(example, parts, steps, _BOUNDS if parts.lines <= _BOUNDED else "")


def cuda_few_text(
    example: Example, ahead: ProgramParts, rest: ProgramParts, cut: SplitStep, lanes: int
) -> tuple[str, int]:
    """Write the kernel for few lanes, and return it with the threads of a block.

    The first threads of a block each run a lane. The other warps compute ahead what does not depend on the state, for
    all lanes of the block and for as many steps as fit shared memory. While one half of that memory is read, the other
    is written. Rows of tables that such numbers point to are read a step ahead.
    """
    assert example.unchecked is not None
    numbers = [v for v in cut.handed if isinstance(v, Var)]
    arrays = [m for m in cut.handed if isinstance(m, Buffer)]
    threads = THREADS[lanes]
    per_step = lanes * sum(_size(v) * np.dtype(_DTYPES[v.c]).itemsize for v in cut.handed)
    at_once = (threads - WARP) // lanes
    steps = min(_SHARED // (2 * per_step), MOST_AHEAD) // at_once * at_once
    if not steps:
        raise Unsupported("what a step computes ahead does not fit shared memory")

    def place(of: Var | Buffer, step: str) -> str:
        at = f"({step}%{2 * steps}*{lanes}+own)"
        return f"h{of.name}[{at}]" if isinstance(of, Var) else f"(h{of.name}+{at}*{of.size})"

    load_state, store_state = _load_and_store(example.carry)

    def read(step: str) -> str:
        return "".join(f"const {v.c} {v.name}={place(v, step)};" for v in numbers)

    def fetch(step: str) -> list[str]:
        """Read the rows of a step."""
        if not cut.fetched:
            return []
        rows = Printer(1, cut.rows, cut.fetched).text()
        return [
            "{",
            f"const int32_t next={step};",
            read("next"),
            rows,
            *(f"n{v.name}={v.name};" for v in cut.fetched),
            "}",
        ]

    dead = "" if example.unchecked.frozen else "from[count]=from[lane]=lo;"
    return "\n".join(
        [
            # One block is enough for a processor, so that its threads may use all registers.
            *_head(f" __launch_bounds__({threads},1)", ahead),
            *(f"__shared__ {v.c} h{v.name}[{2 * steps * lanes * _size(v)}];" for v in cut.handed),
            f"const int64_t count=methods*seeds;const int own=threadIdx.x%{lanes};",
            f"int64_t lane=(int64_t)blockIdx.x*{lanes}+own;const int beyond=lane>=count;if(beyond)lane=count-1;",
            f"int64_t*from=(int64_t*)leaves[{len(load_state)}];",
            f"int runs=threadIdx.x<{lanes}&&!beyond&&from[lane]<0;",
            _LANE,
            ahead.declarations,
            *ahead.before,
            f"float watch[{WATCHES}];for(int j=0;j<{WATCHES};j++)watch[j]=0;",
            "if(runs){",
            *load_state,
            f"if(!s{example.unchecked.alive}[0]){{runs=0;{dead}}}}}",
            *(f"{v.c} n{v.name};" for v in cut.fetched),
            f"for(int32_t begin=lo;begin<hi+{steps};begin+={steps}){{",
            f"if(threadIdx.x>={WARP}){{",
            f"for(int32_t step=begin+(threadIdx.x-{WARP})/{lanes};step<hi&&step<begin+{steps};"
            f"step+={at_once}){{int32_t k=step;(void)k;",
            *(f"{m.c}*{m.name}={place(m, 'step')};" for m in arrays),
            ahead.step,
            *(f"{place(v, 'step')}={v.name};" for v in numbers),
            "}}else if(runs&&begin>lo){",
            "const int32_t last=begin<hi?begin:hi;",
            *fetch(f"begin-{steps}"),
            f"#pragma unroll {2 if rest.step.count(chr(10)) <= _SHORT_REST else 1}",
            f"for(int32_t step=begin-{steps};step<last;step++){{int32_t k=step;(void)k;",
            *(f"const {v.c} {v.name}=n{v.name};" for v in cut.fetched),
            read("step"),
            *(f"const {m.c}*{m.name}={place(m, 'step')};" for m in arrays),
            *fetch("step+1<last?step+1:step"),
            rest.step,
            "}}",
            "__syncthreads();}",
            "if(runs){",
            *rest.after,
            *_store_finite(store_state),
            "}}\n",
        ]
    ), threads


def _size(value: Var | Buffer) -> int:
    return value.size if isinstance(value, Buffer) else 1


def choose_given_tables(tables: Iterable[Buffer], statements: Iterable[Statement]) -> tuple[Buffer, ...]:
    """Choose the small tables that are read at known places alone: as arguments of a kernel they need no registers."""
    indexed = {s.memory for s in ir.walk(statements) if isinstance(s, Load) and not isinstance(s.index, int)}
    left, chosen = _GIVEN, list[Buffer]()
    for table in sorted((t for t in tables if t not in indexed), key=lambda table: table.size):
        left -= 8 * table.size
        if left >= 0:
            chosen.append(table)
    return tuple(chosen)


def read_given(table: Buffer) -> str:
    return f"const {table.stored}*const {table.name}=given.{table.name};"


def choose_shared_tables(tables: Iterable[Buffer], statements: Iterable[Statement]) -> list[Buffer]:
    """Choose the small tables that lanes read at computed places: a block copies those to its shared memory."""
    left, chosen = _TABLES, []
    indexed = {s.memory for s in ir.walk(statements) if isinstance(s, Load) and not isinstance(s.index, int)}
    for table in sorted((t for t in tables if t in indexed), key=lambda table: table.size):
        size = table.size * np.dtype(_DTYPES[table.stored]).itemsize
        if size <= min(_TABLE, left):
            left -= size
            chosen.append(table)
    return chosen


def copy_to_shared_memory(table: Buffer, number: int) -> str:
    declaration = f"__shared__ {table.stored} {table.name}[{table.size}];"
    move = f"{table.name}[i]=((const {table.stored}*)tables[{number}])[i];"
    return f"{declaration}for(int i=threadIdx.x;i<{table.size};i+=blockDim.x){move}"


def _executed(statements: Iterable[Statement]) -> int:
    """Count the statements that are executed, those in a loop as often as it has passes."""
    count = 0
    for s in statements:
        times = s.count // s.step if isinstance(s, For) else _PASSES if isinstance(s, While) else 1
        count += times * sum(map(_executed, blocks(s))) if isinstance(s, ir.Nested) else 1
    return count


def _kernel(where: str, parts: ProgramParts, lines: Sequence[str], restart: int | None = None, bounds: str = "") -> str:
    # The step from which each lane must run checked, negative while it is finite; the last entry is for all lanes.
    own = "" if restart is None else f"int64_t*from=(int64_t*)leaves[{restart}];"
    return "\n".join(
        [
            *_head(bounds, parts),
            *(["__syncthreads();"] if any("__shared__" in line for line in parts.outside) else []),
            "int64_t lane=(int64_t)blockIdx.x*blockDim.x+threadIdx.x;const int64_t count=methods*seeds;",
            own,
            where,
            _LANE,
            parts.declarations,
            *parts.before,
            *lines,
            "}}\n",
        ]
    )


def _head(bounds: str, parts: ProgramParts) -> list[str]:
    tables = "".join(f"{table.stored} {table.name}[{table.size}];" for table in parts.given)
    return [
        special_functions(),
        "#define RESTRICT __restrict__",
        f"struct Given{{{tables or 'int none;'}}};",
        f'extern "C" __global__ void{bounds} walk(int64_t lo,int64_t hi,{_ARGUMENTS},GIVEN given){{',
        *parts.outside,
    ]


def _store_finite(store: Sequence[str]) -> list[str]:
    """Store the state of a lane that is finite, and mark one that is not."""
    watched = "+".join(f"watch[{i}]" for i in range(WATCHES))
    return [f"float all={watched};if(all==all){{", *store, "}else from[count]=from[lane]=lo;"]


def _unchecked_kernel(example: Example, parts: ProgramParts, steps: Sequence[str], bounds: str = "") -> str:
    assert example.unchecked is not None
    load, store = _load_and_store(example.carry)
    dead = "" if example.unchecked.frozen else "from[count]=from[lane]=lo;"
    lines = [
        *load,
        f"if(!s{example.unchecked.alive}[0]){{{dead}}}else{{float watch[{WATCHES}];",
        f"for(int j=0;j<{WATCHES};j++)watch[j]=0;",
        *steps,
        *_store_finite(store),
        "}",
    ]
    return _kernel("if(lane<count&&from[lane]<0){", parts, lines, len(load), bounds)


def _load_and_store(carry: Tree, width: int = 1) -> tuple[list[str], list[str]]:
    """Write C that loads a lane's carry, and that stores it."""
    load, store = [], []
    lane, own = ("lane", "j") if width == 1 else ("lane[l]", f"j*{width}+l")
    for i, leaf in enumerate(jax.tree.leaves(carry)):
        size, stored = math.prod(np.shape(leaf)), STORED_TYPES[np.dtype(leaf.dtype).name]
        load.append(copy_to_stack(width, f"s{i}", stored, size, f"leaves[{i}]", "lane"))
        copy = f"for(int j=0;j<{size};j++)(({stored}*)leaves[{i}])[(int64_t){lane}*{size}+j]=({stored})s{i}[{own}];"
        store.append(copy if width == 1 else f"for(int l=0;l<{width};l++)if(used[l]){copy}")
    return load, store
