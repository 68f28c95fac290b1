"""What a seed-step of policy evaluation costs, in ratios to numba measured in the same run, and what Figure 1 takes.

TDC with operator averaging on the paper's random MDPs. One MDP for all seeds is the yardstick's own setting; an MDP for
each seed, as in Figure 1, asks more of the memory: its tables no longer fit a cache.
"""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table
from tabular import best_of, random_tables
from yardsticks import numba_loop

import twoclock as tc
from twoclock.experiments import fig1

METHOD = fig1.printed(fig1.FAST)
LARGE = fig1.SIZES["100"]


def one_mdp(**settings):
    """A single instance, as any problem that is handed to ``solve``."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, tc.problems.random_policy_evaluation(jax.random.key(0), **settings))


def per_seed_step(problem, method, steps, seeds):
    """Seconds a seed-step, without what a run costs once (drawing the instances, starting up)."""

    def solve(count):
        return best_of(2, lambda: tc.solve(problem, method, count, seeds, marks=[count]))

    tc.solve(problem, method, steps, seeds, marks=[steps])  # compile
    return (solve(2 * steps) - solve(steps)) / steps / seeds


def main() -> None:
    console = Console()
    tables = random_tables()
    tables.pop("theta_star")
    numbers = (5e-4, 2e-3, 0.8, 10.0, 0.5)
    numba_loop(10, 0, *tables.values(), *numbers)
    draws = tc.problems.random_policy_evaluation
    runs = {
        "one MDP, 1,000 seeds": (one_mdp(), 10_000, 1_000),
        "one MDP, 100 seeds": (one_mdp(), 40_000, 100),
        "one MDP, 100 seeds, Markov": (one_mdp(sampling="markov"), 40_000, 100),
        "an MDP each, 1,000 seeds": (draws, 10_000, 1_000),
        "an MDP each, 100 seeds": (draws, 40_000, 100),
        "an MDP each, 100 seeds, 100/100/30": (partial(draws, **LARGE), 20_000, 100),
    }
    cost = {}
    for _ in range(2):  # in turns, so that a disturbance of the machine falls on all alike
        seconds = best_of(2, lambda: numba_loop(2_000_000, 1, *tables.values(), *numbers)) / 2_000_000
        cost["numba, one thread"] = min(cost.get("numba, one thread", np.inf), seconds)
        for name, (problem, steps, seeds) in runs.items():
            cost[name] = min(cost.get(name, np.inf), per_seed_step(problem, METHOD, steps, seeds))
    table = Table("", "ns", "× numba", title="cost per seed-step of Fast TDC, float64", title_justify="left")
    for name, seconds in cost.items():
        table.add_row(name, f"{seconds * 1e9:.0f}", f"{seconds / cost['numba, one thread']:.2f}")
    console.print(table)

    total, sheet = 0.0, Table("", "ns a seed-step", "minutes in full", title="Figure 1", title_justify="left")
    for name, case in fig1.cases(quick=False).items():
        seeds, steps = case.seeds if isinstance(case.seeds, int) else len(case.seeds), case.steps
        groups: dict = {}
        for label, method in case.methods.items():
            groups.setdefault(jax.tree.structure(method), {})[label] = method
        seconds = 0.0
        for group in groups.values():
            cut = partial(tc.solve, case.problem, group, seeds=case.seeds)
            cut(2_000, marks=[2_000])  # compile
            times = [best_of(1, lambda n=n, cut=cut: cut(n, marks=[n])) for n in (2_000, 6_000)]
            seconds += (times[1] - times[0]) / 4_000 * steps + times[0]
        total += seconds
        each = seconds / seeds / steps / len(case.methods)
        sheet.add_row(f"{name} ({len(case.methods)} methods)", f"{each * 1e9:.0f}", f"{seconds / 60:.1f}")
    console.print(sheet)
    console.print(f"Figure 1 in full: {total / 60:.1f} minutes on {psutil.cpu_count()} cores")


if __name__ == "__main__":
    main()
