"""What a run traces, looked at before it is compiled.

JAX calls a user's function once and keeps what it saw. So a function that draws, counts or reads a clock by itself is
frozen, one that changed since it was compiled is not called again, and one that asks a number for its value fails in
JAX's own words. Here each of these is found by tracing alone, and said in one line or mended.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxprs_in_params

from twoclock import prng
from twoclock.engine import source_cache
from twoclock.engine.metrics import metrics_of
from twoclock.engine.program_digest import digest, digest_and_arrays
from twoclock.engine.run_batch import Lanes
from twoclock.engine.shape_recorder import Noted
from twoclock.engine.step import LaneState, lane_start, lane_step
from twoclock.protocols import InputError, Method, Problem, PyTree, Scalar
from twoclock.validation.trace_errors import in_words

T = TypeVar("T")
Trace = Callable[[], ClosedJaxpr]


_FROM_THE_KEY = (
    "draw with `jax.random` from the key, carry what changes in `env`, hand a simulator's samples to `tc.Learner`"
)


def shape_of(name: str, function: Callable[..., Any], *args: PyTree) -> PyTree:
    """The shapes that a user's function returns."""
    with in_words(name):
        return _mended(lambda: jax.eval_shape(function, *args))


def check_pure(name: str, function: Callable[..., Any], *args: PyTree, remedy: str = _FROM_THE_KEY) -> None:
    """Refuse a function that is another program each time: the run would keep the first for all seeds and steps."""
    with in_words(name):
        if _pure(lambda: jax.make_jaxpr(lambda *a: function(*a))(*args)) is None:
            raise InputError(
                f"`{name}` must depend on its arguments alone: each time it is traced it gives other numbers, and a "
                f"run would freeze the first; {remedy}"
            )


def noted(problem: Problem, method: Method) -> Noted:
    """What a lane traces to. Where it does not trace nothing is noted, and whoever needs a shape has words for it."""
    with suppress(Exception):
        found = Noted(_arguments(problem, method))
        with set_xla_metadata(twoclock_trace="1"):
            found.digest = _in_precision(_anew(found.arguments, found))
        return found
    return Noted()


def check_lane(problem: Problem, method: Method, first: Noted) -> bool:
    """Whether a lane is pure. What was compiled of it with other constants than it has now is forgotten.

    Args:
        first: what a first trace of it came to.
    """
    args = first.arguments or _arguments(problem, method)
    now: str | None = first.digest or _mended(lambda: program_now(problem, method))
    lane = _lane.trace(*args).jaxpr
    if now != (before := _seen[lane] if lane in _seen else digest(lane)):
        now = _pure(_anew(args))
        if now is None:
            _seen[lane] = ""  # nothing is to agree with what an impure lane was once
            return False
        if now != before:
            _forget()
            lane = _lane.trace(*args).jaxpr
    _seen[lane] = now
    if (kind := _kind(problem, method)) is not None:
        _passed[kind] = calls_python(lane.jaxpr)
    return True


def passed_before(problem: Problem, method: Method) -> bool:
    """Whether this very lane has passed all checks and is still what it was then: one trace tells, in place of ten.

    "This very lane" is what ``jax.jit`` takes for it: the same functions by identity, the same structure and shapes.
    And since a function may have changed inside, it is called again: two traces that agree, then and now, are what
    ``check_lane`` asks for. Whatever else happens is left to the checks themselves, which have words for it.
    """
    if (kind := _kind(problem, method)) is None or kind not in _passed:
        return False
    with suppress(Exception):
        return program_now(problem, method) == program(problem, method)
    return False


def program(problem: Problem, method: Method) -> str | None:
    """The digest of what a lane traced to when it last passed the checks: of what is compiled. None if it has not."""
    return _seen.get(_lane.trace(*_arguments(problem, method)).jaxpr)


def program_now(problem: Problem, method: Method) -> str:
    """The same, traced anew: functions may have changed since."""
    with set_xla_metadata(twoclock_trace="1"):
        return _in_precision(_anew(_arguments(problem, method)))


def _anew(args: tuple[PyTree, ...], notes: Noted | None = None) -> Trace:
    """Traces all that a lane computes; JAX remembers what it traced of a function, and this is another each time."""

    def trace() -> ClosedJaxpr:
        def everything(problem: Problem, method: Method, *rest: PyTree) -> PyTree:
            return _everything(*(notes.watched(problem, method) if notes else (problem, method)), *rest)

        return jax.make_jaxpr(everything)(*args)

    return trace


def _kind(problem: Problem, method: Method) -> int | None:
    """A first guess, at no cost, of which lane it is; None where it cannot be told."""
    leaves, structure = jax.tree.flatten((problem, method))
    try:
        return hash((structure, tuple(np.shape(leaf) for leaf in leaves), jnp.result_type(float)))
    except TypeError:
        return None


def _everything(problem: Problem, method: Method, seed: jax.Array, k: Scalar) -> PyTree:
    """All that a lane computes. A step does not know the numbers it begins with, also not those of a constant start."""
    begin = lane_start(problem, method, seed)
    carry: LaneState = jax.lax.optimization_barrier(begin)
    after = lane_step(problem, method, prng.step_stream(seed), carry, k)
    metrics = metrics_of(problem, method, carry.state, carry.env)
    return begin, after, metrics, method.estimate(carry.state)


_lane = jax.jit(_everything)  # traced once for the same functions, as a run is
_seen: weakref.WeakKeyDictionary[ClosedJaxpr, str] = weakref.WeakKeyDictionary()
_passed: dict[int, bool] = {}  # and whether it calls Python


def _arguments(problem: Problem, method: Method) -> tuple[PyTree, ...]:
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(float)), method)
    return problem, like, np.uint32(0), np.int32(0)  # JAX compiles a conversion for its own


def _pure(trace: Trace) -> str | None:
    """The digest of what a function traces to, None if that is another program each time.

    A tag on the operations makes JAX trace anew what is jitted inside too. A first time that differs from the later
    ones is no fault: something was made once and kept.
    """
    last = ""
    for tag in ("1", "2", "3"):
        with set_xla_metadata(twoclock_trace=tag):
            last, before = _mended(lambda: _in_precision(trace)), last
        if last == before:
            return last
    return None


def begin() -> None:
    """Before anything is traced: forget what was compiled with NumPy arrays in the other precision.

    JAX converts a NumPy array once and hands the same out again after the precision has changed, for as long as
    something compiled with it is kept: an error deep inside, or single precision without a word.
    """
    if _converted and _converted != {jnp.result_type(float).name}:
        _forget()


# The precisions in which programs with NumPy arrays in them were traced.
_converted: set[str] = set()
# Programs with arrays that a user made in single precision.
_made_so: set[str] = set()


def _in_precision(trace: Trace) -> str:
    """The digest of a program; what a user compiled with its arrays in the other precision is forgotten."""
    found, mixed = _digest_and_mixed(trace)
    if mixed and found not in _made_so:
        _forget()
        found, mixed = _digest_and_mixed(trace)
        if mixed:
            _made_so.add(found)
    return found


def _digest_and_mixed(trace: Trace) -> tuple[str, bool]:
    """Of a program, and whether NumPy arrays in it have the other precision. It must not outlive this, nor they."""
    single, double = ("float32", "int32", "complex64"), ("float64", "int64", "complex128")
    here = jnp.result_type(float).name
    found, arrays = digest_and_arrays(trace())
    kinds = {array.dtype.name for array in arrays if isinstance(array, np.ndarray)}
    if kinds & {*single, *double}:
        _converted.add(here)
    return found, bool(kinds & set(single if here == "float64" else double))


def _mended(look: Callable[[], T]) -> T:
    """What ``look`` finds by tracing; arrays of the other precision may keep it from tracing at all."""
    try:
        return look()
    except (TypeError, ValueError) as error:
        if "dtypes" not in str(error):
            raise
    _forget()
    return look()


def _forget() -> None:
    jax.clear_caches()
    source_cache.forget()
    gc.collect()
    _converted.clear()
    _passed.clear()


@contextmanager
def callbacks(lanes: Lanes) -> Iterator[None]:
    """While a run lasts that calls Python (``jax.pure_callback``), the whole process has its precision.

    JAX calls Python on threads of its own, which know only the global setting, and rounds what it hands over to that.
    """
    method = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), lanes.methods)
    if not _calls_python(lanes.instances.example, method):
        yield
        return
    here = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as thread:
        everywhere = thread.submit(lambda: jax.config.jax_enable_x64).result()  # type: ignore[attr-defined]
    jax.config.update("jax_enable_x64", here)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", everywhere)


def _calls_python(problem: Problem, method: Method) -> bool:
    kind = _kind(problem, method)
    if kind is None or kind not in _passed:
        return calls_python(_lane.trace(*_arguments(problem, method)).jaxpr.jaxpr)
    return _passed[kind]


def calls_python(jaxpr: Jaxpr) -> bool:
    inner = (getattr(part, "jaxpr", part) for equation in jaxpr.eqns for part in jaxprs_in_params(equation.params))
    return any(e.primitive.name.endswith("callback") for e in jaxpr.eqns) or any(map(calls_python, inner))
