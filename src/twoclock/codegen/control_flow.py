"""Control flow inside a step: calls are written out, loops and branches become C's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, jaxprs_in_params

from twoclock.codegen.arrays import Array, Rule, Scalars, Strided, row_strides, varies
from twoclock.codegen.equation import Equation, ShapedType, Sides
from twoclock.codegen.ir import Atom, Branch, Index, Lit, Memory, Unsupported, Var, While, c_type
from twoclock.codegen.threefry import Keys

if TYPE_CHECKING:
    from twoclock.codegen.lower import Generator, Value

# Equations up to which the passes of a loop are written one after the other: scalars then stay scalars.
_WRITTEN_OUT = 256


def call(g: Generator, eqn: Equation, given: list[Value]) -> list[Value]:
    inner = next(eqn.params[name] for name in ("jaxpr", "call_jaxpr", "fun_jaxpr") if name in eqn.params)
    return g.walk(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), given)


def linear_solve(g: Generator, eqn: Equation, given: list[Value]) -> list[Value]:
    """``lax.custom_linear_solve``: of its four functions the one that solves."""
    counts, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    before = counts.matvec + counts.vecmat
    return g.walk(solve.jaxpr, solve.consts, [*given[before : before + counts.solve], *given[sum(counts) :]])


def scan(g: Generator, eqn: Equation, given: list[Value]) -> list[Value]:
    p = eqn.params
    length, body = p["length"], p["jaxpr"]
    fixed, carried = _counts(eqn, body.jaxpr)
    cut = fixed + carried
    given = [_settled(g, value) for value in given]
    constants, carry, columns = given[:fixed], given[fixed:cut], given[cut:]
    step = _Body(g, body.jaxpr, body.consts, constants)
    if length * _equations(body.jaxpr) <= _WRITTEN_OUT:
        rows: list[list[Value]] = []
        for at in range(length - 1, -1, -1) if p["reverse"] else range(length):
            out = [_settled(g, value) for value in step(carry, [_row(g, column, at) for column in columns])]
            carry, row = out[: len(carry)], out[len(carry) :]
            rows.append(row)
        if p["reverse"]:
            rows.reverse()
        return [*carry, *(_stacked(g, [row[i] for row in rows]) for i in range(len(eqn.outvars) - len(carry)))]
    if any(isinstance(value, Keys) for value in columns):
        raise Unsupported("a long loop goes through random keys")
    varying = any(_varies(value) for value in given)
    slots = _Slots(g, carry, varying)
    made = [v.aval for v in eqn.outvars[len(carry) :]]
    columns_out = [g.build.memory(c_type(a.dtype), math.prod(a.shape), varying, mutable=True) for a in made]
    with g.build.loop(length) as n:
        t = g.build.let("int32_t", f"{length - 1}-{{0}}", n) if p["reverse"] else n
        out = [_settled(g, value) for value in step(slots.values, [_row(g, column, t) for column in columns])]
        for memory, value, aval in zip(columns_out, out[len(carry) :], made, strict=True):
            _put_row(g, memory, value, aval, t)
        slots.store(out[: len(carry)])
    for memory in columns_out:
        memory.mutable = False
    rows_out = [
        Strided(m, a.shape, row_strides(a.shape), 0, np.dtype(a.dtype)) for m, a in zip(columns_out, made, strict=True)
    ]
    return [*slots.done(), *rows_out]


def _counts(eqn: Equation, body: Sides) -> tuple[int, int]:
    """How many inputs of a loop are constants, and how many are carried.

    Read from the shapes, for what JAX calls it changes: only columns have an axis more outside of the loop than inside.
    """
    columns = sum(outer.aval.shape != inner.aval.shape for outer, inner in zip(eqn.invars, body.invars, strict=True))
    carried = sum(outer.aval.shape == inner.aval.shape for outer, inner in zip(eqn.outvars, body.outvars, strict=True))
    return len(eqn.invars) - carried - columns, carried


def while_(g: Generator, eqn: Equation, given: list[Value]) -> list[Value]:
    p = eqn.params
    given = [_settled(g, value) for value in given]
    of_test, of_body = given[: p["cond_nconsts"]], given[p["cond_nconsts"] :][: p["body_nconsts"]]
    carry = given[p["cond_nconsts"] + p["body_nconsts"] :]
    slots = _Slots(g, carry, any(_varies(value) for value in given))
    loop = While()
    with g.build.block(loop.test):
        (outcome,) = _Body(g, p["cond_jaxpr"].jaxpr, p["cond_jaxpr"].consts, of_test)(slots.values, [])
        loop.outcome = g.shape.at(outcome, ())  # type: ignore[arg-type]
    with g.build.block(loop.body):
        body = _Body(g, p["body_jaxpr"].jaxpr, p["body_jaxpr"].consts, of_body)
        slots.store([_settled(g, value) for value in body(slots.values, [])])
    g.build.statements.append(loop)
    return slots.done()


def cond(g: Generator, eqn: Equation, given: list[Value]) -> list[Value]:
    branches = eqn.params["branches"]
    which = g.shape.at(given[0], ())  # type: ignore[arg-type]
    given = [_settled(g, value) for value in given[1:]]
    if isinstance(which, Lit):
        branch = branches[min(max(int(which.value), 0), len(branches) - 1)]
        return g.walk(branch.jaxpr, branch.consts, given)
    if g.lanes and which.varies and not any(_has_while(branch.jaxpr) for branch in branches):
        every = [[_settled(g, v) for v in g.walk(b.jaxpr, b.consts, given)] for b in branches]
        return [_selected(g, which, list(choices)) for choices in zip(*every, strict=True)]
    varying = which.varies or any(_varies(value) for value in given)
    fork = Branch(which, [[] for _ in branches])
    slots: _Slots | None = None
    for case, branch in zip(fork.cases, branches, strict=True):
        with g.build.block(case):
            out = [_settled(g, value) for value in g.walk(branch.jaxpr, branch.consts, given)]
            slots = slots or _Slots(g, out, varying, empty=True)
            slots.store(out)
    g.build.statements.append(fork)
    assert slots is not None
    return slots.done()


class _Body:
    """A function whose first arguments are settled."""

    def __init__(self, g: Generator, jaxpr: Jaxpr, constants: Sequence[Any], first: Sequence[Value]) -> None:
        self.g, self.jaxpr, self.first = g, jaxpr, first
        self.constants = [g.constant(value) for value in constants]

    def __call__(self, carry: Sequence[Value], rest: Sequence[Value]) -> list[Value]:
        return self.g.walk(self.jaxpr, self.constants, [*self.first, *carry, *rest])


class _Slots:
    """Values that change from pass to pass, in memory of their own."""

    def __init__(self, g: Generator, values: Sequence[Value], varying: bool, *, empty: bool = False) -> None:
        self.g, self.like, self.memories = g, values, []
        arrays: list[Array] = []
        for array in _flat(values):
            memory = g.build.memory(c_type(array.dtype), max(math.prod(array.shape), 1), varying, mutable=True)
            if not empty:
                g.shape.write(memory, array)
            self.memories.append(memory)
            arrays.append(Strided(memory, array.shape, row_strides(array.shape), 0, array.dtype))
        self.values = _unflat(values, arrays)

    def store(self, values: Sequence[Value]) -> None:
        """All at once: what is read from a slot is read before any is written."""
        slots = _flat(self.values)
        arrays = [a if a is slot else self._apart(a) for a, slot in zip(_flat(values), slots, strict=True)]
        for memory, array, slot in zip(self.memories, arrays, slots, strict=True):
            if array is not slot:
                self.g.shape.write(memory, array)

    def done(self) -> list[Value]:
        for memory in self.memories:
            memory.mutable = False
        return self.values

    def _apart(self, array: Array) -> Array:
        """An array that shares no memory with the slots."""
        if not isinstance(array, Strided) or all(array.memory is not m for m in self.memories):
            return array
        if self.g.shape.is_small(array.shape):
            return self.g.shape.every(array)
        return self.g.shape.in_memory(
            Rule(array.shape, array.dtype, lambda index: self.g.shape.at(array, index), varies(array))
        )


def _flat(values: Sequence[Value]) -> list[Array]:
    return [a for value in values for a in (value.halves if isinstance(value, Keys) else (value,))]


def _unflat(like: Sequence[Value], arrays: Sequence[Array]) -> list[Value]:
    rest = iter(arrays)
    return [Keys((next(rest), next(rest))) if isinstance(value, Keys) else next(rest) for value in like]


def _settled(g: Generator, value: Value) -> Value:
    if isinstance(value, Keys):
        return Keys((g.shape.settled(value.halves[0]), g.shape.settled(value.halves[1])))
    return g.shape.settled(value)


def _varies(value: Value) -> bool:
    return any(varies(array) for array in _flat([value]))


def _row(g: Generator, column: Value, t: Index) -> Value:
    if isinstance(column, Keys):
        return Keys((_row(g, column.halves[0], t), _row(g, column.halves[1], t)))  # type: ignore[arg-type]
    if isinstance(column, Scalars):
        if isinstance(t, int):
            return Scalars(column.entries[t, ...], column.dtype)
        column = g.shape.in_memory(column)
    whole = column
    row = Rule(whole.shape[1:], whole.dtype, lambda index: g.shape.at(whole, (t, *index)), varies(whole))
    return g.shape.every(row) if g.shape.is_small(row.shape) else row


def _stacked(g: Generator, rows: Sequence[Value]) -> Value:
    if any(isinstance(row, Keys) for row in rows):
        raise Unsupported("a loop collects random keys")
    arrays: list[Array] = list(rows)  # type: ignore[arg-type]
    shape, dtype = (len(arrays), *arrays[0].shape), arrays[0].dtype
    if g.shape.is_small(shape):
        return Scalars(np.stack([g.shape.every(a).entries for a in arrays]), dtype)
    memory = g.build.memory(c_type(dtype), math.prod(shape), any(varies(a) for a in arrays))
    for t, array in enumerate(arrays):
        _put_row(g, memory, array, jax.ShapeDtypeStruct(shape, dtype), t)
    return Strided(memory, shape, row_strides(shape), 0, dtype)


def _put_row(g: Generator, memory: Memory, value: Value, aval: ShapedType, t: Index) -> None:
    assert not isinstance(value, Keys)
    target = Strided(memory, aval.shape, row_strides(aval.shape), 0, np.dtype(aval.dtype))

    def put(index: tuple[Index, ...]) -> None:
        g.build.store(memory, g.shape.place(target, (t, *index)), g.shape.at(value, index))

    if g.shape.is_small(value.shape) or isinstance(value, Scalars):
        for index in np.ndindex(*value.shape):
            put(index)
    else:
        g.shape.each(value.shape, put)


def _selected(g: Generator, which: Var, choices: list[Value]) -> Value:
    if isinstance(choices[0], Keys):
        halves = [_selected(g, which, [c.halves[half] for c in choices]) for half in (0, 1)]  # type: ignore[union-attr]
        return Keys((halves[0], halves[1]))  # type: ignore[arg-type]
    arrays: list[Array] = choices  # type: ignore[assignment]
    shape, c = arrays[0].shape, c_type(arrays[0].dtype)
    if not g.shape.is_small(shape):
        arrays = [g.shape.in_memory(a) if isinstance(a, Scalars) else a for a in arrays]

    def entry(index: tuple[Index, ...]) -> Atom:
        atoms = [g.shape.at(a, index) for a in arrays]
        chosen = atoms[-1]
        for case in range(len(atoms) - 2, -1, -1):
            chosen = g.build.let(c, f"{{0}}=={case}?{{1}}:{{2}}", which, atoms[case], chosen)
        return chosen

    rule = Rule(shape, arrays[0].dtype, entry, True)
    return g.shape.every(rule) if g.shape.is_small(shape) else rule


def _equations(jaxpr: Jaxpr) -> int:
    inner = sum(_equations(getattr(j, "jaxpr", j)) for e in jaxpr.eqns for j in jaxprs_in_params(e.params))
    return len(jaxpr.eqns) + inner


def _has_while(jaxpr: Jaxpr) -> bool:
    return any(
        e.primitive.name == "while" or any(_has_while(getattr(j, "jaxpr", j)) for j in jaxprs_in_params(e.params))
        for e in jaxpr.eqns
    )


RULES = {
    **dict.fromkeys(("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2"), call),
    **dict.fromkeys(("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"), call),
    "custom_linear_solve": linear_solve,
    "scan": scan,
    "while": while_,
    "cond": cond,
}
