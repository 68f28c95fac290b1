"""TD(λ) with its eligibility trace as the fast variable: the form for step rules such as SwiftTD."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.problems.policy_evaluation.linear import PolicyEvaluation
from twoclock.problems.policy_evaluation.nonlinear import Value, td_error
from twoclock.protocols import InputError, Key, Operator, Problem, PyTree, Scalar, forwarded, pytree
from twoclock.sampling.transitions import Transition, read_name
from twoclock.validation import function, short_repr
from twoclock.validation.arrays import Number, State, Vector, Words

__all__ = ["TracePolicyEvaluation", "trace_operators", "with_trace"]


def trace_operators(value: Value) -> tuple[Operator, Operator]:
    """F and G of TD(λ) with a value function V_θ, for samples from any source.

        δ = r + γV_θ(s') − V_θ(s),   e = ρ(cω + ∇V_θ(s)),        F = −δe,   G = ω − e

    ω is the trace of the earlier samples, and a full step along G makes it e. So `Standard` and similar methods need β
    = 1; `methods.ObGD` and `methods.Intentional` do this themselves, and need no step size. Samples are as for
    `value_operators`, with a further number ``keep``: the factor c by which the trace decays, γλ, and 0 at the first
    step of an episode.

    Args:
        value: V(params, state) -> scalar, with params any pytree.

    >>> import jax.numpy as jnp, twoclock as tc
    >>> F, G = tc.problems.trace_operators(lambda theta, phi: phi @ theta)
    >>> x = {"s": jnp.array([1.0, 0.0]), "next_state": jnp.array([0.0, 1.0]), "rho": 1.0, "r": 3.0, "gamma": 0.5}
    >>> F(jnp.zeros(2), jnp.ones(2), x | {"keep": 0.25}).tolist()  # δ = 3, e = (1.25, 0.25)
    [-3.75, -0.75]

    Reference: Sutton, *Learning to predict by the methods of temporal differences*, 1988; Sutton & Barto, 2nd ed.,
    Sections 12.2 and 12.9.
    """
    function("value", value, "params", "state")
    slope = jax.grad(value)

    def trace(theta: PyTree, omega: PyTree, sample: PyTree) -> PyTree:
        x, keep = Transition.read(sample), read_name(sample, "keep")
        if keep is None:
            raise InputError(
                "`x` must be a sample with `keep`, the factor by which the trace decays: γλ, or 0 at a start"
            )
        return jax.tree.map(lambda w, p: x.rho * (keep * w + p), omega, slope(theta, x.s))

    def F(theta: PyTree, omega: PyTree, sample: PyTree) -> PyTree:
        delta = td_error(value, theta, Transition.read(sample))
        return jax.tree.map(lambda e: -delta * e, trace(theta, omega, sample))

    def G(theta: PyTree, omega: PyTree, sample: PyTree) -> PyTree:
        return jax.tree.map(lambda w, e: w - e, omega, trace(theta, omega, sample))

    return F, G


class TraceSample(NamedTuple):
    """A sample as ``trace_operators`` reads it."""

    s: Vector
    next_state: Vector
    rho: Scalar
    r: Scalar
    gamma: Scalar
    keep: Number


@pytree
class TracePolicyEvaluation(Problem):
    """TD(λ) by the operators of ``trace_operators``, F = −δe and G = ω − e with e = γλω + φ.

    The metrics are those of the original problem without ``tracking``, since ω is a trace and tracks nothing.
    """

    omega_is_trace = True

    problem: PolicyEvaluation
    lam: Scalar
    noise, h = forwarded("problem", "noise", "h")
    F, G = map(staticmethod, trace_operators(lambda theta, phi: phi @ theta))  # type: ignore[assignment]

    def init(self, key: Key) -> tuple[Vector, Vector, tuple[State, Number]]:
        theta, _, carried = self.problem.init(key)
        return theta, jnp.zeros_like(theta), (carried.s, carried.gamma)

    def draw(
        self, u: Words, theta: Vector | None, env: tuple[State, Number]
    ) -> tuple[TraceSample, tuple[State, Number]]:
        s, before = env
        x, s = self.problem.sampler.draw(u, s)
        phi, phi_next = (jnp.asarray(self.problem.features)[at] for at in (x.s, x.next_state))
        gamma = jnp.asarray(self.problem.sampler.discount(x), phi.dtype)
        keep = before * jnp.asarray(self.lam, phi.dtype)
        return TraceSample(phi, phi_next, x.rho, x.r, gamma, keep), (s, gamma)

    def measure(self, theta: Vector, omega: Vector) -> dict[str, Number]:
        return self.problem.measure(theta, ())


def with_trace(problem: PolicyEvaluation) -> TracePolicyEvaluation:
    """The same TD(λ) with its trace as the fast variable.

    Step rules that need an error times a trace take it: `ObGD`, `Intentional`, `SwiftTD`, `TIDBD`, or `Standard` with
    β = 1. Methods that average G, or solve for its root, take the problem itself.

    Args:
        problem: on-policy linear policy evaluation with ``operator="td"``, ``sampling="markov"`` and a ``lam``.

    >>> import twoclock as tc
    >>> problem = tc.problems.with_trace(tc.problems.boyan("td", "markov", lam=0.8))
    >>> result = tc.solve(problem, tc.methods.SwiftTD(), steps=1000, seeds=2)
    """
    if not isinstance(problem, PolicyEvaluation):
        raise InputError(f"`problem` must be a linear policy evaluation, got {short_repr(problem)}")
    if problem.operator != "td" or problem.traces is None:
        raise InputError(
            "`problem` must be TD(λ), with operator 'td' and a `lam`, got operator "
            f"{problem.operator!r}{'' if problem.traces else ' and no `lam`'}; write `boyan('td', 'markov', lam=0.8)`"
        )
    if not np.isin(problem.sampler.rho, (0, 1)).all():  # 0: an action that neither policy takes
        raise InputError(
            "`problem` must be on-policy: step rules that read the features from the trace take ratios for features; "
            "leave out `behaviour`, or take the problem as it is"
        )
    return TracePolicyEvaluation(problem, problem.traces.lam)
