"""The residuals of the paper along a run: Δf, Δg and its Lyapunov function V."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

from twoclock.methods import Fast
from twoclock.methods.fast import FastState
from twoclock.protocols import InputError, Method, Problem, forwarded, pytree, static
from twoclock.theory.certificate import METRICS
from twoclock.tree_math import difference, sqnorm
from twoclock.validation import choice
from twoclock.validation.run_args import check_problem

__all__ = ["Residuals", "residuals"]

_DISTANCES = {structure: "error" if structure == "strongly-convex" else "gap" for structure in METRICS}


@pytree
class Residuals(Method):
    """A ``Fast`` that also records the distances of its averages from the means; see `residuals`."""

    method: Fast
    problem: Problem
    structure: str = static("strongly-convex")

    init, step, estimate = forwarded("method", "init", "step", "estimate")

    def report(self, state: FastState) -> Mapping[str, Float[Array, ""]]:
        at = state.theta, state.omega
        off_f = sqnorm(difference(state.f, self.problem.mean_F(*at)))
        off_g = sqnorm(difference(state.g, self.problem.mean_G(*at)))
        known = self.problem.measure(*at)
        tracking = [jnp.asarray(value) for name, value in known.items() if name.startswith("tracking")]
        whole = sum(tracking, jnp.asarray(known[_DISTANCES[self.structure]])) + off_f + off_g
        return {**self.method.report(state), "delta_f": off_f, "delta_g": off_g, "V": whole}


def residuals(problem: Problem, method: Fast, structure: str = "strongly-convex") -> Residuals:
    """``Fast`` on a problem with known means, which records the residuals of the paper's proofs.

        delta_f = ‖f − F(θ, ω)‖²,    delta_g = ‖g − G(θ, ω)‖²,    V = delta_f + delta_g + ‖ω − ω*(θ)‖² + x

    with F(θ, ω) and G(θ, ω) the means over samples and x the distance of the structure: ``error`` for
    strongly convex h, ``gap`` otherwise. The trajectory is that of the method itself.

    Args:
        problem: a problem with ``mean_F`` and ``mean_G`` that measures x and ``tracking``.
        method: a ``Fast``.
        structure: "strongly-convex", "pl" or "non-convex", as in ``certify``.

    >>> import twoclock as tc
    >>> problem = tc.problems.rates("strongly-convex")
    >>> result = tc.solve(problem, tc.theory.residuals(problem, tc.Fast()), steps=1000, seeds=4)
    >>> {"delta_f", "delta_g", "V"} <= set(result.history.columns)
    True

    Reference: Zeng & Doan, eq. (residuals) and the Lyapunov function of Theorem 1.
    """
    choice("residuals(structure=…)", structure, METRICS)
    made = check_problem(problem)
    if not isinstance(made, Problem):
        raise InputError("`residuals(problem=…)` must be one problem, not a function of a key; make it first")
    if not isinstance(method, Fast):
        raise InputError(
            f"`residuals(method=…)` must be a `Fast`, got {type(method).__name__}; other methods keep no averages f, g"
        )
    if lacking := [name for name in ("mean_F", "mean_G", "measure") if not made.knows(name)]:
        raise InputError(
            f"`residuals(problem=…)` must know its means and its distances; {type(made).__name__} has no "
            f"`{lacking[0]}`; take one of `tc.problems` that does, such as `quadratic`"
        )
    return Residuals(method, made, structure)
