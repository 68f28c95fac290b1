"""Certainty equivalence: fit a model to the samples, and solve it as if the estimate were the truth."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from twoclock.models.lqr import MatrixLike, riccati, square_matrix
from twoclock.models.soft_mdp import SoftMdp
from twoclock.protocols import PyTree, Scalar, pytree, static
from twoclock.validation import check_size, number, whole
from twoclock.validation.arrays import Array, Number, State

Moments = Float[Array, "p p"]
"""The mean of (x, u, x')(x, u, x')ᵀ, p = 2n + m."""
Counts = dict[str, Float[Array, "s a"] | Float[Array, "s a s"]]
"""Means over the samples: ``visits`` and ``reward`` of each pair, ``next`` states with their discount."""


@pytree
class CertaintyEquivalence:
    """The gain and the critic that a model fitted to the samples would give.

        [Â B̂] = E[x'zᵀ] E[zzᵀ]⁻¹,     Ψ̂ = E[x'x'ᵀ] − [Â B̂] E[zx'ᵀ],     K̂, P̂ = Riccati(Â, B̂, Q, R)

    with E the mean over the samples seen and z = (x, u). `PlugIn` keeps the means, sample by sample; their
    prior, ``ridge`` on the diagonal as if it were one sample, is the usual start of recursive least squares. It
    knows Q, R and its own σ, and not A, B or Ψ.

    Args:
        Q, R: the cost.
        sigma: the exploration, which enters the mean cost.
        ridge: the weight of the prior [Â B̂] = 0.

    Reference: Mania, Tu & Recht, *Certainty equivalence is efficient for linear quadratic control*, 2019.
    """

    Q: MatrixLike
    R: MatrixLike
    sigma: Scalar = 1.0
    ridge: Scalar = 1e-6

    def __post_init__(self) -> None:
        for name in ("Q", "R"):
            object.__setattr__(self, name, square_matrix(name, getattr(self, name)))
        object.__setattr__(self, "sigma", np.float64(number("sigma", self.sigma, 0)))
        object.__setattr__(self, "ridge", np.float64(number("ridge", self.ridge, 0, above=True)))

    @property
    def prior(self) -> Moments:
        """The statistic before the first sample."""
        Q = jnp.asarray(self.Q)
        return self.ridge * jnp.eye(2 * len(Q) + len(self.R), dtype=Q.dtype)

    def statistic(self, x: Mapping[str, jax.Array]) -> Moments:
        """The outer product of (z, x') with itself."""
        v = jnp.concatenate([x["z"], x["next"][: len(self.Q)]])
        return v[:, None] * v[None, :]

    def solve(self, mean: Moments) -> tuple[Float[Array, "m n"], dict[str, jax.Array]]:
        """The θ and ω that the mean statistic implies."""
        n, m = len(self.Q), len(self.R)
        d = n + m
        AB = jnp.linalg.solve(mean[:d, :d], mean[:d, d:]).T
        B = AB[:, n:]
        K, P = riccati(AB[:, :n], B, self.Q, self.R)
        noise = mean[d:, d:] - AB @ mean[:d, d:]
        J = jnp.sum(P * (noise + self.sigma**2 * B @ B.T)) + self.sigma**2 * jnp.trace(jnp.asarray(self.R))
        return K, {"J": J, "Omega": jax.scipy.linalg.block_diag(self.Q, self.R) + AB.T @ P @ AB}


@pytree
class EmpiricalMdp:
    """The policy and the values that the MDP of the observed frequencies would have.

        r̂(s, a) = Σ r / n(s, a),     (γP)^(s'|s, a) = Σ γ1{s'} / n(s, a),     π̂, V̂ = soft value iteration

    with the sums over the visits of (s, a). `PlugIn` keeps them, sample by sample, from a prior that counts as one
    sample: spread evenly over all pairs, with reward 0 and a uniform next state. The model knows γ and τ, and
    estimates P and r. Every sample updates S·A·S numbers.

    Args:
        states, actions: the sizes |S| and |A|.
        gamma: the discount, where a sample does not say its own.
        temp: the temperature τ.

    >>> import twoclock as tc
    >>> rival = tc.PlugIn(tc.Fast(), tc.models.EmpiricalMdp(states=10, actions=4, gamma=0.9, temp=0.1))
    """

    states: int = static()
    actions: int = static()
    gamma: Scalar = 0.9
    temp: Scalar = 0.1

    def __post_init__(self) -> None:
        for name in ("states", "actions"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        check_size("`states`, `actions`", self.states * self.states * self.actions)
        object.__setattr__(self, "gamma", np.float64(number("gamma", self.gamma, 0, 1, below=True)))
        object.__setattr__(self, "temp", np.float64(number("temp", self.temp, 0)))

    @property
    def prior(self) -> Counts:
        """The statistic before the first sample."""
        gamma = jnp.asarray(self.gamma)
        pairs = jnp.full((self.states, self.actions), 1 / (self.states * self.actions), gamma.dtype)
        following = jnp.broadcast_to(gamma * pairs[:, :, None] / self.states, (*pairs.shape, self.states))
        return {"visits": pairs, "reward": jnp.zeros_like(pairs), "next": following}

    def statistic(self, x: PyTree) -> Counts:
        """What one sample adds to the sums."""
        gamma = jnp.asarray(self.gamma) if x.gamma is None else x.gamma
        pair = x.s * self.actions + x.a
        visits = _one_at(pair, jnp.ones_like(gamma), (self.states, self.actions))
        following = _one_at(pair * self.states + x.next_state, gamma, (self.states, self.actions, self.states))
        return {"visits": visits, "reward": x.r * visits, "next": following}

    def solve(self, mean: Counts) -> tuple[Float[Array, "s a"], Float[Array, " s"]]:
        """The θ and ω that the mean statistic implies."""
        visits = mean["visits"]
        temp = jnp.full(self.states, self.temp, visits.dtype)
        start = jnp.full(self.states, 1 / self.states, visits.dtype)
        log_pi, V = SoftMdp(mean["next"] / visits[:, :, None], mean["reward"] / visits, temp, start).solve()
        return log_pi, V


def _one_at(place: State, value: Number, shape: tuple[int, ...]) -> Array:
    """Zeros but for one value: by one comparison per entry, since this is done with every sample."""
    entries = jnp.arange(math.prod(shape), dtype=jnp.int32)
    return jnp.where(entries == place, value, jnp.zeros_like(value)).reshape(shape)
