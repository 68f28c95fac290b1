"""Is tuning without truth as good as tuning with it? Equal budgets, judged on seeds that neither has seen.

For each problem the settings that ``tc.tune`` finds with the metric and with the residuals alone, and the ratio of the
mean metric that they reach at the horizon, with a 95 % bootstrap interval over the shared seeds.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

import twoclock as tc

STEPS, HELD_OUT = 20_000, 200
SHIFTED = tc.Fast(tc.Power(1.0, shift=300.0), tc.Power(4.0, shift=300.0), tc.Power(40.0, shift=300.0))
SPACE = {"alpha.c": (0.1, 30.0), "beta.c": (0.1, 100.0), "alpha.shift,beta.shift,lam.shift": (30.0, 10_000.0)}
PROBLEMS = {
    "policy evaluation, random MDPs": (tc.problems.random_policy_evaluation, "error"),
    "policy evaluation, Markov": (partial(tc.problems.random_policy_evaluation, sampling="markov"), "error"),
    "five-state walk": (tc.problems.walk_dependent(), "error"),
    "the paper's regulator": (tc.problems.paper_lqr(), "gap"),
    "quadratic": (tc.problems.quadratic(), "error"),
    "PL, kinked": (tc.problems.rates("pl", "kinked", dim=3), "gap"),
}


def held_out(problem, methods, metric, steps, seeds):
    """The metric at the end, seed by seed, a diverged seed at its last finite value."""
    results = tc.solve(problem, methods, steps, seeds, marks=[steps])
    return {label: r.history[metric].to_numpy() for label, r in results.items()}


def ratio(ours, theirs, draws=2000):
    """Mean over mean with its 95 % interval."""
    picks = np.random.default_rng(0).integers(len(ours), size=(draws, len(ours)))
    low, high = np.quantile(ours[picks].mean(axis=1) / theirs[picks].mean(axis=1), [0.025, 0.975])
    return ours.mean() / theirs.mean(), low, high


def settings(found):
    return " ".join(f"{value:g}" for value in found.settings.values())


def main(steps: int = STEPS, order: bool = False) -> None:
    console, budget = Console(width=150), 1280 * steps
    table = Table(
        "", "metric", "with truth", "without", "ratio of the metric", "s", "s",
        title=f"chosen (c_α, c_β, shift) at {steps:,} steps, {budget:,} seed-steps each; {HELD_OUT} held-out seeds",
        title_justify="left",
    )  # fmt: skip
    for name, (problem, metric) in PROBLEMS.items():
        found, took = {}, {}
        for kind in (metric, "residual"):
            began = time.perf_counter()
            found[kind] = tc.tune(problem, SHIFTED, SPACE, steps, budget, kind, order=order)
            took[kind] = time.perf_counter() - began
        ends = held_out(problem, {kind: f.method for kind, f in found.items()}, metric, steps, HELD_OUT)
        mean, low, high = ratio(ends["residual"], ends[metric])
        table.add_row(
            name, metric, settings(found[metric]), settings(found["residual"]), f"{mean:.2f} [{low:.2f}, {high:.2f}]",
            *(f"{seconds:.0f}" for seconds in took.values()),
        )  # fmt: skip
        console.log(f"{name}: {found[metric]!r}, {found['residual']!r}")
    console.print(table)


if __name__ == "__main__":
    main()
