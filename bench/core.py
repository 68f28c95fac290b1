"""How fast is the loop? Ratios to plain NumPy and to numba, measured side by side in one run.

TDC with operator averaging (Algorithm 1) on the paper's random MDP: 50 states, 50 actions, 10 features, alias tables.
"""

from __future__ import annotations

import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table
from yardsticks import best_of, numba_loop, numpy_loop, random_tables

import twoclock as tc
from twoclock.core import pytree

GAMMA = 0.5
METHOD = tc.Fast(alpha=5e-4, beta=2e-3, lam=tc.Power(0.8, shift=10.0))


@pytree
class TabularTdc:
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

    def error(self, theta, x):
        s, t, _ = x
        return self.reward[s] + GAMMA * self.Phi[t] @ theta - self.Phi[s] @ theta

    def F(self, theta, omega, x):
        s, t, rho = x
        return -2 * (rho * self.error(theta, x) * self.Phi[s] - GAMMA * rho * (self.Phi[s] @ omega) * self.Phi[t])

    def G(self, theta, omega, x):
        s, _, rho = x
        return (self.Phi[s] @ omega - rho * self.error(theta, x)) * self.Phi[s]

    def measure(self, theta, omega):
        return {"error": jnp.sum((theta - self.theta_star) ** 2)}


def alias(u, keep, other, offset):
    i = u.astype(jnp.int32)
    return jnp.where(u - i < keep[offset + i], i, other[offset + i])


def main() -> None:
    tables = random_tables()
    problem = TabularTdc(**tables)
    theta_star = tables.pop("theta_star")
    numbers = (5e-4, 2e-3, 0.8, 10.0, GAMMA)

    numba_loop(10, 0, *tables.values(), *numbers)
    loops = {"numpy": numpy_loop, "numba": numba_loop}
    lengths = {"numpy": 20_000, "numba": 2_000_000}

    def solve(steps, seeds):
        return tc.solve(problem, METHOD, steps=steps, seeds=seeds, marks=[steps])

    cost = {}
    runs = {"1,000 seeds": (4_000, 1_000), "100 seeds": (20_000, 100), "20 seeds": (50_000, 20), "1 seed": (400_000, 1)}
    for steps, seeds in runs.values():
        solve(steps, seeds)  # compile
    for _ in range(3):  # in turns, so that a disturbance of the machine falls on all alike
        for name, loop in loops.items():
            steps = lengths[name]
            seconds = best_of(1, lambda loop=loop, steps=steps: loop(steps, 1, *tables.values(), *numbers))
            cost[name] = min(cost.get(name, np.inf), seconds / steps)
        for name, (steps, seeds) in runs.items():
            seconds = best_of(2, lambda steps=steps, seeds=seeds: solve(steps, seeds))
            cost[name] = min(cost.get(name, np.inf), seconds / steps / seeds)

    console = Console()
    table = Table(title="cost per seed-step, float64, everything included", title_justify="left")
    for column in ("", "ns", "× numba, one thread", "times faster than NumPy"):
        table.add_column(column, justify="left" if not column else "right")
    for name, seconds in cost.items():
        table.add_row(name, f"{seconds * 1e9:.0f}", f"{seconds / cost['numba']:.2f}", f"{cost['numpy'] / seconds:.0f}")
    console.print(table)

    ours = solve(200_000, 32).history.query("step == 200_000")["error"].mean()
    theirs = np.mean(
        [((numba_loop(200_000, s, *tables.values(), *numbers) - theta_star) ** 2).sum() for s in range(32)]
    )
    console.print(
        f"the same answer: mean error after 200,000 steps {ours:.4g} here, {theirs:.4g} in the numba loop (32 seeds)"
    )

    process = psutil.Process()
    before = process.memory_info().rss
    solve(10_000, 100)
    short = process.memory_info().rss
    solve(1_000_000, 100)
    console.print(
        f"memory: {before >> 20} MiB, after 1e4 steps {short >> 20}, after 1e6 steps {process.memory_info().rss >> 20}"
    )

    double = {
        "steps": best_of(3, lambda: solve(400_000, 20)) / best_of(3, lambda: solve(200_000, 20)),
        "seeds": best_of(3, lambda: solve(4_000, 2_000)) / best_of(3, lambda: solve(4_000, 1_000)),
    }
    console.print("twice as many " + ", ".join(f"{what}: {ratio:.2f} × the time" for what, ratio in double.items()))

    for what, command in {
        "import twoclock": ["-c", "import twoclock"],
        "twoclock --help": ["-m", "twoclock.cli", "--help"],
    }.items():
        seconds = best_of(
            3, lambda command=command: subprocess.run([sys.executable, *command], check=True, capture_output=True)
        )
        console.print(f"{what}: {seconds:.2f} s")
    console.print(f"on {jax.devices()[0].device_kind}, {psutil.cpu_count()} cores, {time.strftime('%Y-%m-%d')}")


if __name__ == "__main__":
    main()
