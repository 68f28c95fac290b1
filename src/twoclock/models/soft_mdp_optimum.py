"""How far a policy of an entropy-regularised MDP is from the best, and what samples of it average to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from twoclock.models.float64 import in_float64
from twoclock.models.soft_mdp import Pairs, SoftMdp, States
from twoclock.protocols import pytree
from twoclock.tree_math import pinv
from twoclock.validation.arrays import Array, Number, Vector

_TIE = 1e-9  # actions whose value is this close to the best, against its size, are best too at temperature 0


@pytree
class SoftTruth:
    """An entropy-regularised MDP with its optimum.

    Args:
        soft: the MDP.
        P: its transition probabilities without the discount.
        J_star: the best return.
        pi_star: the optimal policy; even among the best actions where the temperature is 0.
        d_star: its visitation law.
    """

    soft: SoftMdp
    P: Float[Array, "s a s"]
    J_star: Number
    pi_star: Float[Array, "s a"]
    d_star: Float[Array, " s"]

    def measure(self, logits: Pairs) -> tuple[dict[str, Number], Pairs]:
        """gap, error and the least probability of a policy, and ∂J/∂logits."""
        known = self.soft.evaluate(logits)
        pi = jax.nn.softmax(logits)
        hot = jnp.asarray(self.soft.temp) > 0
        metrics = {
            "gap": self.J_star - jnp.sum(self.soft.start * known.V),
            "error": jnp.sum(self.d_star * self._distance(pi, hot)),
            "least_probability": jnp.min(jnp.where(self._matters[:, None], pi, 1.0)),
        }
        return metrics, self.soft.slope(logits, known)

    def _distance(self, pi: Pairs, hot: Bool[Array, " s"]) -> States:
        """‖π(·|s) − π*(·|s)‖² to the nearest optimal policy: at temperature 0 any law over the best actions is one."""
        best = (jnp.asarray(self.pi_star) > 0).astype(pi.dtype)
        off = pi * (1 - best)
        cold = jnp.sum(jnp.square(off), axis=1) + jnp.square(jnp.sum(off, axis=1)) / jnp.sum(best, axis=1)
        return jnp.where(hot, jnp.sum(jnp.square(pi - self.pi_star), axis=1), cold)

    @property
    def _matters(self) -> Bool[Array, " s"]:
        """The states where the choice of action matters: those where an episode is not over."""
        return jnp.any(jnp.asarray(self.soft.P) > 0, axis=(1, 2)) | jnp.any(jnp.asarray(self.soft.r) != 0, axis=1)

    def weights(self, logits: Pairs, visits: States, sampling: str) -> States:
        """How samples weigh the states: by the discounted visits, their stationary law, or the start law."""
        if sampling == "restart":
            return visits
        if sampling == "iid":
            return jnp.asarray(self.soft.start)
        chain = jnp.einsum("sa,sat->st", jax.nn.softmax(logits), self.P)
        n = len(chain)
        one = jnp.ones(n, chain.dtype)
        return jnp.linalg.solve(jnp.eye(n, dtype=chain.dtype) - chain.T + jnp.ones((n, n), chain.dtype), one)

    def means(self, logits: Pairs, V: States, sampling: str) -> tuple[States, States, Pairs]:
        """The weights of the states, the mean of δ in each, and that of δ·∇log π, where V is any critic's."""
        weights = self.weights(logits, self.soft.evaluate(logits).visits, sampling)
        log_pi = jax.nn.log_softmax(logits)
        Q = self.soft.q(V)
        delta = jnp.sum(jnp.exp(log_pi) * (Q - jnp.asarray(self.soft.temp)[:, None] * log_pi), axis=1) - V
        return weights, delta, self.soft.advantage(logits, Q, V)

    def critic(self, logits: Pairs, features: Float[Array, "s d"] | None, sampling: str) -> Vector:
        """V of the policy or, with features Φ and state weights D, the ω with ΦᵀD(r + (γP)Φω − Φω) = 0."""
        known = self.soft.evaluate(logits)
        if features is None:
            return known.V
        Phi, pi = jnp.asarray(features), jax.nn.softmax(logits)
        weighted = Phi.T * self.weights(logits, known.visits, sampling)[None, :]
        step = Phi - jnp.einsum("sa,sat->st", pi, self.soft.P) @ Phi
        reward = known.V - jnp.einsum("sa,sat->st", pi, self.soft.P) @ known.V
        return pinv(weighted @ step) @ (weighted @ reward)


@in_float64
@jax.jit
def soft_truth(soft: SoftMdp, P: Float[Array, "s a s"]) -> SoftTruth:
    """The truth of an MDP whose transition probabilities without the discount are P."""
    log_pi, V = soft.solve()
    Q, temp = soft.q(V), jnp.asarray(soft.temp)
    tied = jnp.max(Q, axis=1, keepdims=True) - _TIE * (1 + jnp.max(jnp.abs(V)))
    best = (tied <= Q).astype(V.dtype)
    pi = jnp.where(temp[:, None] > 0, jnp.exp(log_pi), best / jnp.sum(best, axis=1, keepdims=True))
    visits = soft.evaluate(log_pi).visits
    return SoftTruth(soft, P, jnp.sum(soft.start * V), pi, visits / jnp.sum(visits))
