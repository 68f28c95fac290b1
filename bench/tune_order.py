"""Does tuning without the order α ≤ β ≤ λ choose worse than with it? Equal budgets, seeds that neither has seen.

For each problem ``tc.tune`` runs with and without the order, with the metric and by residuals alone, for several seeds
of the tuning; each choice is run on held-out seeds. Shown is the ratio of what they reach, without the order over
with it: the geometric mean over tunings with its 95 % interval (Student's t of the logs). It is given for the median
over held-out seeds, which is what usually happens, and for the mean, which a rare failure decides.
``python bench/tune_order.py [STEPS [TUNINGS [NAME …]]]``.
"""

from __future__ import annotations

import sys

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import t

import twoclock as tc

HELD_OUT = 100
PROBLEMS = {
    "walk_tabular": (tc.problems.walk_tabular, "error", tc.Fast()),
    "baird": (tc.problems.baird, "rmspbe", tc.Fast()),
    "quadratic": (tc.problems.quadratic, "error", tc.Fast()),
    "quadratic_bilevel": (tc.problems.quadratic_bilevel, "error", tc.Fast()),
    "paper_lqr": (tc.problems.paper_lqr, "gap", tc.Fast()),
    "forest": (tc.problems.forest, "gap", tc.Fast()),
}


def reached(problem, method, metric, steps):
    """Median and mean of the metric over held-out seeds, and how many seeds failed: diverged, or 100 medians off."""
    values = tc.solve(problem, method, steps, HELD_OUT, marks=[steps]).history[metric].to_numpy()
    median = float(np.median(values))
    return median, float(values.mean()), int(np.count_nonzero(~(values <= 100 * median)))


def interval(ratios):
    """Geometric mean with its 95 % interval."""
    logs = np.log(ratios)
    if not np.isfinite(logs).all():
        return "a mean is infinite"
    half = t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    low, middle, high = np.exp([logs.mean() - half, logs.mean(), logs.mean() + half])
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def main(steps: int = 2000, tunings: int = 4, *names: str) -> None:
    console = Console(width=140)
    table = Table(
        "", "chosen by", "median: any order", "ordered", "any / ordered, medians", "any / ordered, means",
        "failed seeds: any, ordered",
        title=f"{steps:,} steps, {tunings} tunings each, {HELD_OUT} held-out seeds", title_justify="left",
    )  # fmt: skip
    for name in names or PROBLEMS:
        make, metric, method = PROBLEMS[name]
        problem = make()
        for kind in (metric, "residual"):
            ends = {
                order: np.array([
                    reached(problem, tc.tune(
                        problem, method, None, steps, metric=kind, order=order, seed=seed
                    ).method, metric, steps)
                    for seed in range(tunings)
                ])
                for order in (False, True)
            }  # fmt: skip
            (a, mean_a, lost_a), (b, mean_b, lost_b) = ends[False].T, ends[True].T
            table.add_row(
                name, kind, f"{np.exp(np.log(a).mean()):.3g}", f"{np.exp(np.log(b).mean()):.3g}", interval(a / b),
                interval(mean_a / mean_b), f"{lost_a.sum():.0f}, {lost_b.sum():.0f} of {tunings * HELD_OUT}",
            )  # fmt: skip
            console.log(name, kind, *(f"{x:.3g}" for x in (*a, *b)))
    console.print(table)


if __name__ == "__main__":
    main(*(int(a) if a.isdigit() else a for a in sys.argv[1:]))
