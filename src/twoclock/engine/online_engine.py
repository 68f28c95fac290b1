"""One lane that learns from given samples, one by one or in batches, bit-for-bit identical.

The program is C made of the step, as for ``solve``, or one program of XLA's where there is no compiler or the step
cannot be generated. Its carry lies in arrays that are written in place, so that they can be read between any two steps.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.codegen import compiler
from twoclock.codegen.compiler import ARGUMENTS, CompilerError, pointers
from twoclock.codegen.ir import Unsupported
from twoclock.codegen.self_check import compare
from twoclock.engine import lane_program
from twoclock.engine.protocol import LaneState, Operators, learn
from twoclock.engine.stored_programs import StoredFunction
from twoclock.engine.tracing import digest_each, trace
from twoclock.protocols import InputError, Method, PyTree, Scalar
from twoclock.validation import short_repr
from twoclock.validation.arrays import flatten_tree

Arrays = list[np.ndarray]

# Numbers in the samples that XLA gets at once.
_XLA_NUMBERS = 1 << 12


@dataclass(frozen=True, eq=False)
class Layout:
    """The structure of a sample, and the shapes and types of its arrays; floats are in the precision of the run."""

    structure: jax.tree_util.PyTreeDef
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype, ...]

    @classmethod
    def of(cls, x: PyTree) -> Layout:
        """Of an example, or of the shapes of one."""
        found, structure = flatten_tree("x", x)
        names = tuple("x" + jax.tree_util.keystr(path) for path, _ in found)
        dtypes = tuple(_dtype(name, leaf) for name, (_, leaf) in zip(names, found, strict=True))
        return cls(structure, names, tuple(np.shape(leaf) for _, leaf in found), dtypes)

    @property
    def example(self) -> PyTree:
        leaves = [jax.ShapeDtypeStruct(*of) for of in zip(self.shapes, self.dtypes, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)

    @property
    def words(self) -> str:
        """As text, for a record and for comparison with it."""
        leaves = ", ".join(f"{n} {d}{list(s)}" for n, d, s in zip(self.names, self.dtypes, self.shapes, strict=True))
        return f"{self.structure}: {leaves}"

    def buffers(self, count: int) -> list[np.ndarray]:
        """Buffers for ``count`` consecutive samples."""
        return [np.zeros((count, *shape), dtype) for shape, dtype in zip(self.shapes, self.dtypes, strict=True)]

    def put(self, x: PyTree, places: list[np.ndarray]) -> None:
        """Copy a sample into arrays of its shapes."""
        leaves, structure = _flat("x", x)
        if structure != self.structure:
            raise InputError(f"`x` must have the structure of the first sample, {self.structure}, got {structure}")
        for i, leaf in enumerate(leaves):
            place = places[i]
            if getattr(leaf, "shape", ()) != place.shape:
                raise InputError(f"`{self.names[i]}` must have shape {place.shape}, as first, got {np.shape(leaf)}")
            try:
                np.copyto(place, leaf, casting="same_kind")
            except (TypeError, ValueError, OverflowError):
                raise self._other_type(i, leaf) from None

    def batch(self, x: PyTree) -> list[np.ndarray]:
        """The batch of one sample."""
        buffers = self.buffers(1)
        self.put(x, [buffer.reshape(buffer.shape[1:]) for buffer in buffers])
        return buffers

    def many(self, xs: PyTree) -> tuple[int, list[np.ndarray]]:
        """Return the number of samples in a batch and its arrays, contiguous; copied only if necessary."""
        leaves, structure = _flat("xs", xs)
        if structure != self.structure and isinstance(xs, list):
            together = self.buffers(len(xs))
            for i, x in enumerate(xs):
                self.put(x, [buffer[i : i + 1].reshape(buffer.shape[1:]) for buffer in together])
            return len(xs), together
        if structure != self.structure:
            raise InputError(
                f"`xs` must have the structure of a sample, {self.structure}, each array with a leading axis, or be a "
                f"list of samples; got {structure}"
            )
        arrays, count = [], None
        for i, leaf in enumerate(leaves):
            array, shape = np.asarray(leaf), self.shapes[i]
            if array.ndim != len(shape) + 1 or array.shape[1:] != shape or count not in (None, len(array)):
                want = f"({'samples' if count is None else count}, {', '.join(map(str, shape))}"
                raise InputError(f"`{self.names[i]}` in `xs` must have shape {want.rstrip(', ')}), got {array.shape}")
            if not np.can_cast(array.dtype, self.dtypes[i], casting="same_kind"):
                raise self._other_type(i, array)
            arrays.append(np.ascontiguousarray(array, self.dtypes[i]))
            count = len(array)
        if count is None:
            raise InputError("`xs` must hold an array at least, whose length is the number of samples; use `update`")
        return count, arrays

    def not_finite(self, arrays: list[np.ndarray]) -> str | None:
        """The name of an entry of one sample that is no finite number."""
        for name, array in zip(self.names, arrays, strict=True):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                return f"{name} = {short_repr(array.tolist())}"
        return None

    def _other_type(self, i: int, leaf: object) -> InputError:
        kind = getattr(leaf, "dtype", type(leaf).__name__)
        return InputError(
            f"`{self.names[i]}` must be {self.dtypes[i]}, as in the first sample, got {kind}; write 0.0 for 0 in the "
            "first where floats are meant"
        )


def _flat(name: str, x: PyTree) -> tuple[list[Any], jax.tree_util.PyTreeDef]:
    """The leaves and the structure, at the speed of a live loop; what JAX cannot take apart gets the slower words."""
    try:
        return jax.tree.flatten(x)
    except Exception:
        flatten_tree(name, x)
        raise


def _dtype(name: str, leaf: object) -> np.dtype:
    try:
        dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
        if dtype.kind not in "biuf":
            raise TypeError
    except (TypeError, ValueError, AttributeError):  # a key's type has no kind
        raise InputError(f"`{name}` must be a number or an array of numbers, got {short_repr(leaf)}") from None
    return np.dtype(jnp.result_type(float) if dtype.kind == "f" else jax.dtypes.canonicalize_dtype(dtype))


class Live:
    """A lane, compiled for samples like the ``first`` ones, on which the program is checked.

    ``engine`` and ``reason`` say which engine runs, and why not the other. ``traced`` is the program of a step, and
    ``identity`` a digest of it and of the numbers in operators and method.
    """

    def __init__(
        self,
        operators: Operators,
        method: Method,
        carry: LaneState,
        layout: Layout,
        bound: float | None,
        engine: str,
        first: Arrays,
    ) -> None:
        self.layout = layout
        leaves, self.structure = jax.tree.flatten(carry)
        self.leaves = [np.array(leaf, order="C") for leaf in leaves]
        self.alive, self.last = self.leaves[-2:]
        self.buffers = layout.buffers(1)
        self.places = [buffer.reshape(buffer.shape[1:]) for buffer in self.buffers]
        traced, program = trace(learn, operators, method, layout.example, carry, np.int32(0))
        if traced.calls_python:
            raise InputError(
                "`F` and `G` of a learner must not call back into Python (`jax.pure_callback`); call it in your own "
                "loop and hand its outcome over in the sample"
            )
        self.traced, self.identity = traced, digest_each(program, [(operators, method)])[0]
        xla = _Xla(self, operators, method, bound)
        made: _Compiled | str = "`engine='xla'` was asked for"
        if engine != "xla":
            with traced.separate_traces():
                made = _compiled(self, operators, method, bound, xla, first)
        self.engine = "xla" if isinstance(made, str) else "c"
        self.reason = made if isinstance(made, str) else None
        if isinstance(made, str) and engine == "c":
            warnings.warn(f"engine 'c': {made}; the learner continues with 'xla'", stacklevel=4)
        self.steps = xla if isinstance(made, str) else made

    def carry(self) -> LaneState:
        return jax.tree.unflatten(self.structure, [leaf.copy() for leaf in self.leaves])


class _Compiled:
    """A compiled step: ``one`` on the sample that lies in the buffers, or ``many``, changing the carry in place."""

    def __init__(self, live: Live, walk: Callable[..., None], tables: Arrays, constants: Sequence[np.ndarray]) -> None:
        # Copies, because JAX would return these conversions of NumPy arrays for any precision while they exist.
        self.tables, self.constants = tables, [np.array(constant) for constant in constants]
        self.leaves = pointers(live.leaves)
        self.kept = live.leaves  # they must outlive the pointers to them
        self.ready = pointers([*tables, *live.buffers, *self.constants])
        address = ctypes.cast(walk, ctypes.c_void_p).value  # type: ignore[arg-type]
        # The GIL is held during one step: to acquire it again would take longer than the step.
        self.at_once = ctypes.PYFUNCTYPE(None, *ARGUMENTS)(address)  # type: ignore[arg-type]
        self.walk = ctypes.CFUNCTYPE(None, *ARGUMENTS)(address)  # type: ignore[arg-type]

    def one(self, k: int) -> None:
        self.at_once(k, k + 1, 0, 1, 1, 1, self.ready, self.leaves, None)

    def many(self, samples: Arrays, lo: int, hi: int) -> None:
        tables = pointers([*self.tables, *samples, *self.constants])
        self.walk(lo, hi, 0, 1, 1, 1, tables, self.leaves, None)


class _Xla:
    """One program for one sample and for many: two might round differently."""

    def __init__(self, live: Live, operators: Operators, method: Method, bound: float | None) -> None:
        self.live, self.x64 = live, bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
        limit, program = None if bound is None else np.float64(bound), live.traced.digest
        self.walk = lambda *given: _walk(operators, method, limit, *given, program=program)
        self.block = live.layout.buffers(max(_XLA_NUMBERS // max(sum(p.size for p in live.places), 1), 1))

    def one(self, k: int) -> None:
        self.many(self.live.buffers, k, k + 1)

    def many(self, samples: Arrays, lo: int, hi: int) -> None:
        after = self.after(self.live.carry(), samples, lo, hi)
        for leaf, new in zip(self.live.leaves, jax.tree.leaves(after), strict=True):
            np.copyto(leaf, new)

    def after(self, carry: LaneState, samples: Arrays, lo: int, hi: int) -> LaneState:
        size = len(self.block[0]) if self.block else hi - lo
        with jax.enable_x64(self.x64), self.live.traced.separate_traces():
            for at in range(0, hi - lo, size):
                count = min(size, hi - lo - at)
                for place, sample in zip(self.block, samples, strict=True):
                    place[:count] = sample[at : at + count]
                xs = jax.tree.unflatten(self.live.layout.structure, [jnp.array(place) for place in self.block])
                carry = self.walk(carry, xs, np.int32(lo + at), np.int32(count))
        return carry


def _take_steps(
    operators: Operators,
    method: Method,
    bound: Scalar | None,
    carry: LaneState,
    xs: PyTree,
    lo: Scalar,
    count: Scalar,
    *,
    program: str,
) -> LaneState:
    """Steps lo … lo+count−1. ``program`` keeps functions apart that have changed since they were compiled."""

    def body(i: Scalar, carry: LaneState) -> LaneState:
        x = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False), xs)
        return learn(operators, method, x, carry, lo + i, bound)

    return jax.lax.fori_loop(0, count, body, carry)


_walk = StoredFunction(_take_steps, static_argnames="program")


def _compiled(
    live: Live, operators: Operators, method: Method, bound: float | None, xla: _Xla, first: Arrays
) -> _Compiled | str:
    """Return the C program of the step after comparing it with XLA, or the reason why there is none."""
    found = compiler.find()
    if isinstance(found, str):
        return found
    carry = live.carry()
    try:
        source = lane_program.online_source(
            operators, method, carry, live.layout.example, bound is not None, live.traced.digest
        )
        build = compiler.compile_text(source.text, source.target.width, found)
        walk = build.function()
    except (Unsupported, CompilerError, OSError) as error:
        return str(error)
    limit = [] if bound is None else [np.asarray(bound, jnp.result_type(float))]
    tables = [np.ascontiguousarray(table) for table in [*jax.tree.leaves((operators, method)), *limit]]
    made = _Compiled(live, walk, tables, source.constants)
    if not build.is_checked():
        samples = [np.resize(sample, (lane_program.CHECKED_STEPS, *sample.shape[1:])) for sample in first]
        lo = int(live.last)
        made.many(samples, lo, lo + lane_program.CHECKED_STEPS)
        expected = xla.after(carry, samples, lo, lo + lane_program.CHECKED_STEPS)
        differs = compare(live.carry(), expected, f" after {lane_program.CHECKED_STEPS} steps")
        for leaf, old in zip(live.leaves, jax.tree.leaves(carry), strict=True):
            np.copyto(leaf, old)
        if differs is not None:
            build.reject()
            return f"the compiled program fails its self-check: {differs}"
        build.accept()
    return made
