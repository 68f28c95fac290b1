"""More than two clocks: linear nests of two to four levels, and four families against their exact answers.

A nest has a scalar for each level, in three copies,

    F_i = −2x_i + 3x_{i+1} − x_{i−1} + noise     (i < N; x_0 = 0),        F_N = x_N − x_{N−1} + noise

so that every level, once those after it are solved for, is x_i − x_{i−1}: well behaved in its order, and unstable where
all levels have the same step, since the matrix of the whole has eigenvalues on the wrong side.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import twoclock as tc
from reproduction.comparisons import at_least, join_words, last_mean
from reproduction.experiment import Case, Claim, Records
from reproduction.verdicts import decide_each
from twoclock import Method, plot
from twoclock.intervals import log_slope
from twoclock.protocols import Operator, Problem, PyTree

TITLE = "More than two clocks: nests of two to four levels, and the families that need them"
ALT = {
    "clocks": "A panel for each nest, of up to four levels: error against steps of Fast and of the standard method, "
    "with steps of one order, of separated steps, of averaged ones and of a single clock.",
    "clocks-families": "Bars: how far each family ends from its exact answer, per cent, with a line at one per cent.",
}
QUICK = False
JUDGED = {"clocks-families": {"families": "Families with exact answers"}}
LEVELS = {"two": 2, "three": 3, "four": 4}
FAST, ONE_ORDER, SEPARATED, AVERAGED, SINGLE = (
    "Fast, one order",
    "Standard, one order",
    "Standard, separated",
    "Standard, separated and averaged",
    "Standard, one clock",
)
_RATIO, _SHIFT, _COPIES = 8.0, 4096.0, 3
_WITHIN = 0.01  # of the exact value


def nest(levels: int) -> Problem:
    """The linear nest; θ is the slowest level, ω the others."""

    def operator(i: int) -> Operator:
        def one(theta: PyTree, omega: PyTree, x: PyTree) -> PyTree:
            at = (theta, *omega)
            below = at[i - 1] if i else jnp.zeros_like(theta)
            mean = -2 * at[i] + 3 * at[i + 1] - below if i < levels - 1 else at[i] - below
            return mean + x[i]

        return one

    def measure(theta: PyTree, omega: PyTree) -> dict[str, jax.Array]:
        at = (theta, *omega)
        gaps = {f"tracking_{i}": jnp.sum(jnp.square(at[i] - at[i - 1])) for i in range(1, levels)}
        return {"error": jnp.sum(jnp.square(theta)), **gaps}

    return tc.problems.custom(
        F=operator(0),
        G=tuple(operator(i) for i in range(1, levels)),
        noise=lambda key: jax.random.normal(key, (levels, _COPIES)),
        theta=np.ones(_COPIES),
        omega=tuple(np.ones(_COPIES) for _ in range(levels - 1)),
        measure=measure,
    )


def _methods(levels: int) -> dict[str, Method]:
    first = 2.0 * _RATIO ** np.arange(levels)  # c_i of c_i/(k + 4096)
    alpha, *betas = (tc.Power(c, shift=_SHIFT) for c in first)
    # Separated: the same first steps, and powers of k that fall from 1 at the slowest to 1/2 at the fastest level.
    powers = np.linspace(1.0, 0.5, levels)
    slow, *fast = (tc.Power(c / _SHIFT * _SHIFT**p, p=p, shift=_SHIFT) for c, p in zip(first, powers, strict=True))
    # Averaging asks for steps larger than 1/k at every level.
    drop, *drops = (
        tc.Power(c / _SHIFT * _SHIFT**p, p=p, shift=_SHIFT) for c, p in zip(first, 0.3 + powers / 2, strict=True)
    )
    return {
        FAST: tc.Fast(alpha, tuple(betas), tc.Power(_SHIFT / 2, shift=_SHIFT)),
        ONE_ORDER: tc.Standard(alpha, tuple(betas)),
        SEPARATED: tc.Standard(slow, tuple(fast)),
        AVERAGED: tc.Polyak(tc.Standard(drop, tuple(drops)), power=2.0),
        SINGLE: tc.Standard(alpha, alpha),
    }


def _river() -> tuple[Problem, Method]:
    actor, gain, critic = (tc.Power(c * 1e5, shift=1e5) for c in (0.03, 0.002, 0.2))
    return tc.problems.river_swim(0.1), tc.Standard(actor, (gain, critic))


def _lake() -> tuple[Problem, Method]:
    method = tc.Fast("20/(k+400000)", ("10000/(k+200000)", "5000/(k+20000)"), "20000/(k+80000)")
    return tc.problems.constrained_frozen_lake(), tc.Polyak(method, power=3)


def _game() -> tuple[Problem, Method]:
    step, critic = "1/(k+1000)^0.6", "5/(k+1000)^0.6"
    return tc.problems.matrix_game(), tc.Polyak(tc.Standard(step, (step, critic)), power=2)


def _crowd() -> tuple[Problem, Method]:
    slow, critic = "1/(k+3000)^0.6", "2/(k+3000)^0.6"
    return tc.problems.linear_quadratic_field("policy"), tc.Polyak(tc.Standard(slow, (slow, critic)), power=2)


def _beach() -> tuple[Problem, Method]:
    method = tc.Standard("500/(k+20000)", ("1000/(k+2000)", "1000/(k+5000)", "5000/(k+10000)"))
    return tc.problems.beach_bar("policy"), method


# Each with the steps of its page.
FAMILIES: dict[str, Callable[[], tuple[Problem, Method]]] = {
    "average reward": _river,
    "constrained MDP": _lake,
    "Markov game": _game,
    "mean field": _crowd,
    "finite mean field": _beach,
}
_SHORT = ("two", "mean field")  # what a quick run has


def cases(quick: bool) -> dict[str, Case]:
    steps, seeds = (20_000, 8) if quick else (1_000_000, 64)
    found = {
        label: Case(nest(levels), _methods(levels), steps, seeds, bound=1e6, title=f"a nest of {label} levels")
        for label, levels in LEVELS.items()
        if label in _SHORT or not quick
    }
    for label in _SHORT if quick else FAMILIES:
        if label in FAMILIES:
            problem, method = FAMILIES[label]()
            steps_of = {"documented steps": method}
            found[label] = Case(problem, steps_of, steps, 4 if quick else 16, title=f"{label}, a known case")
    return found


def shortfalls(records: Records) -> dict[str, float]:
    """How far each family ends from its exact value, the mean over the seeds, as a share of it; κ beside it."""
    known: dict[str, Any] = {label: make()[0] for label, make in FAMILIES.items() if label in records}
    ends = {label: next(iter(records[label].values())) for label in known}
    found = {}
    if "average reward" in ends:
        found["average reward"] = last_mean(ends["average reward"], "gap") / float(known["average reward"].best)
    if "constrained MDP" in ends:
        lake = known["constrained MDP"]
        found["constrained MDP"] = last_mean(ends["constrained MDP"], "gap") / float(lake.reward_star)
        exact = float(lake.multipliers[0])
        found["its multiplier"] = abs(last_mean(ends["constrained MDP"], "multiplier") - exact) / exact
    if "Markov game" in ends:
        found["Markov game"] = last_mean(ends["Markov game"], "exploitability")
    if "mean field" in ends:
        exact = float(known["mean field"].model.mean("policy"))
        found["mean field"] = abs(last_mean(ends["mean field"], "mean") - exact) / exact
    if "finite mean field" in ends:
        beach = known["finite mean field"]
        gain = float(np.asarray(beach.agent.truth.evaluate(np.asarray(beach.log_pi)).gain))
        best = gain - float(beach.law @ beach.crowd @ beach.law)
        found["finite mean field"] = (best - last_mean(ends["finite mean field"], "social_return")) / best
    return found


def claims(records: Records) -> list[Claim]:
    nests = [label for label in LEVELS if label in records]
    where, plural = "there are {} levels", join_words(nests)
    found = []
    for name, who in ((FAST, "Fast"), (ONE_ORDER, "The standard method")):
        slopes = {label: log_slope(records[label][name].history, "error") for label in nests}
        found.append(
            Claim(
                name=f"{who.split()[-1].lower()} one order",
                statement=f"{who} with steps of one order has an error of order 1/k on nests of {plural} levels",
                place="ours; for Fast the sequel of the paper, arXiv 2409.07767",
                rule="for every nest the 95 % interval of the slope of log mean error over the last two decades lies "
                "below −0.9 and is at most 0.2 wide",
                numbers={f"slope, {label} levels": slope for label, slope in slopes.items()},
                verdict=decide_each({label: at_least(slope, 1.0) for label, slope in slopes.items()}, where),
                cases=nests,
                needs=1_000_000,
            )
        )
    over = {
        label: last_mean(records[label][FAST], "error") / last_mean(records[label][SEPARATED], "error")
        for label in nests
    }
    found.append(
        Claim(
            name="separation",
            statement="Powers of k that differ from level to level cost accuracy where steps of one order do",
            place="ours",
            rule="for every nest the final mean error of Fast is below that of the separated steps, not averaged",
            numbers={f"Fast's final error over theirs, {label} levels": ratio for label, ratio in over.items()},
            verdict=decide_each({label: bool(ratio < 1) for label, ratio in over.items()}, where),
            cases=nests,
            needs=1_000_000,
        )
    )
    single = {label: last_mean(records[label][SINGLE], "error") for label in nests}
    lost = {label: float(records[label][SINGLE].diverged.mean()) for label in nests}
    failed = {label: bool(lost[label] > 0 or not single[label] <= _COPIES) for label in nests}
    found.append(
        Claim(
            name="single clock",
            statement="One clock for all levels fails on these nests",
            place="ours",
            rule="for every nest the final mean error is above the 3 that it starts from, or a seed leaves the bound",
            numbers={f"final error, {label} levels": error for label, error in single.items()}
            | {f"share of seeds lost, {label} levels": share for label, share in lost.items()},
            verdict=decide_each(failed, where),
            cases=nests,
            needs=1_000_000,
        )
    )
    short = shortfalls(records)
    found.append(
        Claim(
            name="families",
            statement="Each family ends within one per cent of its exact value with the steps of its page",
            place="ours",
            rule="the mean over the seeds at the end is within 0.01 of the exact value, relative to it, the multiplier "
            "too; of the game the exploitability is at most 0.01",
            numbers={label: round(value, 5) for label, value in short.items()},
            verdict=decide_each({label: bool(value <= _WITHIN) for label, value in short.items()}, "it is the {}"),
            cases=[label for label in short if label in records],
            needs=1_000_000,
        )
    )
    return found


def draw(records: Records) -> dict[str, plot.Figure]:
    nests = [label for label in LEVELS if label in records]
    fig, axes = plot.figure(1, len(nests), width=3.6, height=3.2)
    for ax, label in zip(axes[0], nests, strict=True):
        plot.curves(ax, records[label], "error")
        ax.set(title=f"{label} levels", ylim=(1e-6, 1e3))
    plot.caption(fig, "mean over the seeds; bands: 95 % bootstrap interval of the mean")
    short = shortfalls(records)
    bars, ((ax,),) = plot.figure(1, 1)
    ax.barh(list(short), [max(100 * value, 1e-3) for value in short.values()], color=plot.COLOURS[0])
    ax.axvline(100 * _WITHIN, color="black", linewidth=0.8, linestyle=":")
    ax.set(xscale="log", xlabel="distance to the exact answer, per cent")
    return {"clocks": fig, "clocks-families": bars}


def captions(records: Records) -> dict[str, str]:
    deepest = [label for label in LEVELS if label in records][-1]
    last = {name: last_mean(result, "error") for name, result in records[deepest].items() if name != SINGLE}
    best = min(last, key=last.__getitem__)
    others = [f"{label} at {error / last[best]:.2g}" for label, error in last.items() if label != best]
    near = [label for label, value in shortfalls(records).items() if value <= _WITHIN]
    return {
        "clocks": f"On {deepest} levels {best} ends lowest; in multiples of it, {join_words(others)}.",
        "clocks-families": f"Within one per cent: {join_words(near) if near else 'none'}.",
    }
