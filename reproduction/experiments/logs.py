"""Logged data: do the intervals of ``tc.evaluate`` cover the truth, and which estimator is worth its length?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reproduction.experiment import Claim, Records
from reproduction.log_case import LogCase, Logged
from reproduction.verdicts import decide_each, last_values
from twoclock import plot
from twoclock.intervals import Estimate
from twoclock.models import Mdp
from twoclock.result import Result

TITLE = "Logged data: error, coverage and length of the estimators"
ALT = {
    "logs": "Three panels, one a world, a bar for each estimator: its root mean squared error, with the share of logs "
    "whose 95 % interval covers the true value written beside it."
}
LSTDQ, DR, PDIS, WIS, NAIVE = "LSTD-Q", "doubly robust", "PDIS", "WIS", "mean of the log"
ESTIMATORS = {LSTDQ: "lstdq", DR: "dr", PDIS: "pdis", WIS: "wis", NAIVE: "naive"}
LEVEL, LOW, HIGH = 0.95, 0.93, 0.97


def worlds() -> dict[str, tuple[Logged, int, int, str]]:
    """World → what is logged, episodes of a log, the longest episode, and its name in words."""
    rng = np.random.default_rng(3)
    P = rng.dirichlet(np.full(5, 0.5), size=(5, 2))
    anywhere, even = np.full(5, 0.2), np.full((5, 2), 0.5)
    drawn = Logged(Mdp(P, rng.random((5, 2)), 0.9), anywhere, even, rng.dirichlet(np.ones(2), size=5))
    return {
        "random": (drawn, 100, 12, "random MDP, episodes cut off"),
        "boyan": (_boyan(), 100, 14, "Boyan's chain"),
        "forest": (_forest(), 60, 20, "forest, episodes cut off"),
    }


def _boyan() -> Logged:
    """Boyan's chain from its top, its fair coin as two actions; the target hurries down."""
    n = 13
    P, discount = np.zeros((n, 2, n)), np.ones((n, 2, n))
    for s in range(n):
        for a in (0, 1):
            P[s, a, max(s - 1 - (a if s > 1 else 0), 0)] = 1.0
    discount[:, :, 0] = 0.0
    r = np.where(np.arange(n) == 1, -2.0, -3.0)[:, None] * np.ones(2)
    r[0] = 0.0
    return Logged(Mdp(P, r, discount), np.eye(n)[12], np.full((n, 2), 0.5), np.tile([0.3, 0.7], (n, 1)))


def _forest() -> Logged:
    """Forest management: the behaviour waits half of the time, the target nine times in ten."""
    P = np.zeros((3, 2, 3))
    P[:, 0] = [[0.1, 0.9, 0.0], [0.1, 0.0, 0.9], [0.1, 0.0, 0.9]]
    P[:, 1, 0] = 1
    mdp = Mdp(P, [[0.0, 0.0], [0.0, 1.0], [4.0, 2.0]], 0.9)
    return Logged(mdp, np.full(3, 1 / 3), np.full((3, 2), 0.5), np.tile([0.9, 0.1], (3, 1)))


def cases(quick: bool) -> dict[str, LogCase]:
    return {
        label: LogCase(world, ESTIMATORS, episodes, 20 if quick else 500, longest, title)
        for label, (world, episodes, longest, title) in worlds().items()
    }


def coverage(result: Result) -> Estimate:
    """The share of logs whose interval covers the truth, with Wilson's 95 % interval."""
    covered = last_values(result, "covered")
    n, share, z = len(covered), float(covered.mean()), 1.96
    middle, spread = (share + z * z / (2 * n)) / (1 + z * z / n), z / (1 + z * z / n)
    half = spread * float(np.sqrt(max(share * (1 - share), 0.0) / n + z * z / (4 * n * n)))
    return Estimate(round(share, 4), round(middle - half, 4), round(middle + half, 4))


def rmse(result: Result) -> float:
    return float(np.sqrt(last_values(result, "error").mean()))


def draw(records: Records) -> dict[str, plot.Figure]:
    fig, axes = plot.figure(1, len(records), width=4.2, height=3.4)
    for ax, (label, results) in zip(axes[0], records.items(), strict=True):
        _panel(ax, results)
        ax.set_title(_words(label), fontsize="medium")
    plot.caption(
        fig, "beside each bar: the share of logs whose 95 % interval covers the true value; error on a log scale"
    )
    return {"logs": fig}


def _panel(ax: plot.Axes, results: Mapping[str, Result]) -> None:
    for i, result in enumerate(results.values()):
        error = rmse(result)
        ax.plot([0, error], [i, i], color=plot.COLOURS[i % len(plot.COLOURS)], linewidth=9, solid_capstyle="butt")
        share = coverage(result).value
        ax.annotate(f"{share:.0%}", (error, i), (4, 0), textcoords="offset points", va="center", fontsize="small")
    ax.set_yticks(range(len(results)), list(results))
    ax.set_xscale("symlog", linthresh=1e-3)
    ax.set_xlim(left=0)
    ax.invert_yaxis()
    ax.set(xlabel="root mean squared error")


def panel(ax: plot.Axes, records: Records) -> None:
    _panel(ax, records["random"])


def _words(label: str) -> str:
    return worlds()[label][3]


def captions(records: Records) -> dict[str, str]:
    shares = [coverage(results[LSTDQ]).value for results in records.values()]
    return {"logs": f"LSTD-Q's intervals cover in {min(shares):.0%} to {max(shares):.0%} of the logs."}


def claims(records: Records) -> list[Claim]:
    found = {_words(label): coverage(results[LSTDQ]) for label, results in records.items()}
    robust = {_words(label): coverage(results[DR]) for label, results in records.items()}
    logs = len(last_values(next(iter(records.values()))[LSTDQ], "covered"))
    numbers = {f"{name}: LSTD-Q": share for name, share in found.items()}
    numbers |= {f"{name}: doubly robust": share for name, share in robust.items()}
    errors = {
        f"{_words(label)}: {name}": round(rmse(result), 4)
        for label, results in records.items()
        for name, result in results.items()
    }
    smaller = {_words(label): rmse(results[LSTDQ]) < rmse(results[PDIS]) for label, results in records.items()}
    lengths = {
        f"{_words(label)}, mean length: {name}": round(float(last_values(result, "length").mean()), 4)
        for label, results in records.items()
        for name, result in results.items()
    }
    seconds = {
        f"{_words(label)}, seconds a log: {name}": round(float(last_values(result, "seconds").mean()), 4)
        for label, results in records.items()
        for name, result in results.items()
    }
    return [
        Claim(
            "logs-coverage",
            "An interval from a log covers the value of another policy as often as it says",
            "ours: `tc.evaluate`",
            f"over {logs} logs of each world, the 95 % intervals of LSTD-Q cover the exact value in {LOW:.0%} to "
            f"{HIGH:.0%} of them, or Wilson's interval of that share meets this range",
            numbers,
            decide_each(
                {name: share.low <= HIGH and share.high >= LOW for name, share in found.items()}, "the world is {}"
            ),
            ours=True,
        ),
        Claim(
            "logs-error",
            "Least squares needs no propensities and has a smaller error than importance sampling",
            "ours: `tc.evaluate`",
            "the root mean squared error of LSTD-Q over the logs is below that of per-decision importance sampling",
            {**errors, **lengths, **seconds},
            decide_each(smaller, "the world is {}"),
            ours=True,
        ),
    ]


def advice(records: Records) -> list[str]:
    results = records["random"]
    ratio = rmse(results[PDIS]) / rmse(results[LSTDQ])
    return [
        f"Logs: evaluate a policy by LSTD-Q and cluster by episode; on the random MDP importance sampling has "
        f"{ratio:.2g} times its error, and the mean of the log is the value of another policy."
    ]
