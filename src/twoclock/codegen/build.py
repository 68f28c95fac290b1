"""From one lane's step to a program that runs all lanes from one step to another.

Lanes form a grid, methods × seeds. Several run side by side, each with its own state, random stream and, where the
arrays of methods or seeds differ, its own numbers.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from twoclock.codegen import ir, templates
from twoclock.codegen.arrays import Array, ArrayBuilder, LazyArray, Scalars, ShapedType, Strided, Value
from twoclock.codegen.c_printer import Printer
from twoclock.codegen.ir import (
    STORED_TYPES,
    Atom,
    Buffer,
    Builder,
    Load,
    ProgramTooLong,
    Statement,
    Store,
    Tree,
    Unsupported,
    Var,
    c_type,
)
from twoclock.codegen.lower import Lowering
from twoclock.codegen.passes import Entry, find_lasting, fuse_products, merge_twins, order_by_outputs, split_step
from twoclock.codegen.templates import CodeTarget, ProgramParts

# Entries up to which arrays become scalars, and the lines of C that this may take; tried in turn.
_TRIES = ((64, 2_000), (24, 2_500), (8, 9_000))
# With lanes side by side scalars are vectors, and the registers hold few: loops are as fast where there are many, and
# the C compiler takes a quarter of the time. So all but the last try end at this share.
_SIDE_BY_SIDE = 0.6
# A thread's stack may be as small as half a megabyte. If more is needed, arrays of more than a kilobyte are elsewhere;
# all together should fit in a core's own cache.
_STACK, _ON_STACK, _TOGETHER, _STACK_ON_GPU = 256 << 10, 1 << 10, 1 << 20, 16 << 10
# Entries up to which a lane copies its own numbers to the stack; larger arrays are read in place.
_COPIED = 64
# A lane's random stream: two words.
STREAM = jax.ShapeDtypeStruct((2,), np.uint32)
T = TypeVar("T")


@dataclass(frozen=True)
class UncheckedStep:
    """Leaves of a carry, by number, that show after an unchecked step whether the lane has diverged."""

    finite: tuple[int, ...]  # those that must be finite
    bounded: tuple[int, ...]  # those that must be within the bound
    alive: int  # the truth value that says whether the lane has diverged already
    frozen: bool  # whether a lane that has diverged keeps all of its leaves
    symmetric: bool = True  # whether matrices that a step keeps symmetric are symmetric


@dataclass(frozen=True)
class Example:
    """What one lane reads and writes, as shapes and types: pytrees of arrays or of ``jax.ShapeDtypeStruct``."""

    inputs: Tree  # arrays that all lanes share, or one per seed
    parameters: Tree  # arrays with one per method
    carry: Tree  # the state of a lane
    source: Tree = STREAM  # of a step's sample: the lane's random stream, or the sample itself, passed step by step
    per_seed: bool = False  # whether the inputs are per seed
    bounded: bool = False  # whether there is a bound on the iterates
    alone: bool = False  # whether there is a single method
    unchecked: UncheckedStep | None = None  # how to notice divergence after an unchecked step
    only_read: int = 0  # the number of leading leaves of the carry that are only read; the others are only written


@dataclass(frozen=True)
class ProgramSource:
    """A program as text, and its constants, which it reads as tables after the arrays of the example."""

    text: str
    target: CodeTarget
    constants: tuple[np.ndarray, ...]
    lines: int
    twins: tuple[tuple[int, int, int], ...] = ()  # a leaf's number, an entry and its twin, which are equal at the start
    block: tuple[int, int] | None = None  # of a kernel that lays it down: lanes in a block, and threads
    given: tuple[int, ...] = ()  # the tables that a kernel takes as an argument, by number, rather than by address


def generate(lane: Callable[..., Tree], example: Example, target: CodeTarget) -> ProgramSource:
    """Generate the program of a lane; raise ``Unsupported`` with the reason if that is impossible.

    The lane is ``lane(inputs, parameters, carry, source, k, bound) -> carry``; a stream is two words of 32 bits.
    """
    traced = _trace(lane, example)
    while True:
        try:
            writer = functools.partial(_ProgramWriter, traced, example, target)
            share = _SIDE_BY_SIDE if target.width > 1 else 1
            tries = [*((small, int(share * most)) for small, most in _TRIES[:-1]), _TRIES[-1]]
            return first_short_enough(tries, lambda *limits: writer(*limits).write())  # noqa: B023
        except _StackTooLarge:
            if target.width == 1:
                raise Unsupported("a lane's state is too large for the stack") from None
            target = replace(target, width=target.width // 2)


def generate_few(lane: Callable[..., Tree], example: Example, lanes: int) -> ProgramSource:
    """Generate the unchecked program for a GPU that few lanes do not fill, ``lanes`` of them in a block.

    Other threads of a block compute ahead what does not depend on the state. Raise ``Unsupported`` if that is nothing.
    """
    writer = functools.partial(_ProgramWriter, _trace(lane, example), example, CodeTarget(cuda=True))
    return first_short_enough(_TRIES, lambda *limits: writer(*limits).write_few(lanes))


def _trace(lane: Callable[..., Tree], example: Example) -> ClosedJaxpr:
    """Trace a lane with flat arguments: inputs, parameters, carry, source, k and, if there is one, the bound."""
    leaves, structure = jax.tree.flatten((example.inputs, example.parameters, example.carry, example.source))

    def flat(*values: Tree) -> list[jax.Array]:
        *body, k = values[:-1] if example.bounded else values
        return jax.tree.leaves(lane(*jax.tree.unflatten(structure, body), k, values[-1] if example.bounded else None))

    shapes = [jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype) for leaf in leaves]
    k = jax.ShapeDtypeStruct((), np.int32)
    bound = [jax.ShapeDtypeStruct((), jax.dtypes.canonicalize_dtype(np.float64))] if example.bounded else []
    return with_own_constants(jax.make_jaxpr(flat)(*shapes, k, *bound))


def with_own_constants(program: ClosedJaxpr) -> ClosedJaxpr:
    """The program with copies of the NumPy arrays in it.

    JAX converts a NumPy array once for all traces that live, whatever the precision of each: a trace that is kept would
    give its own to the user's next call.
    """
    return program.replace(consts=[np.array(a) if isinstance(a, np.ndarray) else a for a in program.consts])


class _StackTooLarge(Exception):
    pass


def first_short_enough(tries: Sequence[tuple[int, int]], write: Callable[[int, int], T]) -> T:
    """What is written with the first limits that suffice: entries up to which arrays are scalars, and lines of C."""
    for tried in tries[:-1]:
        with contextlib.suppress(ProgramTooLong):
            return write(*tried)
    return write(*tries[-1])


class _ProgramWriter:
    """Lowers the step of a lane, and collects the C around it."""

    def __init__(self, traced: ClosedJaxpr, example: Example, target: CodeTarget, small: int, most: int) -> None:
        self.traced, self.example, self.target = traced, example, target
        self.build = Builder(most)
        self.shared: dict[Buffer, int] = {}  # the tables that all lanes share, and their numbers
        self.given: tuple[Buffer, ...] = ()  # of these, those that a kernel takes as an argument
        self.constants: list[np.ndarray] = []
        self.constant_tables: dict[object, Buffer] = {}
        self.outside: list[str] = []  # C before all groups of lanes
        self.before: list[str] = []  # C at the beginning of a group
        self.each_step: list[str] = []  # C at the beginning of a step
        self.samples = [] if example.source is STREAM else jax.tree.leaves(example.source)
        self.first_sample = len(jax.tree.leaves((example.inputs, example.parameters))) + example.bounded
        self.count = self.first_sample + len(self.samples)
        self.states: dict[Buffer, tuple[int, ...]] = {}
        self.twins: dict[Entry, Entry] = {}
        self.look: list[str] = []  # C after all steps, which looks for numbers that are not finite
        self.watch = Buffer("watch", "float", templates.WATCHES, True, mutable=True)
        unrolled = {"longest_unrolled": math.inf} if target.cuda else {}
        self.arrays = ArrayBuilder(self.build, small, self._constant, **unrolled)

    def write(self) -> ProgramSource:
        step, fetched = self._step(), set[Var]()
        if self.target.cuda:
            self.given = templates.choose_given_tables(self.shared, step)
        chosen = [] if self.example.unchecked is None else templates.choose_shared_tables(self.shared, step)
        if self.example.unchecked is not None and self.build.written > templates.SHORT:
            step = order_by_outputs(step, self.states)
            fetched = read_in_place(step, [*chosen, *self.given])
        for table in (*self.given, *chosen):
            number = self.shared[table]
            text = templates.copy_to_shared_memory(table, number) if table in chosen else templates.read_given(table)
            self.outside[self.outside.index(_pointer(table, number))] = text
        if self.target.cuda:
            parts = self._parts(step, self.build.memories, fetched)
            return self._source(templates.cuda_text(self.example, parts, step))
        accesses = [s for s in ir.walk(step) if isinstance(s, Load | Store)]
        touched, stored = ({s.memory for s in accesses if isinstance(s, kind)} for kind in (Load | Store, Store))
        # A state that the step neither reads nor changes stays where it is.
        parts = self._parts(step, [m for m in self.build.memories if m not in self.states or m in touched])
        kept = [(state in touched, state in stored) for state in self.states]
        return self._source(templates.c_text(self.target, self.example.carry, parts, kept))

    def write_few(self, lanes: int) -> ProgramSource:
        cut = split_step(self._step(), [*self.states, self.watch])
        ahead = self._parts(cut.ahead, [m for m in self.build.memories if m not in cut.handed])
        ordered = order_by_outputs(cut.rest, self.states)
        rest = self._parts(ordered, [], read_in_place(ordered, []))
        text, threads = templates.cuda_few_text(self.example, ahead, rest, cut, lanes)
        return self._source(text, (lanes, threads))

    def _source(self, text: str, block: tuple[int, int] | None = None) -> ProgramSource:
        number = {memory: i for i, memory in enumerate(self.states)}
        twins = tuple((number[memory], i, twin) for (memory, i), (_, twin) in self.twins.items())
        given = tuple(self.shared[table] for table in self.given)
        return ProgramSource(text, self.target, tuple(self.constants), self.build.written, twins, block, given)

    def _parts(self, statements: list[Statement], memories: list[Buffer], fetched: Iterable[Var] = ()) -> ProgramParts:
        printer = Printer(self.target.width, statements, fetched)
        on_stack, needed = math.inf, printer.bytes_of(memories)
        if needed > (_STACK_ON_GPU if self.target.cuda else _STACK):
            on_stack = _ON_STACK
            if self.target.cuda or needed > _TOGETHER or printer.bytes_of(memories, on_stack) > _STACK:
                raise _StackTooLarge
        declarations, lines = printer.declarations(memories, on_stack), self.build.written
        after = [
            f"{memory.name}[{i}]={memory.name}[{twin}];" for (memory, i), (_, twin) in self.twins.items()
        ] + self.look
        parts = self.outside, self.before, self.each_step, declarations, printer.text(), lines, after, self.given
        return ProgramParts(*parts)

    def _step(self) -> list[Statement]:
        example = self.example
        states = [self._on_stack(f"s{i}", leaf) for i, leaf in enumerate(jax.tree.leaves(example.carry))]
        self.states = {state.memory: state.shape for state in states}
        if example.source is STREAM:
            self.before.append(templates.copy_to_stack(self.target.width, "stream", "uint32_t", 2, "streams", "seed"))
        shared, own = jax.tree.leaves(example.inputs), jax.tree.leaves(example.parameters)
        of = ["seed" if example.per_seed else "all"] * len(shared) + ["method"] * len(own)
        inputs: list[Value] = [
            *(self._table(i, leaf, whose) for i, (leaf, whose) in enumerate(zip((*shared, *own), of, strict=True))),
            *states,
            *([self._on_stack("stream", STREAM)] if example.source is STREAM else ()),
            *(self._table(i, leaf, "sample") for i, leaf in enumerate(self.samples, self.first_sample)),
            Scalars(np.array(Var("k", "int32_t", False), object), np.dtype(np.int32)),
        ]
        if example.bounded:
            inputs.append(self._table(self.first_sample - 1, self.traced.in_avals[-1], "all"))
        lowering = Lowering(self.build, self.arrays, self.target.width > 1)
        outputs = cast(list[Array], lowering.lower(self.traced.jaxpr, self.traced.consts, inputs))
        if example.unchecked is not None:
            self._watch(example.unchecked, outputs, cast(Array, inputs[-1]))
        store_states(self.arrays, states, outputs)
        statements = fuse_products(self.build.statements) if self.target.cuda else self.build.statements
        if example.unchecked is not None and example.unchecked.symmetric:
            statements, self.twins = merge_twins(statements, self.states)
        return statements

    def _watch(self, unchecked: UncheckedStep, outputs: list[Array], bound: Array) -> None:
        """Add up numbers, so that the sums are NaN once a leaf is not finite, or out of bounds.

        An entry that stays so once it is not finite is looked at after the last step instead.
        """
        turn, memories = itertools.cycle(range(templates.WATCHES)), list(self.states)
        lasting = find_lasting(self.build.statements, self.states)
        for leaf in unchecked.finite:
            new, memory = outputs[leaf], memories[leaf]
            if not self.arrays.is_small(new.shape):
                raise Unsupported("a lane's state is too large to run unchecked")
            form = "fmaf({1},0.0f,{0})" if new.dtype.name == "float32" else "watched({0},{1})"
            sum_, entry = f"watch[j%{templates.WATCHES}]", f"{memory.name}[j]"
            self.look.append(f"for(int j=0;j<{math.prod(new.shape)};j++){sum_}={form.format(sum_, entry)};")
            outputs[leaf] = scalars = self.arrays.to_scalars(new)
            for i, atom in enumerate(scalars.entries.ravel()):
                more: list[Atom] = []
                if self.example.bounded and leaf in unchecked.bounded:
                    form, more = "fabs({1})<={2}?{0}:(float)NAN", [self.arrays.entry(bound, ())]
                elif (memory, i) in lasting(atom):
                    continue
                at = next(turn)
                so_far = self.build.load(self.watch, at)
                self.build.store(self.watch, at, self.build.let("float", form, so_far, atom, *more))

    def _on_stack(self, name: str, leaf: ShapedType) -> Strided:
        """Declare an array of which each lane has one."""
        memory = Buffer(name, c_type(leaf.dtype), max(math.prod(leaf.shape), 1), True)
        self.build.memories.append(memory)
        return Strided.contiguous(memory, leaf)

    def _table(self, number: int, leaf: ShapedType, of: str) -> Strided:
        """Declare an array from the caller: one for all lanes, or one for each seed, method or sample."""
        size, width = max(math.prod(leaf.shape), 1), self.target.width
        name, c = f"t{number}", c_type(leaf.dtype)
        stored = STORED_TYPES[np.dtype(leaf.dtype).name]
        pointer = f"const {stored}*"
        if of == "all" or (of == "method" and self.example.alone):
            memory = self._shared_table(number, leaf.dtype, size)
        elif width == 1 or (of == "method" and not self.target.mixed):
            memory = Buffer(name, c, size, False, table=True, stored=stored)
            where, place = (self.each_step, "((step-lo)*seeds+seed)") if of == "sample" else (self.before, of)
            where.append(f"{pointer} {name}=({pointer})tables[{number}]+{place}*{size};")
        elif size <= _COPIED:
            self.before.append(templates.copy_to_stack(width, name, stored, size, f"tables[{number}]", of))
            return self._on_stack(name, leaf)
        else:
            base = Var(f"b{number}", "int64_t", True)
            memory = Buffer(name, c, size, True, table=True, base=base, stored=stored)
            self.outside.append(f"{pointer} {name}=({pointer})tables[{number}];")
            self.before.append(f"int64_t {base.name}[{width}];for(int l=0;l<{width};l++){base.name}[l]={of}[l]*{size};")
        return Strided.contiguous(memory, leaf)

    def _constant(self, value: np.ndarray) -> Buffer:
        """Pass a large constant to the program as a table; equal constants share one."""
        value = np.ascontiguousarray(value)
        key = value.dtype, value.shape, value.tobytes()
        if key not in self.constant_tables:
            self.constant_tables[key] = self._shared_table(self.count + len(self.constants), value.dtype, value.size)
            self.constants.append(value)
        return self.constant_tables[key]

    def _shared_table(self, number: int, dtype: np.dtype, size: int) -> Buffer:
        if size >= 1 << 31:
            raise Unsupported("a table has more than two thousand million entries")
        c, stored = c_type(dtype), STORED_TYPES[np.dtype(dtype).name]
        memory = Buffer(f"t{number}", c, size, False, table=True, stored=stored)
        self.shared[memory] = number
        self.outside.append(_pointer(memory, number))
        return memory


def store_states(arrays: ArrayBuilder, states: list[Strided], outputs: list[Array]) -> None:
    """Write the new state over the old; entries of the old that are still needed are read first."""
    memories = {state.memory for state in states}
    ready: list[Array | None] = []
    for state, new in zip(states, outputs, strict=True):
        in_place = isinstance(new, Strided) and new.memory is state.memory and new.is_contiguous and new.offset == 0
        if in_place or math.prod(state.shape) == 0:
            ready.append(None)
        elif isinstance(new, LazyArray):
            alone = new.reads is not None and new.reads & memories <= {state.memory}
            ready.append(new if alone and not arrays.is_small(new.shape) else arrays.compute(new))
        elif isinstance(new, Strided) and new.memory in memories:
            ready.append(arrays.copy(new))
        else:
            ready.append(arrays.to_scalars(new) if arrays.is_small(new.shape) else new)
    for state, value in zip(states, ready, strict=True):
        if value is not None:
            arrays.write(state.memory, value)


def read_in_place(statements: list[Statement], shared: Container[Buffer]) -> set[Var]:
    """The numbers of tables that are read at each use, rather than held in registers for all steps."""
    loads = [s for s in statements if isinstance(s, Load) and s.memory.table and isinstance(s.index, int)]
    return {s.var for s in loads if s.memory not in shared}


def _pointer(table: Buffer, number: int) -> str:
    return f"const {table.stored}*RESTRICT {table.name}=(const {table.stored}*)tables[{number}];"
