"""The actor-critic on the paper's regulator: what a seed-step costs here and in a one-thread numba loop.

    python bench/lqr.py [seeds] [steps]

Both figures are processor time, so that a busy machine or a second core changes neither.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numba
import numpy as np

import twoclock as tc

FAST = (1.0, 4.0, 160.0, 6000.0)  # c_α, c_β, c_λ, shift


@numba.njit
def numba_fast(
    A: np.ndarray, B: np.ndarray, kappa: float, sigma: float, steps: int, seed: int, sizes: tuple
) -> np.ndarray:
    """Fast on Q = R = Ψ = I, the corrected Algorithm 2, as one would write it by hand."""
    n, m = B.shape
    d = n + m
    np.random.seed(seed)
    K, f, old = np.zeros((m, n)), np.zeros((m, n)), np.zeros((m, n))
    Omega, g = np.zeros((d, d)), np.zeros((d, d))
    J, g_J = 0.0, 0.0
    z, new = np.zeros(d), np.zeros(d)
    for k in range(steps):
        over = 1.0 / (k + sizes[3])
        alpha, beta, lam = sizes[0] * over, sizes[1] * over, sizes[2] * over
        for i in range(n):
            x = np.random.normal()
            for j in range(n):
                x += A[i, j] * z[j]
            for j in range(m):
                x += B[i, j] * z[n + j]
            new[i] = x
        for i in range(m):
            u = sigma * np.random.normal()
            for j in range(n):
                u -= K[i, j] * new[j]
            new[n + i] = u
        here, there, c = 0.0, 0.0, 0.0
        for i in range(d):
            a, b = 0.0, 0.0
            for j in range(d):
                a += Omega[i, j] * z[j]
                b += Omega[i, j] * new[j]
            here += a * z[i]
            there += b * new[i]
            c += z[i] * z[i]
        delta = here - there + J - c
        for i in range(m):
            for j in range(n):
                F = -Omega[n + i, j]
                for l in range(m):
                    F += Omega[n + i, n + l] * K[l, j]
                old[i, j] = f[i, j]
                f[i, j] = (1 - lam) * f[i, j] + lam * F
        for i in range(m):
            for j in range(n):
                K[i, j] -= alpha * old[i, j]
        surprise = J - c
        J -= beta * g_J
        g_J = (1 - lam) * g_J + lam * kappa * surprise
        for i in range(d):
            for j in range(d):
                Omega[i, j] -= beta * g[i, j]
                g[i, j] = (1 - lam) * g[i, j] + lam * delta * z[i] * z[j]
        z[:] = new
    return K


def nanoseconds(work: Callable[[], object], seed_steps: int, repeats: int = 3) -> float:
    """The least processor time of a few runs, a seed-step; the first, which compiles, is left out."""
    work()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times) / seed_steps * 1e9


def main(seeds: int = 1000, steps: int = 20_000) -> None:
    problem = tc.problems.paper_lqr()
    alpha, beta, lam = (tc.Power(c, shift=FAST[3]) for c in FAST[:3])
    methods = {"Fast": tc.Fast(alpha, beta, lam), "Standard": tc.Standard(alpha, beta)}
    few = max(1, seeds // 20)
    A, B = problem.lqr.A, problem.lqr.B
    by_hand = nanoseconds(lambda: [numba_fast(A, B, 2.0, 1.0, steps, seed, FAST) for seed in range(few)], few * steps)
    print(f"numba, one thread, Fast   {by_hand:6.0f} ns a seed-step")
    for name, method in methods.items():
        cost = nanoseconds(lambda method=method: tc.solve(problem, method, steps, seeds, marks=[steps]), seeds * steps)
        print(f"twoclock, {name:<15} {cost:6.0f} ns a seed-step, {cost / by_hand:.2f} of numba's; the bar is 2")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
