"""Eligibility traces along one chain: what each sample adds to, plain or weighed by emphasis."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from twoclock.protocols import InputError, Scalar, pytree, static
from twoclock.sampling.transitions import Transition
from twoclock.validation import number
from twoclock.validation.arrays import Number, State, Vector


class Traced(NamedTuple):
    """A transition, the trace e that its error belongs to, and 1 − λ."""

    step: Transition
    trace: Vector
    ahead: Number


class Carried(NamedTuple):
    """What goes from one step to the next: the state, the discount on the way to it, e, and ρ·γ·(follow-on)."""

    s: State
    gamma: Number
    trace: Vector
    follow_on: Number


@pytree
class Eligibility:
    """The traces of TD(λ), or those of emphatic TD(λ), off-policy ones corrected by the ratios ρ of each step.

        e ← ρ(γλe + Mφ)        plain: M = 1;  emphatic: f ← 1 + ρ_old·γ·f,  M = λ + (1 − λ)f

    with γ the discount on the way to s, which is 0 where an episode begins, and every state of interest 1. A trace does
    not depend on θ, so it is part of the sample: θ and ω are free for the method, whichever it is.
    """

    lam: Scalar
    emphatic: bool = static(default=False)

    def start(self, s: State, theta: Vector) -> Carried:
        nothing = jnp.zeros((), theta.dtype)
        return Carried(s, nothing, jnp.zeros_like(theta), nothing)

    def follow(self, x: Transition, gamma: Scalar, phi: Vector, env: Carried, s: State) -> tuple[Traced, Carried]:
        """The sample with its trace, and what the next one builds on."""
        lam = jnp.asarray(self.lam, phi.dtype)
        follow_on = 1 + env.follow_on
        weight = lam + (1 - lam) * follow_on if self.emphatic else 1
        trace = x.rho * (env.gamma * lam * env.trace + weight * phi)
        discount = jnp.asarray(gamma, phi.dtype)
        carried = Carried(s, discount, trace, x.rho * discount * follow_on if self.emphatic else env.follow_on)
        return Traced(x, trace, 1 - lam), carried


def eligibility(operator: str, lam: float | None, sampling: str) -> Eligibility | None:
    """The traces that the settings ask for, or None where they ask for none."""
    emphatic = operator == "etd"
    if lam is None and not emphatic:
        return None
    found = number("lam", 0.0 if lam is None else lam, 0, 1)
    if sampling != "markov":
        what = "operator 'etd'" if lam is None else f"`lam` = {found:g}"
        raise InputError(f"{what} needs traces along one chain, got sampling {sampling!r}; write sampling='markov'")
    return Eligibility(found, emphatic)
