"""No method to choose: what ``solve`` runs where none is given."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Array

from twoclock import tree_math
from twoclock.methods.matrix_free_zap import MatrixFreeZap, ZapVectorsState
from twoclock.methods.zap import FAR, Zap, ZapState
from twoclock.protocols import Method, Operator, PyTree, Scalar, pytree, static
from twoclock.validation import whole


@pytree
class Auto(Method):
    """Needs no step size, no scale and no horizon: ``Zap`` where its matrices are affordable, else ``MatrixFreeZap``.

    What they need to know of a problem (curvature, noise, when to move and how far) they measure on the samples of the
    run itself, so there is no pilot: every sample counts for the answer. The choice depends on the sizes of θ and ω
    alone; ``result.chosen`` tells it, and ``result.method`` is the method that was chosen, which runs to the same bits.

    Args:
        max_dim: ``Zap`` for so many entries of θ and ω together, whose square it keeps.

    >>> import twoclock as tc
    >>> tc.solve(tc.problems.quadratic(dim=2), steps=500, seeds=3).method
    Zap()
    """

    finds_roots = True

    max_dim: int = static(default=128)

    def __post_init__(self) -> None:
        whole("Auto(max_dim=…)", self.max_dim, 0)

    def chosen(self, theta: PyTree, omega: PyTree) -> Zap | MatrixFreeZap:
        """The method for variables of these shapes."""
        return Zap() if tree_math.size((theta, omega)) <= self.max_dim else MatrixFreeZap()

    def init(self, theta: PyTree, omega: PyTree) -> ZapState | ZapVectorsState:
        return self.chosen(theta, omega).init(theta, omega)

    def step(
        self, F: Operator, G: Operator, state: ZapState | ZapVectorsState, x: PyTree, k: Scalar
    ) -> ZapState | ZapVectorsState:
        return self.chosen(state.theta, state.omega).step(F, G, state, x, k)  # type: ignore[arg-type]

    def estimate(self, state: ZapState | ZapVectorsState) -> tuple[PyTree, PyTree]:
        return self.chosen(state.theta, state.omega).estimate(state)  # type: ignore[arg-type]

    def report(self, state: ZapState | ZapVectorsState) -> dict[str, Array]:
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
