"""The paper's random MDP as tables, TDC on it in the library's terms, and a stopwatch."""

from __future__ import annotations

import math
import time

import jax
import jax.numpy as jnp
import numpy as np

import twoclock as tc
from twoclock.protocols import pytree

GAMMA = 0.5
NUMBERS = (5e-4, 2e-3, 0.8, 10.0, GAMMA)
GAIN_STEP = 1e-2  # of the third level
METHOD = tc.Fast(alpha=NUMBERS[0], beta=NUMBERS[1], lam=tc.Power(NUMBERS[2], shift=NUMBERS[3]))


def alias_table(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Walker's tables: draw i uniformly, keep it with probability keep[i], else take other[i]."""
    n = len(p)
    keep, other, q = np.ones(n), np.arange(n, dtype=np.int32), p * n
    small, large = [i for i in range(n) if q[i] < 1], [i for i in range(n) if q[i] >= 1]
    while small and large:
        i, j = small.pop(), large.pop()
        keep[i], other[i] = q[i], j
        q[j] -= 1 - q[i]
        (small if q[j] < 1 else large).append(j)
    return keep, other


def random_tables(states: int = 50, actions: int = 50, features: int = 10, gamma: float = 0.5, seed: int = 0) -> dict:
    """The paper's random MDP with a uniform behaviour policy, as tables to sample from."""
    rng = np.random.default_rng(seed)
    P = rng.random((states, actions, states))
    P /= P.sum(axis=-1, keepdims=True)
    target = np.exp(rng.standard_normal((states, actions)))
    target /= target.sum(axis=1, keepdims=True)
    Phi = rng.standard_normal((states, features))
    theta_star = rng.standard_normal(features)
    V = Phi @ theta_star
    reward = V - gamma * np.einsum("sat,sa,t->s", P, target, V)
    chain = P.mean(axis=1)
    law = np.linalg.matrix_power(chain, 200)[0]
    keep, other = alias_table(law / law.sum())
    pairs = [alias_table(row) for row in P.reshape(-1, states)]
    return {
        "keep": keep,
        "other": other,
        "next_keep": np.concatenate([pair[0] for pair in pairs]),
        "next_other": np.concatenate([pair[1] for pair in pairs]),
        "ratio": (target * actions).ravel(),
        "reward": reward,
        "Phi": Phi,
        "theta_star": theta_star,
    }


@pytree
class TabularTdc(tc.Problem):
    """The yardsticks' problem in the library's terms."""

    keep: object
    other: object
    next_keep: object
    next_other: object
    ratio: object
    reward: object
    Phi: object
    theta_star: object

    def init(self, key):
        zero = jnp.zeros_like(self.theta_star)
        return zero, zero, None

    def noise(self, key):
        return jax.random.uniform(key, (3,))

    def draw(self, u, theta, env):
        S = self.Phi.shape[0]
        A = self.ratio.shape[0] // S
        s = alias(u[0] * S, self.keep, self.other, 0)
        pair = s * A + (u[1] * A).astype(jnp.int32)
        t = alias(u[2] * S, self.next_keep, self.next_other, pair * S)
        return (s, t, self.ratio[pair]), env

    def error(self, theta, x, gain=0.0):
        s, t, _ = x
        return self.reward[s] - gain + GAMMA * self.Phi[t] @ theta - self.Phi[s] @ theta

    def F(self, theta, omega, x, gain=0.0):
        s, t, rho = x
        error = self.error(theta, x, gain)
        return -2 * (rho * error * self.Phi[s] - GAMMA * rho * (self.Phi[s] @ omega) * self.Phi[t])

    def G(self, theta, omega, x, gain=0.0):
        s, _, rho = x
        return (self.Phi[s] @ omega - rho * self.error(theta, x, gain)) * self.Phi[s]

    def measure(self, theta, omega):
        return {"error": jnp.sum((theta - self.theta_star) ** 2)}


@pytree
class TabularGain(TabularTdc):
    """The same with a third level, the mean reward of the target policy, which is taken from each reward."""

    def init(self, key):
        zero = jnp.zeros_like(self.theta_star)
        return zero, (zero, jnp.zeros((), zero.dtype)), None

    def F(self, theta, omega, x):
        return super().F(theta, omega[0], x, omega[1])

    def G(self, theta, omega, x):
        s, _, rho = x
        return super().G(theta, omega[0], x, omega[1]), rho * (omega[1] - self.reward[s])


def alias(u, keep, other, offset):
    i = u.astype(jnp.int32)
    return jnp.where(u - i < keep[offset + i], i, other[offset + i])


def best_of(repeats: int, work) -> float:
    """Seconds of the fastest of several runs: the least disturbed one."""
    best = math.inf
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best
