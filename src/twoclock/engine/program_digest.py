"""What lanes and runs compute: their traces in the precision of the run, and their digests."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import FunctionType, MethodType
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import prng
from twoclock.engine import lane_program
from twoclock.engine.metrics import metrics_of
from twoclock.engine.protocol import LaneState, lane_start, lane_step
from twoclock.engine.run_batch import group_by_program, make_placeholder, trace_problem
from twoclock.engine.tracing import TracedProgram, digest_each, trace
from twoclock.protocols import Method, Problem, ProblemSource, PyTree, Scalar

T = TypeVar("T")

_SINGLE, _DOUBLE = {"float32", "int32", "complex64"}, {"float64", "int64", "complex128"}
_JITTED = type(jax.jit(lambda: None))
_FUNCTIONS = ("init", "noise", "draw", "F", "G", "measure", "report", "step", "estimate")

_converted: set[str] = set()  # the precisions in which programs with NumPy arrays in them were traced
_made_in_other_precision: set[str] = set()  # digests of programs whose arrays are a user's choice


def trace_lane(
    problem: Problem,
    method: Method,
    recording: Callable[[Problem, Method], tuple[Problem, Method]] = lambda problem, method: (problem, method),
    tag: str = "1",
) -> TracedProgram:
    """Trace all that a lane computes.

    Args:
        problem: given by its numbers, or by their shapes.
        method: its numbers are arguments of the program.
        recording: puts others in their place, which record what they are called with.
        tag: as for ``trace``.
    """

    def everything(problem: Problem, method: Method, seed: Scalar, k: Scalar) -> PyTree:
        problem, method = recording(problem, method)
        begin = lane_start(problem, method, seed)
        # A step does not know the numbers it begins with, also not those of a constant start.
        carry: LaneState = jax.lax.optimization_barrier(begin)
        after = lane_step(problem, method, prng.step_stream(seed), carry, k)
        return begin, after, metrics_of(problem, method, carry.state, carry.env), method.estimate(carry.state)

    arguments = problem, _numbers_as_shapes(method), np.uint32(0), np.int32(0)
    return trace_in_precision(lambda: trace(everything, *arguments, tag=tag)[0], (problem, method))


def _numbers_as_shapes(method: Method) -> Method:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(float)), method)


def digest_run(problem: ProblemSource, methods: Mapping[str, Method], *, x64: bool) -> tuple[str, dict[str, str]]:
    """The digests of a problem and of methods on it, in the precision of the run."""
    with jax.enable_x64(x64):
        example = make_placeholder(problem).example
        of_problem = trace_problem(example if isinstance(problem, Problem) else problem)[0].digest
        by_label: dict[str, str] = {}
        for labels in group_by_program(methods):
            found = _digest_methods([methods[label] for label in labels], example)
            by_label.update(zip(labels, found, strict=True))
    return of_problem, {label: by_label[label] for label in methods}


def _digest_methods(methods: list[Method], problem: Problem) -> list[str]:
    """Of methods that differ only in numbers: their program is traced once, on the problem that they run on."""

    def everything(method: Method, seed: jax.Array, carry: LaneState, k: jax.Array) -> PyTree:
        begin = lane_start(problem, method, seed)
        after = lane_step(problem, method, prng.step_stream(seed), carry, k)
        return begin, after, metrics_of(problem, method, carry.state, carry.env), method.estimate(carry.state)

    like, seed, k = _numbers_as_shapes(methods[0]), np.uint32(0), np.int32(0)
    carry = jax.eval_shape(lambda method: lane_start(problem, method, seed), like)
    program = trace(everything, like, seed, carry, k)[1]
    return digest_each(program, [jax.tree.map(lambda leaf: np.asarray(leaf, float), m) for m in methods])


def start_in_precision() -> None:
    """Before anything is traced: forget what this library compiled with NumPy arrays in the other precision.

    JAX converts a NumPy array once and gives out the same conversion after the precision has changed, as long as
    something traced with it exists: an error deep inside, or single precision by accident.
    """
    _forget(None)


def trace_in_precision(look: Callable[[], TracedProgram], owner: object) -> TracedProgram:
    """A trace whose NumPy arrays have the precision of the run, also if the owner's functions met them in the other."""
    here = jnp.result_type(float).name
    other = _SINGLE if here == "float64" else _DOUBLE
    found = retrace_once(look, owner)
    if found.array_types & other and found.digest not in _made_in_other_precision:
        _forget(owner)
        found = look()
        if found.array_types & other:
            _made_in_other_precision.add(found.digest)
    if found.array_types & (_SINGLE | _DOUBLE):
        _converted.add(here)
    return found


def retrace_once(look: Callable[[], T], owner: object) -> T:
    """What ``look`` finds by tracing; arrays of the other precision may keep it from tracing at all."""
    try:
        return look()
    except (TypeError, ValueError) as error:
        if "dtypes" not in str(error):
            raise
    _forget(owner)
    return look()


def _forget(owner: object) -> None:
    """Clear what may hold arrays in the other precision: the owner's jitted functions, and our own programs."""
    functions = list(_jitted_functions(owner, set()))
    if _converted - {jnp.result_type(float).name}:
        for name, module in list(sys.modules.items()):
            if name.startswith("twoclock."):
                functions += [value for value in list(vars(module).values()) if isinstance(value, _JITTED)]
        lane_program.clear_cache()
        _converted.clear()
    for function in functions:
        function.clear_cache()  # type: ignore[attr-defined]


def _jitted_functions(thing: object, seen: set[int]) -> Iterator[object]:
    """The jitted functions that an object holds, or that its functions refer to; JAX's own are left out."""
    if id(thing) in seen or str(getattr(thing, "__module__", "")).partition(".")[0] in ("jax", "numpy"):
        return
    seen.add(id(thing))
    inner: list[object] = []
    if isinstance(thing, _JITTED):
        yield thing
        inner = [thing.__wrapped__]  # type: ignore[attr-defined]
    elif isinstance(thing, FunctionType):
        with suppress(ValueError):  # a variable without a value yet
            variables = inspect.getclosurevars(thing)
            inner = [*variables.nonlocals.values(), *variables.globals.values()]
    elif isinstance(thing, MethodType):
        inner = [thing.__func__, thing.__self__]
    elif isinstance(thing, functools.partial):
        inner = [thing.func, *thing.args, *thing.keywords.values()]
    elif isinstance(thing, (tuple, list)):
        inner = list(thing)
    elif isinstance(thing, (Problem, Method)):
        inner = [*vars(thing).values(), *(getattr(thing, name, None) for name in _FUNCTIONS)]
    for part in inner:
        yield from _jitted_functions(part, seen)
