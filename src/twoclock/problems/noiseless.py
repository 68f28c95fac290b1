"""The noise-free reference: a problem's mean field as a problem of its own."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp

from twoclock.protocols import InputError, Key, Problem, PyTree, Scalar, pytree
from twoclock.tree_math import difference

__all__ = ["exact"]


@pytree
class Exact(Problem):
    """See `exact`."""

    problem: Problem

    def init(self, key: Key) -> tuple[PyTree, PyTree, PyTree]:
        theta, omega, _ = self.problem.init(key)
        return theta, omega, None

    def noise(self, key: Key) -> PyTree:
        return jnp.zeros(())

    def draw(self, u: PyTree, theta: PyTree, env: PyTree) -> tuple[PyTree, PyTree]:
        return u, env

    def F(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return self.field(theta)

    def G(self, theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
        return difference(omega, self.problem.omega_star(theta))

    def h(self, theta: PyTree) -> Scalar:
        return self.problem.h(theta)

    def field(self, theta: PyTree) -> PyTree:
        return self.problem.field(theta)

    def omega_star(self, theta: PyTree) -> PyTree:
        return self.problem.omega_star(theta)

    def measure(self, theta: PyTree, omega: PyTree) -> Mapping[str, Scalar]:
        return self.problem.measure(theta, omega)


def exact(problem: Problem) -> Exact:
    """The same problem with its answers in place of its samples: what a method would do if nothing were random.

        F = the mean of F at ω*(θ),        G = ω − ω*(θ)

    Standard with steps α on it is exact gradient descent; for a regulator, exact natural policy gradient.

    Args:
        problem: one with a truth half: ``h`` or ``field``, ``omega_star`` and ``measure``.

    >>> import twoclock as tc
    >>> problem = tc.problems.exact(tc.problems.paper_lqr())
    >>> result = tc.solve(problem, tc.Standard(alpha=0.2, beta=1.0), steps=100, seeds=1)
    >>> bool(result.history.gap.iloc[-1] < 1e-9)
    True
    """
    if not isinstance(problem, Problem):
        raise InputError(
            f"`problem` must be a `tc.Problem`, got {type(problem).__name__}; try `tc.problems.quadratic()`"
        )
    missing = [n for n in ("omega_star", "measure") if not problem.knows(n)]
    if missing or not (problem.knows("h") or problem.knows("field")):
        raise InputError(f"`problem` must know its answer to be made exact; it has no {', '.join(missing) or 'h'}")
    return Exact(problem)
