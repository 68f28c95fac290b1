"""Traces of functions: digests of what they compute, and their callbacks into Python.

A digest is of the program and every number in it; the names of functions and variables play no part.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var, jaxprs_in_params
from jax.tree_util import PyTreeDef

from twoclock.engine.code_identity import Unidentified, code_identity
from twoclock.protocols import InputError, PyTree
from twoclock.validation import trace_anew

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

_ADDRESS = re.compile(r"0x[0-9a-f]+")
# Programs written here hold no function of a user's.
_HERE = Path(__file__).parents[1]
_LIBRARIES = (
    *(f" at {folder}/" for folder in (Path(jax.__file__).parent, _HERE / "engine", _HERE / "models")),
    f" at {_HERE / 'tree_math.py'}:",
    *(f" at {_HERE / 'methods' / name}.py:" for name in ("frozen_check", "local_model", "zap")),
)
F = TypeVar("F", bound=Callable[..., PyTree])


class OtherPrecision(InputError):
    """A NumPy array that a function reads is held by JAX in the precision in which it met it first."""

    def __init__(self) -> None:
        here, there = ("64", "32") if jax.config.jax_enable_x64 else ("32", "64")  # type: ignore[attr-defined]
        super().__init__(
            f"a function reads a NumPy array that JAX holds in {there} bits, since another jitted function reads it, "
            f"too, and this run has {here} bits; give one of the two a copy, `a.copy()`"
        )


@dataclass(frozen=True)
class TracedProgram:
    """The computation of a function, as far as a trace shows it.

    Attributes:
        digest: of the program, every number in it, and what it calls in Python.
        calls_python: whether it calls back into Python (``jax.pure_callback``).
        user_jitted: whether it holds programs of a user's own functions (jitted, or bodies of loops), whose traces JAX
            remembers even if a constant in them has changed.
        array_types: of the NumPy arrays that it holds.
        unidentified: why the digest leaves out a function that it calls in Python; None if it is complete.
        returns: the structure of its output, with the names in it; two programs that differ in it alone are equal.
    """

    digest: str
    calls_python: bool
    user_jitted: bool
    array_types: frozenset[str]
    unidentified: str | None
    returns: PyTreeDef = field(compare=False)

    def separate_traces(self) -> AbstractContextManager[object]:
        """A context in which JAX does not reuse its traces of a user's functions from another program."""
        return set_xla_metadata(twoclock_program=self.digest) if self.user_jitted else nullcontext()


def trace(function: Callable[..., PyTree], *args: PyTree, tag: str = "1") -> tuple[TracedProgram, ClosedJaxpr]:
    """Trace a function again, including what is jitted inside it; its arguments are arrays or shapes.

    JAX remembers jitted functions inside by tag; a user's functions get a tag that was never used.
    """
    structures = []

    def noted(*given: PyTree) -> PyTree:
        out = function(*given)
        structures.append(jax.tree.structure(out))
        return out

    with set_xla_metadata(twoclock_trace=tag):
        program = jax.make_jaxpr(lambda *given: noted(*given))(*args)
    # JAX describes where a function was written as "name at file:line".
    sources = [inner.debug_info.func_src_info for inner in _programs_inside(program.jaxpr)]
    user_jitted = any(source is None or not any(place in source for place in _LIBRARIES) for source in sources)
    if user_jitted:
        with trace_anew():
            program = jax.make_jaxpr(lambda *given: noted(*given))(*args)
    if any(isinstance(value, jax.core.Tracer) for value in program.consts):
        raise InputError(
            "a function must not keep a value of the run, in a list, an attribute or a global, and read it when it is "
            "called again: it is gone by then; carry it in `env`"
        )
    reader = _Reader()
    found = reader.read(program).hexdigest()[:16]
    _check_not_rounded(program, reader, lambda: jax.make_jaxpr(lambda *given: noted(*given))(*args))
    types = frozenset(array.dtype.name for array in reader.arrays if isinstance(array, np.ndarray))
    traced = TracedProgram(found, reader.calls_python, user_jitted, types, reader.unidentified, structures[-1])
    return traced, program


def _check_not_rounded(program: ClosedJaxpr, reader: _Reader, again: Callable[[], ClosedJaxpr]) -> None:
    """Refuse a program with NumPy arrays in the other precision.

    JAX converts a NumPy array once for all traces that live, whatever the precision of each. So a function that the
    user has jitted in float32 leaves its arrays rounded for a run in float64, without a warning.
    """
    pairs = zip(program.jaxpr.constvars, program.consts, strict=True)
    wrong = any(getattr(array, "dtype", v.aval.dtype) != v.aval.dtype for v, array in pairs)
    if not wrong and (suspects := _copies(reader)):
        retraced = _Reader()
        retraced.read(again())  # arrays that the trace makes are others each time
        wrong = any(one is other for one in suspects for other in _copies(retraced))
    if wrong:
        raise OtherPrecision()


def _copies(reader: _Reader) -> list[np.ndarray]:
    """The arrays of floats in the other precision; in float64 only those whose data nothing else refers to."""
    wide = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
    other = (np.float32, np.complex64) if wide else (np.float64, np.complex128)
    arrays = [array for array in reader.arrays if isinstance(array, np.ndarray) and array.dtype in other]
    return [array for array in arrays if not wide or (array.base is not None and sys.getrefcount(array.base) == 2)]


def _programs_inside(jaxpr: Jaxpr) -> Iterator[Jaxpr]:
    for equation in jaxpr.eqns:
        for part in jaxprs_in_params(equation.params):
            inner = getattr(part, "jaxpr", part)
            yield inner
            yield from _programs_inside(inner)


def digest_each(program: ClosedJaxpr, arguments: Iterable[PyTree]) -> list[str]:
    """Return digests of one program and every number in it, one for each of several sets of arguments."""
    of_program, found = _Reader().read(program), []
    for numbers in arguments:
        found.append(hash_arrays(numbers, of_program.copy()).hexdigest()[:16])
    return found


def hash_arrays(tree: PyTree, digest: Hash | None = None) -> Hash:
    """Add the types, shapes and numbers of all arrays in a tree to a digest, without a copy of them."""
    digest = hashlib.sha256() if digest is None else digest
    for leaf in jax.tree.leaves(tree):
        array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(array) if key else array)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest


class _Reader:
    """Reads programs, each inner program once, and collects the arrays and callbacks that they hold."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray | jax.Array] = []
        self.calls_python = False
        self.unidentified: str | None = None
        self._known: dict[int, str] = {}
        self._types: dict[object, str] = {}

    def read(self, program: ClosedJaxpr | Jaxpr) -> Hash:
        """Its equations: what is computed, how, of which variables, and the types of the results."""
        jaxpr = getattr(program, "jaxpr", program)
        held = [self._parameter("", array) for array in getattr(program, "consts", ())]
        numbers: dict[Var, int] = {}

        def name(variable: Var | Literal) -> str:
            if isinstance(variable, Literal):
                return f"{variable.val!s}:{self._type(variable)}"
            return str(numbers.setdefault(variable, len(numbers)))

        def typed(variables: Iterable[Var]) -> list[str]:
            return [f"{name(variable)}:{self._type(variable)}" for variable in variables]

        lines = [*held, *typed((*jaxpr.constvars, *jaxpr.invars))]
        for equation in jaxpr.eqns:
            self.calls_python |= equation.primitive.name.endswith("callback")
            how = [f"{key}={self._parameter(key, value)}" for key, value in equation.params.items()]
            lines += [equation.primitive.name, *how, *map(name, equation.invars), "=", *typed(equation.outvars)]
        return hashlib.sha256("\n".join((*lines, *map(name, jaxpr.outvars))).encode())

    def _parameter(self, name: str, value: object) -> str:
        if isinstance(value, (ClosedJaxpr, Jaxpr)):
            if id(value) not in self._known:
                self._known[id(value)] = self.read(value).hexdigest()
            return self._known[id(value)]
        if isinstance(value, (np.ndarray, jax.Array)):
            self.arrays.append(value)
            return hash_arrays([value]).hexdigest()
        if type(value) in (tuple, list):
            return f"({', '.join(self._parameter(name, part) for part in value)})"  # type: ignore[attr-defined]
        if name == "callback":
            try:
                return code_identity(getattr(value, "callback_func", value))
            except Unidentified as why:
                self.unidentified = str(why)
        return str(value) if isinstance(value, (int, str, NoneType)) else _ADDRESS.sub("", str(value))

    def _type(self, variable: Var | Literal) -> str:
        aval = variable.aval
        if aval not in self._types:
            self._types[aval] = str(aval)
        return self._types[aval]


def with_exact_callbacks(function: F) -> F:
    """Return the function with callbacks into Python (``jax.pure_callback``, ``io_callback``) in the run's precision.

    JAX calls Python on threads that have only the global setting, and rounds float64 to float32 if that setting says
    so. Therefore these numbers are passed as pairs of 32-bit words.
    """

    @functools.wraps(function)
    def evaluated(*args: PyTree) -> PyTree:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        out = _evaluate(program, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), out)

    return evaluated  # type: ignore[return-value]


def _evaluate(program: ClosedJaxpr, args: Sequence[jax.Array]) -> list[jax.Array]:
    jaxpr = program.jaxpr
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*program.consts, *args), strict=True))

    def read(variable: Var | Literal) -> jax.Array:
        return variable.val if isinstance(variable, Literal) else values[variable]

    def rewrite(parameter: object) -> object:
        if isinstance(parameter, ClosedJaxpr):
            return jax.make_jaxpr(lambda *given: _evaluate(parameter, given))(*parameter.in_avals)
        return tuple(map(rewrite, parameter)) if type(parameter) is tuple else parameter

    for equation in jaxpr.eqns:
        given, parameters = [read(variable) for variable in equation.invars], equation.params
        if equation.primitive.name in ("pure_callback", "io_callback"):
            out = _call_python(given, parameters)
        else:
            parameters = equation.primitive.get_bind_params({name: rewrite(p) for name, p in parameters.items()})
            out = equation.primitive.bind(*given, **parameters)
        values.update(zip(equation.outvars, out if equation.primitive.multiple_results else [out], strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _call_python(args: Sequence[jax.Array], parameters: dict[str, Any]) -> list[jax.Array]:
    x64 = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
    types, results = [arg.dtype for arg in args], parameters["result_avals"]

    def host(*bits: jax.Array) -> list[np.ndarray]:
        arrays = [np.asarray(a).view(t)[..., 0] if wide(t) else np.asarray(a) for a, t in zip(bits, types, strict=True)]
        with jax.enable_x64(x64):
            out = [np.asarray(part) for part in parameters["callback"](*map(jax.device_put, arrays))]
        return [np.array(a, order="C")[..., None].view(np.uint32) if wide(a.dtype) else a for a in out]

    def wide(dtype: np.dtype) -> bool:
        return dtype.name in ("float64", "int64", "uint64")

    def in_bits(aval: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        shape, dtype = ((*aval.shape, 2), np.uint32) if wide(aval.dtype) else (aval.shape, aval.dtype)
        return jax.ShapeDtypeStruct(shape, dtype)

    bits = [jax.lax.bitcast_convert_type(arg, np.uint32) if wide(arg.dtype) else arg for arg in args]
    shapes, sharding = [in_bits(aval) for aval in results], parameters["sharding"]
    if "ordered" in parameters:
        found = io_callback(host, shapes, *bits, sharding=sharding, ordered=parameters["ordered"])
    else:
        found = jax.pure_callback(host, shapes, *bits, sharding=sharding, vmap_method=parameters["vmap_method"])
    return [
        jax.lax.bitcast_convert_type(part, aval.dtype) if wide(aval.dtype) else part
        for part, aval in zip(found, results, strict=True)
    ]
