"""Standard two-time-scale stochastic approximation, the baseline."""

from __future__ import annotations

from twoclock.methods import update_rule
from twoclock.methods.update_rule import (
    Both,
    MovedVariable,
    Projection,
    Transformation,
    check_projection,
    check_transformation,
    move,
)
from twoclock.protocols import Method, Operator, PyTree, Scalar, checked, pytree
from twoclock.schedules import StepSize, step_size


@pytree
class StandardState(Both):
    slow: MovedVariable
    fast: MovedVariable


@pytree
class Standard(Method):
    """Both variables step along the noisy operators themselves.

        θ ← θ − α_k F(θ, ω, X)
        ω ← ω − β_k G(θ, ω, X)        with F and G at the same, old (θ, ω)

    Args:
        alpha: step size of the slow variable θ.
        beta: step size of the fast variable ω.
        transform_theta: an optax transformation of the direction F, such as ``optax.scale_by_adam()``.
        transform_omega: an optax transformation of the direction G.
        project_theta: a function onto the set that θ must stay in, such as ``optax.projections.projection_simplex``.
        project_omega: the same for ω.

    >>> import twoclock as tc
    >>> method = tc.Standard(alpha=tc.Power(0.5), beta=tc.Power(1.0))

    Reference: Zeng & Doan, eq. (standard_SA); Borkar, *Stochastic Approximation*, ch. 6.
    """

    alpha: StepSize = step_size("2/(k+20)")
    beta: StepSize = step_size("8/(k+40)")
    transform_theta: Transformation | None = checked(check_transformation, default=None, static=True)
    transform_omega: Transformation | None = checked(check_transformation, default=None, static=True)
    project_theta: Projection | None = checked(check_projection, default=None, static=True)
    project_omega: Projection | None = checked(check_projection, default=None, static=True)

    def init(self, theta: PyTree, omega: PyTree) -> StandardState:
        slow = update_rule.start("theta", theta, self.transform_theta, self.project_theta)
        fast = update_rule.start("omega", omega, self.transform_omega, self.project_omega)
        return StandardState(slow, fast)

    def step(self, F: Operator, G: Operator, state: StandardState, x: PyTree, k: Scalar) -> StandardState:
        f, g = F(state.theta, state.omega, x), G(state.theta, state.omega, x)
        slow = move(state.slow, self.alpha(k), f, self.transform_theta, self.project_theta)
        fast = move(state.fast, self.beta(k), g, self.transform_omega, self.project_omega)
        return StandardState(slow, fast)
