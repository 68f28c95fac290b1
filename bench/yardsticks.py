"""The loops one would write by hand: TDC with operator averaging on a finite MDP, in NumPy and with numba."""

from __future__ import annotations

import numba
import numpy as np


def numpy_loop(steps, seed, keep, other, next_keep, next_other, ratio, reward, Phi, alpha, beta, c, shift, gamma):
    """(a) A first, plain version."""
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
