"""Linear TD(λ) read from its two operators: the error, the features, the trace and how much of it is kept."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from twoclock.protocols import InputError, Operator, PyTree

Vector = Float[Array, " n"]


class Traced(NamedTuple):
    """What one sample says, for F = −δe and G = ω − e with e = cω + φ, the form of `problems.trace_operators`."""

    delta: Float[Array, ""]
    phi: Vector
    kept: Float[Array, ""]  # c, which is γλ inside an episode and 0 at its first step
    trace: PyTree  # e, of the form of ω
    flat: Vector  # e as one vector


def read(F: Operator, G: Operator, theta: PyTree, omega: PyTree, x: PyTree) -> Traced:
    """The parts of a sample. δ and c are those of the longest direction there is, and 0 where e or ω is."""
    before, back = ravel_pytree(omega)
    f, _ = ravel_pytree(F(theta, omega, x))
    change, _ = ravel_pytree(G(theta, omega, x))
    phi = -ravel_pytree(G(theta, back(jnp.zeros_like(before)), x))[0]
    trace = before - change
    kept = jnp.clip(ratio((trace - phi) @ before, before @ before), 0, 1)
    return Traced(-ratio(f @ trace, trace @ trace), phi, kept, back(trace), trace)


def check_form(method: str, theta: PyTree, omega: PyTree) -> None:
    """Complain where ω cannot be a trace of θ."""
    form: object = jax.tree.structure(theta)
    if form != jax.tree.structure(omega) or jax.tree.map(jnp.shape, theta) != jax.tree.map(jnp.shape, omega):
        raise InputError(
            f"`{method}` needs an ω of the form of θ, for it is the trace of TD(λ); take "
            "`tc.problems.with_trace(problem)`, or `tc.problems.trace_operators(value)` for samples of your own"
        )


def ratio(a: Float[Array, ""], b: Float[Array, ""]) -> Float[Array, ""]:
    """a/b, and 0 where b is."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)
