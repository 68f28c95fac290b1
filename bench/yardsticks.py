"""The loops one would write by hand: TDC with operator averaging on a finite MDP, in NumPy and with numba."""

from __future__ import annotations

import math
import time

import numba
import numpy as np


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


def numpy_loop(steps, seed, keep, other, next_keep, next_other, ratio, reward, Phi, alpha, beta, c, shift, gamma):
    """(a) What one writes first."""
    rng = np.random.default_rng(seed)
    S, d = Phi.shape
    A = len(ratio) // S
    theta, omega, f, g = np.zeros((4, d))
    for k in range(steps):
        u = rng.random(3)
        s = int(u[0] * S)
        if u[0] * S - s >= keep[s]:
            s = other[s]
        pair = s * A + int(u[1] * A)
        t = int(u[2] * S)
        if u[2] * S - t >= next_keep[pair * S + t]:
            t = next_other[pair * S + t]
        phi, psi, rho = Phi[s], Phi[t], ratio[pair]
        delta = reward[s] + gamma * psi @ theta - phi @ theta
        correction = phi @ omega
        F = -2 * (rho * delta * phi - gamma * rho * correction * psi)
        G = (correction - rho * delta) * phi
        lam = c / (k + shift)
        theta, omega = theta - alpha * f, omega - beta * g
        f, g = (1 - lam) * f + lam * F, (1 - lam) * g + lam * G
    return theta


@numba.njit
def numba_loop(steps, seed, keep, other, next_keep, next_other, ratio, reward, Phi, alpha, beta, c, shift, gamma):
    """(b) The same, written out for a compiler: one thread, no temporaries."""
    np.random.seed(seed)
    S, d = Phi.shape
    A = len(ratio) // S
    theta, omega, f, g = np.zeros(d), np.zeros(d), np.zeros(d), np.zeros(d)
    for k in range(steps):
        u = np.random.random() * S
        s = int(u)
        if u - s >= keep[s]:
            s = other[s]
        pair = s * A + int(np.random.random() * A)
        u = np.random.random() * S
        t = int(u)
        if u - t >= next_keep[pair * S + t]:
            t = next_other[pair * S + t]
        rho, delta, correction = ratio[pair], reward[s], 0.0
        for i in range(d):
            delta += gamma * Phi[t, i] * theta[i] - Phi[s, i] * theta[i]
            correction += Phi[s, i] * omega[i]
        lam = c / (k + shift)
        for i in range(d):
            F = -2 * (rho * delta * Phi[s, i] - gamma * rho * correction * Phi[t, i])
            G = (correction - rho * delta) * Phi[s, i]
            theta[i] -= alpha * f[i]
            omega[i] -= beta * g[i]
            f[i] = (1 - lam) * f[i] + lam * F
            g[i] = (1 - lam) * g[i] + lam * G
    return theta


def best_of(repeats: int, work) -> float:
    """Seconds of the fastest of several runs: the least disturbed one."""
    best = math.inf
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best
