"""Traces of lanes in the precision of the run: their digests, and the check that each trace is the same.

JAX calls a user's function once: one that draws or reads a clock is frozen, one that changed is not called again.
Tracing finds each. The digest of a trace is part of what JAX compiles, so that a changed constant is a new program.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import prng
from twoclock.engine import lane_program
from twoclock.engine.code_identity import Unidentified
from twoclock.engine.protocol import LaneState, lane_metrics, lane_start, lane_step
from twoclock.engine.run_batch import Lanes, group_by_program, make_placeholder, trace_problem
from twoclock.engine.stored_programs import StoredFunction
from twoclock.engine.tracing import OtherPrecision, TracedProgram, digest_each, trace
from twoclock.protocols import InputError, Method, Problem, ProblemSource, PyTree, Scalar
from twoclock.validation import readable_trace_errors

T = TypeVar("T")

_SINGLE, _DOUBLE = {"float32", "int32", "complex64"}, {"float64", "int64", "complex128"}
_JITTED = type(jax.jit(lambda: None)), StoredFunction
_FUNCTIONS = ("init", "noise", "draw", "F", "G", "measure", "report", "step", "estimate")

_converted: set[str] = set()  # the precisions in which programs that hold NumPy arrays were traced
_made_in_other_precision: set[str] = set()  # digests of programs whose arrays are a user's choice
_FROM_THE_KEY = (
    "draw with `jax.random` from the key, carry what changes in `env`, pass a simulator's samples to `tc.Learner`"
)
_OF_PROBLEM = ("init", "noise", "draw", "F", "G", "measure", "report")
_OF_METHOD = ("init", "estimate", "report")

_passed: dict[int | None, TracedProgram] = {}  # the traces of lanes that passed all checks


def trace_lane(
    problem: Problem,
    method: Method,
    recording: Callable[[Problem, Method], tuple[Problem, Method]] = lambda problem, method: (problem, method),
    tag: str = "1",
) -> TracedProgram:
    """Trace a lane's whole computation; ``recording`` replaces problem and method by ones that record calls."""

    whole = not is_ours(method)

    def everything(problem: Problem, method: Method, seed: Scalar, k: Scalar) -> PyTree:
        return _compute_all(*recording(problem, method), seed, None, k, whole)

    arguments = problem, numbers_as_shapes(method), np.uint32(0), np.int32(0)
    return trace_in_precision(lambda: trace(everything, *arguments, tag=tag)[0], (problem, method))


def _compute_all(
    problem: Problem, method: Method, seed: Scalar, carry: LaneState | None, k: Scalar, whole: bool = True
) -> PyTree:
    """Compute a lane's start, step k from a carry or from the start, its metrics and its estimate.

    Unless it is the ``whole``, without what a method does to its state alone: where the method is of this library, that
    is no function of a user, and most of the trace.
    """
    begin = lane_start(problem, method, seed)
    if carry is None:
        # A step is traced with unknown numbers, even if the start is constant.
        carry = jax.lax.optimization_barrier(begin)
    after = lane_step(problem, method, prng.step_stream(seed), carry, k, refined=whole)
    if not whole:
        return begin, after, problem.measure(carry.state.theta, carry.state.omega), problem.report(carry.env)
    return begin, after, lane_metrics(problem, method, carry.state, carry.env), method.estimate(carry.state)


def numbers_as_shapes(method: Method) -> Method:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(float)), method)


def digest_run(problem: ProblemSource, methods: Mapping[str, Method], *, x64: bool) -> tuple[str, dict[str, str]]:
    """The digests of a problem and of methods on it, in the precision of the run."""
    with jax.enable_x64(x64):
        example = make_placeholder(problem).example
        traced = [retrace_once(lambda: trace_problem(example if isinstance(problem, Problem) else problem)[0], problem)]
        by_label: dict[str, str] = {}
        for labels in group_by_program(methods):
            # They differ only in numbers, so their program is traced once, on the problem that they run on.
            alike = [methods[label] for label in labels]
            like, seed, k = numbers_as_shapes(alike[0]), np.uint32(0), np.int32(0)
            carry = jax.eval_shape(functools.partial(lane_start, example, seed=seed), like)
            compute = functools.partial(_compute_all, example)
            one, program = retrace_once(lambda: trace(compute, like, seed, carry, k), (example, alike[0]))  # noqa: B023
            traced.append(one)
            numbers = [jax.tree.map(lambda leaf: np.asarray(leaf, float), method) for method in alike]
            by_label.update(zip(labels, digest_each(program, numbers), strict=True))
    for reason in filter(None, (one.unidentified for one in traced)):
        raise Unidentified(f"nothing can be resumed that calls a function in Python of which this holds: {reason}")
    return traced[0].digest, {label: by_label[label] for label in methods}


def shape_of(name: str, function: Callable[..., PyTree], *args: PyTree) -> PyTree:
    """The shapes that a user's function returns."""
    with readable_trace_errors(name):
        return retrace_once(lambda: jax.eval_shape(lambda *given: function(*given), *args), function)


def check_pure(name: str, function: Callable[..., PyTree], *args: PyTree, remedy: str = _FROM_THE_KEY) -> None:
    """Refuse a function that traces to another program each time: a run would use the first for all seeds and steps."""
    with readable_trace_errors(name):
        if _stable_trace(lambda tag: trace(function, *args, tag=tag)[0], function) is None:
            raise InputError(
                f"`{name}` must depend on its arguments alone: each time it is traced it gives other numbers, and a "
                f"run would freeze the first; {remedy}"
            )


class ShapeRecorder:
    """One trace of a lane (None if it fails), with the shapes that its functions returned for the given ones."""

    def __init__(self, problem: Problem, method: Method) -> None:
        self.traced: TracedProgram | None = None
        self.problem_before: TracedProgram | None = None
        self._shapes: dict[Hashable, PyTree] = {}
        with suppress(Exception):
            if method.finds_roots and is_ours(method):  # whose step is long
                self.problem_before = _trace_problem(problem)
            self.traced = trace_lane(problem, method, self._recording)

    def shape_of(self, name: str, function: Callable[..., PyTree], *args: PyTree) -> PyTree:
        """The shapes that a function returned for arguments of these shapes; it is traced if it was not called so."""
        key = _call(name, args)
        return self._shapes[key] if self.traced and key in self._shapes else shape_of(name, function, *args)

    def _recording(self, problem: Problem, method: Method) -> tuple[Problem, Method]:
        """The same problem and method; what they return is recorded."""
        name = type(method).__name__

        def recorded(name: str, function: Callable[..., PyTree], *first: PyTree, skip: int = 0) -> object:
            def call(*args: PyTree) -> PyTree:
                out = function(*args)
                shapes = jax.eval_shape(lambda: out)
                self._shapes.setdefault(_call(name, (*first, *args[skip:])), shapes)
                return out

            return staticmethod(call)

        of_problem = {n: recorded(n, getattr(problem, n)) for n in _OF_PROBLEM}
        of_method = {n: recorded(f"{name}.{n}", getattr(method, n), method) for n in _OF_METHOD}
        step = method.between if is_ours(method) else method.step
        of_method["step"] = recorded(f"{name}.step", step, method, skip=2)  # F and G have no shapes
        of_method["track"] = staticmethod(method.track)
        return type("Recorded", (Problem,), of_problem)(), type("Recorded", (Method,), of_method)()


def _call(name: str, args: tuple[PyTree, ...]) -> Hashable:
    leaves, structure = jax.tree.flatten(args)
    return name, structure, tuple((jnp.shape(leaf), str(jnp.result_type(leaf))) for leaf in leaves)


def check_lane(problem: Problem, method: Method, recorder: ShapeRecorder) -> TracedProgram | None:
    """Return the trace of a lane, given a first one; None if each trace is another program."""
    first, before = recorder.traced, recorder.problem_before
    # A method of this library is pure: its step need not be traced again if the problem's functions are the same.
    if None not in (first, before) and before == _trace_problem(problem):
        traced = first
    else:
        traced = _stable_trace(lambda tag: trace_lane(problem, method, tag=tag), (problem, method), first)
    if traced is not None and (kind := _kind(problem, method)) is not None:
        _passed[kind] = traced
    return traced


def _trace_problem(problem: Problem) -> TracedProgram:
    return trace_in_precision(lambda: trace_problem(problem)[0], problem)


def is_ours(part: object) -> bool:
    """Whether a method consists of this library's classes and of numbers."""
    if dataclasses.is_dataclass(part):
        inside = [getattr(part, field.name) for field in dataclasses.fields(part)]
        return type(part).__module__.startswith("twoclock.") and all(map(is_ours, inside))
    if isinstance(part, (tuple, list)):
        return all(map(is_ours, part))
    return isinstance(part, (int, float, str, NoneType, np.ndarray, np.generic, jax.Array, jax.ShapeDtypeStruct))


def passed_before(problem: Problem, method: Method) -> TracedProgram | None:
    """Return the trace of this lane if it passed all checks before and has not changed: one trace instead of ten.

    If the trace then and the trace now agree, also in the names of the metrics, ``check_lane`` is satisfied; otherwise
    all checks run.
    """
    passed = _passed.get(_kind(problem, method))
    with suppress(Exception):
        if passed is not None and (now := trace_lane(problem, method)) == passed and now.returns == passed.returns:
            return passed
    return None


def trace_lanes(lanes: Lanes) -> TracedProgram:
    """Trace one of the lanes; all have the same program."""
    method = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), lanes.methods)
    return trace_lane(lanes.instances.example, method)


def _kind(problem: Problem, method: Method) -> int | None:
    """A cheap first key of a lane, which need not be unique; None if it has none."""
    leaves, structure = jax.tree.flatten((problem, method))
    try:
        return hash((structure, tuple(np.shape(leaf) for leaf in leaves), jnp.result_type(float)))
    except TypeError:
        return None


def _stable_trace(
    look: Callable[[str], TracedProgram], owner: object, first: TracedProgram | None = None
) -> TracedProgram | None:
    """A trace that agrees with the one before it; None if each differs. The first may: something was made once."""
    last = first
    for tag in ("1", "2", "3") if first is None else ("2", "3"):
        before, last = last, trace_in_precision(functools.partial(look, tag), owner)
        if last == before:
            return last
    return None


def start_in_precision() -> None:
    """Before the first trace, drop what this library compiled with NumPy arrays in the other precision.

    JAX converts a NumPy array once, and reuses that for any precision while a trace that holds it exists.
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
        if "dtypes" not in str(error) and not isinstance(error, OtherPrecision):
            raise
    _forget(owner)
    return look()


def _forget(owner: object) -> None:
    """Clear what may hold arrays in the other precision: the owner's jitted functions and this library's programs."""
    functions = list(_jitted_functions(owner))
    if _converted - {jnp.result_type(float).name}:
        for name, module in list(sys.modules.items()):
            if name.startswith("twoclock."):
                functions += [value for value in list(vars(module).values()) if isinstance(value, _JITTED)]
        lane_program.clear_cache()
        _converted.clear()
    for function in functions:
        function.clear_cache()  # type: ignore[attr-defined]


def _jitted_functions(owner: object) -> Iterator[object]:
    """The jitted functions that an object holds, or that its functions refer to; JAX's own are left out."""
    left, seen = [owner], dict[int, object]()
    while left:
        thing = left.pop()
        if id(thing) in seen or str(getattr(thing, "__module__", "")).partition(".")[0] in ("jax", "numpy"):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, _JITTED[0]):
            yield thing
            left.append(thing.__wrapped__)  # type: ignore[attr-defined]
        elif isinstance(thing, FunctionType):
            yield jax.jit(thing)  # JAX has one trace of a function for all that jit it
            with suppress(ValueError):  # a variable without a value yet
                variables = inspect.getclosurevars(thing)
                left += [*variables.nonlocals.values(), *variables.globals.values()]
        elif isinstance(thing, MethodType):
            left += [thing.__func__, thing.__self__]
        elif isinstance(thing, functools.partial):
            left += [thing.func, *thing.args, *thing.keywords.values()]
        elif isinstance(thing, (tuple, list, dict)):
            left += thing.values() if isinstance(thing, dict) else thing
        elif isinstance(thing, (Problem, Method)):
            left += [*vars(thing).values(), *(getattr(thing, name, None) for name in _FUNCTIONS)]
        elif not isinstance(thing, (type, ModuleType)):
            left += getattr(thing, "__dict__", {}).values()
