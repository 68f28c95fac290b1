"""Logged data: do the intervals of ``tc.evaluate`` cover the truth, and which estimator is worth its length?"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

import twoclock as tc
from reproduction.comparisons import last_mean, last_values
from reproduction.experiment import Claim, Progress, Records, Role, make_result
from reproduction.experiments.logs_fresh import fresh, last
from reproduction.experiments.logs_notes import judged
from reproduction.experiments.logs_setups import Setup, setups
from reproduction.experiments.logs_tails import tails
from reproduction.experiments.logs_unseen import unseen
from reproduction.experiments.logs_worlds import Logged
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
    """Estimators compared on the same logs of one MDP.

    Args:
        world: what is logged.
        methods: label → name of an estimator.
        steps: episodes of a log.
        seeds: how many logs.
        longest: steps after which an episode is cut off.
        title: what the report calls the case.
    """

    world: Logged
    methods: Mapping[str, str]
    steps: int
    seeds: int
    longest: int
    title: str = ""
    role: Role = "compare"

    @property
    def lanes(self) -> int:
        return len(self.methods) * self.seeds

    @cached_property
    def identities(self) -> dict[str, Identity]:
        """By the numbers of the world and the library's version: the estimators are its code."""
        world, mdp = self.world, self.world.mdp
        parts = {
            "mdp": [np.asarray(part).tolist() for part in (mdp.P, mdp.r, mdp.gamma)], "start": world.start.tolist(),
            "target": world.target.tolist(), "steps": self.steps, "behaviour": world.behaviour.tolist(),
            "seeds": self.seeds, "longest": self.longest, "version": tc.__version__,
        }  # fmt: skip
        return {label: Identity({**parts, "method": name}) for label, name in self.methods.items()}

    def run(self, labels: Sequence[str], checkpoint: Path, progress: Progress) -> dict[str, Result]:
        """Draw the logs and evaluate each with every estimator; a log is a seed, its episodes are the step."""
        truth, rows = self.world.truth, dict[str, list[dict[str, float]]]({label: [] for label in labels})
        for seed in range(self.seeds):
            columns = self.world.draw(self.steps, self.longest, seed)
            log = tc.logs.read(
                columns, next_state="next_state", episode="episode", step="step", propensity="propensity"
            )
            for label in labels:
                began = time.perf_counter()
                v = tc.evaluate(
                    log, self.world.target, self.world.gamma, estimator=self.methods[label], bootstrap=0, compare=False
                )
                main = v.table.iloc[0]
                rows[label].append(
                    {
                        "seed": seed, "step": self.steps, "error": (main["value"] - truth) ** 2,
                        "covered": float(main["low"] <= truth <= main["high"]), "length": main["high"] - main["low"],
                        "warned": float(len(v.warnings) > 0), "seconds": time.perf_counter() - began,
                        "estimate": main["value"],
                    }
                )  # fmt: skip
            progress(self.steps * (seed + 1) // self.seeds, 0)
        found = {}
        for label, name in ((label, self.methods[label]) for label in labels):
            history = pd.DataFrame(rows[label]).drop(columns="estimate").astype({"seed": int, "step": int})
            estimates, lost = np.array([[row["estimate"]] for row in rows[label]]), np.zeros(self.seeds, bool)
            seconds = float(history["seconds"].sum())
            found[label] = make_result(self.title, name, self.steps, history, seconds, estimates, lost)
        return found


@dataclass(frozen=True, eq=False)
class SetupCase:
    """``tc.evaluate`` as a user calls it, on logs of one set-up; a log is a seed.

    Args:
        title: the name of the set-up.
        steps: of the record, which has one.
        seeds: how many logs.
    """

    title: str
    seeds: int
    steps: int = 1
    methods: Mapping[str, str] = field(default_factory=lambda: {EVALUATE: "auto"})
    role: Role = "compare"

    @property
    def lanes(self) -> int:
        return self.seeds

    @cached_property
    def identities(self) -> dict[str, Identity]:
        """By the name of the set-up and the library's version: the estimators are its code."""
        return {EVALUATE: Identity({"setup": self.title, "seeds": self.seeds, "version": tc.__version__})}

    def run(self, labels: Sequence[str], checkpoint: Path, progress: Progress) -> dict[str, Result]:
        setup = every_setup()[self.title]
        truth, rows, estimates = setup.truth(), list[dict[str, float]](), list[float]()
        began = time.perf_counter()
        for seed in range(self.seeds):
            log = tc.logs.read(setup.draw(seed), **setup.read)
            v = tc.evaluate(log, setup.policy, setup.gamma, bootstrap=0, **setup.options)
            main, grades = v.table.iloc[0], {*v.diagnostics["grade"]}
            value, low, high = main[["value", "low", "high"]] if setup.measure is None else setup.measure(v)
            rows.append(
                {
                    "seed": seed, "step": self.steps, "error": (value - truth) ** 2,
                    "covered": float(low <= truth <= high), "length": high - low,
                    "warned": float(bool(grades & {"warning", "fatal"})), "refused": float("fatal" in grades),
                }
            )  # fmt: skip
            estimates.append(float(value))
            progress(self.steps * (seed + 1) // self.seeds, 0)
        history = pd.DataFrame(rows).astype({"seed": int, "step": int})
        lost, theta, seconds = np.zeros(self.seeds, bool), np.array(estimates)[:, None], time.perf_counter() - began
        return {EVALUATE: make_result(self.title, EVALUATE, self.steps, history, seconds, theta, lost)}


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


def cases(quick: bool) -> dict[str, LogCase | SetupCase]:
    compared = {
        label: LogCase(world, ESTIMATORS, episodes, 20 if quick else 500, longest, title)
        for label, (world, episodes, longest, title) in worlds().items()
    }
    names = QUICK if quick else tuple(every_setup())
    few = {*SLOW, *judged()}
    return {**compared, **{name: SetupCase(name, 4 if quick else 40 if name in few else 100) for name in names}}


def every_setup() -> dict[str, Setup]:
    """The set-ups that checks were built on, those that they were not, bandits, tails of returns, and notes."""
    return {**setups(), **unseen(), **fresh(), **last(), **tails(), **judged()}


def coverage(result: Result, unwarned: bool = False) -> Estimate:
    """The share of logs whose interval covers the truth, with Wilson's 95 % interval; of those without a warning."""
    covered = last_values(result, "covered")
    if unwarned:
        covered = covered[last_values(result, "warned") == 0]
    n, share, z = len(covered), float(covered.mean()), 1.96
    middle, spread = (share + z * z / (2 * n)) / (1 + z * z / n), z / (1 + z * z / n)
    half = spread * float(np.sqrt(max(share * (1 - share), 0.0) / n + z * z / (4 * n * n)))
    return Estimate(round(share, 4), round(middle - half, 4), round(middle + half, 4))


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
