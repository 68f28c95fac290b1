"""The time of policy evaluation per step and seed, relative to numba in the same run.

TDC with operator averaging on the paper's random MDPs. One MDP for all seeds is the yardstick's own setting; an MDP for
each seed, as in Figure 1, needs more memory: its tables no longer fit a cache.
"""

from __future__ import annotations

import time
from functools import partial

import jax
import numpy as np
from results import report
from tabular import NUMBERS, best_of, random_tables
from yardsticks import numba_loop

import twoclock as tc
from reproduction.experiments import fig1

METHOD = fig1.printed(fig1.FAST)
LARGE = fig1.SIZES["100"]


def one_mdp(**settings):
    """A single instance, as any problem that is passed to ``solve``."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, tc.problems.random_policy_evaluation(jax.random.key(0), **settings))


def per_step(problem, method, steps, seeds):
    """Seconds per step of all seeds, between two marks of one run: without compiling and drawing the instances."""
    reached = {}

    def look(tick):
        if tick.row is not None:
            reached[tick.step] = time.perf_counter()

    tc.solve(problem, method, 3 * steps, seeds, marks=[steps, 2 * steps, 3 * steps], progress=look)
    times = [reached[i * steps] for i in (1, 2, 3)]
    return min(times[1] - times[0], times[2] - times[1]) / steps


def main() -> None:
    tables = random_tables()
    tables.pop("theta_star")
    numba_loop(10, 0, *tables.values(), *NUMBERS)
    draws = tc.problems.random_policy_evaluation
    runs = {
        "one MDP, 1,000 seeds": (one_mdp(), 4_000, 1_000),
        "one MDP, 100 seeds": (one_mdp(), 20_000, 100),
        "one MDP, 100 seeds, Markov": (one_mdp(sampling="markov"), 20_000, 100),
        "an MDP each, 1,000 seeds": (draws, 4_000, 1_000),
        "an MDP each, 100 seeds": (draws, 20_000, 100),
        "an MDP each, 100 seeds, 100/100/30": (partial(draws, **LARGE), 10_000, 100),
    }
    cost = {}
    for _ in range(2):  # in turns, so that a disturbance of the machine falls on all alike
        seconds = best_of(2, lambda: numba_loop(2_000_000, 1, *tables.values(), *NUMBERS)) / 2_000_000
        cost["numba, one thread"] = min(cost.get("numba, one thread", np.inf), seconds)
        for name, (problem, steps, seeds) in runs.items():
            cost[name] = min(cost.get(name, np.inf), per_step(problem, METHOD, steps, seeds) / seeds)
    base = cost["numba, one thread"]
    rows = [{"loop": name, "ns": seconds * 1e9, "/ numba": seconds / base} for name, seconds in cost.items()]
    report("policy_evaluation", "Fast TDC, float64, time per step and seed", rows)


if __name__ == "__main__":
    main()
