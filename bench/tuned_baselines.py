"""Are the methods of the experiments tuned alike, and well? ``tc.tune`` with one budget for each of them.

For each tuned method of Figures 1 and 2: the settings that ``tc.tune`` finds in a box around the experiment's, and the
ratio of the metric at the horizon, tuned here over as set there, on seeds that neither was chosen on. Above 1 the
experiment's are better. ``python bench/tuned_baselines.py [STEPS]``; the experiments' settings were chosen at 100,000.
"""

from __future__ import annotations

import sys
from functools import partial

from rich.console import Console
from rich.table import Table
from tune import held_out, ratio

import twoclock as tc
from twoclock.paths import setting
from twoclock.study.experiments import fig1
from twoclock.study.experiments import lqr_settings as fig2

HELD_OUT = 100
SQUARE = float(fig1.SIZES["50"]["features"])
STEP = {"alpha.c": (0.25, 8.0), "beta.c": (0.25, 64.0)}
TD = partial(tc.problems.random_policy_evaluation, **fig1.SIZES["50"], operator="td")
TDC = partial(tc.problems.random_policy_evaluation, **fig1.SIZES["50"], operator="tdc")
LQR = tc.problems.paper_lqr()


def theory(name):
    return fig1.theory(name, *fig1.CHOSEN["50"][name], SQUARE)


CASES = {
    "Figure 1, Fast TDC": (
        TDC, "error", theory(fig1.FAST), {**STEP, "alpha.shift,beta.shift": (20.0, 2000.0), "lam.c": (4.0, 500.0)},
    ),
    "Figure 1, TDC": (TDC, "error", theory(fig1.TDC), {**STEP, "alpha.shift,beta.shift": (20.0, 2000.0)}),
    "Figure 1, TD(0)": (TD, "error", theory(fig1.TD), {"alpha.c": (0.25, 16.0), "alpha.shift": (5.0, 2000.0)}),
    "Figure 2, Fast": (
        LQR, "gap", fig2.FAST, {**STEP, "alpha.shift,beta.shift,lam.shift": (300.0, 20_000.0), "lam.c": (10.0, 640.0)},
    ),
    "Figure 2, Standard": (LQR, "gap", fig2.SAME, {**STEP, "alpha.shift,beta.shift": (300.0, 20_000.0)}),
    "Figure 2, Standard, 1 and 2/3": (
        LQR, "gap", fig2.TWO,
        {"alpha.c": (0.25, 8.0), "beta.c": (0.02, 2.0), "alpha.shift,beta.shift": (300.0, 20_000.0)},
    ),
}  # fmt: skip


def main(steps: int = 100_000) -> None:
    console, budget = Console(width=150), 640 * steps
    table = Table(
        "", "settings", "tuned here", "in the experiment", "metric, here / there", "neighbours within 1.5",
        title=f"{steps:,} steps, {budget:,} seed-steps to tune each, {HELD_OUT} held-out seeds", title_justify="left",
    )  # fmt: skip
    for name, (problem, metric, method, space) in CASES.items():
        found = tc.tune(problem, method, space, steps, budget, metric)
        ends = held_out(problem, {"here": found.method, "there": method}, metric, steps, HELD_OUT)
        mean, low, high = ratio(ends["here"], ends["there"])
        table.add_row(
            name, "\n".join(path.replace(".shift,", ",") for path in space),
            "\n".join(f"{value:g}" for value in found.settings.values()),
            "\n".join(f"{setting(method, path):g}" for path in space),
            f"{mean:.2f} [{low:.2f}, {high:.2f}]",
            f"{int((found.sensitivity['ratio'] <= 1.5).sum()) - len(space)} of {len(found.sensitivity) - len(space)}",
        )  # fmt: skip
        table.add_section()
        console.log(name, repr(found))
    console.print(table)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
