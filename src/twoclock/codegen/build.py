"""One lane's step as a C function that walks all lanes from one step to another.

The lanes are methods × seeds. Several of them go side by side, each with its own state, its own random stream and,
where methods or problems differ, its own numbers; what they share is read through one pointer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from twoclock.codegen import cuda_template
from twoclock.codegen.arrays import Array, Rule, Scalars, Shaper, Strided, row_strides, varies
from twoclock.codegen.c_printer import Printer
from twoclock.codegen.c_template import STREAM, Example, Parts, Source, Target, each_lane, text
from twoclock.codegen.equation import ShapedType
from twoclock.codegen.hoist import split
from twoclock.codegen.ir import STORED_TYPES, Builder, Memory, Statement, TooLong, Unsupported, Var, c_type
from twoclock.codegen.lower import Generator, Value
from twoclock.codegen.symmetric_state import Entry, merged
from twoclock.protocols import PyTree

# Entries up to which arrays are scalars, tried in turn, and the lines of C that each try may take.
_TRIES = ((64, 2_000), (24, 2_500), (8, 5_000))
# A thread's stack may be as small as half a megabyte.
_STACK = 256 * 1024
# Numbers of its own that a lane keeps at hand; more are read where they are.
_AT_HAND = 64
T = TypeVar("T")


@dataclass(frozen=True)
class SplitProgram:
    """A program in two: the first does ahead, for many steps at once, what does not depend on the state.

    Attributes:
        ahead, rest: the two, with the same constants.
        handed: what the first writes and the second reads, as tables after the constants.
    """

    ahead: Source
    rest: Source
    handed: tuple[cuda_template.Handed, ...]


def generate_in_two(lane: Callable[..., PyTree], example: Example) -> SplitProgram:
    """The program of a lane that is trusted, in two, for a GPU; raises ``Unsupported`` where there is none."""
    return _shortest(trace(lane, example), example, Target(cuda=True), _Writer.in_two)


def generate(lane: Callable[..., PyTree], example: Example, target: Target) -> Source:
    """The program of a lane; raises ``Unsupported`` with the reason where there is none.

    Args:
        lane: ``lane(problem, method, carry, source, k, bound) -> carry``, with a stream as two words of 32 bits.
    """
    traced = trace(lane, example)
    while True:
        try:
            return _shortest(traced, example, target, _Writer.source)
        except _TooWide:
            if target.width == 1:
                raise Unsupported("a lane's state is too large to keep at hand") from None
            target = replace(target, width=target.width // 2)


def trace(lane: Callable[..., PyTree], example: Example) -> ClosedJaxpr:
    """The jaxpr of a lane, its arguments flat: problem, method, carry, source, k and, if there is one, the bound."""
    given = (example.problem, example.method, example.carry, example.source)
    leaves, structure = jax.tree.flatten(given)
    real = jax.dtypes.canonicalize_dtype(np.float64)

    def flat(*values: PyTree) -> list[jax.Array]:
        *body, k = values[:-1] if example.bounded else values
        problem, method, carry, source = jax.tree.unflatten(structure, body)
        return jax.tree.leaves(lane(problem, method, carry, source, k, values[-1] if example.bounded else None))

    k = jax.ShapeDtypeStruct((), np.int32)
    bound = [jax.ShapeDtypeStruct((), real)] if example.bounded else []
    shapes = [jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype) for leaf in leaves]
    return jax.make_jaxpr(flat)(*shapes, k, *bound)


class _TooWide(Exception):
    pass


def _shortest(traced: ClosedJaxpr, example: Example, target: Target, write: Callable[[_Writer], T]) -> T:
    for small, most in _TRIES[:-1]:
        try:
            return write(_Writer(traced, example, target, small, most))
        except TooLong:
            continue
    return write(_Writer(traced, example, target, *_TRIES[-1]))


class _Writer:
    def __init__(self, traced: ClosedJaxpr, example: Example, target: Target, small: int, most: int) -> None:
        self.traced, self.example, self.target = traced, example, target
        self.build = Builder(most)
        self.shared: dict[Memory, int] = {}  # the tables that all lanes share, and their numbers
        self.constants: list[np.ndarray] = []
        self.constant_tables: list[Memory] = []
        self.before: list[str] = []  # C that makes ready what a group of lanes needs
        self.outside: list[str] = []  # C that stands before all groups
        self.each_step: list[str] = []  # C that stands at the beginning of a step
        self.samples = [] if example.source is STREAM else jax.tree.leaves(example.source)
        self.first_sample = len(jax.tree.leaves((example.problem, example.method))) + example.bounded
        self.count = self.first_sample + len(self.samples)
        self.states: dict[Memory, tuple[int, ...]] = {}
        self.twins: dict[Entry, Entry] = {}
        self.watch = Memory("watch", "float", cuda_template.WATCHES, True, mutable=True)
        shaper = Shaper(self.build, small, self.constant)
        self.generator = Generator(self.build, shaper, target.width > 1)

    def source(self) -> Source:
        step = self._step()
        if self.example.trust is not None:
            for table in cuda_template.at_hand(self.shared, step):
                number = self.shared[table]
                self.outside[self.outside.index(_pointer(table, number))] = cuda_template.copied(table, number)
        parts = self._parts(step)
        if self.target.cuda:
            return self._made(cuda_template.at_once(self.example, parts, step))
        return self._made(text(self.target, self.example.carry, parts))

    def in_two(self) -> SplitProgram:
        cut = split(self._step(), [*self.states, self.watch])
        ahead = cuda_template.ahead(self._parts(cut.ahead), cut.handed)
        later = self._parts(cut.rest, [m for m in self.build.memories if m not in cut.handed])
        rest = cuda_template.rest(self.example, later, cut, self.count + len(self.constants))
        return SplitProgram(self._made(ahead), self._made(rest), cuda_template.handed(cut.handed))

    def _made(self, text: str) -> Source:
        number = {memory: i for i, memory in enumerate(self.states)}
        twins = tuple((number[memory], i, twin) for (memory, i), (_, twin) in self.twins.items())
        return Source(text, self.target, tuple(self.constants), self.build.written, twins)

    def _step(self) -> list[Statement]:
        """The statements of a step."""
        states = self._states()
        self.states = {state.memory: state.shape for state in states}
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
        if self.example.trust is not None:
            self._watch(made, given[-1])
        self._keep(states, made)
        if self.example.trust is None or not self.example.trust.symmetric:
            return self.build.statements
        step = merged(self.build.statements, self.states)
        self.twins = step.twins
        return step.statements

    def _parts(self, statements: list[Statement], memories: list[Memory] | None = None) -> Parts:
        memories = self.build.memories if memories is None else memories
        printer = Printer(self.target.width, statements)
        if printer.bytes_on_stack(memories) > (_STACK if not self.target.cuda else _STACK // 16):
            raise _TooWide
        kept, lines = printer.declarations(memories), self.build.written
        after = [f"{memory.name}[{i}]={memory.name}[{twin}];" for (memory, i), (_, twin) in self.twins.items()]
        return Parts(self.outside, self.before, self.each_step, kept, printer.text(), lines, after)

    def _watch(self, made: list[Value], bound: Value) -> None:
        """Sums that are no numbers once a leaf is not finite, or out of bounds."""
        assert self.example.trust is not None
        shape, turn = self.generator.shape, itertools.cycle(range(cuda_template.WATCHES))
        for leaf in self.example.trust.watched:
            new = made[leaf]
            assert isinstance(new, (Scalars, Strided, Rule))
            if not shape.is_small(new.shape):
                raise Unsupported("a lane's state is too large to be walked on trust")
            forms = ["fmaf({1},0.0f,{0})" if new.dtype.name == "float32" else "watched({0},{1})"]
            if self.example.bounded and leaf in self.example.trust.held:
                forms.append("fabs({1})<={2}?{0}:(float)NAN")
            made[leaf] = every = shape.every(new)
            for (atom,), form in itertools.product(np.reshape(every.entries, (-1, 1)), forms):
                at = next(turn)
                so_far = self.build.load(self.watch, at)
                more = [shape.at(bound, ())] if "{2}" in form else []  # type: ignore[arg-type]
                self.build.store(self.watch, at, self.build.let("float", form, so_far, atom, *more))

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
        self.before.append(each_lane(self.target.width, "stream", "uint32_t", 2, "streams", "seed"))
        return Strided(memory, (2,), (1,), 0, np.dtype(np.uint32))

    def _sample(self, i: int) -> Strided:
        """An array of the sample: the table has one for each step that is walked and each seed."""
        leaf, number = self.samples[i], self.first_sample + i
        shape, dtype = tuple(leaf.shape), np.dtype(leaf.dtype)
        c, stored = c_type(dtype), STORED_TYPES[dtype.name]
        size, where = math.prod(shape), "((step-lo)*seeds+seed)"
        self.each_step.append(f"const {stored}*t{number}=(const {stored}*)tables[{number}]+{where}*{size};")
        memory = Memory(f"t{number}", c, max(size, 1), False, table=True, stored=stored)
        return Strided(memory, shape, row_strides(shape), 0, dtype)

    def _tables(self, tree: PyTree, first: int, of: str) -> list[Strided]:
        return [self._table(first + i, leaf, of) for i, leaf in enumerate(jax.tree.leaves(tree))]

    def _table(self, number: int, leaf: ShapedType, of: str) -> Strided:
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
            self.before.append(each_lane(self.target.width, name, stored, size, f"tables[{number}]", of))
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
        memory = Memory(f"t{number}", c, size, False, table=True, stored=stored)
        self.shared[memory] = number
        self.outside.append(_pointer(memory, number))
        return memory

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


def _pointer(table: Memory, number: int) -> str:
    return f"const {table.stored}*RESTRICT {table.name}=(const {table.stored}*)tables[{number}];"
