"""Standard two-time-scale stochastic approximation, the baseline."""

from __future__ import annotations

from typing import Any

from twoclock.core import Operator, PyTree, pytree, static
from twoclock.methods import moves
from twoclock.schedules import as_schedule
from twoclock.trees import residue


@pytree
class StandardState:
    theta: PyTree
    omega: PyTree
    low: tuple[PyTree, PyTree]
    memory: tuple[PyTree, PyTree]


@pytree
class Standard:
    """Both variables step along the noisy operators themselves.

        θ ← θ − α_k F(θ, ω, X)
        ω ← ω − β_k G(θ, ω, X)        with F and G at the same, old (θ, ω)

    Args:
        alpha: step size of the slow variable θ.
        beta: step size of the fast variable ω.
        slow: an optax transformation of the direction F, such as ``optax.scale_by_adam()``.
        fast: an optax transformation of the direction G.
        project_slow: a function onto the set that θ must stay in, such as ``optax.projections.projection_simplex``.
        project_fast: the same for ω.

    >>> import twoclock as tc
    >>> method = tc.Standard(alpha=tc.Power(0.5), beta=tc.Power(1.0))

    Reference: Zeng & Doan, eq. (standard_SA); Borkar, *Stochastic Approximation*, ch. 6.
    """

    alpha: Any = "2/(k+20)"
    beta: Any = "8/(k+40)"
    slow: Any = static(default=None)
    fast: Any = static(default=None)
    project_slow: Any = static(default=None)
    project_fast: Any = static(default=None)

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            object.__setattr__(self, name, as_schedule(getattr(self, name), name))
        moves.check(self)

    def init(self, theta: PyTree, omega: PyTree) -> StandardState:
        theta, omega, memory = moves.start(self, theta, omega)
        return StandardState(theta, omega, residue(theta, omega), memory)

    def step(self, F: Operator, G: Operator, state: StandardState, x: PyTree, k: Any) -> StandardState:
        theta, omega, (low_theta, low_omega), (of_slow, of_fast) = state.theta, state.omega, state.low, state.memory
        f, g = F(theta, omega, x), G(theta, omega, x)
        theta, low_theta, of_slow = moves.move(
            theta, self.alpha(k), f, low_theta, self.slow, of_slow, self.project_slow
        )
        omega, low_omega, of_fast = moves.move(omega, self.beta(k), g, low_omega, self.fast, of_fast, self.project_fast)
        return StandardState(theta, omega, (low_theta, low_omega), (of_slow, of_fast))

    def estimate(self, state: StandardState) -> tuple[PyTree, PyTree]:
        return state.theta, state.omega
