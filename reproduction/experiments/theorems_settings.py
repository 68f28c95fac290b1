"""The theorems: the problems that their bounds and conditions are tried on, and the steps."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

import twoclock as tc
from twoclock import Method, Problem, theory
from twoclock.protocols import PyTree

STRUCTURES = {"strongly-convex": 1, "pl": 2, "non-convex": 3}
WORDS = {"strongly-convex": "strongly convex h", "pl": "PL h", "non-convex": "non-convex h"}
# What is bounded ends below this share of its start, or nothing moved.
MOVED = 0.5
PROOFS = {"paper": "the paper's proof, put right", "tight": "our tight proof"}


def problem(structure: str) -> Problem:
    """Kinked in the coupling, so that no smoothness beyond the theorems' assumptions helps."""
    return tc.problems.rates(structure, "kinked")


@cache
def certificate(structure: str, proof: str) -> theory.Certificate:
    return tc.certify(structure, **theory.constants(problem(structure)), proof=proof)


def trap() -> Problem:
    """F = 0.2θ + (ω−θ), G = 0.1(ω−θ): h = 0.1θ², L = 1, and the printed conditions of Section 3.3 let it diverge."""
    return tc.problems.custom(
        F=_trap_slow,
        G=_trap_fast,
        noise=jax.random.normal,
        theta=1.0,
        omega=0.0,
        measure=lambda theta, omega: {"gradient": (0.2 * theta) ** 2},
    )


def _trap_slow(theta: jax.Array, omega: jax.Array, x: jax.Array) -> jax.Array:
    return 0.2 * theta + (omega - theta) + x


def _trap_fast(theta: jax.Array, omega: jax.Array, x: jax.Array) -> jax.Array:
    return 0.1 * (omega - theta) + x


def bend(params: PyTree, x: jax.Array) -> jax.Array:
    """V_θ(x) = a·tanh(bx + c)"""
    return params["a"] * jnp.tanh(params["b"] * x + params["c"])


def walk() -> Problem:
    """Nine states in a row, a walk that bounces off both ends, rewards ∓1 at them, and a value of three numbers."""
    n = 9
    P = np.zeros((n, 1, n))
    for s in range(n):
        P[s, 0, max(s - 1, 0)] += 0.5
        P[s, 0, min(s + 1, n - 1)] += 0.5
    mdp = tc.models.Mdp(P, np.array([[-1.0], *[[0.0]] * (n - 2), [1.0]]), gamma=0.8)
    params = {"a": 1.0, "b": 0.5, "c": 1.0}
    return tc.problems.nonlinear_policy_evaluation(
        mdp, value=bend, params=params, target=np.ones((n, 1)), states=np.linspace(-2, 2, n)
    )


# Four times these steps are too large for this problem: the gradient no longer falls.
ROOT = tc.Fast(tc.Power(0.25, p=0.5, shift=400), tc.Power(1.0, p=0.5, shift=400), tc.Power(5.0, p=0.5, shift=400))
PRINTED = tc.Fast(tc.Power(1 / 72, p=0.5), tc.Power(1 / 72, p=0.5), tc.Power(0.25, p=0.5))
ONE: dict[str, Method] = {
    "Standard": tc.Standard("2/(k+20)", "4/(k+20)"),
    "Fast, λ = 1": tc.Fast("2/(k+20)", "4/(k+20)", 1.0, order="paper"),
    "Fast, λ = 1, blended first": tc.Fast("2/(k+20)", "4/(k+20)", 1.0, order="fresh"),
}
