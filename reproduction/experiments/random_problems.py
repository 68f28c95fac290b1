"""Random problems of twelve kinds, by seed: what ``Auto`` is tried on that nobody tuned it on.

Problems of a kind have the same shapes and differ in numbers alone, so that each kind is compiled once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from twoclock.models.lqr import Lqr
from twoclock.models.mdp import Mdp
from twoclock.problems.bilevel.least_squares import quadratic_bilevel, quadratic_minimax
from twoclock.problems.entropy_mdp_examples import random_entropy_mdp
from twoclock.problems.lqr.actor_critic import lqr_actor_critic
from twoclock.problems.policy_evaluation.linear import policy_evaluation
from twoclock.problems.quadratic import quadratic
from twoclock.problems.synthetic_rates import rates
from twoclock.protocols import Key, Problem, Scalar, pytree
from twoclock.tree_math import sqnorm
from twoclock.validation.arrays import Array, Number, Vector

Rng = np.random.Generator


@pytree
class HeavyTails(Problem):
    """F = H(θ − θ*) + C(ω − Wθ) + X, G = M(ω − Wθ) + X, X symmetric with P(|X| > x) = (1 + x/σ)^−tail."""

    H: Float[Array, "d d"]
    C: Float[Array, "d d"]
    M: Float[Array, "d d"]
    W: Float[Array, "d d"]
    star: Vector
    sigma: Scalar
    tail: Scalar

    def init(self, key: Key) -> tuple[Vector, Vector, None]:
        zero = jnp.zeros_like(jnp.asarray(self.star))
        return zero, zero, None

    def noise(self, key: Key) -> Vector:
        return jax.random.uniform(key, jnp.shape(self.star), minval=-1.0, maxval=1.0)

    def draw(self, u: Vector, theta: Vector, env: None) -> tuple[Vector, None]:
        size = jnp.expm1(-jnp.log1p(-jnp.minimum(jnp.abs(u), 1 - 1e-7)) / self.tail)
        return self.sigma * jnp.sign(u) * size, env

    def F(self, theta: Vector, omega: Vector, x: Vector) -> Vector:
        return jnp.asarray(self.H) @ (theta - self.star) + self.C @ (omega - self.W @ theta) + x

    def G(self, theta: Vector, omega: Vector, x: Vector) -> Vector:
        return jnp.asarray(self.M) @ (omega - self.W @ theta) + x

    def measure(self, theta: Vector, omega: Vector) -> dict[str, Number]:
        return {"error": sqnorm(theta - self.star), "tracking": sqnorm(omega - self.W @ theta)}


def _power(rng: Rng, low: float, high: float) -> float:
    """Ten to a uniform exponent."""
    return float(10 ** rng.uniform(low, high))


def rotating(rng: Rng) -> Problem:
    mu_h, mu_g = rng.uniform(0.2, 0.8, 2)
    rotation, coupling = rng.uniform(0.5, 3), rng.uniform(0.2, 1)
    return quadratic(5, mu_h, mu_g, 1.0, rotation, coupling, _power(rng, -2, 0), int(rng.integers(10**6)))


def ill_conditioned(rng: Rng) -> Problem:
    """Curvatures down to 10⁻⁴ of the largest, and noise small enough for them to show."""
    mu_h, mu_g = _power(rng, -4, -2), _power(rng, -2, 0)
    return quadratic(5, mu_h, mu_g, 1.0, 0.0, 0.5, mu_h * _power(rng, 0, 1.5), int(rng.integers(10**6)))


def kinked(rng: Rng) -> Problem:
    return rates("strongly-convex", "kinked", 2, _power(rng, -1, 0.5), _power(rng, -0.5, 1))


def polyak_lojasiewicz(rng: Rng) -> Problem:
    return rates("pl", "smooth", 2, _power(rng, -1, 0.5), rng.uniform(1, 4))


def non_convex(rng: Rng) -> Problem:
    return rates("non-convex", "smooth", 2, _power(rng, -1, 0), rng.uniform(0.5, 2))


def heavy_tailed(rng: Rng) -> Problem:
    base: Any = rotating(rng)
    return HeavyTails(base.H, base.C, base.M, base.W, base.theta_star, base.sigma, np.float64(rng.uniform(2.2, 4)))


def slow_chain(rng: Rng, operator: str = "tdc") -> Problem:
    """A lazy walk on a line with walls, random rewards, features that cover a third of the line each."""
    n, s = 15, np.arange(15)
    P = np.zeros((n, 2, n))
    P[s, 0, np.maximum(s - 1, 0)] = P[s, 1, np.minimum(s + 1, n - 1)] = 1
    right = rng.uniform(0.4, 0.6)
    mdp = Mdp(P, np.tile(rng.normal(size=(n, 1)), 2), rng.uniform(0.3, 0.9))
    behaviour = np.full((n, 2), 0.5)
    return policy_evaluation(
        mdp, np.eye(3)[s * 3 // n], np.tile([1 - right, right], (n, 1)), behaviour, operator, "markov"
    )


def off_policy(rng: Rng) -> Problem:
    """Importance ratios of ten and more."""
    n, m, d = 10, 4, 4
    P = rng.dirichlet(np.full(n, 0.3), size=(n, m))
    mdp = Mdp(P, rng.normal(size=(n, m)), rng.uniform(0.5, 0.95))
    target, behaviour = rng.dirichlet(np.full(m, 0.3), n), rng.dirichlet(np.full(m, 1.0), n)
    mixed = 0.85 * behaviour + 0.15 / m
    return policy_evaluation(mdp, rng.normal(size=(n, d)), target, mixed, "tdc", "iid")


def bilevel(rng: Rng) -> Problem:
    return quadratic_bilevel(3, 3, 48, 8, _power(rng, 0.3, 1.7), _power(rng, -1, 0.5), seed=int(rng.integers(10**6)))


def minimax(rng: Rng) -> Problem:
    return quadratic_minimax(3, 3, 48, 8, _power(rng, 0.3, 1.7), _power(rng, -1, 0.5), seed=int(rng.integers(10**6)))


def regulator(rng: Rng) -> Problem:
    """A stable plant of two states and one input."""
    A = rng.normal(size=(2, 2))
    A *= rng.uniform(0.3, 0.8) / np.abs(np.linalg.eigvals(A)).max()
    plant = Lqr(A, rng.normal(size=(2, 1)), np.diag(rng.uniform(0.3, 2, 2)), [[rng.uniform(0.3, 2)]])
    return lqr_actor_critic(plant, sigma=1.0, kappa=5.0)


def soft_mdp(rng: Rng) -> Problem:
    make = partial(random_entropy_mdp, states=4, actions=2, gamma=0.8, temp=_power(rng, -1.3, 0))
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(make)(jax.random.key(int(rng.integers(10**6)))))


def variance(problem: Any) -> float:
    """tr D Cov(X) Dᵀ, D = H⁻¹(I − CM⁻¹): of the efficient estimate of θ* from one sample, where F and G share X."""
    D = np.linalg.solve(problem.H, np.eye(len(problem.H)) - problem.C @ np.linalg.inv(problem.M))
    tail = getattr(problem, "tail", None)
    of_X = 1.0 if tail is None else 2 / ((tail - 1) * (tail - 2))
    return float(problem.sigma**2 * of_X * np.sum(D**2))


LINEAR = ("linear, rotating", "ill-conditioned", "heavy tails")
KINDS: dict[str, tuple[Callable[[Rng], Problem], int]] = {
    "linear, rotating": (rotating, 30_000),
    "ill-conditioned": (ill_conditioned, 100_000),
    "kinked": (kinked, 100_000),
    "PL": (polyak_lojasiewicz, 10_000),
    "non-convex": (non_convex, 10_000),
    "heavy tails": (heavy_tailed, 30_000),
    "slow chain": (slow_chain, 100_000),
    "off-policy": (off_policy, 100_000),
    "bilevel": (bilevel, 10_000),
    "minimax": (minimax, 10_000),
    "LQR": (regulator, 10_000),
    "entropy MDP": (soft_mdp, 100_000),
}


def drawn(make: Callable[[Rng], Problem], seed: Sequence[int]) -> Problem:
    """The problem of a kind that a seed makes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a plant or a curvature that only a person would change
        return make(np.random.default_rng(seed))
