"""From a jaxpr to statements: one equation after the other, each by the rule of its name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from jax.extend.core import Jaxpr, Literal

from twoclock.codegen import control_flow, elementwise, indexing, reductions, reshape_ops, threefry
from twoclock.codegen.arrays import Array, Rule, Scalars, Shaper, Strided, varies
from twoclock.codegen.elementwise import RARE, Operation
from twoclock.codegen.equation import Equation
from twoclock.codegen.ir import Atom, Builder, Index, Lit, Memory, Unsupported, c_type, literal
from twoclock.codegen.threefry import Keys

Value: TypeAlias = Array | Keys

_PLACES = {**reshape_ops.RULES, **indexing.RULES}
RULES: dict[str, Callable[..., Any]] = {**_PLACES, **reductions.RULES}  # type: ignore[dict-item]

# Multiplications in one product of matrices from which a library of matrices is faster.
LARGE_PRODUCT = 1 << 15


class Generator:
    """Writes the statements of one lane's step.

    Args:
        build: where they go.
        shape: reads and writes arrays.
        lanes: whether several lanes walk side by side, so that a branch that varies is walked on both sides.
    """

    def __init__(self, build: Builder, shape: Shaper, lanes: bool) -> None:
        self.build, self.shape, self.lanes = build, shape, lanes

    def walk(self, jaxpr: Jaxpr, constants: Sequence[Any], given: Sequence[Value]) -> list[Value]:
        """The outputs of a jaxpr for these inputs."""
        uses = Counter(v for e in jaxpr.eqns for v in e.invars if not isinstance(v, Literal))
        uses.update(v for v in jaxpr.outvars if not isinstance(v, Literal))
        known: dict[Any, Value] = {}

        def read(v: object) -> Value:
            if not isinstance(v, Literal):
                return known[v]
            dtype: np.dtype = v.aval.dtype  # type: ignore[attr-defined]
            return self.shape.constant(np.asarray(v.val, dtype))

        def write(v: Any, value: Value) -> None:
            known[v] = self.shape.settled(value) if isinstance(value, Rule) and uses[v] > 1 else value

        for v, constant in zip(jaxpr.constvars, constants, strict=True):
            known[v] = self.constant(constant)
        for v, value in zip(jaxpr.invars, given, strict=True):
            write(v, value)
        for eqn in jaxpr.eqns:
            made = self.equation(cast(Equation, eqn), [read(v) for v in eqn.invars])
            for v, value in zip(eqn.outvars, made, strict=True):
                write(v, value)
        return [read(v) for v in jaxpr.outvars]

    def constant(self, value: object) -> Value:
        if isinstance(value, (Scalars, Strided, Rule, Keys)):
            return value
        if threefry.is_keys(value):
            raise Unsupported("a random key is part of the program")
        return self.shape.constant(np.asarray(value))

    def equation(self, eqn: Equation, given: list[Value]) -> list[Value]:
        name = eqn.primitive.name
        if name in control_flow.RULES:
            return control_flow.RULES[name](self, eqn, given)
        if name in threefry.RULES:
            draw: Any = threefry.RULES[name]
            return [draw(self, eqn, *given)]
        if any(isinstance(value, Keys) for value in given):
            return self._on_keys(eqn, given)
        rule = RULES.get(name)
        made = rule(self, eqn, *given) if rule else self._entrywise(eqn, given)  # type: ignore[arg-type]
        return made if isinstance(made, list) else [made]

    def count_product(self, multiplications: int, matrices: bool) -> None:
        if matrices and multiplications > LARGE_PRODUCT:
            raise Unsupported("XLA's library is faster with matrices as large as these")

    def _on_keys(self, eqn: Equation, given: list[Value]) -> list[Value]:
        """What only moves entries moves both halves of a key alike."""
        if eqn.primitive.name not in _PLACES:
            raise Unsupported(f"the operation {eqn.primitive.name} on random keys is not generated")
        halves = []
        for half in (0, 1):
            parts = [value.halves[half] if isinstance(value, Keys) else value for value in given]
            made = _PLACES[eqn.primitive.name](self, threefry.as_words(eqn), *parts)  # type: ignore[operator]
            halves.append(made if isinstance(made, list) else [made])
        return [Keys((high, low)) for high, low in zip(*halves, strict=True)]

    def _entrywise(self, eqn: Equation, given: list[Array]) -> Array:
        out = eqn.outvars[0].aval
        shape, dtype = tuple(out.shape), np.dtype(out.dtype)
        op = Operation(eqn.primitive.name, tuple(np.dtype(v.aval.dtype) for v in eqn.invars), dtype, eqn.params)
        compute = self._operation(op)

        def entry(index: tuple[Index, ...]) -> Atom:
            return compute(*(self.shape.at(a, _own(a, index)) for a in given))

        if self.shape.is_small(shape):
            entries = np.empty(shape, object)
            for i in np.ndindex(*shape):
                entries[i] = entry(i)
            return Scalars(entries, dtype)
        given = [self.shape.in_memory(a) if isinstance(a, Scalars) and a.entries.size > 1 else a for a in given]
        return Rule(shape, dtype, entry, any(varies(a) for a in given), _reads(given))

    def _operation(self, op: Operation) -> Callable[..., Atom]:
        c = c_type(op.made)
        if op.name in RARE:
            return lambda *atoms: self._rare(op, *atoms)
        form, call = elementwise.form(op), elementwise.is_call(op)
        if form == "{0}":
            return lambda *atoms: atoms[0]

        def compute(*atoms: Atom) -> Atom:
            known = [atom.value for atom in atoms if isinstance(atom, Lit)]
            outcome = elementwise.folded(op, known) if len(known) == len(atoms) else None
            return self.build.let(c, form, *atoms, call=call) if outcome is None else literal(outcome, op.made)

        return compute

    def _rare(self, op: Operation, *given: Atom) -> Atom:
        """The usual form, and the other where it is called for."""
        rare, c = RARE[op.name], c_type(op.made)
        if op.made.kind != "f":
            raise Unsupported(f"the operation {op.name} on whole numbers is not generated")
        wide = [
            atom if dtype.name == "float64" else self.build.let("double", "(double){0}", atom)
            for atom, dtype in zip(given, op.given, strict=True)
        ]
        names = {"x": "{0}", "y": "{1}", "h": f"{{{len(wide)}}}"}
        helper = self.build.let("double", rare.helper.format(**names), *wide)
        main = self.build.let("double", rare.main.format(**names), *wide, helper)
        asked = self.build.let("int", rare.test.format(**names), *wide, helper)

        def other() -> Atom:
            return self.build.let("double", rare.other.format(**names), *wide, helper, call=rare.call)

        found = self.build.rarely("double", asked, main, other)
        return found if c == "double" else self.build.let(c, f"({c}){{0}}", found)


def _own(array: Array, index: tuple[Index, ...]) -> tuple[Index, ...]:
    """The place in an operand: a scalar has one, and an axis of length one is stretched."""
    return tuple(0 if n == 1 else i for n, i in zip(array.shape, index, strict=True)) if array.shape else ()


def _reads(given: Sequence[Array]) -> frozenset[Memory] | None:
    reads: set[Memory] = set()
    for array in given:
        if isinstance(array, Rule):
            if array.reads is None:
                return None
            reads |= array.reads
        elif isinstance(array, Strided):
            if not (array.contiguous and array.offset == 0 and math.prod(array.shape) == array.memory.size):
                return None
            reads.add(array.memory)
    return frozenset(reads)
