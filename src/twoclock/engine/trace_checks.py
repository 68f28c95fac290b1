"""Checks of a lane by tracing, before it is compiled.

JAX calls a user's function once and keeps what it saw. So a function that draws, counts or reads a clock by itself is
frozen, one that changed since it was compiled is not called again, and one that asks a number for its value fails in
JAX's own words. Tracing alone finds each of these. The digest of a trace then is part of what JAX compiles for a lane,
so that a changed constant makes a new program and leaves all others alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.engine.program_digest import retrace_once, trace_in_precision, trace_lane
from twoclock.engine.run_batch import Lanes
from twoclock.engine.tracing import TracedProgram, trace
from twoclock.protocols import InputError, Method, Problem, PyTree
from twoclock.validation import readable_trace_errors

_FROM_THE_KEY = (
    "draw with `jax.random` from the key, carry what changes in `env`, hand a simulator's samples to `tc.Learner`"
)
_OF_PROBLEM = ("init", "noise", "draw", "F", "G", "measure", "report")
_OF_METHOD = ("init", "estimate", "report")

_passed: dict[int, TracedProgram] = {}  # what lanes traced to when they passed all checks


def shape_of(name: str, function: Callable[..., PyTree], *args: PyTree) -> PyTree:
    """The shapes that a user's function returns."""
    with readable_trace_errors(name):
        return retrace_once(lambda: jax.eval_shape(function, *args), function)


def check_pure(name: str, function: Callable[..., PyTree], *args: PyTree, remedy: str = _FROM_THE_KEY) -> None:
    """Refuse a function that is another program each time: the run would keep the first for all seeds and steps."""
    with readable_trace_errors(name):
        if _stable_trace(lambda tag: trace(function, *args, tag=tag)[0], function) is None:
            raise InputError(
                f"`{name}` must depend on its arguments alone: each time it is traced it gives other numbers, and a "
                f"run would freeze the first; {remedy}"
            )


class ShapeRecorder:
    """One trace of a lane, and the shapes that its functions returned, by their names and the shapes they were given.

    Attributes:
        traced: what the lane traced to; None where tracing failed, and then no shape is known.
    """

    def __init__(self, problem: Problem, method: Method) -> None:
        self.traced: TracedProgram | None = None
        self._shapes: dict[Hashable, PyTree] = {}
        with suppress(Exception):
            self.traced = trace_lane(problem, method, self._recording)

    def find(self, name: str, args: tuple[PyTree, ...]) -> tuple[PyTree, bool]:
        """What a function returned for arguments of these shapes, and whether it was called with such."""
        if self.traced is None:
            return None, False
        key = _call(name, args)
        return self._shapes.get(key), key in self._shapes

    def _recording(self, problem: Problem, method: Method) -> tuple[Problem, Method]:
        """The same problem and method; what they return is recorded."""
        name = type(method).__name__

        def recorded(name: str, function: Callable[..., PyTree], *first: PyTree, skip: int = 0) -> object:
            def call(*args: PyTree) -> PyTree:
                out = function(*args)
                self._shapes.setdefault(_call(name, (*first, *args[skip:])), jax.tree.map(_shape, out))
                return out

            return staticmethod(call)

        of_problem = {n: recorded(n, getattr(problem, n)) for n in _OF_PROBLEM}
        of_method = {n: recorded(f"{name}.{n}", getattr(method, n), method) for n in _OF_METHOD}
        of_method["step"] = recorded(f"{name}.step", method.step, method, skip=2)  # F and G have no shapes
        of_method["track"] = staticmethod(method.track)
        return type("Recorded", (Problem,), of_problem)(), type("Recorded", (Method,), of_method)()


def _call(name: str, args: tuple[PyTree, ...]) -> Hashable:
    leaves, structure = jax.tree.flatten(args)
    return name, structure, tuple((jnp.shape(leaf), str(jnp.result_type(leaf))) for leaf in leaves)


def _shape(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))


def check_lane(problem: Problem, method: Method, first: TracedProgram | None) -> TracedProgram | None:
    """What a lane traces to, given a first trace of it; None if that is another program each time."""
    traced = _stable_trace(lambda tag: trace_lane(problem, method, tag=tag), (problem, method), first)
    if traced is not None and (kind := _kind(problem, method)) is not None:
        _passed[kind] = traced
    return traced


def passed_before(problem: Problem, method: Method) -> TracedProgram | None:
    """What this very lane traces to, if it passed all checks and is what it was then: one trace in place of ten.

    "This very lane" is what ``jax.jit`` takes for it: the same functions by identity, the same structure and shapes.
    And since a function may have changed inside, it is called again: two traces that agree, then and now, are what
    ``check_lane`` asks for. Any other outcome is left to the checks themselves, whose messages name the cause.
    """
    if (kind := _kind(problem, method)) is None or kind not in _passed:
        return None
    with suppress(Exception):
        return _passed[kind] if trace_lane(problem, method) == _passed[kind] else None
    return None


def trace_lanes(lanes: Lanes) -> TracedProgram:
    """What each lane traced to when it passed the checks; traced now where none has."""
    method = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), lanes.methods)
    problem = lanes.instances.example
    kind = _kind(problem, method)
    return _passed[kind] if kind in _passed else trace_lane(problem, method)


def _kind(problem: Problem, method: Method) -> int | None:
    """A first guess, at no cost, of which lane it is; None where it cannot be told."""
    leaves, structure = jax.tree.flatten((problem, method))
    try:
        return hash((structure, tuple(np.shape(leaf) for leaf in leaves), jnp.result_type(float)))
    except TypeError:
        return None


def _stable_trace(
    look: Callable[[str], TracedProgram], owner: object, first: TracedProgram | None = None
) -> TracedProgram | None:
    """A trace that agrees with the one before it; None if each one differs.

    A first trace that differs from the later ones is no fault: something was made once and kept.
    """
    last = first
    for tag in ("1", "2", "3") if first is None else ("2", "3"):
        before, last = last, trace_in_precision(functools.partial(look, tag), owner)
        if last == before:
            return last
    return None
