"""From a jaxpr to statements: one equation after the other, each by the rule of its name.

Calls are inlined; loops and branches become C's own, and short loops are unrolled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxprs_in_params

from twoclock.codegen import arrays, elementwise, indexing, reductions
from twoclock.codegen.arrays import Array, ArrayBuilder, Equation, Keys, LazyArray, Scalars, Strided, Value
from twoclock.codegen.ir import Branch, Buffer, Builder, Index, Lit, Unsupported, While, c_type, literal

# Equations up to which the passes of a loop are unrolled: scalars then stay scalars.
_UNROLLED = 256


class Lowering:
    """Writes the statements of one lane's step to a builder."""

    def __init__(self, build: Builder, arrays: ArrayBuilder, lanes: bool) -> None:
        # With several lanes side by side, both sides of a varying branch are computed.
        self.build, self.arrays, self.lanes = build, arrays, lanes
        # Whether a rarely taken jump is better than a selection: not for lanes side by side.
        self.jumps = False
        # Buffers whose old entries are no longer read, so that an update may overwrite them.
        self.free: frozenset[Buffer] = frozenset()

    def lower(self, jaxpr: Jaxpr, constants: Sequence[object], inputs: Sequence[Value]) -> list[Value]:
        """Write the statements of a jaxpr, and return its outputs."""
        uses = Counter(v for e in jaxpr.eqns for v in e.invars if not isinstance(v, Literal))
        uses.update(v for v in jaxpr.outvars if not isinstance(v, Literal))
        known: dict[Any, Value] = {}

        def read(v: Any) -> Value:
            if isinstance(v, Literal):
                return self.arrays.constant(np.asarray(v.val, cast(Any, v).aval.dtype))
            return known[v]

        def write(v: Any, value: Value) -> None:
            known[v] = self.arrays.compute(value) if isinstance(value, LazyArray) and uses[v] > 1 else value

        for v, constant in zip(jaxpr.constvars, constants, strict=True):
            known[v] = self.constant(constant)
        for v, value in zip(jaxpr.invars, inputs, strict=True):
            write(v, value)
        may_free, left = self.free, uses.copy()
        for eqn in _updates_last(jaxpr.eqns) if may_free else jaxpr.eqns:
            types = ([v.aval for v in variables] for variables in (eqn.invars, eqn.outvars))
            ours = Equation(eqn.primitive.name, eqn.params, *types)
            values = [read(v) for v in eqn.invars]
            left.subtract(v for v in eqn.invars if not isinstance(v, Literal))
            if may_free:
                live = {v: value for v, value in known.items() if left[v] > 0}
                self.free = self._release(may_free, ours.name, values, live)
                known.update(live)
            for v, value in zip(eqn.outvars, self._apply(ours, values), strict=True):
                write(v, value)
        self.free = may_free
        return [read(v) for v in jaxpr.outvars]

    def _release(
        self, buffers: frozenset[Buffer], name: str, inputs: list[Value], live: dict[Any, Value]
    ) -> frozenset[Buffer]:
        """Find the input buffers that are read here for the last time; first compute everything that reads them later.

        ``inputs`` and ``live``, the variables that are read later, are changed in place.
        """
        if name not in _CALLS and name not in indexing.UPDATES:
            return frozenset()
        given = inputs if name in _CALLS else inputs[:1]
        last = Counter(v.memory for v in given if isinstance(v, Strided) and v.memory in buffers)
        if not last or any(isinstance(value, Keys) for value in (*inputs, *live.values())):
            return frozenset()
        for v, value in live.items():
            if isinstance(value, Strided) and value.memory in last and self.arrays.is_small(value.shape):
                live[v] = self.arrays.copy(value)
        shared = {value.memory for value in live.values() if isinstance(value, Strided)}
        free = frozenset(memory for memory, count in last.items() if count == 1 and memory not in shared)

        def settle(value: Value) -> Value:
            late = isinstance(value, LazyArray) and (value.reads is None or bool(value.reads & free))
            return self.arrays.compute(value) if late and isinstance(value, LazyArray) else value

        if free:
            live.update((v, settle(value)) for v, value in live.items())
            inputs[:] = map(settle, inputs)
            for i, value in enumerate(inputs):
                if i >= len(given) and isinstance(value, Strided) and value.memory in free:
                    inputs[i] = self.arrays.copy(value)
        return free

    def call(self, function: Jaxpr | ClosedJaxpr, inputs: Sequence[Value]) -> list[Value]:
        if isinstance(function, ClosedJaxpr):
            return self.lower(function.jaxpr, function.consts, inputs)
        return self.lower(function, (), inputs)

    def constant(self, value: object) -> Value:
        if isinstance(value, Value):
            return value
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            raise Unsupported("a random key is part of the program")
        return self.arrays.constant(np.asarray(value))

    def compute(self, values: Sequence[Value]) -> list[Value]:
        return [arrays.map_halves(self.arrays.compute, value) for value in values]

    def _apply(self, eqn: Equation, inputs: list[Value]) -> list[Value]:
        if eqn.name not in _TAKE_KEYS and any(isinstance(v, Keys) for v in inputs):
            # An operation that only moves entries moves both words of a key alike.
            if eqn.name not in indexing.RULES:
                raise Unsupported(f"the operation {eqn.name} on random keys is not generated")
            words = replace(eqn, outputs=[jax.ShapeDtypeStruct(v.shape, np.dtype(np.uint32)) for v in eqn.outputs])
            halves = [
                _as_list(RULES[eqn.name](self, words, *(v.halves[h] if isinstance(v, Keys) else v for v in inputs)))
                for h in (0, 1)
            ]
            return [Keys(cast(tuple[Array, Array], both)) for both in zip(*halves, strict=True)]
        return _as_list(RULES.get(eqn.name, elementwise.lower_elementwise)(self, eqn, *inputs))


def _updates_last(equations: Sequence[Any]) -> list[Any]:
    """Sort equations so that updates of an array come as late as possible: the old array is read before."""
    waiting, done, made = list(equations), list[Any](), {v for e in equations for v in e.outvars}
    while waiting:
        ready = [e for e in waiting if not any(not isinstance(v, Literal) and v in made for v in e.invars)]
        chosen = [e for e in ready if e.primitive.name not in indexing.UPDATES] or ready[:1]
        done += chosen
        taken = {id(e) for e in chosen}
        waiting = [e for e in waiting if id(e) not in taken]
        made.difference_update(v for e in chosen for v in e.outvars)
    return done


def _as_list(values: Value | Sequence[Value]) -> list[Value]:
    return list(values) if isinstance(values, Sequence) else [values]


def _empty(g: Lowering, eqn: Equation, *_: Value) -> Array:
    """Fill with zeros the entries that JAX leaves undefined."""
    zero = literal(0, eqn.outputs[0].dtype)
    return g.arrays.lazy(eqn.outputs[0], lambda index: zero, False, frozenset())


def _call(g: Lowering, eqn: Equation, *inputs: Value) -> list[Value]:
    inner = next(eqn.params[name] for name in ("jaxpr", "call_jaxpr", "fun_jaxpr") if name in eqn.params)
    several = g.lanes and any(math.prod(v.shape) > arrays.UNROLL for v in eqn.outputs)
    if several and any(e.primitive.name == "random_bits" for e in getattr(inner, "jaxpr", inner).eqns):
        # The hash of a draw is long, and draws are alike: lanes fill the vectors, so that a loop over the draws is as
        # fast as its passes written out, and the C compiler takes less time.
        with g.arrays.in_loops():
            return g.compute(g.call(inner, inputs))
    return g.call(inner, inputs)


def _linear_solve(g: Lowering, eqn: Equation, *inputs: Value) -> list[Value]:
    """Of the four functions of ``lax.custom_linear_solve`` call the one that solves."""
    counts, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    before = counts.matvec + counts.vecmat
    return g.call(solve, [*inputs[before : before + counts.solve], *inputs[sum(counts) :]])


def _scan(g: Lowering, eqn: Equation, *inputs: Value) -> list[Value]:
    p = eqn.params
    length, body = p["length"], p["jaxpr"]
    values = g.compute(inputs)
    fixed, carried = scan_counts(eqn.inputs, eqn.outputs, body)
    cut = fixed + carried
    carry, columns = values[fixed:cut], values[cut:]
    constants = [g.constant(value) for value in body.consts]

    def step(carry: Sequence[Value], t: Index) -> tuple[list[Value], list[Value]]:
        rows = [arrays.map_halves(lambda column: _row(g, column, t), column) for column in columns]
        out = g.compute(g.lower(body.jaxpr, constants, [*values[:fixed], *carry, *rows]))
        return out[:carried], out[carried:]

    if length * len(primitives(body.jaxpr)) <= _UNROLLED:
        rows: list[list[Any]] = []
        for known in range(length - 1, -1, -1) if p["reverse"] else range(length):
            carry, row = step(carry, known)
            rows.append(row)
        if p["reverse"]:
            rows.reverse()
        if any(isinstance(value, Keys) for row in rows for value in row):
            raise Unsupported("a loop collects random keys")
        pile = [Equation("stack", {"axis": 0}, (), [out]) for out in eqn.outputs[carried:]]
        return [*carry, *(indexing.concatenate(g, of, *(row[i] for row in rows)) for i, of in enumerate(pile))]
    if any(isinstance(value, Keys) for value in columns):
        raise Unsupported("a long loop goes through random keys")
    varying = any(map(arrays.varies, values))
    slots = _Slots(g, carry, varying)
    outputs = [
        Strided.contiguous(g.build.memory(c_type(a.dtype), math.prod(a.shape), varying, mutable=True), a)
        for a in eqn.outputs[carried:]
    ]
    with g.build.loop(length) as loop:
        n = loop.index
        t = g.build.let("int32_t", f"{length - 1}-{{0}}", n) if p["reverse"] else n
        new, row = step(slots.values, t)
        for output, value in zip(outputs, row, strict=True):
            g.arrays.fill(output, cast(Array, value), (t,), unroll=g.arrays.is_small(value.shape))
        slots.store(new)
    for output in outputs:
        output.memory.mutable = False
    return [*slots.freeze(), *outputs]


def scan_counts(
    inputs: Sequence[arrays.ShapedType], outputs: Sequence[arrays.ShapedType], body: ClosedJaxpr
) -> tuple[int, int]:
    """Count the inputs of a scan that are the same at each step, and those that are its carry."""
    # JAX renames its counts; but only stacked inputs and outputs have one more axis outside the loop than inside.
    stacked = sum(outer.shape != aval.shape for outer, aval in zip(inputs, body.in_avals, strict=True))
    carried = sum(outer.shape == aval.shape for outer, aval in zip(outputs, body.out_avals, strict=True))
    return len(inputs) - carried - stacked, carried


def _while(g: Lowering, eqn: Equation, *inputs: Value) -> list[Value]:
    p = eqn.params
    of_test, cut = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
    values = g.compute(inputs)
    slots = _Slots(g, values[cut:], any(map(arrays.varies, values)))
    loop = While()
    with g.build.block(loop.test):
        (outcome,) = g.call(p["cond_jaxpr"], [*values[:of_test], *slots.values])
        loop.outcome = g.arrays.entry(cast(Array, outcome), ())
    with g.build.block(loop.body):
        slots.store(g.compute(g.call(p["body_jaxpr"], [*values[of_test:cut], *slots.values])))
    g.build.statements.append(loop)
    return slots.freeze()


def _cond(g: Lowering, eqn: Equation, selector: Array, *inputs: Value) -> list[Value]:
    branches = eqn.params["branches"]
    which, values = g.arrays.entry(selector, ()), g.compute(inputs)
    if isinstance(which, Lit):
        return g.call(branches[min(max(int(which.value), 0), len(branches) - 1)], values)
    if g.lanes and which.varies and not any("while" in primitives(branch.jaxpr) for branch in branches):
        results = [g.compute(g.call(branch, values)) for branch in branches]
        number = Scalars(np.array(which, object), np.dtype(np.int32))

        def select(*cases: Array) -> Array:
            return elementwise.lower_elementwise(
                g, Equation("select_n", {}, [number, *cases], cases[:1]), number, *cases
            )

        return [arrays.map_halves(select, *choices) for choices in zip(*results, strict=True)]
    fork = Branch(which, [[] for _ in branches])
    slots: _Slots | None = None
    for case, branch in zip(fork.cases, branches, strict=True):
        with g.build.block(case):
            out = g.compute(g.call(branch, values))
            slots = slots or _Slots(g, out, which.varies or any(map(arrays.varies, values)), empty=True)
            slots.store(out)
    g.build.statements.append(fork)
    assert slots is not None
    return slots.freeze()


class _Slots:
    """Values that change from pass to pass, each in a buffer."""

    def __init__(self, g: Lowering, values: Sequence[Value], varying: bool, *, empty: bool = False) -> None:
        self.g, self.memories = g, list[Buffer]()

        def allocate(array: Array) -> Array:
            memory = g.build.memory(c_type(array.dtype), max(math.prod(array.shape), 1), varying, mutable=True)
            if not empty:
                g.arrays.write(memory, array)
            self.memories.append(memory)
            return Strided.contiguous(memory, array)

        self.values = [arrays.map_halves(allocate, value) for value in values]

    def store(self, values: Sequence[Value]) -> None:
        """Write all at once: what is read from a slot is read before any is written."""
        slots = _arrays(self.values)
        new = [
            self.g.arrays.copy(a) if a is not slot and isinstance(a, Strided) and a.memory in self.memories else a
            for a, slot in zip(_arrays(values), slots, strict=True)
        ]
        for memory, array, slot in zip(self.memories, new, slots, strict=True):
            if array is not slot:
                self.g.arrays.write(memory, array)

    def freeze(self) -> list[Value]:
        """Return the values, which do not change any more."""
        for memory in self.memories:
            memory.mutable = False
        return self.values


def _arrays(values: Sequence[Value]) -> list[Array]:
    return [a for value in values for a in (value.halves if isinstance(value, Keys) else (value,))]


def _row(g: Lowering, column: Array, t: Index) -> Array:
    if isinstance(column, Scalars):
        if isinstance(t, int):
            return Scalars(column.entries[t, ...], column.dtype)
        column = g.arrays.to_memory(column)
    whole, row = column, jax.ShapeDtypeStruct(column.shape[1:], column.dtype)
    return g.arrays.lazy(row, lambda index: g.arrays.entry(whole, (t, *index)), arrays.varies(whole))


def primitives(jaxpr: Jaxpr) -> list[str]:
    """Name the primitives of all equations, those of inner functions too."""
    inner = [j.jaxpr if isinstance(j, ClosedJaxpr) else j for e in jaxpr.eqns for j in jaxprs_in_params(e.params)]
    return [e.primitive.name for e in jaxpr.eqns] + [name for j in inner for name in primitives(j)]


_CALLS = (
    *("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
)
_CONTROL_FLOW: dict[str, arrays.LoweringRule] = {
    **dict.fromkeys(_CALLS, _call),
    "custom_linear_solve": _linear_solve,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
RULES: dict[str, arrays.LoweringRule] = {
    **_CONTROL_FLOW,
    **elementwise.RULES,
    **indexing.RULES,
    **reductions.RULES,
    **dict.fromkeys(("empty", "empty2"), _empty),
}
_TAKE_KEYS = {*_CONTROL_FLOW, *elementwise.RULES}
