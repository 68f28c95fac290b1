"""Policy evaluation with any differentiable value function."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float
from numpy.typing import ArrayLike

from twoclock.models.mdp import Mdp, check_mdp, read_policies
from twoclock.problems.policy_evaluation.linear import check_settings
from twoclock.protocols import InputError, Key, Operator, Problem, PyTree, Scalar, forwarded, pytree, static
from twoclock.sampling.transitions import Transition, Transitions, transitions
from twoclock.tree_math import difference, pinv, sqnorm
from twoclock.validation import choice, function, trace_shapes
from twoclock.validation.arrays import Array, Number, State, Words, as_array, as_numpy, check_start

__all__ = ["NonlinearPolicyEvaluation", "nonlinear_policy_evaluation", "value_operators"]

Value = Callable[[PyTree, PyTree], Number]
States = Float[Array, " s"]
NONLINEAR = ("td", "tdc", "gtd2", "tdrc")


def value_operators(
    value: Value, operator: str = "tdc", factor: Scalar = 2.0, ridge: Scalar = 1.0
) -> tuple[Operator, Operator]:
    """F and G of a value function V_θ, for samples from any source: dicts or objects with s, next_state, rho, r, gamma.

        δ = r + γV_θ(s') − V_θ(s),   φ = ∇V_θ(s),   φ' = ∇V_θ(s')

        tdc    F = −2[ρδφ − γρφ'(φᵀω) − (ρδ − φᵀω)∇²V_θ(s)ω]        G = (φᵀω − ρδ)φ
        gtd2   F = −2[ρ(φ − γφ')(φᵀω) − (ρδ − φᵀω)∇²V_θ(s)ω]        G as above
        tdrc   F of tdc                                             G of tdc + ridge·ω
        td     F = −ρδφ                                             none: ω is left alone

    ∇²V_θ(s)ω is one forward derivative of the gradient; no Hessian is computed.

    Args:
        value: V(params, state) -> scalar, with params any pytree.
        operator: "tdc", "gtd2", "tdrc" or "td".
        factor: the factor of F, 2 in the paper.
        ridge: the ridge of "tdrc".

    >>> import jax.numpy as jnp
    >>> F, G = value_operators(lambda params, state: params @ state)
    >>> x = {"s": jnp.ones(2), "next_state": jnp.zeros(2), "rho": 1.0, "r": 1.0, "gamma": 0.9}
    >>> F(jnp.zeros(2), jnp.zeros(2), x).tolist()
    [-2.0, -2.0]

    Reference: Maei et al., *Convergent temporal-difference learning with arbitrary smooth function approximation*,
    2009; Ghiassian et al. 2020 (TDRC).
    """
    function("value", value, "params", "state")
    choice("operator", operator, NONLINEAR)
    slope = jax.grad(value)

    def F(theta: PyTree, omega: PyTree, sample: object) -> PyTree:
        x = Transition.read(sample)
        rho_delta = x.rho * td_error(value, theta, x)
        if operator == "td":
            return jax.tree.map(lambda p: -rho_delta * p, slope(theta, x.s))
        phi, hessian_omega = jax.jvp(lambda params: slope(params, x.s), (theta,), (omega,))
        phi_next, along = slope(theta, x.next_state), _dot(phi, omega)
        lead = x.rho * along if operator == "gtd2" else rho_delta
        return jax.tree.map(
            lambda p, q, c: -jnp.asarray(factor, p.dtype)
            * (lead * p - (x.gamma * x.rho * along) * q - (rho_delta - along) * c),
            phi, phi_next, hessian_omega,
        )  # fmt: skip

    def G(theta: PyTree, omega: PyTree, sample: object) -> PyTree:
        if operator == "td":
            return omega
        x = Transition.read(sample)
        phi = slope(theta, x.s)
        pull = _dot(phi, omega) - x.rho * td_error(value, theta, x)
        if operator == "tdrc":
            return jax.tree.map(lambda p, w: pull * p + jnp.asarray(ridge, w.dtype) * w, phi, omega)
        return jax.tree.map(lambda p: pull * p, phi)

    return F, G


def td_error(value: Value, theta: PyTree, x: Transition) -> Number:
    return x.r + x.gamma * value(theta, x.next_state) - value(theta, x.s)


@pytree
class NonlinearPolicyEvaluation(Problem):
    """Find params with V(params, s) ≈ V_π(s), by the operators of ``value_operators``.

    h is factor/2 times the MSPBE ‖Π_θ(T_πV_θ − V_θ)‖²_D with Π_θ the projection on the span of ∇V_θ, computed exactly
    from the MDP. Metrics: ``gradient`` ‖∇h‖², ``tracking``, ``rmspbe`` and ``rmsve``; θ* is not unique, so there is no
    ``error``.
    """

    params: PyTree
    states: PyTree
    sampler: Transitions
    weights: Float[Array, " s"]
    chain: Float[Array, "s s"]
    reward: Float[Array, " s"]
    values: Float[Array, " s"]
    factor: Scalar
    ridge: Scalar
    value: Value = static()
    operator: str = static(default="tdc")
    (noise,) = forwarded("sampler", "noise")

    def init(self, key: Key) -> tuple[PyTree, PyTree, State | None]:
        theta = jax.tree.map(jnp.asarray, self.params)
        return theta, () if self.operator == "td" else jax.tree.map(jnp.zeros_like, theta), self.sampler.first(key)

    def draw(self, u: Words, theta: PyTree, env: PyTree) -> tuple[Transition, PyTree]:
        return self.sampler.draw(u, env)

    def F(self, theta: PyTree, omega: PyTree, x: Transition) -> PyTree:
        return value_operators(self.value, self.operator, self.factor, self.ridge)[0](theta, omega, self._observe(x))

    def G(self, theta: PyTree, omega: PyTree, x: Transition) -> PyTree:
        return value_operators(self.value, self.operator, self.factor, self.ridge)[1](theta, omega, self._observe(x))

    def _observe(self, x: Transition) -> Transition:
        return Transition(self._state(x.s), self._state(x.next_state), x.rho, x.r, self.sampler.discount(x))

    def _state(self, s: State) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[s], self.states)

    def _at(self, theta: PyTree, s: State) -> Number:
        return self.value(theta, self._state(s))

    def _everywhere(self, theta: PyTree) -> tuple[States, States]:
        """V_θ in every state, and the mean temporal difference δ̄ = r_π + (γP)_πV_θ − V_θ."""
        V = jax.vmap(lambda s: self._at(theta, s))(jnp.arange(len(self.weights)))
        return V, jnp.asarray(self.reward) + jnp.asarray(self.chain) @ V - V

    def _projection(self, theta: PyTree) -> tuple[Float[jax.Array, "s d"], States, Callable[[jax.Array], PyTree]]:
        """√D∇V_θ, √D δ̄ and the way back to a pytree: the MSPBE is a least-squares problem in ω."""
        flat, back = ravel_pytree(theta)
        slopes = jax.jacobian(lambda params: self._everywhere(back(params))[0])(flat)
        root = jnp.sqrt(jnp.asarray(self.weights))
        return root[:, None] * slopes, root * self._everywhere(theta)[1], back

    def h(self, theta: PyTree) -> Number:
        slopes, delta, _ = self._projection(theta)
        return jnp.asarray(self.factor, delta.dtype) / 2 * (delta @ (slopes @ (jnp.linalg.pinv(slopes) @ delta)))

    def omega_star(self, theta: PyTree) -> PyTree:
        slopes, delta, back = self._projection(theta)
        return back(self._solve_omega(slopes, delta))

    def _solve_omega(self, slopes: Float[jax.Array, "s d"], delta: States) -> Float[jax.Array, " d"]:
        """(SᵀS + ridge·I)⁺Sᵀδ̄, with S and δ̄ weighed by √D."""
        if self.operator != "tdrc":
            return pinv(slopes) @ delta
        ridge = jnp.asarray(self.ridge, delta.dtype) * jnp.eye(slopes.shape[1], dtype=delta.dtype)
        return pinv(slopes.T @ slopes + ridge) @ (slopes.T @ delta)

    def mean_F(self, theta: PyTree, omega: PyTree, operator: str | None = None) -> PyTree:
        # Given s, the mean of F is F of one deterministic transition whose next value is Σ_s' (γP)_π(s, s')V_θ(s').
        def of_state(s: State) -> PyTree:
            def value(params: PyTree, ahead: bool) -> Number:
                return jnp.asarray(self.chain)[s] @ self._everywhere(params)[0] if ahead else self._at(params, s)

            one = jnp.ones_like(jnp.asarray(self.reward)[s])
            sure = Transition(s=False, next_state=True, rho=one, r=jnp.asarray(self.reward)[s], gamma=one)
            return value_operators(value, operator or self.operator, self.factor)[0](theta, omega, sure)

        return self._mean(of_state)

    def mean_G(self, theta: PyTree, omega: PyTree) -> PyTree:
        if self.operator == "td":
            return omega
        _, delta = self._everywhere(theta)

        def of_state(s: State) -> PyTree:
            phi = jax.grad(self._at)(theta, s)
            return jax.tree.map(lambda p: (_dot(phi, omega) - delta[s]) * p, phi)

        pull = self._mean(of_state)
        if self.operator != "tdrc":
            return pull
        return jax.tree.map(lambda p, w: p + jnp.asarray(self.ridge, w.dtype) * w, pull, omega)

    def _mean(self, of_state: Callable[[State], PyTree]) -> PyTree:
        each = jax.vmap(of_state)(jnp.arange(len(self.weights)))
        return jax.tree.map(lambda leaf: jnp.tensordot(jnp.asarray(self.weights), leaf, 1), each)

    def measure(self, theta: PyTree, omega: PyTree) -> dict[str, Number]:
        slopes, delta, back = self._projection(theta)
        best = pinv(slopes) @ delta
        wrong = self._everywhere(theta)[0] - jnp.asarray(self.values)
        metrics: dict[str, Number] = {
            "gradient": sqnorm(self.mean_F(theta, back(best), "tdc")),  # ∇h(θ), for any operator
            "rmspbe": jnp.sqrt(jnp.maximum(delta @ (slopes @ best), 0)),
            "rmsve": jnp.sqrt(jnp.sum(jnp.asarray(self.weights) * jnp.square(wrong))),
        }
        if self.operator != "td":
            metrics["tracking"] = sqnorm(difference(omega, back(self._solve_omega(slopes, delta))))
        return metrics


def nonlinear_policy_evaluation(
    mdp: Mdp,
    value: Value,
    params: PyTree,
    target: ArrayLike,
    behaviour: ArrayLike | None = None,
    operator: str = "tdc",
    sampling: str = "iid",
    *,
    states: PyTree = None,
    ridge: float | None = None,
    factor: float = 2.0,
    weights: ArrayLike | None = None,
) -> NonlinearPolicyEvaluation:
    """Policy evaluation on a finite MDP with any differentiable value function.

    Args:
        mdp: the decision process.
        value: V(params, state) -> scalar, a JAX function.
        params: the start of the parameters, any pytree of floating-point arrays.
        target: the policy π[s, a] to evaluate.
        behaviour: the policy b[s, a] that draws the samples; the target itself by default.
        operator: "tdc", "gtd2", "tdrc" or "td".
        sampling: "iid" or "markov".
        states: the input of ``value`` for each state, a pytree with a leading state axis; the state's number by
            default.
        ridge, factor, weights: as for ``policy_evaluation``.

    >>> import jax.numpy as jnp, numpy as np, twoclock as tc
    >>> mdp = tc.models.Mdp(P=np.full((2, 1, 2), 0.5), r=[[1.0], [0.0]], gamma=0.5)
    >>> problem = tc.problems.nonlinear_policy_evaluation(
    ...     mdp, value=lambda p, s: jnp.exp(p["log"][s]), params={"log": np.zeros(2)}, target=np.ones((2, 1))
    ... )
    >>> problem.values.round(4).tolist()
    [1.5, 0.5]

    Reference: Maei et al. 2009; Zeng & Doan, Section 4.1.
    """
    choice("operator", operator, NONLINEAR)
    ridge, _ = check_settings(operator, sampling, ridge, factor)
    mdp = check_mdp(mdp).dense("a nonlinear value function")
    pi, b, D = read_policies(mdp, target, behaviour, weights, sampling)
    seen = np.arange(mdp.states) if states is None else as_numpy("states", states)
    rows = jax.tree.leaves(seen)
    if not rows or any(np.ndim(leaf) == 0 or len(leaf) != mdp.states for leaf in rows):
        raise InputError(f"`states` must have one row for each of the {mdp.states} states")
    function("value", value, "params", "state")
    check_start("params", params)
    start = jax.tree.map(lambda leaf: as_array("params", leaf), params)
    shape = trace_shapes("value", value, start, jax.tree.map(lambda leaf: leaf[0], seen))
    if getattr(shape, "shape", None) != ():
        raise InputError(f"`value` must return one number, got the shape {getattr(shape, 'shape', shape)}")
    sampler = transitions(mdp, pi, b, D, sampling)
    chain, reward, values = mdp.discounted_chain(pi), mdp.reward(pi), mdp.values(pi)
    return NonlinearPolicyEvaluation(start, seen, sampler, D, chain, reward, values, factor, ridge, value, operator)


def _dot(a: PyTree, b: PyTree) -> Number:
    products = jax.tree.map(jnp.vdot, a, b)
    return sum(jax.tree.leaves(products), jnp.zeros(()))
