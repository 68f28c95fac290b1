"""How fast is the LQR actor-critic? The paper's regulator, 3 states and 2 actions, against a numba loop by hand."""

from __future__ import annotations

import time

import jax
import numba
import numpy as np
import psutil
from results import report

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


def main() -> None:
    problem = tc.problems.paper_lqr()
    lqr = problem.lqr
    alpha, beta, lam = (tc.Power(c, shift=FAST[3]) for c in FAST[:3])
    methods = {"Fast": tc.Fast(alpha, beta, lam), "Standard": tc.Standard(alpha, beta)}
    seeds, steps, by_hand = 1_000, 10_000, 2_000_000

    def ours(method: object) -> object:
        return tc.solve(problem, method, steps=steps, seeds=seeds, marks=[steps])

    work = {"numba, one thread, Fast": (lambda: numba_fast(lqr.A, lqr.B, 2.0, 1.0, by_hand, 1, FAST), by_hand)}
    work |= {f"{name}, {seeds:,} seeds": (lambda m=m: ours(m), seeds * steps) for name, m in methods.items()}
    wall, processor = dict.fromkeys(work, np.inf), dict.fromkeys(work, np.inf)
    for turn in range(5):  # in turns, so that a disturbance of the machine falls on all alike; the first one compiles
        for name, (run, count) in work.items():
            began = time.perf_counter(), time.process_time()
            run()
            if turn:
                wall[name] = min(wall[name], (time.perf_counter() - began[0]) / count)
                processor[name] = min(processor[name], (time.process_time() - began[1]) / count)

    base = "numba, one thread, Fast"
    report(
        "lqr",
        "the LQR actor-critic, float64, time per step and seed with everything included",
        [
            {
                "loop": loop,
                "ns": wall[loop] * 1e9,
                "/ numba": wall[loop] / wall[base],
                "processor ns": processor[loop] * 1e9,
                "/ numba's": processor[loop] / processor[base],
            }
            for loop in work
        ],
    )

    gap = tc.solve(problem, methods["Fast"], steps=100_000, seeds=128, marks=[100_000]).history["gap"].mean()
    gains = [numba_fast(lqr.A, lqr.B, 2.0, 1.0, 100_000, seed, FAST) for seed in range(128)]
    theirs = np.mean([lqr.J(K, 1.0) for K in gains]) - lqr.J(lqr.gain, 1.0)
    print(f"the same answer: mean gap after 100,000 steps {gap:.3g} here, {theirs:.3g} in the numba loop (128 seeds)")
    print(f"on {jax.devices()[0].device_kind}, {psutil.cpu_count()} cores, {time.strftime('%Y-%m-%d')}")


if __name__ == "__main__":
    main()
