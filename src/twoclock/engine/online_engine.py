"""One lane that learns from samples it is handed, one by one or many at a time, to the same bits.

The program is C made of the step, as for ``solve``, or one program of XLA's where there is no compiler or the step
cannot be generated. Its carry lies in arrays that are written in place, so that they can be read between any two steps.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.codegen.ir import Unsupported
from twoclock.engine import c_engine, compiler, self_check, source_cache
from twoclock.engine.compiler import CompilerError
from twoclock.engine.program_digest import digest, with_numbers
from twoclock.engine.sample_spec import Layout
from twoclock.engine.step import LaneState, Operators, learn
from twoclock.engine.trace_checks import calls_python
from twoclock.protocols import InputError, Method, PyTree, Scalar

Arrays = list[np.ndarray]

# Numbers in the samples that XLA gets at once.
_XLA_NUMBERS = 1 << 12
_SIGNATURE = (None, *[ctypes.c_int64] * 6, *[ctypes.c_void_p] * 3)


@runtime_checkable
class Steps(Protocol):
    """A compiled step. It changes the arrays of the carry in place."""

    def one(self, k: int) -> None:
        """Step k on the sample that lies in the buffers."""

    def many(self, samples: Arrays, lo: int, hi: int) -> None:
        """Steps lo … hi−1 on as many samples."""


class Live:
    """A lane, compiled for samples like the first.

    Args:
        operators: F and G, a pytree in the precision of the run.
        method: the method, likewise.
        carry: where it starts.
        layout: of the samples.
        bound: as for ``solve``.
        engine: "auto", "c" or "xla".
        first: a sample or a few, to check the program on.

    Attributes:
        engine, reason: what walks, and why it is not the other.
        program: a digest of what a step computes.
        identity: the same with the numbers of operators and method.
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
        program = jax.make_jaxpr(lambda *given: learn(*given))(operators, method, layout.example, carry, np.int32(0))
        if calls_python(program.jaxpr):
            raise InputError(
                "`F` and `G` of a learner must not call back into Python (`jax.pure_callback`); call it in your own "
                "loop and hand its outcome over in the sample"
            )
        self.program, self.identity = digest(program), with_numbers(program, (operators, method))
        xla = _Xla(self, operators, method, bound, self.program)
        made = (
            "`engine='xla'` was asked for" if engine == "xla" else _compiled(self, operators, method, bound, xla, first)
        )
        self.engine = "xla" if isinstance(made, str) else "c"
        self.reason = made if isinstance(made, str) else None
        if isinstance(made, str) and engine == "c":
            warnings.warn(f"engine 'c': {made}; the learner goes on with 'xla'", stacklevel=4)
        self.steps: Steps = xla if isinstance(made, str) else made

    def carry(self) -> LaneState:
        """A copy."""
        return jax.tree.unflatten(self.structure, [leaf.copy() for leaf in self.leaves])


class _Compiled:
    def __init__(self, live: Live, walk: Callable[..., None], tables: Arrays, constants: Sequence[np.ndarray]) -> None:
        self.tables, self.constants = tables, list(constants)
        self.leaves = c_engine.pointers(live.leaves)
        self.kept = live.leaves  # they must outlive the pointers to them
        self.ready = c_engine.pointers([*tables, *live.buffers, *self.constants])
        address = ctypes.cast(walk, ctypes.c_void_p).value  # type: ignore[arg-type]
        # One step is too short to let other threads in: to get back in line takes longer than the step.
        self.at_once = ctypes.PYFUNCTYPE(*_SIGNATURE)(address)  # type: ignore[arg-type]
        self.walk = ctypes.CFUNCTYPE(*_SIGNATURE)(address)  # type: ignore[arg-type]

    def one(self, k: int) -> None:
        self.at_once(k, k + 1, 0, 1, 1, 1, self.ready, self.leaves, None)

    def many(self, samples: Arrays, lo: int, hi: int) -> None:
        tables = c_engine.pointers([*self.tables, *samples, *self.constants])
        self.walk(lo, hi, 0, 1, 1, 1, tables, self.leaves, None)


class _Xla:
    """One program for one sample and for many: two might round differently."""

    def __init__(self, live: Live, operators: Operators, method: Method, bound: float | None, program: str) -> None:
        self.live, self.x64 = live, bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
        self.walk = partial(
            _walk, operators, method, bound=None if bound is None else np.float64(bound), program=program
        )
        self.block = live.layout.buffers(max(_XLA_NUMBERS // max(sum(p.size for p in live.places), 1), 1))

    def one(self, k: int) -> None:
        self.many(self.live.buffers, k, k + 1)

    def many(self, samples: Arrays, lo: int, hi: int) -> None:
        after = self.after(self.live.carry(), samples, lo, hi)
        for leaf, new in zip(self.live.leaves, jax.tree.leaves(after), strict=True):
            np.copyto(leaf, new)

    def after(self, carry: LaneState, samples: Arrays, lo: int, hi: int) -> LaneState:
        size = len(self.block[0]) if self.block else hi - lo
        with jax.enable_x64(self.x64):
            for at in range(0, hi - lo, size):
                count = min(size, hi - lo - at)
                for place, sample in zip(self.block, samples, strict=True):
                    place[:count] = sample[at : at + count]
                xs = jax.tree.unflatten(self.live.layout.structure, [jnp.array(place) for place in self.block])
                carry = self.walk(carry, xs, np.int32(lo + at), np.int32(count))
        return carry


@partial(jax.jit, static_argnames="program")
def _walk(
    operators: Operators,
    method: Method,
    carry: LaneState,
    xs: PyTree,
    lo: Scalar,
    count: Scalar,
    *,
    bound: Scalar | None,
    program: str,
) -> LaneState:
    """Steps lo … lo+count−1. ``program`` keeps functions apart that have changed since they were compiled."""

    def body(i: Scalar, carry: LaneState) -> LaneState:
        x = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False), xs)
        return learn(operators, method, x, carry, lo + i, bound)

    return jax.lax.fori_loop(0, count, body, carry)


def _compiled(
    live: Live, operators: Operators, method: Method, bound: float | None, xla: _Xla, first: Arrays
) -> _Compiled | str:
    """The C program of the step, once it has shown that it computes what XLA computes; or why there is none."""
    found = compiler.find()
    if isinstance(found, str):
        return found
    carry = live.carry()
    try:
        source = source_cache.live(operators, method, carry, live.layout.example, bound is not None, live.program)
        build = c_engine.build(source, found)
        walk = build.function()
    except Unsupported as reason:
        return str(reason)
    except (CompilerError, OSError) as error:
        return str(error)
    limit = [] if bound is None else [np.asarray(bound, jnp.result_type(float))]
    tables = [np.ascontiguousarray(table) for table in [*jax.tree.leaves((operators, method)), *limit]]
    made = _Compiled(live, walk, tables, source.constants)
    if not build.checked():
        samples = [np.resize(sample, (self_check.STEPS, *sample.shape[1:])) for sample in first]
        lo = int(live.last)
        made.many(samples, lo, lo + self_check.STEPS)
        differs = self_check.compare(live.carry(), xla.after(carry, samples, lo, lo + self_check.STEPS))
        for leaf, old in zip(live.leaves, jax.tree.leaves(carry), strict=True):
            np.copyto(leaf, old)
        if differs is not None:
            build.reject()
            return f"the compiled program fails its self-check: {differs}"
        build.accept()
    return made
