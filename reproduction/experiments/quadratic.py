"""Fast, standard and averaged methods on a quadratic whose inner operator rotates."""

import twoclock as tc
from reproduction.comparisons import join_words, last_means
from reproduction.experiment import Case, Records
from twoclock import Method, plot

TITLE = "A quadratic with a rotating inner operator"
QUICK = False  # ours and longer

ALT = {"quadratic": "Error and tracking error of Fast, standard and averaged methods against steps."}


def cases(quick: bool) -> dict[str, Case]:
    steps = tc.Power(4.0, shift=20.0), tc.Power(8.0, shift=40.0), tc.Power(16.0, shift=80.0)
    fast = tc.Fast(*steps)
    methods: dict[str, Method] = {
        "Fast": fast,
        "Standard, Fast's steps": tc.Standard(steps[0], steps[1]),
        "Standard, two time scales": tc.Standard(steps[0], tc.Power(2.0, p=2 / 3, shift=20.0)),
        "Fast, iterates averaged": tc.Polyak(fast, power=2.0),
    }
    count, seeds = (30_000, 40) if quick else (300_000, 100)
    return {"dim10": Case(tc.problems.quadratic(dim=10, sigma=1.0), methods, count, seeds, title="ten dimensions")}


def draw(records: Records) -> dict[str, plot.Figure]:
    results = records["dim10"]
    run = next(iter(results.values())).spec
    fig, axes = plot.figure(1, 2)
    for ax, metric in zip(axes[0], ("error", "tracking"), strict=True):
        plot.curves(ax, results, metric)
    last = results["Fast"].summary("error").iloc[-1]
    plot.slope(axes[0, 0], -1.0, (run["steps"] / 100, last["mean"] * 100 / 3), "1/k")
    fig.suptitle(TITLE, fontsize="medium")
    plot.caption(
        fig, f"mean over {len(run['seeds'])} seeds; bands: 95 % bootstrap interval of the mean; {run['precision']}"
    )
    return {"quadratic": fig}


def captions(records: Records) -> dict[str, str]:
    last = last_means(records["dim10"], "error")
    best = min(last, key=last.__getitem__)
    others = [f"{label} at {error / last[best]:.2f}" for label, error in last.items() if label != best]
    return {"quadratic": f"{best} has the smallest error at the end; in multiples of it, {join_words(others)}."}
