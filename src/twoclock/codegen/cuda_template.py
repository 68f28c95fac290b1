"""The text around a lane's step on a GPU, where a lane is a thread.

Lanes that diverge are rare, and to keep every one of them in place at each step costs the others dear. So the steps of
all lanes are walked on trust, with an eye on what they make, and a lane stores what it has come to only if all of it
was finite. One that did not hold says so, and is walked again from where it stood, with care.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from twoclock.codegen.c_printer import Printer
from twoclock.codegen.c_template import Example, Parts, each_lane, head
from twoclock.codegen.hoist import Split, Thing
from twoclock.codegen.ir import STORED_TYPES, Let, Load, Loop, Memory, Statement, Store, Unsupported, Var, While, blocks

# Sums in which the numbers of a lane are watched side by side.
WATCHES = 4


@dataclass(frozen=True)
class Handed:
    """Numbers that the part of a step done ahead hands to the rest: entries a lane and step, and their type."""

    size: int
    dtype: np.dtype


def handed(things: Sequence[Thing]) -> tuple[Handed, ...]:
    return tuple(Handed(_size(thing), np.dtype(_DTYPES[thing.c])) for thing in things)


def at_once(example: Example, parts: Parts, statements: Iterable[Statement]) -> str:
    """The program that does all of a step at once; ``statements`` are those of the step."""
    if example.only_read:
        if walked(statements) > LONG_MEASURE:
            raise Unsupported("XLA is faster with metrics as large as these")
        return measuring(example, parts)
    return careful(example, parts) if example.trust is None else trusting(example, parts)


def careful(example: Example, parts: Parts) -> str:
    """Walks the lanes that are to be, each from the step that it is at, and keeps those in place that diverge."""
    load, store = _moves(example)
    steps = ["for(int64_t step=from[lane];step<hi;step++){int32_t k=(int32_t)step;", parts.step, "}"]
    return _text("", parts, _own(example), "from[lane]>=0", [*load, *steps, *store])


def trusting(example: Example, parts: Parts) -> str:
    """Walks the lanes that hold, all of a step at once."""
    short = parts.lines <= _SHORT
    steps = ["#pragma unroll 2"] if short else []
    steps += ["for(int64_t step=lo;step<hi;step++){int32_t k=(int32_t)step;", parts.step, "}", *parts.after]
    return _text(_BOUNDS if short else "", parts, _own(example), "from[lane]<0", _on_trust(example, steps))


def measuring(example: Example, parts: Parts) -> str:
    """Makes of the leaves that are read alone the others, once for each lane."""
    load, store = _moves(example)
    read = example.only_read
    return _text("", parts, "", "", [*load[:read], parts.step, *store[read:]], "if(lane<count){int32_t k=0;(void)k;")


def rest(example: Example, parts: Parts, cut: Split, first: int) -> str:
    """Walks the lanes that hold on what was done ahead.

    A step reads what is handed to it two steps before, and the rows of tables that this leads to one step before.

    Args:
        parts: of the rest of the step.
        first: the number of the table of the first thing that is handed over.
    """
    numbers = [(n, thing) for n, thing in enumerate(cut.handed, first) if isinstance(thing, Var)]
    arrays = [(n, thing) for n, thing in enumerate(cut.handed, first) if isinstance(thing, Memory)]

    def fetched(step: str) -> str:
        """What is handed to a step, or to the last one if there is none."""
        values = "".join(f"f{v.name}=fetch((const {v.c}*)tables[{n}]+row);" for n, v in numbers)
        return f"{{int64_t row=({step}<hi?{step}-lo:hi-1-lo)*count+lane;{values}}}"

    named = "".join(f"const {v.c} {v.name}=f{v.name};" for _, v in numbers)
    rows = Printer(1, cut.rows, cut.fetched).text()
    kept = [*(v for _, v in numbers), *cut.fetched]
    next_ = ["{", named, rows, *(f"n{v.name}={v.name};" for v in kept), "}"]
    steps = [
        *(f"{v.c} f{v.name};" for _, v in numbers),
        *(f"{v.c} n{v.name};" for v in kept),
        fetched("lo"),
        *next_,
        fetched("lo+1"),
        f"#pragma unroll {2 if parts.step.count(chr(10)) <= _SHORT_REST else 1}",
        "for(int64_t step=lo;step<hi;step++){int32_t k=(int32_t)step;",
        *(f"const {v.c} {v.name}=n{v.name};" for v in kept),
        *(f"const {m.c}*{m.name}=(const {m.c}*)tables[{n}]+((step-lo)*count+lane)*{m.size};" for n, m in arrays),
        *next_,
        fetched("step+2"),
        parts.step,
        "}",
        *parts.after,
    ]
    return _text("", parts, _own(example), "from[lane]<0", _on_trust(example, steps))


def ahead(parts: Parts, things: Sequence[Thing]) -> str:
    """What is done ahead, each step of each lane a thread; what it writes has the axes steps × lanes."""
    where = "if(lane<(hi-lo)*count){int64_t at=lane,step=lo+lane/count;lane=lane%count;int32_t k=(int32_t)step;"
    store = [
        f"(({thing.c}*)leaves[{n}])[at]={thing.name};"
        if isinstance(thing, Var)
        else f"for(int j=0;j<{thing.size};j++)(({thing.c}*)leaves[{n}])[at*{thing.size}+j]={thing.name}[j];"
        for n, thing in enumerate(things)
    ]
    return _text("", parts, "", "", [parts.step, *store], where)


# Statements from which a lane is measured sooner by XLA, with many threads, than by one: a millisecond of an H200's.
LONG_MEASURE = 1 << 18
# Passes that a loop without a known end is taken to have.
_PASSES = 16
# Lines of a step that a GPU does two at a time: what the second does not wait for is hidden behind the first, but of
# longer ones the registers do not hold two. Of the rest of a step they hold less: more is under way at once.
_SHORT, _SHORT_REST = 800, 600
# Threads in a block of lanes that are walked on trust, all of a step at once, and of those whose steps are done ahead:
# the first fill the device, the second are few and share no processor if they can help it.
MANY, FEW = 128, 32
# Blocks that the registers of a processor are to do for.
_BOUNDS = f" __launch_bounds__({MANY},3)"
# Bytes of a table that a block keeps at hand, and of all of them.
_TABLE, _TABLES = 1 << 13, 1 << 14
_DTYPES = {
    "int": "int32", "float": "float32", "double": "float64", "int8_t": "int8", "int16_t": "int16", "int32_t": "int32",
    "int64_t": "int64", "uint8_t": "uint8", "uint16_t": "uint16", "uint32_t": "uint32", "uint64_t": "uint64",
}  # fmt: skip


def walked(statements: Iterable[Statement]) -> int:
    """How many statements are walked in one go, those in a loop as often as it has passes."""
    count = 0
    for statement in statements:
        if isinstance(statement, (Let, Load, Store)):
            count += 1
        else:
            times = statement.count if isinstance(statement, Loop) else _PASSES if isinstance(statement, While) else 1
            count += times * sum(map(walked, blocks(statement)))
    return count


def at_hand(tables: Iterable[Memory], statements: Iterable[Statement]) -> list[Memory]:
    """Of tables, the small ones that lanes read wherever they like: each processor keeps those beside its registers."""
    found, left = set[Memory](), _TABLES

    def visit(statement: Statement) -> None:
        if isinstance(statement, Load):
            if not isinstance(statement.index, int):
                found.add(statement.memory)
        elif not isinstance(statement, (Let, Store)):
            for block in blocks(statement):
                for inner in block:
                    visit(inner)

    for statement in statements:
        visit(statement)
    chosen = []
    for table in sorted(found & set(tables), key=lambda table: table.size):
        size = table.size * np.dtype(_DTYPES[table.stored]).itemsize
        if size <= min(_TABLE, left):
            left -= size
            chosen.append(table)
    return chosen


def copied(table: Memory, number: int) -> str:
    """C that has a block keep a table at hand."""
    here = f"__shared__ {table.stored} {table.name}[{table.size}];"
    move = f"{table.name}[i]=((const {table.stored}*)tables[{number}])[i];"
    return f"{here}for(int i=threadIdx.x;i<{table.size};i+=blockDim.x){move}"


def _text(bounds: str, parts: Parts, own: str, if_: str, lines: Sequence[str], where: str = "") -> str:
    arguments = "int64_t methods,int64_t seeds,const void*const*tables,void*const*leaves,const uint32_t*streams"
    return "\n".join(
        [
            head(),
            "#define RESTRICT __restrict__",
            f'extern "C" __global__ void{bounds} walk(int64_t lo,int64_t hi,{arguments}){{',
            *parts.outside,
            *(["__syncthreads();"] if any("__shared__" in line for line in parts.outside) else []),
            "int64_t lane=(int64_t)blockIdx.x*blockDim.x+threadIdx.x;const int64_t count=methods*seeds;",
            own,
            where or f"if(lane<count&&{if_}){{",
            "int64_t method=lane/seeds,seed=lane%seeds;(void)method;(void)seed;",
            parts.declarations,
            *parts.before,
            *lines,
            "}}\n",
        ]
    )


def _own(example: Example) -> str:
    """The step from which a lane is to be walked with care; negative as long as it holds. The last tells of all."""
    return f"int64_t*from=(int64_t*)leaves[{len(jax.tree.leaves(example.carry))}];"


def _on_trust(example: Example, steps: Sequence[str]) -> list[str]:
    assert example.trust is not None
    load, store = _moves(example)
    watched = "+".join(f"watch[{i}]" for i in range(WATCHES))
    dead = "" if example.trust.stays else "from[count]=from[lane]=lo;"
    return [
        *load,
        f"if(!s{example.trust.alive}[0]){{{dead}}}else{{float watch[{WATCHES}];",
        f"for(int j=0;j<{WATCHES};j++)watch[j]=0;",
        *steps,
        f"float all={watched};if(all==all){{",
        *store,
        "}else from[count]=from[lane]=lo;}",
    ]


def _moves(example: Example) -> tuple[list[str], list[str]]:
    """C that loads a lane's carry, and that stores it."""
    load, store = [], []
    for i, leaf in enumerate(jax.tree.leaves(example.carry)):
        size, stored = math.prod(np.shape(leaf)), STORED_TYPES[np.dtype(leaf.dtype).name]
        load.append(each_lane(1, f"s{i}", stored, size, f"leaves[{i}]", "lane"))
        store.append(f"for(int j=0;j<{size};j++)(({stored}*)leaves[{i}])[lane*{size}+j]=({stored})s{i}[j];")
    return load, store


def _size(thing: Thing) -> int:
    return thing.size if isinstance(thing, Memory) else 1
