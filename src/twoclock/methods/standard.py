"""Standard two-time-scale stochastic approximation, the baseline."""

from __future__ import annotations

from typing import Any

from twoclock.core import Operator, PyTree, pytree
from twoclock.schedules import as_schedule
from twoclock.trees import descend, residue


@pytree
class StandardState:
    theta: PyTree
    omega: PyTree
    low: tuple[PyTree, PyTree]


@pytree
class Standard:
    """Both variables step along the noisy operators themselves.

        θ ← θ − α_k F(θ, ω, X)
        ω ← ω − β_k G(θ, ω, X)        with F and G at the same, old (θ, ω)

    Args:
        alpha: step size of the slow variable θ.
        beta: step size of the fast variable ω.

    >>> import twoclock as tc
    >>> method = tc.Standard(alpha=tc.Power(0.5), beta=tc.Power(1.0))

    Reference: Zeng & Doan, eq. (standard_SA); Borkar, *Stochastic Approximation*, ch. 6.
    """

    alpha: Any = "2/(k+20)"
    beta: Any = "8/(k+40)"

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            object.__setattr__(self, name, as_schedule(getattr(self, name), name))

    def init(self, theta: PyTree, omega: PyTree) -> StandardState:
        return StandardState(theta, omega, residue(theta, omega))

    def step(self, F: Operator, G: Operator, state: StandardState, x: PyTree, k: Any) -> StandardState:
        theta, omega, (low_theta, low_omega) = state.theta, state.omega, state.low
        f, g = F(theta, omega, x), G(theta, omega, x)
        theta, low_theta = descend(theta, self.alpha(k), f, low_theta)
        omega, low_omega = descend(omega, self.beta(k), g, low_omega)
        return StandardState(theta, omega, (low_theta, low_omega))

    def estimate(self, state: StandardState) -> tuple[PyTree, PyTree]:
        return state.theta, state.omega
