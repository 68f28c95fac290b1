"""Policy evaluation where it is harder: slow chains, ill-conditioned features, heavy-tailed rewards."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

import twoclock as tc
from reproduction.comparisons import Paired, join_words, last_ratio
from reproduction.experiment import Case, Claim, Records
from reproduction.experiments import fig1
from reproduction.experiments.fig1 import (
    COMPARED,
    FAST,
    LSTD,
    MOST,
    TD,
    TDC,
    averaged_step,
    nearly_as_good,
    with_steps,
)
from reproduction.tuned_settings import Limits, MethodSearch, settings
from reproduction.verdicts import above, all_of, below, decide, decide_each
from twoclock import Method, Result, plot
from twoclock.intervals import Estimate
from twoclock.protocols import ProblemSource

TITLE = "Policy evaluation where it is harder"
QUICK = False  # ours and longer
AUTO = "Auto"
ONE, ONE_TDC = "Fast TDC, averaged, one setting", "TDC, averaged, one setting"
LABELS = (FAST, TDC, TD, ONE, ONE_TDC, AUTO, LSTD)
MARKS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
SAMPLED = 100_000
SEEDS = 40


class HardTask(NamedTuple):
    """A task: its description, the problem for an operator, and E‖φ‖²."""

    words: str
    problem: Callable[[str], ProblemSource]
    square: float


@cache
def panels() -> dict[str, HardTask]:
    def chain(words: str, make: Callable[..., tc.problems.PolicyEvaluation]) -> HardTask:
        return HardTask(words, partial(make, sampling="markov"), float(np.trace(make().truth.C)))

    def drawn(words: str, square: float, **options: Any) -> HardTask:
        sized = {"states": 50, "actions": 50, "features": 10} | options
        random = tc.problems.random_policy_evaluation
        return HardTask(words, lambda operator: partial(random, operator=operator, **sized), square)

    unequal = float(np.sum(np.geomspace(1.0, 0.1, 10) ** 2))
    return {
        "boyan": chain("Boyan's chain, 4 features, Markov", tc.problems.boyan),
        "ring": chain("ring of 40 states, 9 waves, Markov", tc.problems.ring),
        "walk": chain("walk of 19 states, tabular, Markov", tc.problems.long_walk),
        "unequal": drawn("random MDP, feature scales from 1 to 0.1", unequal, spread=10.0),
        "wide": drawn("random MDP, 40 features of 50 states", 40.0, features=40),
        "heavy": drawn("random MDP, rewards with t noise, ν = 3", 10.0, reward_noise=1.0, nu=3.0),
    }


def boxes(square: float) -> dict[str, Limits]:
    """Where `tc.tune` looks first. c·E‖φ‖² = 1 would suit a curvature of E‖φ‖², which none of these has: hence more."""
    c = (1.0 / square, 512.0 / square)
    return {
        FAST: {"c": c, "ratio": fig1.RATIO, "weight": fig1.WEIGHT},
        TDC: {"c": c, "ratio": fig1.RATIO},
        TD: {"c": c, "first": fig1.FIRST},
    }


def searches() -> dict[str, MethodSearch]:
    """What is tuned: each method on each task, at the length that is reported."""
    return {
        f"{name}-{operator}": MethodSearch(
            panel.problem(operator),
            {method: (partial(with_steps, method, panel.square), boxes(panel.square)[method]) for method in methods},
            steps=MARKS[-1], metric="error", runs=1040, title=panel.words, contains=fig1.contained(methods),
        )
        for name, panel in panels().items()
        for operator, methods in COMPARED.items()
    }  # fmt: skip


def cases(quick: bool) -> dict[str, Case]:
    """Every task with each operator; a quick run has one chain."""
    if quick:
        panel = panels()["boyan"]
        return {
            "boyan-tdc": Case(panel.problem("tdc"), {ONE: tc.methods.averaged_tdc(panel.square)}, 2_000, 10),
            "boyan-td": Case(panel.problem("td"), {LSTD: tc.methods.Lstd()}, 2_000, 10),
        }
    found = {}
    for name, panel in panels().items():
        step = averaged_step(panel.square)
        others: dict[str, dict[str, Method]] = {
            "tdc": {ONE: tc.methods.averaged_tdc(panel.square), ONE_TDC: tc.Polyak(tc.Standard(step, step), power=0.5)},
            "td": {LSTD: tc.methods.Lstd()},
        }
        if name == "boyan":  # elsewhere its matrices, of d² entries for each of θ and ω, take most of the time
            others["tdc"][AUTO] = tc.Auto()
        for operator, methods in COMPARED.items():
            case = f"{name}-{operator}"
            tuned = {
                method: with_steps(method, panel.square, **settings("hard_policy_evaluation", case, method))
                for method in methods
            }
            found[case] = Case(
                panel.problem(operator), tuned | others[operator], MARKS[-1], SEEDS, MARKS,
                title=f"{panel.words}: {join_words(list(methods))}",
            )  # fmt: skip
    return found


def compared(records: Records) -> dict[str, dict[str, Result]]:
    """task → method → its run."""
    found = {}
    for name in panels():
        if f"{name}-tdc" in records:
            every = {**records[f"{name}-tdc"], **records[f"{name}-td"]}
            found[name] = {label: every[label] for label in LABELS if label in every}
    return found


def draw(records: Records) -> dict[str, plot.Figure]:
    shown = compared(records)
    fig, axes = plot.figure(-(-len(shown) // 3), min(len(shown), 3), width=3.9, height=3.5)
    colours = dict(zip(LABELS, plot.COLOURS, strict=False))
    for ax, (name, results) in zip(axes.flat, shown.items(), strict=False):
        plot.curves(ax, results, "error", colours=colours)
        ax.set_title(panels()[name].words, fontsize="medium")
        ax.legend(frameon=False, fontsize="x-small", loc="lower left")
    run = next(iter(next(iter(shown.values())).values())).spec
    plot.caption(
        fig,
        f"mean over {len(run['seeds'])} seeds, each of which draws its own MDP where MDPs are random, "
        f"{run['steps']:,} samples; bands: 95 % bootstrap interval; where there are Fast TDC, TDC and TD(0) without "
        "more words, each has steps that tc.tune found on other seeds, with equal budgets",
    )
    return {"fig1-beyond": fig}


ALT = {
    "fig1-beyond": "Error of Fast TDC, TDC and TD(0) with tuned steps, of averaged Fast TDC and TDC with one setting, "
    "and of LSTD against samples, one panel for each harder task."
}


def ratios(results: Mapping[str, Result], step: int | None = None) -> dict[str, Estimate]:
    """method → its error over LSTD's."""
    least = results[LSTD]
    return {label: last_ratio(run, least, "error", step) for label, run in results.items() if label != LSTD}


def relative_errors(records: Records) -> dict[str, dict[str, float]]:
    return {
        f"policy evaluation, {panels()[name].words}": {label: ratio.value for label, ratio in ratios(results).items()}
        for name, results in compared(records).items()
    }


def captions(records: Records) -> dict[str, str]:
    ends = {name: ratios(results)[ONE].value for name, results in compared(records).items()}
    words = [f"{panels()[name].words} {value:.2g}" for name, value in ends.items()]
    return {"fig1-beyond": f"Averaged Fast TDC with one setting ends at these times LSTD's error: {'; '.join(words)}."}


def advice(records: Records) -> list[str]:
    found = []
    for name, results in compared(records).items():
        ends = {label: ratio.value for label, ratio in ratios(results).items()}
        best = min(ends, key=ends.__getitem__)
        others = [f"{label} at {value:.2g}" for label, value in ends.items() if label != best]
        rest = f", {join_words(others)}" if others else ""
        found.append(f"{panels()[name].words}: in multiples of LSTD's error, {best} ends at {ends[best]:.2g}{rest}.")
    return [f"Harder policy evaluation. {' '.join(line[0].upper() + line[1:] for line in found)}"]


def claims(records: Records) -> list[Claim]:
    tasks = compared(records)
    found = [_everywhere(tasks)]
    for name, results in tasks.items():
        found += [_efficient(name, results), *([_beats(name, results)] if FAST in results else [])]
    return found


def _everywhere(tasks: Mapping[str, Mapping[str, Result]]) -> Claim:
    """The tasks together: what each of them decides stands with the experiment."""
    ends = {panels()[name].words: ratios(results)[ONE] for name, results in tasks.items()}
    return Claim(
        name="one setting on harder tasks",
        statement=f"Averaged Fast TDC, set from the feature norms alone, keeps its error within {MOST} of LSTD's on "
        "harder tasks",
        place="ours, not the paper's",
        rule=f"on each task the 95 % interval of the error at the end over LSTD's lies below {MOST}",
        numbers={f"error / LSTD's, {words}": ratio for words, ratio in ends.items()},
        verdict=decide_each({words: below(ratio, MOST) for words, ratio in ends.items()}, separator="; "),
    )


def _efficient(name: str, results: Mapping[str, Result]) -> Claim:
    end = int(results[LSTD].spec["steps"])
    at = {k: ratios(results, k) for k in sorted({min(SAMPLED, end), end})}
    numbers = {f"{label}: error / LSTD's at {k:,}": ratio for k in at for label, ratio in at[k].items()}
    held = all_of(*(below(found[ONE], MOST) for found in at.values()))
    cases = (f"{name}-tdc", f"{name}-td")
    return nearly_as_good(name, panels()[name].words, f"{SAMPLED:,} samples and at the end", numbers, held, cases)


def _beats(name: str, results: Mapping[str, Result]) -> Claim:
    pair = Paired.of(results[FAST], results[TDC], "error", first=SAMPLED)
    ratio = last_ratio(results[FAST], results[TDC], "error")
    return Claim(
        name=f"Fast TDC beats TDC, {name}",
        statement=f"Fast TDC ends at a smaller error than TDC, both tuned ({panels()[name].words})",
        place="ours: Figure 1's comparison, on harder tasks",
        rule="the 95 % interval of the geometric mean over shared seeds of ‖θ−θ*‖² over TDC's at the end lies below 1; "
        "not reproduced where it does not and lies above 1/1.1 as a whole; not decided otherwise",
        numbers={"error / TDC's at the end": ratio, "at the end": pair.at_the_end},
        # Not so where the interval has 1 inside and no more than a tie below it.
        verdict=decide(True if below(ratio, 1.0) else False if above(ratio, 1 / 1.1) else None),
        cases=(f"{name}-tdc", f"{name}-td"),
        speed=True,
    )
