"""Entropy-regularised MDPs: random ones and a frozen lake at three temperatures, against a model-based rival."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import twoclock as tc
from twoclock import plot
from twoclock.result import Result
from twoclock.stats import log_slope, ratio_of_means
from twoclock.study.experiments.mdp_settings import (
    BOLD,
    CHOSEN,
    CRITIC,
    FAST,
    QUICK,
    RIVAL,
    SAME,
    SIZE,
    TEMPS,
    TWO,
    WORDS,
    method,
    problem,
    tuning,
)
from twoclock.study.frame import Case, Claim, Records

TITLE = "Entropy-regularised MDPs: actor-critics and a model-based rival"


def cases(quick: bool) -> dict[str, Case]:
    steps, seeds = (10_000, 16) if quick else (1_000_000, 100)
    found = {}
    for kind, temps in (QUICK if quick else TEMPS).items():
        for temp in temps:
            where = f"{kind} {temp:g}"
            states, gamma = SIZE[kind]
            compared = {name: method(name, *CHOSEN[where][name]) for name in CRITIC}
            actor, first, critic = CHOSEN[where][FAST]
            compared[BOLD] = method(FAST, 4 * actor, first, critic)
            compared[RIVAL] = tc.PlugIn(compared[FAST], tc.models.EmpiricalMdp(states, 4, gamma, temp))
            found[where] = Case(problem(kind, temp), compared, steps, seeds)
            if not quick:
                found[f"tuning {where}"] = Case(
                    problem(kind, temp), tuning(where), steps // 10, range(1000, 1016), marks=[steps // 10]
                )
    return found


def measured(records: Records) -> dict[str, Mapping[str, Result]]:
    """The cases that compare, without those that tune."""
    return {where: results for where, results in records.items() if not where.startswith("tuning")}


def slopes(records: Records, decades: float) -> dict[str, dict[str, tuple[float, float, float]]]:
    """The slope of log mean gap against log k over the last decades, with its 95 % interval, by case and method."""
    found: dict[str, dict[str, tuple[float, float, float]]] = {}
    for where, results in measured(records).items():
        for name, result in results.items():
            slope, (low, high) = log_slope(result.history, "gap", decades)
            found.setdefault(where, {})[name] = (slope, low, high)
    return found


ALT = {
    "mdp": "The gap of the three actor-critics and of the model-based rival against the number of samples, for random "
    "MDPs and for FrozenLake at three temperatures: the tuned actor-critics lie on one another, the rival lies below "
    "them.",
    "mdp-rates": "Left, the slopes of the gap over the last decade with their intervals: the same for the three tuned "
    "actor-critics, −1 where it is warm and flatter where it is cold; right, the smallest action probability of the "
    "policy, which falls by orders of magnitude as the temperature does.",
}


def draw(records: Records) -> dict[str, Any]:
    shown = measured(records)
    kinds = list(dict.fromkeys(where.split()[0] for where in shown))
    columns = max(sum(where.startswith(kind) for where in shown) for kind in kinds)
    fig, axes = plot.figure(len(kinds), columns, width=4.6)
    for row, kind in zip(axes, kinds, strict=True):
        for ax, where in zip(row, (w for w in shown if w.startswith(kind)), strict=False):
            plot.curves(ax, shown[where], "gap")
            table = shown[where][FAST].summary("gap")
            last = table[table["step"] >= table["step"].max() / 10]
            plot.slope(ax, -1.0, (float(last["step"].iloc[0]), float(last["mean"].iloc[0]) / 4), "1/k")
            ax.set_title(f"{WORDS[kind].split(',')[0]}, τ = {where.split()[1]}", fontsize="medium")
            ax.set_ylabel("J* − J(π), mean of seeds")
            ax.get_legend().set_visible(ax is axes[0, 0])
    run = next(iter(shown.values()))[FAST].spec
    plot.caption(
        fig,
        f"{'; '.join(WORDS[kind] for kind in kinds)}; restart sampling, {len(run['seeds'])} seeds, "
        f"{run['steps']:,} samples; bands: 95 % bootstrap interval of the mean. Each method: the best of 24 settings, "
        "tuned on 16 other seeds at 10⁵ steps. Model-based: soft value iteration on the frequencies in Fast's samples.",
    )
    return {"mdp": fig} | ({"mdp-rates": _draw_rates(records)} if len(shown) > 1 else {})  # one case has no trend


def _draw_rates(records: Records) -> Any:
    fig, axes = plot.figure(1, 2, width=5.8, height=4.2)
    left, right = axes[0]
    found, shown = slopes(records, 1.0), measured(records)
    for i, name in enumerate((*CRITIC, BOLD, RIVAL)):
        rows = [found[where][name] for where in found]
        at = np.arange(len(rows)) + 0.15 * (i - 2)
        middle, low, high = np.array(rows).T
        left.errorbar(
            middle, at, xerr=[middle - low, high - middle], fmt=plot.MARKERS[i], color=plot.COLOURS[i], markersize=4,
            linewidth=1.2, label=name,
        )  # fmt: skip
    for slope, label in ((-1.0, "−1"), (-2 / 3, "−2/3")):
        left.axvline(slope, color="0.45", linestyle="--", linewidth=1, zorder=1)
        left.annotate(label, (slope, -0.6), fontsize="x-small", color="0.35", backgroundcolor="w", ha="center")
    left.set_yticks(range(len(found)), [where.replace(" ", ", τ = ") for where in found])
    left.set(xlabel="slope of log mean gap, last decade", ylim=(len(found) + 0.9, -0.9))
    left.legend(frameon=False, fontsize="x-small", ncols=2, loc="lower center")
    for i, (where, results) in enumerate(shown.items()):
        table = results[FAST].summary("least_probability")
        table = table[table["step"] > 0]
        style = "-" if where.startswith("random") else "--"
        right.plot(table["step"], table["median"], color=plot.COLOURS[i % 3], linestyle=style, linewidth=1.6)
        right.annotate(
            where.replace(" ", ", τ = "), (table["step"].iloc[-1], table["median"].iloc[-1]), (3, 0),
            textcoords="offset points", fontsize="x-small", color=plot.COLOURS[i % 3], va="center",
        )  # fmt: skip
    right.set(
        xscale="log", yscale="log", xlabel="steps k (one sample each)", ylabel="smallest action probability, Fast"
    )
    right.set_xlim(None, float(table["step"].iloc[-1]) * 30)
    plot.caption(fig, "Left: bars are 95 % bootstrap intervals over the seeds. Right: median of the seeds.")
    return fig


def panel(ax: Any, records: Records) -> None:
    """The warmest case of the first kind: where the claimed rate has the best chance."""
    plot.curves(ax, next(iter(measured(records).values())), "gap")
    ax.legend(frameon=False, fontsize="x-small")


def claims(records: Records) -> list[Claim]:
    found = [
        _rate(records, FAST),
        _rate(records, BOLD),
        _beats(records, SAME),
        _beats(records, TWO),
        _slower(records),
        _degrades(records),
    ]
    found.append(_model(records))
    return found + [_fair(results, where) for where, results in records.items() if where.startswith("tuning")]


def _verdict(held: Mapping[str, bool]) -> str:
    if all(held.values()):
        return "reproduced"
    where = "; ".join(w.replace(" ", ", τ = ") for w in held if held[w])
    return f"reproduced only where {where}" if where else "not reproduced"


def _words(numbers: tuple[float, float, float]) -> str:
    return f"{numbers[0]:.3g} [{numbers[1]:.3g}, {numbers[2]:.3g}]"


def _rate(records: Records, name: str) -> Claim:
    two, one = slopes(records, 2.0), slopes(records, 1.0)
    larger = ", with c_α four times what is best at 10⁵ samples" if name == BOLD else ""
    return Claim(
        "mdp-rate-larger-steps" if name == BOLD else "mdp-rate",
        f"The fast actor-critic reduces J* − J like 1/k, up to logarithms{larger}.",
        "Section 4.3; the theory wants c_α ≥ 2/μ_h" if name == BOLD else "Section 4.3",
        "the slope of log mean gap against log k has a 95 % interval that reaches −0.95, over the last two decades, "
        "which may hold some of the descent before the rate, and over the last one, which holds none",
        {where: f"{_words(two[where][name])}, last decade {_words(one[where][name])}" for where in two},
        _verdict({where: max(two[where][name][1], one[where][name][1]) <= -0.95 for where in two}),
        tuple(two),
    )


def ratio(records: Records, where: str, name: str) -> tuple[float, float, float]:
    """The mean gap of a method over Fast's at the last step, with a 95 % bootstrap interval over the shared seeds."""
    last = {n: records[where][n].history.sort_values(["step", "seed"])["gap"].to_numpy() for n in (name, FAST)}
    count = len(records[where][FAST].spec["seeds"])
    return ratio_of_means(last[name][-count:], last[FAST][-count:])


def _beats(records: Records, name: str) -> Claim:
    ratios = {where: ratio(records, where, name) for where in measured(records)}
    return Claim(
        f"mdp-fast-beats-{'same' if name == SAME else 'two-thirds'}",
        f"The fast actor-critic reaches a smaller gap than {name[0].lower()}{name[1:]}.",
        "Section 4.3, against the rate k^-2/3 of the standard method",
        f"the mean gap of {name} over Fast's at the last step, both tuned, has its 95 % interval above 1.1",
        {where: _words(numbers) for where, numbers in ratios.items()},
        _verdict({where: numbers[1] > 1.1 for where, numbers in ratios.items()}),
        tuple(measured(records)),
    )


def _slower(records: Records) -> Claim:
    found = slopes(records, 1.0)
    return Claim(
        "mdp-standard-is-slower",
        "The standard method with its exponents 1 and 2/3 falls only like k^-2/3.",
        "Section 4.3; an upper bound in the paper, read as a rate",
        "the 95 % interval of its slope over the last decade lies above −0.8, and above that of Fast",
        {where: f"{_words(slope[TWO])}, Fast {_words(slope[FAST])}" for where, slope in found.items()},
        _verdict({where: slope[TWO][1] > max(-0.8, slope[FAST][2]) for where, slope in found.items()}),
        tuple(measured(records)),
    )


def _degrades(records: Records) -> Claim:
    """Not the paper's, which takes the PL constant as given."""
    numbers, held = {}, {}
    before: dict[str, float] = {}
    for where, results in measured(records).items():
        kind = where.split()[0]
        steps = results[FAST].spec["steps"]
        scaled = steps * float(results[FAST].summary("gap")["mean"].iloc[-1])
        least = float(results[FAST].summary("least_probability")["median"].iloc[-1])
        numbers[where] = f"k·gap {scaled:.3g} at a smallest probability of {least:.2g}"
        held[where] = kind not in before or scaled > before[kind]
        before[kind] = scaled
    return Claim(
        "mdp-constant-degrades",
        "The colder, the smaller the least action probability and the larger the constant before 1/k.",
        "not in the paper; its PL constant is not uniform",
        "k·gap of Fast at the last step grows from each temperature to the next lower one",
        numbers,
        _verdict(held),
        tuple(measured(records)),
    )


def _model(records: Records) -> Claim:
    ratios = {where: ratio(records, where, RIVAL) for where in measured(records)}
    return Claim(
        "mdp-model-based",
        "Soft value iteration on the frequencies in the same samples has a smaller gap than the actor-critic.",
        "not in the paper",
        "the mean gap of the model-based rival over Fast's at the last step has its 95 % interval below 1",
        {where: _words(numbers) for where, numbers in ratios.items()},
        _verdict({where: numbers[2] < 1 for where, numbers in ratios.items()}),
        tuple(measured(records)),
    )


def _fair(tried: Mapping[str, Result], where: str) -> Claim:
    where = where.removeprefix("tuning ")
    gaps = {label: float(result.summary("gap")["mean"].iloc[-1]) for label, result in tried.items()}
    numbers = {}
    for name, (actor, first, critic) in CHOSEN[where].items():
        own = {label: gap for label, gap in gaps.items() if label.startswith(f"{name}: ")}
        chosen = own[f"{name}: {actor:g} {first:g} {critic:g}"]
        numbers[f"{name}: chosen / best of {len(own)}"] = round(chosen / min(own.values()), 3)
    return Claim(
        f"mdp-tuned-alike-{where.replace(' ', '-')}",
        "Each method runs with the best of its settings.",
        "ours, not the paper's",
        "the chosen setting's mean gap at 10⁵ steps on other seeds is within 5 % of its grid's best",
        numbers,
        "reproduced" if all(value <= 1.05 for value in numbers.values()) else "not reproduced",
        (f"tuning {where}",),
    )


def limits(records: Records) -> dict[str, dict[str, float]]:
    """Final mean gaps over the model-based rival's."""
    out = {}
    for where, results in measured(records).items():
        last = {name: float(result.summary("gap")["mean"].iloc[-1]) for name, result in results.items()}
        kind, temp = where.split()
        out[f"{WORDS[kind].split(',')[0]}, τ = {temp}"] = {
            name: gap / last[RIVAL] for name, gap in last.items() if name != RIVAL
        }
    return out


def advice(records: Records) -> list[str]:
    """What helps in practice."""
    against = [ratio(records, where, SAME)[0] for where in measured(records)]
    model = [1 / ratio(records, where, RIVAL)[0] for where in measured(records)]
    return [
        "Averaging the operators is not what helps here: tuned alike, standard's mean gap ends at "
        f"{min(against):.2g} to {max(against):.2g} times Fast's.",
        f"Where the states can be counted, counting them is better: soft value iteration on the observed frequencies "
        f"has a gap {min(model):.2g} to {max(model):.2g} times smaller on the same samples.",
        "Actor steps must grow as the temperature falls: the best c_α of the grids went from "
        f"{CHOSEN['random 1'][FAST][0]:g} at τ = 1 to {CHOSEN['random 0.02'][FAST][0]:g} at τ = 0.02.",
    ]
