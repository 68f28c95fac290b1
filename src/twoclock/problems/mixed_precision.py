"""Operators that compute in bfloat16 on variables and averages that stay in float32."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from twoclock.protocols import Key, Problem, ProblemSource, PyTree, pytree


def _forward(name: str) -> Any:
    return lambda mixed, *args: getattr(mixed.problem, name)(*args)


@pytree
class MixedPrecision(Problem):
    """A problem whose F and G are computed in bfloat16, from float32 and to float32.

    The iterates, their compensated sums, the samples' draw and the metrics stay in float32. XLA adds up products and
    means of bfloat16 numbers in float32.
    """

    problem: Problem
    # Differences of nearby values vanish in eight bits.
    instead_of_roots = 'a method with step sizes, such as tc.Polyak(tc.Standard()), or precision="float32"'
    init, noise, draw, sample, measure, report, h, omega_star = (
        _forward(name) for name in ("init", "noise", "draw", "sample", "measure", "report", "h", "omega_star")
    )

    @property
    def samples_see_omega(self) -> bool:
        return self.problem.samples_see_omega

    @property
    def omega_is_trace(self) -> bool:  # type: ignore[override]
        return self.problem.omega_is_trace

    def knows(self, member: str) -> bool:
        return self.problem.knows(member)

    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self._in_bfloat16("F", theta, omega, x)

    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self._in_bfloat16("G", theta, omega, x)

    def _in_bfloat16(self, name: str, *args: PyTree) -> PyTree:
        operator = getattr(_cast(self.problem, jnp.bfloat16), name)
        return _cast(operator(*_cast(args, jnp.bfloat16)), jnp.float32)


def _cast(tree: PyTree, dtype: DTypeLike) -> PyTree:
    def one(leaf: PyTree) -> PyTree:
        return jnp.asarray(leaf, dtype) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf

    return jax.tree.map(one, tree)


def mixed_precision(source: ProblemSource) -> ProblemSource:
    """The same problem, or function of a key that makes one, with F and G in bfloat16."""
    return MixedPrecision(source) if isinstance(source, Problem) else partial(_make, source)


def _make(source: Any, key: Key) -> MixedPrecision:
    return MixedPrecision(source(key))
