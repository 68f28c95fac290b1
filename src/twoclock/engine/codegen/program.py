"""One lane's step as a C function that walks all lanes from one step to another.

The lanes are methods × seeds. Several of them go side by side, each with its own state, its own random stream and,
where methods or problems differ, its own numbers; what they share is read through one pointer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import jax
import numpy as np

from twoclock.engine.codegen.generate import Generator, Value
from twoclock.engine.codegen.ir import (
    STORED_TYPES,
    Builder,
    Memory,
    TooLong,
    Unsupported,
    Var,
    c_type,
)
from twoclock.engine.codegen.printer import Printer
from twoclock.engine.codegen.values import Array, Rule, Scalars, Shaper, Strided, row_strides, varies

# Entries up to which arrays are scalars, tried in turn, and the lines of C that each try may take.
_TRIES = ((64, 2_000), (24, 2_500), (8, 5_000))
# A thread's stack may be as small as half a megabyte.
_STACK = 256 * 1024
# Numbers of its own that a lane keeps at hand; more are read where they are.
_AT_HAND = 64


@dataclass(frozen=True)
class Target:
    """What the text is for.

    Args:
        width: lanes side by side; on a GPU one.
        mixed: whether lanes side by side may belong to different methods.
        cuda: whether it is for a GPU.
    """

    width: int = 1
    mixed: bool = False
    cuda: bool = False


# A lane's random stream: two words.
STREAM = jax.ShapeDtypeStruct((2,), np.uint32)


@dataclass(frozen=True)
class Example:
    """What one lane sees, as shapes and types; the trees of ``jax.ShapeDtypeStruct`` or arrays like them.

    Args:
        source: what makes a step's sample: the lane's random stream, or the sample itself, handed over step by step.
        per_seed: whether each seed has a problem of its own.
        bounded: whether there is a bound on the iterates.
    """

    problem: Any
    method: Any
    carry: Any
    source: Any = STREAM
    per_seed: bool = False
    bounded: bool = False


@dataclass(frozen=True)
class Source:
    """A program as text, and what to hand it beside the arrays of the example: its constants, as tables."""

    text: str
    target: Target
    constants: tuple[np.ndarray, ...]
    lines: int


def generate(lane: Callable[..., Any], example: Example, target: Target) -> Source:
    """The program of a lane; raises ``Unsupported`` with the reason where there is none.

    Args:
        lane: ``lane(problem, method, carry, source, k, bound) -> carry``, with a stream as two words of 32 bits.
    """
    traced = trace(lane, example)
    while True:
        try:
            return _shortest(traced, example, target)
        except _TooWide:
            if target.width == 1:
                raise Unsupported("a lane's state is too large to keep at hand") from None
            target = Target(target.width // 2, target.mixed, target.cuda)


def trace(lane: Callable[..., Any], example: Example) -> Any:
    """The jaxpr of a lane, its arguments flat: problem, method, carry, source, k and, if there is one, the bound."""
    given = (example.problem, example.method, example.carry, example.source)
    leaves, structure = jax.tree.flatten(given)
    real = jax.dtypes.canonicalize_dtype(np.float64)

    def flat(*values: Any) -> list[Any]:
        *body, k = values[:-1] if example.bounded else values
        problem, method, carry, source = jax.tree.unflatten(structure, body)
        return jax.tree.leaves(lane(problem, method, carry, source, k, values[-1] if example.bounded else None))

    k = jax.ShapeDtypeStruct((), np.int32)
    bound = [jax.ShapeDtypeStruct((), real)] if example.bounded else []
    shapes = [jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype) for leaf in leaves]
    return jax.make_jaxpr(flat)(*shapes, k, *bound)


class _TooWide(Exception):
    pass


def _shortest(traced: Any, example: Example, target: Target) -> Source:
    for small, most in _TRIES[:-1]:
        try:
            return _Writer(traced, example, target, small, most).source()
        except TooLong:
            continue
    return _Writer(traced, example, target, *_TRIES[-1]).source()


class _Writer:
    def __init__(self, traced: Any, example: Example, target: Target, small: int, most: int) -> None:
        self.traced, self.example, self.target = traced, example, target
        self.build = Builder(most)
        self.constants: list[np.ndarray] = []
        self.constant_tables: list[Memory] = []
        self.before: list[str] = []  # C that makes ready what a group of lanes needs
        self.outside: list[str] = []  # C that stands before all groups
        self.each_step: list[str] = []  # C that stands at the beginning of a step
        self.samples = [] if example.source is STREAM else jax.tree.leaves(example.source)
        self.first_sample = len(jax.tree.leaves((example.problem, example.method))) + example.bounded
        self.count = self.first_sample + len(self.samples)
        shaper = Shaper(self.build, small, self.constant)
        self.generator = Generator(self.build, shaper, target.width > 1)

    def source(self) -> Source:
        states = self._states()
        given: list[Value] = [
            *self._tables(self.example.problem, 0, "seed" if self.example.per_seed else "all"),
            *self._tables(self.example.method, len(jax.tree.leaves(self.example.problem)), "method"),
            *states,
            *([self._stream()] if self.example.source is STREAM else map(self._sample, range(len(self.samples)))),
            self.generator.shape.scalar(Var("k", "int32_t", False), np.dtype(np.int32)),
        ]
        if self.example.bounded:
            given.append(self._table(self.first_sample - 1, self.traced.jaxpr.invars[-1].aval, "all"))
        made = self.generator.walk(self.traced.jaxpr, self.traced.consts, given)
        self._keep(states, made)
        printer = Printer(self.target.width, self.build.statements)
        if printer.bytes_on_stack(self.build.memories) > (_STACK if not self.target.cuda else _STACK // 16):
            raise _TooWide
        return Source(self._text(printer, states), self.target, tuple(self.constants), self.build.written)

    def constant(self, value: np.ndarray) -> Memory:
        """A large constant, handed over as a table."""
        value = np.ascontiguousarray(value)
        for known, old in enumerate(self.constants):
            if old.dtype == value.dtype and old.shape == value.shape and old.tobytes() == value.tobytes():
                return self.constant_tables[known]
        self.constant_tables.append(self._shared_table(self.count + len(self.constants), value.dtype, value.size))
        self.constants.append(value)
        return self.constant_tables[-1]

    def _states(self) -> list[Strided]:
        states = []
        for i, leaf in enumerate(jax.tree.leaves(self.example.carry)):
            shape, dtype = tuple(np.shape(leaf)), np.dtype(leaf.dtype)
            memory = Memory(f"s{i}", c_type(dtype), max(math.prod(shape), 1), True)
            self.build.memories.append(memory)
            states.append(Strided(memory, shape, row_strides(shape), 0, dtype))
        return states

    def _stream(self) -> Strided:
        memory = Memory("stream", "uint32_t", 2, True)
        self.build.memories.append(memory)
        self.before.append(self._each_lane("stream", "uint32_t", 2, "streams", "seed"))
        return Strided(memory, (2,), (1,), 0, np.dtype(np.uint32))

    def _sample(self, i: int) -> Strided:
        """An array of the sample: the table has one for each step that is walked."""
        leaf, number = self.samples[i], self.first_sample + i
        shape, dtype = tuple(leaf.shape), np.dtype(leaf.dtype)
        c, stored = c_type(dtype), STORED_TYPES[dtype.name]
        size = math.prod(shape)
        self.each_step.append(f"const {stored}*t{number}=(const {stored}*)tables[{number}]+(step-lo)*{size};")
        memory = Memory(f"t{number}", c, max(size, 1), False, table=True, stored=stored)
        return Strided(memory, shape, row_strides(shape), 0, dtype)

    def _tables(self, tree: Any, first: int, of: str) -> list[Strided]:
        return [self._table(first + i, leaf, of) for i, leaf in enumerate(jax.tree.leaves(tree))]

    def _table(self, number: int, leaf: Any, of: str) -> Strided:
        """An array handed over: one for all, or one for each seed or method."""
        shape, dtype = tuple(leaf.shape), np.dtype(leaf.dtype)
        size, alone = max(math.prod(shape), 1), self.target.width == 1
        name, stored = f"t{number}", STORED_TYPES[dtype.name] if dtype.name in STORED_TYPES else c_type(dtype)
        pointer = f"const {stored}*"
        if of == "all":
            memory = self._shared_table(number, dtype, size)
        elif alone or (of == "method" and not self.target.mixed):
            memory = Memory(name, c_type(dtype), size, False, table=True, stored=stored)
            self.before.append(f"{pointer} {name}=({pointer})tables[{number}]+{of}*{size};")
        elif size <= _AT_HAND:
            memory = Memory(name, c_type(dtype), size, True)
            self.build.memories.append(memory)
            self.before.append(self._each_lane(name, stored, size, f"tables[{number}]", of))
        else:
            base = Var(f"b{number}", "int64_t", True)
            memory = Memory(name, c_type(dtype), size, True, table=True, base=base, stored=stored)
            lanes = self.target.width
            self.outside.append(f"{pointer} {name}=({pointer})tables[{number}];")
            self.before.append(f"int64_t {base.name}[{lanes}];for(int l=0;l<{lanes};l++){base.name}[l]={of}[l]*{size};")
        return Strided(memory, shape, row_strides(shape), 0, dtype)

    def _shared_table(self, number: int, dtype: np.dtype, size: int) -> Memory:
        if size >= 1 << 31:
            raise Unsupported("a table has more than two thousand million entries")
        c, stored = c_type(dtype), STORED_TYPES[np.dtype(dtype).name]
        self.outside.append(f"const {stored}*RESTRICT t{number}=(const {stored}*)tables[{number}];")
        return Memory(f"t{number}", c, size, False, table=True, stored=stored)

    def _each_lane(self, name: str, stored: str, size: int, source: str, of: str) -> str:
        """C that copies a lane's part of an array into the program's own."""
        part, to = (of, "j") if self.target.width == 1 else (f"{of}[l]", f"j*{self.target.width}+l")
        copy = f"for(int j=0;j<{size};j++){name}[{to}]=((const {stored}*){source})[(int64_t){part}*{size}+j];"
        return copy if self.target.width == 1 else f"for(int l=0;l<{self.target.width};l++){copy}"

    def _keep(self, states: list[Strided], made: list[Value]) -> None:
        """Write the new state over the old; what is still to be read of the old is read first."""
        shape = self.generator.shape
        memories = {state.memory for state in states}
        ready: list[Array | None] = []
        for state, new in zip(states, made, strict=True):
            assert isinstance(new, (Scalars, Strided, Rule))
            if new is state or math.prod(state.shape) == 0:
                ready.append(None)
            elif isinstance(new, Rule):
                in_place = new.reads is not None and new.reads & memories <= {state.memory}
                ready.append(new if in_place and not shape.is_small(new.shape) else shape.settled(new))
            elif isinstance(new, Strided) and new.memory in memories:
                old = new
                again = Rule(new.shape, new.dtype, lambda index, old=old: shape.at(old, index), varies(new))  # type: ignore[misc]
                ready.append(shape.settled(again))
            else:
                ready.append(shape.every(new) if shape.is_small(new.shape) else new)
        for state, value in zip(states, ready, strict=True):
            if value is not None:
                shape.write(state.memory, value)

    def _text(self, printer: Printer, states: list[Strided]) -> str:
        width, cuda = self.target.width, self.target.cuda
        load, store = [], []
        for i, (state, leaf) in enumerate(zip(states, jax.tree.leaves(self.example.carry), strict=True)):
            size, stored = math.prod(state.shape), STORED_TYPES[np.dtype(leaf.dtype).name]
            load.append(self._each_lane(f"s{i}", stored, size, f"leaves[{i}]", "lane"))
            lane, own = ("lane", "j") if width == 1 else ("lane[l]", f"j*{width}+l")
            copy = f"for(int j=0;j<{size};j++)(({stored}*)leaves[{i}])[(int64_t){lane}*{size}+j]=({stored})s{i}[{own}];"
            store.append(copy if width == 1 else f"for(int l=0;l<{width};l++)if(used[l]){copy}")
        arguments = "int64_t methods,int64_t seeds,const void*const*tables,void*const*leaves,const uint32_t*streams"
        if cuda:
            opening = f'extern "C" __global__ void walk(int64_t lo,int64_t hi,{arguments}){{'
            which = "int64_t lane=(int64_t)blockIdx.x*blockDim.x+threadIdx.x;if(lane<methods*seeds){"
        else:
            opening = f"void walk(int64_t lo,int64_t hi,int64_t first,int64_t last,{arguments}){{"
            which = "for(int64_t group=first;group<last;group++){" + ("int64_t lane=group;" if width == 1 else "")
        lines = [
            head(),
            "#define RESTRICT " + ("__restrict__" if cuda else "restrict"),
            opening,
            *self.outside,
            which,
            _LANE if width == 1 else (_MIXED if self.target.mixed else _ALIKE).replace("WIDTH", str(width)),
            printer.declarations(self.build.memories),
            *self.before,
            *load,
            "for(int64_t step=lo;step<hi;step++){int32_t k=(int32_t)step;",
            *self.each_step,
            printer.text(),
            "}",
            *store,
            "}}",
        ]
        return "\n".join(lines) + "\n"


@cache
def head() -> str:
    return resources.files("twoclock.engine.codegen").joinpath("special.h").read_text()


# Which lanes a group holds. At the end of the seeds the last one is walked again, and kept once.
_LANE = "int64_t method=lane/seeds,seed=lane%seeds;(void)method;(void)seed;"
_ALIKE = """int64_t per=(seeds+WIDTH-1)/WIDTH,method=group/per,begin=group%per*WIDTH;
int64_t lane[WIDTH],seed[WIDTH];int used[WIDTH];
(void)method;
for(int l=0;l<WIDTH;l++){used[l]=begin+l<seeds;seed[l]=used[l]?begin+l:seeds-1;lane[l]=method*seeds+seed[l];}"""
_MIXED = """int64_t lane[WIDTH],seed[WIDTH],method[WIDTH];int used[WIDTH];
for(int l=0;l<WIDTH;l++){int64_t i=group*WIDTH+l;used[l]=i<methods*seeds;lane[l]=used[l]?i:methods*seeds-1;
method[l]=lane[l]/seeds;seed[l]=lane[l]%seeds;}"""
