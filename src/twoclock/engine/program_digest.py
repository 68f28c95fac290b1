"""What a problem or a method computes, as a digest: the program it traces to and every number in it.

The names of functions and variables at the top play no part: two spellings of the same computation have one digest, and
a closed-over constant that changes gives another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

from twoclock import prng
from twoclock.engine.metrics import metrics_of
from twoclock.engine.run_batch import group_by_program, make_placeholder
from twoclock.engine.step import LaneState, lane_start, lane_step
from twoclock.protocols import Key, Method, Problem, ProblemSource, PyTree

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

_ADDRESS = re.compile(r"0x[0-9a-f]+")


def of_run(problem: ProblemSource, methods: Mapping[str, Method], *, x64: bool) -> tuple[str, dict[str, str]]:
    """The digests of a problem and of methods on it, in the precision of the run."""
    with jax.enable_x64(x64):
        example = make_placeholder(problem).example
        of_problem = _of_problem(example if isinstance(problem, Problem) else problem)
        by_label: dict[str, str] = {}
        for labels in group_by_program(methods):
            found = _of_methods([methods[label] for label in labels], example)
            by_label.update(zip(labels, found, strict=True))
    return of_problem, {label: by_label[label] for label in methods}


def _of_problem(problem: ProblemSource) -> str:
    """All that a problem computes and records, or that a function of a key does in making one; nothing is drawn.

    The iterates are arguments of the program, as they are in a run; a start that is a constant would be taken for one.
    """

    def made(key: Key) -> Problem:
        return problem if isinstance(problem, Problem) else problem(key)

    def everything(key: Key, u: PyTree, theta: PyTree, omega: PyTree, env: PyTree) -> PyTree:
        here = made(key)
        x, after = here.draw(u, theta, env)
        known, of_env = here.measure(theta, omega), here.report(env)
        return here.init(key), here.noise(key), after, here.F(theta, omega, x), here.G(theta, omega, x), known, of_env

    key = prng.start_key(0)
    (theta, omega, env), u = jax.eval_shape(lambda key: ((here := made(key)).init(key), here.noise(key)), key)
    return digest(jax.make_jaxpr(everything)(key, u, theta, omega, env))


def _of_methods(methods: list[Method], problem: Problem) -> list[str]:
    """Methods that differ only in numbers: their program is traced once, on the problem that they run on."""

    def everything(method: Method, seed: jax.Array, carry: LaneState, k: jax.Array) -> PyTree:
        begin = lane_start(problem, method, seed)
        after = lane_step(problem, method, prng.step_stream(seed), carry, k)
        return begin, after, metrics_of(problem, method, carry.state, carry.env), method.estimate(carry.state)

    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(float)), methods[0])
    seed, k = np.uint32(0), np.int32(0)
    carry = jax.eval_shape(lambda method: lane_start(problem, method, seed), like)
    program = jax.make_jaxpr(everything)(like, seed, carry, k)
    of_program = _hash(program)
    found = []
    for method in methods:
        with_numbers = of_program.copy()
        _add(with_numbers, [np.asarray(leaf, float) for leaf in jax.tree.leaves(method)])
        found.append(_short(with_numbers))
    return found


def digest(program: ClosedJaxpr) -> str:
    """Of a program and every number in it, without names of variables or addresses of objects."""
    return _short(_hash(program))


def digest_and_arrays(program: ClosedJaxpr) -> tuple[str, list[np.ndarray | jax.Array]]:
    """The same, and the arrays that the program holds."""
    reader = _Reader()
    return _short(reader.read(program)), reader.arrays


def with_numbers(program: ClosedJaxpr, arguments: PyTree) -> str:
    """Of a program and of the numbers that some of its arguments have."""
    found = _hash(program)
    _add(found, map(_numbers, jax.tree.leaves(arguments)))
    return _short(found)


def _hash(program: ClosedJaxpr) -> Hash:
    return _Reader().read(program)


class _Reader:
    """Reads programs, and those inside them once each.

    Attributes:
        arrays: those that were met.
    """

    def __init__(self) -> None:
        self.arrays: list[np.ndarray | jax.Array] = []
        self._known: dict[int, str] = {}
        self._types: dict[object, str] = {}

    def read(self, program: ClosedJaxpr | Jaxpr) -> Hash:
        """Its equations: what is computed, how, of which variables, and the types of the results."""
        jaxpr = getattr(program, "jaxpr", program)
        held = [self._array(array) for array in getattr(program, "consts", ())]
        numbers: dict[Var, int] = {}

        def name(variable: Var | Literal) -> str:
            if isinstance(variable, Literal):
                return f"{variable.val!s}:{self._type(variable)}"
            return str(numbers.setdefault(variable, len(numbers)))

        def typed(variables: Iterable[Var]) -> list[str]:
            return [f"{name(variable)}:{self._type(variable)}" for variable in variables]

        lines = [*held, *typed((*jaxpr.constvars, *jaxpr.invars))]
        for equation in jaxpr.eqns:
            how = [f"{key}={self._parameter(value)}" for key, value in equation.params.items()]
            lines += [equation.primitive.name, *how, *map(name, equation.invars), "=", *typed(equation.outvars)]
        return hashlib.sha256("\n".join((*lines, *map(name, jaxpr.outvars))).encode())

    def _parameter(self, value: object) -> str:
        if isinstance(value, (ClosedJaxpr, Jaxpr)):
            if id(value) not in self._known:
                self._known[id(value)] = self.read(value).hexdigest()
            return self._known[id(value)]
        if isinstance(value, (np.ndarray, jax.Array)):
            return self._array(value)
        if type(value) in (tuple, list):
            return f"({', '.join(map(self._parameter, value))})"  # type: ignore[call-overload]
        return str(value) if isinstance(value, (int, str, NoneType)) else _ADDRESS.sub("", str(value))

    def _array(self, array: np.ndarray | jax.Array) -> str:
        self.arrays.append(array)
        found = hashlib.sha256()
        _add(found, [_numbers(array)])
        return found.hexdigest()

    def _type(self, variable: Var | Literal) -> str:
        aval = variable.aval
        if aval not in self._types:
            self._types[aval] = str(aval)
        return self._types[aval]


def _add(found: Hash, numbers: Iterable[np.ndarray]) -> None:
    for array in numbers:
        found.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())


def _short(found: Hash) -> str:
    return found.hexdigest()[:16]


def _numbers(array: object) -> np.ndarray:
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array)
