"""A loop over steps as a compiled program that JAX can run, batch and differentiate."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from twoclock.codegen import compiler
from twoclock.codegen.ir import CodegenError, Tree
from twoclock.codegen.lower import primitives
from twoclock.codegen.scan_program import generate_scan
from twoclock.codegen.self_check import compare, sample

# Steps of the comparison with XLA before the first use.
_CHECKED_STEPS = 3
# How many programs of the same step are cached.
REMEMBERED = 512


class ScanWarning(UserWarning):
    """``scan`` runs as ``jax.lax.scan``; the message says why."""


class Loop:
    """A loop over steps: a compiled program, or without one ``lax.scan``.

    Args:
        step: ``step(*consts, *carry, *x) -> (*carry, *y)``, without random keys.
        consts: the number of inputs that are the same at each step.
        carries: the number of inputs and of outputs that are the carry.
    """

    def __init__(self, step: ClosedJaxpr, consts: int, carries: int, reverse: bool) -> None:
        self.step, self.consts, self.carries, self.reverse = step, consts, carries, reverse
        self.target: str | None = None  # the name under which XLA knows the program
        self.constants: tuple[np.ndarray, ...] = ()

    def run(self, length: int, consts: Tree, carry: Tree, xs: Tree) -> tuple[Tree, Tree]:
        if self.target is None:
            return self.by_xla(length, consts, carry, xs)
        outs: list[Any] = list(self.step.out_avals)
        types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in outs[: self.carries]]
        types += [jax.ShapeDtypeStruct((length, *a.shape), a.dtype) for a in outs[self.carries :]]
        call = jax.ffi.ffi_call(self.target, types, vmap_method="expand_dims")
        found = tuple(call(*consts, *carry, *xs, *self.constants, length=np.int64(length)))
        return found[: self.carries], found[self.carries :]

    def by_xla(self, length: int, consts: Tree, carry: Tree, xs: Tree) -> tuple[Tree, Tree]:
        function = jaxpr_as_fun(self.step)

        def step(carry: Tree, x: Tree) -> tuple[Tree, Tree]:
            out = tuple(function(*consts, *carry, *x))
            return out[: self.carries], out[self.carries :]

        return lax.scan(step, carry, xs, length, self.reverse)

    def compile(self) -> Loop:
        """Generate, compile and check the program; return the first loop with the same one."""
        by = compiler.find()
        if isinstance(by, str):
            raise compiler.CompilerError(by)
        source = generate_scan(self.step, self.consts, self.carries, self.reverse)
        build = compiler.compile_text(source.text, 1, by)
        same = build.key, *((c.dtype, c.shape, c.tobytes()) for c in source.constants)
        with _lock:
            if same not in _loops:
                function = build.function()
                jax.ffi.register_ffi_target(f"twoclock_scan_{build.key}", jax.ffi.pycapsule(function), platform="cpu")
                self.target, self.constants = f"twoclock_scan_{build.key}", source.constants
                if not build.is_checked() and (difference := self._difference()) is not None:
                    build.reject()
                    raise compiler.CompilerError(f"the compiled program fails its self-check: {difference}")
                build.accept()
                _loops[same] = self
            return _loops[same]

    def _difference(self) -> str | None:
        """Compare a few steps of both. On made-up numbers a loop inside a step might not end."""
        if "while" in primitives(self.step.jaxpr):
            return None
        cut = self.consts + self.carries
        ins = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self.step.in_avals]
        stacked = [jax.ShapeDtypeStruct((_CHECKED_STEPS, *a.shape), a.dtype) for a in ins[cut:]]
        drawn = tuple(sample([*ins[:cut], *stacked]))
        operands = drawn[: self.consts], drawn[self.consts : cut], drawn[cut:]

        def check() -> str | None:
            with jax.enable_x64(True):  # for operands with 64 bits; the others stay as they are
                ours, xla = (_at_once(way, _CHECKED_STEPS, *operands) for way in (self.run, self.by_xla))
            return compare(ours, xla, f" after {_CHECKED_STEPS} steps")

        # In a separate thread, since the call itself may be inside a trace.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(check).result()


_loops: dict[tuple[Any, ...], Loop] = {}
_lock = threading.RLock()


# Unoptimised: a check has to be quick.
@partial(jax.jit, static_argnums=(0, 1), compiler_options={"xla_backend_optimization_level": 0})
def _at_once(way: Callable[..., tuple[Tree, Tree]], length: int, *operands: Tree) -> tuple[Tree, Tree]:
    return way(length, *operands)


@lru_cache(REMEMBERED)
def compile_loop(step: ClosedJaxpr, consts: int, carries: int, reverse: bool) -> Loop:
    return Loop(step, consts, carries, reverse).compile()


@partial(jax.jit, static_argnums=(0, 1))
@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def run_loop(loop: Loop, length: int, consts: Tree, carry: Tree, xs: Tree) -> tuple[Tree, Tree]:
    return loop.run(length, consts, carry, xs)


@jax.tree_util.register_static
class _Wanted(tuple[tuple[bool, ...], tuple[bool, ...]]):
    """The constants and the xs with respect to which a derivative is taken."""


def _forward(loop: Loop, length: int, *operands: Tree) -> tuple[tuple[Tree, Tree], Tree]:
    """Run the loop, and store the carry before each step."""
    consts, carry, xs = jax.tree.map(lambda leaf: leaf.value, operands, is_leaf=_is_primal)
    wanted = _Wanted(tuple(leaf.perturbed and _is_real(leaf.value) for leaf in part) for part in operands[::2])
    last, ys = run_loop(_with_carries(loop), length, consts, carry, xs)
    count = len(ys) - len(carry)
    return (last, ys[:count]), (consts, ys[count:], xs, wanted)


def _backward(loop: Loop, length: int, residuals: Tree, cotangents: tuple[Tree, Tree]) -> tuple[Tree, Tree, Tree]:
    """Pull the cotangents back step by step, from the last step to the first."""
    consts, carries, xs, wanted = residuals
    d_carry, d_ys = (
        tuple(_instantiate(d) for d, aval in zip(part, avals, strict=True) if _is_real(aval))
        for part, avals in zip(cotangents, _cut(loop.step.out_avals, loop.carries), strict=True)
    )
    sums = tuple(jnp.zeros(c.shape, c.dtype) for c, want in zip(consts, wanted[0], strict=True) if want)
    backward = _pulled_back(loop, wanted)
    found, d_xs = run_loop(backward, length, consts, (*d_carry, *sums), (*carries, *xs, *d_ys))
    of_carry, of_consts, of_xs = iter(found[: len(d_carry)]), iter(found[len(d_carry) :]), iter(d_xs)
    return (
        tuple(next(of_consts) if want else None for want in wanted[0]),
        tuple(next(of_carry) if _is_real(c) else None for c in carries),
        tuple(next(of_xs) if want else None for want in wanted[1]),
    )


run_loop.__wrapped__.defvjp(_forward, _backward, symbolic_zeros=True)  # type: ignore[attr-defined]


@lru_cache(REMEMBERED)
def _with_carries(loop: Loop) -> Loop:
    """Return the loop that has the carry before each step among its outputs."""
    carried = slice(loop.consts, loop.consts + loop.carries)

    def step(*values: Any) -> list[Any]:
        return [*jaxpr_as_fun(loop.step)(*values), *values[carried]]

    return _derived(jax.make_jaxpr(step)(*loop.step.in_avals), loop.consts, loop.carries, loop.reverse)


@lru_cache(REMEMBERED)
def _pulled_back(loop: Loop, wanted: _Wanted) -> Loop:
    """Return the loop that pulls cotangents back; its carry has those of the carry and sums for the constants."""
    avals: list[Any] = list(loop.step.in_avals)
    cut, kept = loop.consts + loop.carries, jaxpr_as_fun(loop.step)
    asked = [*wanted[0], *(_is_real(a) for a in avals[loop.consts : cut]), *wanted[1]]
    reals = [i for i, a in enumerate(loop.step.out_avals) if _is_real(a)]
    d_carry, d_ys = (list(filter(_is_real, part)) for part in _cut(loop.step.out_avals, loop.carries))
    sums = [a for a, want in zip(avals[: loop.consts], wanted[0], strict=True) if want]

    def step(*values: Any) -> list[Any]:
        consts, d_after, totals, rows, d_out = _cut(
            values, loop.consts, len(d_carry), len(sums), len(avals) - loop.consts
        )
        inputs = [*consts, *rows]

        def real_part(*some: Any) -> list[Any]:
            given = iter(some)
            out = kept(*(next(given) if ask else value for ask, value in zip(asked, inputs, strict=True)))
            return [out[i] for i in reals]

        _, pull = jax.vjp(real_part, *(value for ask, value in zip(asked, inputs, strict=True) if ask))
        d_sums, d_before, d_rows = _cut(pull([*d_after, *d_out]), len(sums), len(d_carry))
        return [*d_before, *(total + d for total, d in zip(totals, d_sums, strict=True)), *d_rows]

    shapes = [*avals[: loop.consts], *d_carry, *sums, *avals[loop.consts :], *d_ys]
    traced = jax.make_jaxpr(step)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in shapes))
    return _derived(traced, loop.consts, len(d_carry) + len(sums), not loop.reverse)


def _derived(step: ClosedJaxpr, consts: int, carries: int, reverse: bool) -> Loop:
    """Compile a loop of a derivative; if that is impossible it runs as ``lax.scan``."""
    try:
        return compile_loop(step, consts, carries, reverse)
    except CodegenError as reason:
        warnings.warn(f"the derivative of scan runs as lax.scan, because {reason}", ScanWarning, stacklevel=2)
        return Loop(step, consts, carries, reverse)


def _cut(values: Sequence[Any], *counts: int) -> list[Sequence[Any]]:
    """Parts of these lengths, and the rest."""
    ends = [0, *itertools.accumulate(counts), len(values)]
    return [values[begin:end] for begin, end in itertools.pairwise(ends)]


def _is_real(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jnp.floating)


def _is_primal(value: Any) -> bool:
    return hasattr(value, "perturbed")


def _instantiate(cotangent: Any) -> Any:
    if isinstance(cotangent, SymbolicZero):
        aval: Any = cotangent.aval
        return jnp.zeros(aval.shape, aval.dtype)
    return cotangent
