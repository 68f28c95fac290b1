"""Compiling a loop of small steps to one native function on the CPU.

XLA runs a loop whose data exceed a kilobyte as a sequence of small kernels, and at few seeds most of a step goes into
launching them. Marked as a small call, the loop becomes a single function: 5 times faster at one seed, 1.5 times at a
thousand. It then has no threads and no matrix library of its own, so a step with large products, sorts or
factorisations is left as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import Jaxpr, jaxprs_in_params

# Multiplications in one product above which the matrix library is worth its kernels.
_LARGE_PRODUCT = 1 << 15
_LIBRARY = {
    "approx_top_k", "cholesky", "conv_general_dilated", "eig", "eigh", "ffi_call", "fft", "geqrf",
    "householder_product", "io_callback", "lu", "ormqr", "pure_callback", "qr", "ragged_dot", "schur", "sort", "svd",
    "top_k", "triangular_solve", "tridiagonal_solve",
}  # fmt: skip


def jit_loop(function: Callable[..., Any], static_argnames: str | tuple[str, ...]) -> Callable[..., Any]:
    """``jax.jit`` for a function that is all loop; on the CPU as one native function wherever that suits its steps."""
    plain = jax.jit(function, static_argnames=static_argnames)
    suits: dict[Any, bool] = {}

    @partial(jax.jit, static_argnames=static_argnames)
    def touching_all(*args: Any, **static: Any) -> Any:
        # XLA aborts on a small call one of whose arguments turns out to be unused, so each is touched.
        touched = [jnp.ravel(leaf)[0].astype(float) for leaf in jax.tree.leaves(args) if leaf.size]
        return function(*args, **static), jnp.stack(touched)

    def marked(*args: Any, **static: Any) -> Any:
        return set_xla_metadata(touching_all(*args, **static), xla_cpu_small_call="true", inlineable="false")

    @cache
    def native() -> Any:  # not before it is needed: asking for the option wakes the backend
        return jax.jit(marked, static_argnames=static_argnames, compiler_options=_without_library_fusions())

    def call(*args: Any, **static: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        key = (structure, *(jax.typeof(leaf) for leaf in leaves), *static.items())
        if key not in suits:
            suits[key] = jax.default_backend() == "cpu" and _is_small(plain.trace(*args, **static).jaxpr.jaxpr)
        if suits[key]:
            try:
                return native()(*args, **static)[0]
            except jax.errors.JaxRuntimeError as error:
                if "UNIMPLEMENTED" not in str(error):
                    raise
                suits[key] = False
        return plain(*args, **static)

    return call


def _is_small(jaxpr: Jaxpr, looping: bool = False) -> bool:
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        # A loop of unknown length inside the loop brings the compiler down, with no error to catch.
        if name in _LIBRARY or _product(equation) > _LARGE_PRODUCT or (looping and name == "while"):
            return False
        inside = looping or name == "while"
        if not all(_is_small(getattr(inner, "jaxpr", inner), inside) for inner in jaxprs_in_params(equation.params)):
            return False
    return True


def _product(equation: Any) -> int:
    """Multiplications in a matrix product; without free axes on both sides it is a plain sum and counts nothing."""
    if equation.primitive.name != "dot_general":
        return 0
    (contract_left, contract_right), (batch_left, batch_right) = equation.params["dimension_numbers"]
    left, right = (v.aval.shape for v in equation.invars)
    if len(left) == len(contract_left) + len(batch_left) or len(right) == len(contract_right) + len(batch_right):
        return 0
    return math.prod(left) * math.prod(n for i, n in enumerate(right) if i not in (*contract_right, *batch_right))


def _without_library_fusions() -> dict[str, str] | None:
    """The compiler option that keeps small products in the loop, where this version of XLA has it."""
    options = {"xla_cpu_experimental_ynn_fusion_type": "", "xla_cpu_multi_thread_eigen": "false"}
    try:
        jax.jit(lambda x: x + 1, compiler_options=options).lower(0).compile()
    except jax.errors.JaxRuntimeError:
        return None
    return options
