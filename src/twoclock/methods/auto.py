"""The method that ``solve`` runs where none is given."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Array

from twoclock import tree_math
from twoclock.methods.matrix_free_zap import MatrixFreeZap, MatrixFreeZapState
from twoclock.methods.zap import FAR, Zap, ZapState
from twoclock.protocols import Method, Operator, PyTree, Scalar, checked, pytree
from twoclock.validation import whole

AutoState = ZapState | MatrixFreeZapState


@pytree
class Auto(Method):
    """Needs no step size, no scale and no horizon: ``Zap`` where its matrices are affordable, else ``MatrixFreeZap``.

    What they need to know of a problem (curvature, noise, when to move and how far) they measure on the samples of the
    run itself, so there is no pilot: every sample counts for the answer. The choice depends on the sizes of θ and ω
    alone; ``result.chosen`` explains it, and ``result.method`` is the chosen method, which runs the same, bit for bit.

    Args:
        max_dim: ``Zap`` for so many entries of θ and ω together, whose square it keeps.

    >>> import twoclock as tc
    >>> tc.solve(tc.problems.quadratic(dim=2), steps=500, seeds=3).method
    Zap()
    """

    finds_roots = True

    max_dim: int = checked(whole, 0, default=128, static=True)

    def chosen(self, theta: PyTree, omega: PyTree) -> Zap | MatrixFreeZap:
        """The method for variables of these shapes."""
        return Zap() if tree_math.size((theta, omega)) <= self.max_dim else MatrixFreeZap()

    def init(self, theta: PyTree, omega: PyTree) -> AutoState:
        return self.chosen(theta, omega).init(theta, omega)

    def step(self, F: Operator, G: Operator, state: AutoState, x: PyTree, k: Scalar) -> AutoState:
        return self.chosen(state.theta, state.omega).step(F, G, state, x, k)  # type: ignore[arg-type]

    def estimate(self, state: AutoState) -> tuple[PyTree, PyTree]:
        return self.chosen(state.theta, state.omega).estimate(state)  # type: ignore[arg-type]

    def report(self, state: AutoState) -> dict[str, Array]:
        return self.chosen(state.theta, state.omega).report(state)  # type: ignore[arg-type]

    def explain(self, theta: PyTree, omega: PyTree, steps: int, reported: Mapping[str, np.ndarray]) -> str:
        """Say in one line which method ran, why, at what cost, and whether it arrived.

        Args:
            theta, omega: variables of the shapes of the run's.
            steps: how many the run took.
            reported: what ``report`` gave at the end, by name, one entry per seed; may be empty.
        """
        slow, fast = tree_math.size(theta), tree_math.size(omega)
        sizes = f"θ and ω have {slow} + {fast} = {slow + fast:,} entries"
        if isinstance(self.chosen(theta, omega), Zap):
            why = f"Zap, a matrix gain: {sizes}, at most the {self.max_dim:,} for which its matrices are kept"
        else:
            why = f"MatrixFreeZap, a matrix gain by products with vectors: {sizes}, more than the {self.max_dim:,} for "
            why += "matrices"
        words = f"{why}; no step size was set and no pilot run, all {steps:,} samples went into the estimate"
        if "newton_sq" not in reported:
            return words
        far, noise = (np.sqrt(np.asarray(reported[name], float)) for name in ("newton_sq", "noise_sq"))
        on_the_way = int(np.count_nonzero(~(far <= FAR * noise)))
        account = (
            f"by its own account θ is known to ±{np.median(noise):.2g} (norm, one standard error, independent samples)"
        )
        arrived = (
            f"{on_the_way} of {len(far)} seeds are still on their way: run longer"
            if on_the_way
            else "every seed arrived"
        )
        return f"{words}; {account}; {arrived}"
