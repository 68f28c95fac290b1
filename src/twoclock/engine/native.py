"""Compiling a loop of small steps to one native function on the CPU.

XLA runs a loop whose data exceed a kilobyte as a sequence of small kernels, and at few seeds most of a step goes into
launching them. Marked as a small call, the loop becomes a single function: 5 times faster at one seed, 1.5 times at a
thousand. It then has no threads and no matrix library of its own, so a step with large products, sorts or
factorisations, or with control flow of its own, is left as it was.
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
# What a step may be made of. Some things outside this list (a loop within the loop, for one) bring XLA's compiler down
# with no error to catch, so what is not known to be safe is not tried.
_SAFE = frozenset(
    """
    abs acos acosh add add_any and argmax argmin asin asinh atan atan2 atanh broadcast_in_dim cbrt ceil clamp
    concatenate convert_element_type copy copy_p cos cosh custom_jvp_call custom_vjp_call div dot_general dynamic_slice
    eq erf erf_inv erfc exp exp2 expand_dims expm1 floor gather ge gt integer_pow iota is_finite jit le log log1p
    logistic lt max min mul ne neg nextafter not optimization_barrier or pad pjit population_count pow
    reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum rem reshape rev round rsqrt scatter scatter-add
    select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh slice split sqrt square squeeze
    stop_gradient sub tan tanh transpose xor
    """.split()  # noqa: SIM905
)


def jit_loop(function: Callable[..., Any], static_argnames: str | tuple[str, ...] = ()) -> Callable[..., Any]:
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
            except jax.errors.JaxRuntimeError:
                suits[key] = False  # Fall back; a genuine error recurs on the plain path.
        return plain(*args, **static)

    return call


def _is_small(jaxpr: Jaxpr, looping: bool = False) -> bool:
    """Whether this is one loop, with nothing in its body that does not suit a small function."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        the_loop = name == "while" and not looping
        if not (the_loop or name in _SAFE) or _product(equation) > _LARGE_PRODUCT:
            return False
        inner = (getattr(inner, "jaxpr", inner) for inner in jaxprs_in_params(equation.params))
        if not all(_is_small(part, looping or the_loop) for part in inner):
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


def _without_library_fusions() -> dict[str, str | bool] | None:
    """The compiler options that keep matrix libraries and thread pools out, where this version of XLA has them."""
    options: dict[str, str | bool] = {"xla_cpu_experimental_ynn_fusion_type": "", "xla_cpu_multi_thread_eigen": False}
    try:
        jax.jit(lambda x: x + 1, compiler_options=options).lower(0).compile()
    except jax.errors.JaxRuntimeError:
        return None
    return options
