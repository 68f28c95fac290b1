"""How fast is the loop? Ratios to plain NumPy and to numba, measured side by side in one run.

TDC with operator averaging (Algorithm 1) on the paper's random MDP: 50 states, 50 actions, 10 features, alias tables.
"""

from __future__ import annotations

import time

import jax
import numpy as np
import psutil
from results import report
from tabular import METHOD, NUMBERS, TabularTdc, best_of, random_tables
from yardsticks import numba_loop, numpy_loop

import twoclock as tc


def main() -> None:
    tables = random_tables()
    problem = TabularTdc(**tables)
    theta_star = tables.pop("theta_star")

    numba_loop(10, 0, *tables.values(), *NUMBERS)
    loops = {"numpy": numpy_loop, "numba": numba_loop}
    lengths = {"numpy": 20_000, "numba": 2_000_000}

    def solve(steps, seeds):
        return tc.solve(problem, METHOD, steps=steps, seeds=seeds, marks=[steps])

    cost = {}
    runs = {
        "1,000 seeds": (20_000, 1_000),
        "100 seeds": (100_000, 100),
        "20 seeds": (200_000, 20),
        "1 seed": (1_000_000, 1),
    }
    for steps, seeds in runs.values():
        solve(steps, seeds)  # compile
    for _ in range(3):  # in turns, so that a disturbance of the machine falls on all alike
        for name, loop in loops.items():
            steps = lengths[name]
            seconds = best_of(2, lambda loop=loop, steps=steps: loop(steps, 1, *tables.values(), *NUMBERS))
            cost[name] = min(cost.get(name, np.inf), seconds / steps)
        for name, (steps, seeds) in runs.items():
            seconds = best_of(2, lambda steps=steps, seeds=seeds: solve(steps, seeds))
            cost[name] = min(cost.get(name, np.inf), seconds / steps / seeds)

    report(
        "core",
        "a whole call of solve, float64, time per step and seed with everything included",
        [
            {
                "loop": name,
                "ns": seconds * 1e9,
                "/ numba on one thread": seconds / cost["numba"],
                "NumPy / it": cost["numpy"] / seconds,
            }
            for name, seconds in cost.items()
        ],
    )

    ours = solve(200_000, 32).history.query("step == 200_000")["error"].mean()
    theirs = np.mean(
        [((numba_loop(200_000, s, *tables.values(), *NUMBERS) - theta_star) ** 2).sum() for s in range(32)]
    )
    print(f"the same answer: mean error after 200,000 steps {ours:.4g} here, {theirs:.4g} in the numba loop (32 seeds)")

    process = psutil.Process()
    before = process.memory_info().rss
    solve(10_000, 100)
    short = process.memory_info().rss
    solve(1_000_000, 100)
    print(
        f"memory: {before >> 20} MiB, after 1e4 steps {short >> 20}, after 1e6 steps {process.memory_info().rss >> 20}"
    )

    double = {
        "steps": best_of(3, lambda: solve(400_000, 20)) / best_of(3, lambda: solve(200_000, 20)),
        "seeds": best_of(3, lambda: solve(4_000, 2_000)) / best_of(3, lambda: solve(4_000, 1_000)),
    }
    print("twice as many " + ", ".join(f"{what}: {ratio:.2f} × the time" for what, ratio in double.items()))

    print(f"on {jax.devices()[0].device_kind}, {psutil.cpu_count()} cores, {time.strftime('%Y-%m-%d')}")


if __name__ == "__main__":
    main()
