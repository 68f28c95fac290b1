"""Logged data: do the intervals of ``tc.evaluate`` cover the truth, and which estimator is worth its length?"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import twoclock as tc
from reproduction.comparisons import last_mean, last_values
from reproduction.experiment import Claim, Progress, Records, Role, make_result
from reproduction.experiments.logs_confirmed import confirmed, tails
from reproduction.experiments.logs_fresh import fresh, last
from reproduction.experiments.logs_unseen import judged, unseen
from reproduction.experiments.logs_worlds import Logged, Setup, finite, setups
from reproduction.verdicts import decide_each
from twoclock import Result, plot
from twoclock.intervals import Estimate
from twoclock.models import Mdp
from twoclock.storage import Identity

TITLE = "Logged data: error, coverage and length of the estimators"
ALT = {
    "logs": "Three panels, one per world, a bar per estimator: its root mean squared error, with the share of logs "
    "whose 95 % interval covers the true value written beside it."
}
LSTDQ, DR, PDIS, WIS, NAIVE = "LSTD-Q", "doubly robust", "PDIS", "WIS", "mean of the log"
ESTIMATORS = {LSTDQ: "lstdq", DR: "dr", PDIS: "pdis", WIS: "wis", NAIVE: "naive"}
LOW, HIGH = 0.93, 0.97
EVALUATE, FEWEST = "tc.evaluate", 20
QUICK = ("corridor cut at 30, 200", "ring + lognormal(2), 50", "aliased corridor, start", "queue, 100 × 40")
# Half a second a log and more.
SLOW = (
    "aliased corridor, long",
    "plane by action, 1500",
    "river, 20,000 rows",
    "mountain car, rbf",
    "swing, poor rbf, 600",
)


@dataclass(frozen=True, eq=False)
class LogCase:
    """Estimators compared on the same logs of one set-up; a log is a seed.

    Args:
        setup: makes the set-up.
        methods: label → name of an estimator.
        seeds: how many logs.
        about: what identifies the set-up; the estimators are the library's code, which its version identifies.
        title: what the report calls the case.
        steps: of the record: episodes of a log, or 1.
    """

    setup: Callable[[], Setup]
    methods: Mapping[str, str]
    seeds: int
    about: Mapping[str, object]
    title: str
    steps: int = 1
    role: Role = "compare"

    @property
    def lanes(self) -> int:
        return len(self.methods) * self.seeds

    @cached_property
    def identities(self) -> dict[str, Identity]:
        parts = {**self.about, "steps": self.steps, "seeds": self.seeds, "version": tc.__version__}
        return {label: Identity({**parts, "method": name}) for label, name in self.methods.items()}

    def run(self, labels: Sequence[str], checkpoint: Path, progress: Progress) -> dict[str, Result]:
        """Draw the logs and evaluate each with every estimator, as a user does."""
        setup, rows = self.setup(), dict[str, list[dict[str, float]]]({label: [] for label in labels})
        truth = setup.truth()
        for seed in range(self.seeds):
            log = tc.logs.read(setup.draw(seed), **setup.read)
            for label in labels:
                began = time.perf_counter()
                how: dict[str, Any] = {"estimator": self.methods[label], "bootstrap": 0, **setup.options}
                v = tc.evaluate(log, setup.policy, setup.gamma, **how)
                main, grades = v.table.iloc[0], {*v.diagnostics["grade"]}
                value, low, high = main[["value", "low", "high"]] if setup.measure is None else setup.measure(v)
                rows[label].append(
                    {
                        "seed": seed, "step": self.steps, "error": (value - truth) ** 2,
                        "covered": float(low <= truth <= high), "length": high - low,
                        "warned": float(bool(grades & {"warning", "fatal"})), "refused": float("fatal" in grades),
                        "seconds": time.perf_counter() - began, "estimate": float(value),
                    }
                )  # fmt: skip
            progress(self.steps * (seed + 1) // self.seeds, 0)
        found = {}
        for label, lines in rows.items():
            history, lost = pd.DataFrame(lines).astype({"seed": int, "step": int}), np.zeros(self.seeds, bool)
            theta, seconds = history.pop("estimate").to_numpy(float)[:, None], float(history["seconds"].sum())
            found[label] = make_result(self.title, self.methods[label], self.steps, history, seconds, theta, lost)
        return found


def worlds() -> dict[str, tuple[Logged, int, int, str]]:
    """World → what is logged, episodes of a log, the longest episode, and its title."""
    rng = np.random.default_rng(3)
    P = rng.dirichlet(np.full(5, 0.5), size=(5, 2))
    anywhere, even = np.full(5, 0.2), np.full((5, 2), 0.5)
    drawn = Logged(Mdp(P, rng.random((5, 2)), 0.9), anywhere, even, rng.dirichlet(np.ones(2), size=5))
    # Forest management: the behaviour waits half of the time, the target nine times in ten.
    P = np.zeros((3, 2, 3))
    P[:, 0] = [[0.1, 0.9, 0.0], [0.1, 0.0, 0.9], [0.1, 0.0, 0.9]]
    P[:, 1, 0] = 1
    mdp = Mdp(P, [[0.0, 0.0], [0.0, 1.0], [4.0, 2.0]], 0.9)
    forest = Logged(mdp, np.full(3, 1 / 3), np.full((3, 2), 0.5), np.tile([0.9, 0.1], (3, 1)))
    return {
        "random": (drawn, 100, 12, "random MDP, episodes cut off"),
        "boyan": (_boyan(), 100, 14, "Boyan's chain"),
        "forest": (forest, 60, 20, "forest, episodes cut off"),
    }


def _boyan() -> Logged:
    """Boyan's chain from its top, its fair coin as two actions; the target hurries down."""
    n, s = 13, np.arange(13)
    P, discount = np.zeros((n, 2, n)), np.ones((n, 2, n))
    for a in (0, 1):
        P[s, a, np.maximum(s - 1 - np.where(s > 1, a, 0), 0)] = 1.0
    discount[:, :, 0] = 0.0
    r = np.where(s == 1, -2.0, -3.0)[:, None] * np.ones(2)
    r[0] = 0.0
    return Logged(Mdp(P, r, discount), np.eye(n)[12], np.full((n, 2), 0.5), np.tile([0.3, 0.7], (n, 1)))


def cases(quick: bool) -> dict[str, LogCase]:
    found = {}
    for label, (world, episodes, longest, title) in worlds().items():
        mdp, make = world.mdp, partial(finite, world, episodes, longest, 0.5, compare=False)
        about = {
            "mdp": [np.asarray(part).tolist() for part in (mdp.P, mdp.r, mdp.gamma)], "start": world.start.tolist(),
            "target": world.target.tolist(), "behaviour": world.behaviour.tolist(), "longest": longest,
        }  # fmt: skip
        found[label] = LogCase(make, ESTIMATORS, 20 if quick else 500, about, title, episodes)
    few = {*SLOW, *judged(), *confirmed()}
    for name in QUICK if quick else every_setup():
        logs = 4 if quick else 40 if name in few else 100
        found[name] = LogCase(partial(_setup, name), {EVALUATE: "auto"}, logs, {"setup": name}, name)
    return found


def _setup(name: str) -> Setup:
    return every_setup()[name]


def every_setup() -> dict[str, Setup]:
    """The set-ups that checks were built on, those that they were not, bandits, tails of returns, and notes."""
    return {**setups(), **unseen(), **fresh(), **last(), **tails(), **judged(), **confirmed()}


def coverage(result: Result, unwarned: bool = False) -> Estimate:
    """The share of logs whose interval covers the truth, with Wilson's 95 % interval; of those without a warning."""
    covered = last_values(result, "covered")
    if unwarned:
        covered = covered[last_values(result, "warned") == 0]
    share = covered.mean()
    return Estimate(*(round(float(v), 4) for v in (share, *plot.binomial(share, np.array(len(covered)), 1.96))))


def rmse(result: Result) -> float:
    return float(np.sqrt(last_mean(result, "error")))


def _split(records: Records) -> tuple[Records, Records]:
    """The records of the worlds that estimators are compared on, and those of the set-ups."""
    known = worlds()
    compared = {label: results for label, results in records.items() if label in known}
    return compared, {label: results for label, results in records.items() if label not in known}


def draw(records: Records) -> dict[str, plot.Figure]:
    records, _ = _split(records)
    fig, axes = plot.figure(1, len(records), width=4.2, height=3.4)
    for ax, label in zip(axes[0], records, strict=True):
        panel(ax, records, label)
        ax.set_title(worlds()[label][3], fontsize="medium")
    plot.caption(
        fig, "beside each bar: the share of logs whose 95 % interval covers the true value; error on a log scale"
    )
    return {"logs": fig}


def panel(ax: plot.Axes, records: Records, world: str = "random") -> None:
    results = records[world]
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


def captions(records: Records) -> dict[str, str]:
    records, _ = _split(records)
    shares = [coverage(results[LSTDQ]).value for results in records.values()]
    return {"logs": f"LSTD-Q's intervals cover in {min(shares):.0%} to {max(shares):.0%} of the logs."}


def claims(records: Records) -> list[Claim]:
    records, hard = _split(records)
    named = {worlds()[label][3]: results for label, results in records.items()}
    found = {name: coverage(results[LSTDQ]) for name, results in named.items()}
    logs = len(last_values(next(iter(records.values()))[LSTDQ], "covered"))
    numbers = {f"{name}: LSTD-Q": share for name, share in found.items()}
    numbers |= {f"{name}: doubly robust": coverage(results[DR]) for name, results in named.items()}
    smaller = {name: rmse(results[LSTDQ]) < rmse(results[PDIS]) for name, results in named.items()}
    measures: dict[str, Callable[[Result], float]] = {
        "": rmse,
        ", mean length": lambda result: last_mean(result, "length"),
        ", seconds a log": lambda result: last_mean(result, "seconds"),
    }
    errors = {
        f"{name}{what}: {estimator}": round(measure(result), 4)
        for what, measure in measures.items()
        for name, results in named.items()
        for estimator, result in results.items()
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
        ),
        Claim(
            "logs-error",
            "Least squares needs no propensities and has a smaller error than importance sampling",
            "ours: `tc.evaluate`",
            "the root mean squared error of LSTD-Q over the logs is below that of per-decision importance sampling",
            errors,
            decide_each(smaller, "the world is {}"),
        ),
        *([_claim_of_setups(hard)] if hard else []),
    ]


def _claim_of_setups(records: Records) -> Claim:
    """Coverage where nothing warns, and alarms, on every set-up."""
    numbers, held = dict[str, Estimate | float](), dict[str, bool | None]()
    for name, results in records.items():
        result = results[EVALUATE]
        warned = last_values(result, "warned")
        numbers[f"{name}: warned"] = round(float(warned.mean()), 4)
        numbers[f"{name}: refused"] = round(last_mean(result, "refused"), 4)
        numbers[f"{name}: mean length"] = round(last_mean(result, "length"), 4)
        numbers[f"{name}: coverage of all"] = coverage(result)
        held[name] = None
        if (warned == 0).sum() >= FEWEST:
            found = coverage(result, unwarned=True)
            numbers[f"{name}: coverage where nothing warns"] = found
            held[name] = found.high >= LOW
        elif warned.mean() == 1:
            held[name] = True
    return Claim(
        "logs-setups",
        "Where no check warns the interval covers the value of the policy",
        "ours: `tc.evaluate`",
        f"on each set-up, Wilson's interval of the coverage among logs without a warning reaches {LOW:.0%}, or every "
        f"log is warned of; not decided with fewer than {FEWEST} logs without a warning",
        numbers,
        decide_each(held, "{}"),
        cases=tuple(records),
    )


def advice(records: Records) -> list[str]:
    results = records["random"]
    ratio = rmse(results[PDIS]) / rmse(results[LSTDQ])
    return [
        f"Logs: evaluate a policy by LSTD-Q and cluster by episode; on the random MDP importance sampling has "
        f"{ratio:.2g} times its error, and the mean of the log is the value of another policy."
    ]
