"""What a problem or a method computes, as a digest: the program it traces to and every number in it.

The names of functions and variables at the top play no part: two spellings of the same computation have one digest, and
a closed-over constant that changes gives another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from twoclock.core import Key, Method, Problem, ProblemSource, PyTree
from twoclock.engine import keys
from twoclock.engine.instances import stand_in
from twoclock.engine.lanes import by_program
from twoclock.engine.rows import metrics_of
from twoclock.engine.step import Carry, lane_start, lane_step

_ADDRESS = re.compile(r"0x[0-9a-f]+")


def of_run(problem: ProblemSource, methods: Mapping[str, Method], *, x64: bool) -> tuple[str, dict[str, str]]:
    """The digests of a problem and of methods on it, in the precision of the run."""
    with jax.enable_x64(x64):
        example = stand_in(problem).example
        of_problem = _of_problem(example if isinstance(problem, Problem) else problem)
        by_label: dict[str, str] = {}
        for labels in by_program(methods):
            found = _of_methods([methods[label] for label in labels], example)
            by_label.update(zip(labels, found, strict=True))
    return of_problem, {label: by_label[label] for label in methods}


def _of_problem(problem: ProblemSource) -> str:
    """All that a problem computes and records, or that a function of a key does in making one; nothing is drawn."""

    def everything(key: Key) -> PyTree:
        made = problem if isinstance(problem, Problem) else problem(key)
        theta, omega, env = made.init(key)
        x, env = made.draw(made.noise(key), theta, env)
        known = made.measure(theta, omega) if hasattr(made, "measure") else {}
        of_env = made.report(env) if hasattr(made, "report") else {}
        return theta, omega, env, made.F(theta, omega, x), made.G(theta, omega, x), known, of_env

    return _digest(jax.make_jaxpr(everything)(keys.start_key(0)))


def _of_methods(methods: list[Method], problem: Problem) -> list[str]:
    """Methods that differ only in numbers: their program is traced once, on the problem that they run on."""

    def two_steps(method: Method, seed: jax.Array) -> tuple[Carry, PyTree]:
        carry = lane_start(problem, method, seed)
        for k in range(2):
            carry = lane_step(problem, method, keys.step_stream(seed), carry, k)
        return carry, metrics_of(problem, method, carry.state, carry.env)

    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(float)), methods[0])
    program = jax.make_jaxpr(two_steps)(like, jnp.uint32(0))
    numbers = [[np.asarray(leaf, float) for leaf in jax.tree.leaves(method)] for method in methods]
    return [_digest(program, *leaves) for leaves in numbers]


def _digest(program: ClosedJaxpr, *numbers: np.ndarray) -> str:
    digest = hashlib.sha256(_ADDRESS.sub("", str(program)).encode())
    for array in (*_constants(program), *numbers):
        digest.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def _constants(program: object) -> Iterator[np.ndarray]:
    """Every array in a program, those of the programs inside it too; its text names them without their numbers."""
    if isinstance(program, ClosedJaxpr):
        yield from (_numbers(const) for const in program.consts)
        yield from _constants(program.jaxpr)
    elif isinstance(program, Jaxpr):
        for equation in program.eqns:
            for parameter in equation.params.values():
                yield from _constants(parameter)
    elif isinstance(program, (tuple, list)):
        for part in program:
            yield from _constants(part)
    elif isinstance(program, (np.ndarray, jax.Array)):
        yield _numbers(program)


def _numbers(array: object) -> np.ndarray:
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array)
