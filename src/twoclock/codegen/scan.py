"""``scan``: the loop of ``jax.lax.scan`` as compiled C."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.extend.core import Literal as KnownNumber

from twoclock.codegen.ir import CodegenError, Tree, Unsupported
from twoclock.codegen.lower import scan_counts
from twoclock.codegen.scan_loop import REMEMBERED, ScanWarning, compile_loop, run_loop

Carry = TypeVar("Carry")
X = TypeVar("X")
Y = TypeVar("Y")


def scan(
    step: Callable[[Carry, X], tuple[Carry, Y]],
    init: Carry,
    xs: X | None = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    engine: Literal["auto", "c", "xla"] = "auto",
) -> tuple[Carry, Y]:
    """Repeat ``carry, y = step(carry, x)`` over the leading axis of ``xs``: ``jax.lax.scan`` as compiled C.

    Arguments and results are those of ``jax.lax.scan``, to rounding. It may be called directly or under ``jax.jit``,
    ``jax.vmap`` and ``jax.grad``; the derivative is a compiled loop too. A program is compiled once for a step and the
    shapes of its arguments, for all lengths, and is stored in the user's cache folder. Before its first use, three of
    its steps are compared with XLA; if the two disagree, or the step cannot be compiled, the loop runs as
    ``jax.lax.scan`` and a ``ScanWarning`` says why.

    Args:
        step: a function of the carry and a slice of ``xs`` that returns the next carry and an output.
        init: the first carry, any pytree of arrays.
        xs: a pytree of arrays with a common leading axis; None for none.
        length: the number of steps; None for that of ``xs``.
        reverse: whether to go from the last slice to the first.
        unroll: passed to ``jax.lax.scan`` if that runs; the compiled loop does not need it.
        engine: "auto"; "c" to raise ``CodegenError`` instead of falling back; "xla" for ``jax.lax.scan``.

    Returns:
        The last carry, and the outputs of all steps stacked along a leading axis.

    Raises:
        ValueError: if the arguments do not fit together; the message is one line.

    Example:
        >>> import jax.numpy as jnp, twoclock as tc
        >>> total, before = tc.scan(lambda total, x: (total + x, total), 0, jnp.arange(5))
        >>> int(total), before.tolist()
        (10, [0, 0, 1, 3, 6])
    """
    _check(step, init, xs, unroll, engine)
    reverse = bool(reverse)
    steps = _count_steps(xs, length)
    if engine == "xla":
        return lax.scan(step, init, xs, steps, reverse, unroll)
    try:
        if (backend := jax.default_backend()) != "cpu":
            raise Unsupported(f"the default device is a {backend}, and compiled loops run on CPUs")
        traced, out = _trace(step, init, xs, steps, reverse)
        with jax.named_scope("scan"):
            leaves = _evaluate(traced, jax.tree.leaves((init, xs)))
    except CodegenError as reason:
        if engine == "c":
            raise
        warnings.warn(f"scan runs as lax.scan, because {reason}", ScanWarning, stacklevel=2)
        return lax.scan(step, init, xs, steps, reverse, unroll)
    return jax.tree.unflatten(out, leaves)


def _check(step: object, init: Tree, xs: Tree, unroll: object, engine: object) -> None:
    if not isinstance(engine, str) or engine not in ("auto", "c", "xla"):
        given = repr(engine[:60]) if isinstance(engine, str) else type(engine).__name__
        raise ValueError(f"`engine` must be 'auto', 'c' or 'xla', got {given}")
    if not callable(step):
        raise ValueError(f"`step` must be a function of a carry and a slice of `xs`, got {type(step).__name__}")
    if not isinstance(unroll, int) or unroll < 0:
        raise ValueError("`unroll` must be a truth value or a whole number of at least 0")
    for name, tree in (("init", init), ("xs", xs)):
        try:
            for leaf in jax.tree.leaves(tree):
                jax.typeof(leaf)
        except Exception:  # the shape of each kind of object, and those of the object itself
            kind = type(tree).__name__
            raise ValueError(f"`{name}` must hold arrays and numbers that JAX can take, got {kind}") from None


def _count_steps(xs: Tree, length: int | None) -> int:
    leaves = jax.tree.leaves(xs)
    if any(np.ndim(leaf) == 0 for leaf in leaves):
        raise ValueError("`xs` must have a leading axis in each of its arrays, got a number; close over it instead")
    lengths = sorted({int(np.shape(leaf)[0]) for leaf in leaves})
    if len(lengths) > 1:
        raise ValueError(f"`xs` must have one leading length, got {lengths}; cut its arrays to the shortest")
    if length is None:
        if not lengths:
            raise ValueError("`length` must be given where `xs` has no arrays")
        return lengths[0]
    try:
        steps = operator.index(length)
    except TypeError:  # arrays have the method too, and raise; so does what JAX traces
        got = type(length).__name__
        raise ValueError(f"`length` must be a whole number known before the call, got {got}") from None
    if not 0 <= steps < 2**63:
        raise ValueError("`length` must be at least 0 and less than 2⁶³")
    if lengths and lengths[0] != steps:
        raise ValueError(f"`length` must be that of `xs`, {lengths[0]}, got {steps}; leave it out")
    return steps


def _trace(step: Callable[..., Any], init: Tree, xs: Tree, steps: int, reverse: bool) -> tuple[ClosedJaxpr, Any]:
    """Trace ``lax.scan`` of the step, which checks the carry and finds what the step closes over."""
    try:
        traced, shape = jax.make_jaxpr(
            lambda init, xs: lax.scan(step, init, xs, steps, reverse),
            return_shape=True,  # type: ignore[call-overload,unused-ignore]
        )(init, xs)
    except TypeError as error:
        text = " ".join(str(error).split())
        if not text.startswith(("scan", "Scan", "The scanned function")):
            raise
        raise ValueError(
            f"`step` must return a pair, the carry with its old shapes and types and an output: {text}"
        ) from None
    return traced, jax.tree.structure(shape)


def _evaluate(traced: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
    """Evaluate a jaxpr, and its scan as a compiled loop."""
    jaxpr = traced.jaxpr
    known: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*traced.consts, *inputs), strict=True))

    def read(v: Any) -> Any:
        return v.val if isinstance(v, KnownNumber) else known[v]

    if sum(eqn.primitive.name == "scan" for eqn in jaxpr.eqns) != 1:
        raise Unsupported("there is nothing to compile, or jax.disable_jit is on")
    for eqn in jaxpr.eqns:
        values = [read(v) for v in eqn.invars]
        if eqn.primitive.name == "scan":
            results = _scan(eqn, values)
        else:
            found = eqn.primitive.bind(*values, **eqn.params)
            results = found if eqn.primitive.multiple_results else [found]
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _scan(eqn: Any, values: list[Any]) -> list[Any]:
    body, ins, outs = eqn.params["jaxpr"], *([v.aval for v in vs] for vs in (eqn.invars, eqn.outvars))
    if not outs:
        raise Unsupported("there is nothing to compute")
    fixed, carried = scan_counts(ins, outs, body)
    loop = compile_loop(_without_keys(body), fixed, carried, bool(eqn.params["reverse"]))
    words = [
        jax.random.key_data(v) if _is_key(aval) else jnp.asarray(v, aval.dtype)
        for v, aval in zip(values, ins, strict=True)
    ]
    cut = fixed + carried
    operands = tuple(words[:fixed]), tuple(words[fixed:cut]), tuple(words[cut:])
    carry, ys = run_loop(loop, int(eqn.params["length"]), *operands)
    return [_wrap(v) if _is_key(aval) else v for v, aval in zip((*carry, *ys), outs, strict=True)]


@lru_cache(REMEMBERED)
def _without_keys(body: ClosedJaxpr) -> ClosedJaxpr:
    """Return a step that takes and returns the words of random keys instead of the keys."""
    if not any(map(_is_key, (*body.in_avals, *body.out_avals))):
        return body
    if other := [str(a.dtype) for a in (*body.in_avals, *body.out_avals) if _is_key(a) and str(a.dtype) != "key<fry>"]:
        raise Unsupported(f"random numbers of the kind {other[0]} are not generated")

    def step(*words: Any) -> list[Any]:
        values = (_wrap(w) if _is_key(aval) else w for w, aval in zip(words, body.in_avals, strict=True))
        return [jax.random.key_data(v) if _is_key(v) else v for v in jaxpr_as_fun(body)(*values)]

    avals: list[Any] = list(body.in_avals)
    shapes = (((*a.shape, 2), np.uint32) if _is_key(a) else (a.shape, a.dtype) for a in avals)
    return jax.make_jaxpr(step)(*(jax.ShapeDtypeStruct(*shape) for shape in shapes))


def _wrap(words: Any) -> jax.Array:
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def _is_key(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
