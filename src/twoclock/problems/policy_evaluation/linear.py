"""Linear policy evaluation: TD, TDC, GTD2, TDRC and emphatic TD, on- and off-policy, with traces or without."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from twoclock.models.linear_evaluation import ProjectedBellman, projected_bellman
from twoclock.models.mdp import Mdp, check_dense, read_features, read_policies
from twoclock.protocols import InputError, Key, Problem, PyTree, Scalar, forwarded, pytree, static
from twoclock.sampling.transitions import Transition, Transitions, transitions
from twoclock.tree_math import difference, sqnorm
from twoclock.validation import choice, number
from twoclock.validation.arrays import Array, Number, State, Vector, Words, shaped

__all__ = ["PolicyEvaluation", "policy_evaluation"]
OPERATORS = ("td", "tdc", "gtd2", "tdrc", "etd")


class TracedTransition(NamedTuple):
    """A transition, the trace e for its error, and 1 − λ."""

    step: Transition
    trace: Vector
    ahead: Number


class TraceState(NamedTuple):
    """The state between two steps: the MDP's state, the discount on the way to it, e, and ρ·γ·(follow-on)."""

    s: State
    gamma: Number
    trace: Vector
    follow_on: Number


@pytree
class Eligibility:
    """The traces of TD(λ), or those of emphatic TD(λ), off-policy ones corrected by the ratios ρ of each step.

        e ← ρ(γλe + Mφ)        plain: M = 1;  emphatic: f ← 1 + ρ_old·γ·f,  M = λ + (1 − λ)f

    with γ the discount on the way to s, which is 0 where an episode begins, and every state having interest 1. A trace
    does not depend on θ, so it is part of the sample, and any method may move θ and ω.
    """

    lam: Scalar
    emphatic: bool = static(default=False)

    def start(self, s: State, theta: Vector) -> TraceState:
        nothing = jnp.zeros((), theta.dtype)
        return TraceState(s, nothing, jnp.zeros_like(theta), nothing)

    def follow(
        self, x: Transition, gamma: Scalar, phi: Vector, env: TraceState, s: State
    ) -> tuple[TracedTransition, TraceState]:
        """The sample with its trace, and the state for the next one."""
        lam = jnp.asarray(self.lam, phi.dtype)
        follow_on = 1 + env.follow_on
        weight = lam + (1 - lam) * follow_on if self.emphatic else 1
        trace = x.rho * (env.gamma * lam * env.trace + weight * phi)
        discount = jnp.asarray(gamma, phi.dtype)
        carried = TraceState(s, discount, trace, x.rho * discount * follow_on if self.emphatic else env.follow_on)
        return TracedTransition(x, trace, 1 - lam), carried


Sample = Transition | TracedTransition
Omega = Vector | tuple[()]  # empty for TD


@pytree
class PolicyEvaluation(Problem):
    """Find θ with Φθ ≈ V_π from transitions of a behaviour policy b, by one of five pairs of operators.

        δ = r + γφ'ᵀθ − φᵀθ,   ρ = π(a|s)/b(a|s)

        tdc    F = −2ρ[δφ − γφ'(φᵀω)]      G = (φᵀω − ρδ)φ
        gtd2   F = −2ρ(φ − γφ')(φᵀω)       G = (φᵀω − ρδ)φ
        tdrc   F of tdc                    G of tdc + ridge·ω
        td     F = −ρδφ                    none: ω is empty

    With ``lam``, along a chain, the trace e ← ρ(γλe + φ) stands for ρφ (``Eligibility``):

        tdc    F = −2[δe − γ(1−λ)φ'(eᵀω)]  G = φ(φᵀω) − δe        called TDC(λ), or GTD(λ)
        gtd2   F = −2(φ − γφ')(eᵀω)        G as above
        tdrc   F of tdc                    G of tdc + ridge·ω
        td     F = −δe                     none
        etd    F = −δe with emphasis in e  none

    With the factor 2 the mean of F of ``tdc`` and ``gtd2`` at ω*(θ) is the gradient of the MSPBE, the h of this problem
    (with another factor h is factor/2 times it). The fields of ``td`` and ``tdrc`` are no gradients; h is then only a
    metric. All means are over the state weights D, by default the behaviour's stationary distribution; those in the
    MSPBE of ``etd`` are over the emphasis, with which TD is stable off-policy. With ``lam`` the MSPBE and θ* are those
    of T^(λ).

    Metrics: ``error`` (to the nearest solution, where features are dependent), ``gap``, ``gradient``, ``tracking``,
    ``rmspbe`` = √MSPBE and ``rmsve`` = ‖Φθ − V_π‖_D.

    `policy_evaluation` makes it.

    Args:
        features: Φ, one row per state.
        theta0: where θ starts.
        sampler: draws the transitions.
        truth: the exact answers.
        inverse: the matrix of ω*(θ), an affine function of θ.
        factor: the factor 2 of F.
        ridge: the ridge of ``tdrc``.
        operator: one of the names above.
        traces: the traces, if there are any.

    Reference: Sutton et al. 2009 (TDC, GTD2); Maei 2011 (with traces); Ghiassian et al. 2020 (TDRC); Sutton, Mahmood &
    White 2016 (emphatic TD); Zeng & Doan, Section 4.1.
    """

    features: Float[Array, "s d"]
    theta0: Float[Array, " d"]
    sampler: Transitions
    truth: ProjectedBellman
    inverse: Float[Array, "d d"]
    factor: Scalar = 2.0
    ridge: Scalar = 0.0
    operator: str = static(default="tdc")
    traces: Eligibility | None = None
    (noise,) = forwarded("sampler", "noise")

    def init(self, key: Key) -> tuple[Vector, Omega, PyTree]:
        theta, first = jnp.asarray(self.theta0), self.sampler.first(key)
        omega = () if self._is_td else jnp.zeros_like(theta)
        return theta, omega, first if self.traces is None or first is None else self.traces.start(first, theta)

    @property
    def _is_td(self) -> bool:
        return self.operator in ("td", "etd")

    def draw(self, u: Words, theta: Vector | None, env: PyTree) -> tuple[Sample, PyTree]:
        if self.traces is None:
            return self.sampler.draw(u, env)
        x, s = self.sampler.draw(u, env.s)
        return self.traces.follow(x, self.sampler.discount(x), self._phi(x)[0], env, s)

    def F(self, theta: Vector, omega: Omega, x: Sample) -> Vector:
        step, e = (x.step, x.trace) if isinstance(x, TracedTransition) else (x, None)
        gamma, factor = self.sampler.discount(step), jnp.asarray(self.factor, theta.dtype)
        phi, phi_next = self._phi(step)
        if isinstance(omega, tuple):
            return -(step.rho * self._delta(theta, step)) * phi if e is None else -self._delta(theta, step) * e
        if self.operator == "gtd2":
            scale = factor * step.rho * (phi @ omega) if e is None else factor * (e @ omega)
            return -scale * (phi - gamma * phi_next)
        if isinstance(x, TracedTransition):
            return -factor * (self._delta(theta, step) * x.trace - (gamma * x.ahead * (x.trace @ omega)) * phi_next)
        return -(factor * step.rho) * (self._delta(theta, step) * phi - (gamma * (phi @ omega)) * phi_next)

    def G(self, theta: Vector, omega: Omega, x: Sample) -> Omega:
        if isinstance(omega, tuple):
            return omega
        if isinstance(x, TracedTransition):
            phi, _ = self._phi(x.step)
            step = (phi @ omega) * phi - self._delta(theta, x.step) * x.trace
        else:
            phi, _ = self._phi(x)
            step = (phi @ omega - x.rho * self._delta(theta, x)) * phi
        return step + jnp.asarray(self.ridge, theta.dtype) * omega if self.operator == "tdrc" else step

    def _phi(self, x: Transition) -> tuple[Vector, Vector]:
        features = jnp.asarray(self.features)
        return features[x.s], features[x.next_state]

    def _delta(self, theta: Vector, x: Transition) -> Number:
        phi, phi_next = self._phi(x)
        return x.r + self.sampler.discount(x) * (phi_next @ theta) - phi @ theta

    def h(self, theta: Vector) -> Number:
        return jnp.asarray(self.factor, theta.dtype) / 2 * self.truth.mspbe(theta)

    def omega_star(self, theta: Vector) -> Omega:
        """(C + ridge·I)⁺(b − Aθ)."""
        return () if self._is_td else jnp.asarray(self.inverse) @ self.truth.residual(theta)

    def mean_F(self, theta: Vector, omega: Omega) -> Vector:
        residual, factor = self.truth.residual(theta), jnp.asarray(self.factor, theta.dtype)
        A, C = jnp.asarray(self.truth.A), jnp.asarray(self.truth.C)
        if isinstance(omega, tuple):
            return -residual
        if self.operator == "gtd2":
            return -factor * (A.T @ omega)
        return -factor * (residual - (C - A.T) @ omega)

    def mean_G(self, theta: Vector, omega: Omega) -> Omega:
        if isinstance(omega, tuple):
            return omega
        pull = jnp.asarray(self.truth.C) @ omega + jnp.asarray(self.ridge, theta.dtype) * omega
        return pull - self.truth.residual(theta)

    def measure(self, theta: Vector, omega: Omega) -> dict[str, Number]:
        truth, half = self.truth, jnp.asarray(self.factor, theta.dtype) / 2
        mspbe, least = truth.mspbe(theta), truth.mspbe(jnp.asarray(truth.theta_star))
        gradient = 2 * half * truth.half_gradient(theta)
        metrics = {
            "error": truth.distance(theta),
            "gap": half * jnp.abs(mspbe - least),
            "gradient": jnp.sum(jnp.square(gradient)),
            "rmspbe": jnp.sqrt(mspbe),
            "rmsve": truth.rmsve(theta),
        }
        if not isinstance(omega, tuple):
            metrics["tracking"] = sqnorm(difference(omega, self.omega_star(theta)))
        return metrics


def policy_evaluation(
    mdp: Mdp,
    features: ArrayLike,
    target: ArrayLike,
    behaviour: ArrayLike | None = None,
    operator: str = "tdc",
    sampling: str = "iid",
    *,
    ridge: float | None = None,
    factor: float = 2.0,
    weights: ArrayLike | None = None,
    theta0: ArrayLike | None = None,
    lam: float | None = None,
) -> PolicyEvaluation:
    """Linear policy evaluation on a finite MDP.

    Args:
        mdp: the decision process, dense or sparse.
        features: Φ, one row per state, an array or a sparse matrix; the problem holds them as an array.
        target: the policy π[s, a] to evaluate.
        behaviour: the policy b[s, a] that draws the samples; the target itself by default.
        operator: "td", "tdc", "gtd2", "tdrc" or "etd".
        sampling: "iid" (s from the state weights) or "markov" (along one chain under the behaviour).
        ridge: the ridge of "tdrc", 1 by default.
        factor: the factor of F, 2 in the paper.
        weights: state weights D instead of the behaviour's stationary distribution; for "iid" only.
        theta0: the start of θ, 0 by default.
        lam: the λ of the eligibility traces, in [0, 1]; for "markov" only. Without it only "etd" has traces.

    >>> import numpy as np, twoclock as tc
    >>> mdp = tc.models.Mdp(P=np.full((2, 1, 2), 0.5), r=[[1.0], [0.0]], gamma=0.5)
    >>> problem = tc.problems.policy_evaluation(mdp, features=np.eye(2), target=np.ones((2, 1)))
    >>> problem.truth.theta_star.round(4).tolist()
    [1.5, 0.5]

    Reference: Zeng & Doan, Section 4.1, with every mean over the behaviour's stationary distribution.
    """
    ridge, traces = check_settings(operator, sampling, ridge, factor, lam)
    pi, b, D = read_policies(mdp, target, behaviour, weights, sampling)
    check_dense(mdp)
    Phi = read_features("features", features, mdp.states)
    chain, reward, values = mdp.discounted_chain(pi), mdp.reward(pi), mdp.values(pi)
    truth = projected_bellman(Phi, D, chain, reward, values, traces.lam if traces else None, operator == "etd")
    sampler = transitions(mdp, pi, b, D, sampling)
    zeros = np.zeros(Phi.shape[1])
    start = zeros if theta0 is None else shaped("theta0", theta0, zeros.shape, which=", one entry per feature")
    return PolicyEvaluation(Phi, start, sampler, truth, truth.inverse(ridge), factor, ridge, operator, traces)


def check_settings(
    operator: str, sampling: str, ridge: float | None, factor: float, lam: float | None = None
) -> tuple[float, Eligibility | None]:
    """Check that the choices are compatible, and return the ridge and the traces, if any."""
    choice("operator", operator, OPERATORS)
    choice("sampling", sampling, ("iid", "markov"))
    if ridge is not None and operator != "tdrc":
        raise InputError(f"`ridge` belongs to operator 'tdrc', got operator {operator!r}; leave it out")
    if ridge is None:
        ridge = 1.0 if operator == "tdrc" else 0.0
    number("factor", factor, 0, above=True)
    traces = None
    if lam is not None or operator == "etd":
        traces = Eligibility(number("lam", 0.0 if lam is None else lam, 0, 1), operator == "etd")
        if sampling != "markov":
            what = "operator 'etd'" if lam is None else f"`lam` = {traces.lam:g}"
            raise InputError(f"{what} needs traces along one chain, got sampling {sampling!r}; write sampling='markov'")
    return number("ridge", ridge, 0), traces
