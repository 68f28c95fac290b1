"""Entropy-regularised MDPs: random ones and a frozen lake at three temperatures, against a model-based rival."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np

import twoclock as tc
from reproduction import sensitivity
from reproduction.comparisons import band, join_words, last_mean, last_means, last_ratio, like, span
from reproduction.experiment import Case, Claim, Measured, Records
from reproduction.experiments import mdp_settings
from reproduction.experiments.mdp_settings import BOLD, CENTRES, CRITIC, FAST, RIVAL, SAME, TWO, EntropyTask, measured
from reproduction.experiments.mdp_settings import searches as searches
from reproduction.sensitivity import SEEDS, NearbySettings, easier, tuned_alike
from reproduction.tuned_settings import settings
from reproduction.verdicts import Verdict, above, all_of, below, confirm_verdict, decide_each, kind
from twoclock import Result, plot
from twoclock.intervals import Estimate

# The warmest and the coldest tell enough of the settings around the tuned ones.
_BETWEEN = (EntropyTask("random", 0.1), EntropyTask("lake", 0.03))
TITLE = "Entropy-regularised MDPs: actor-critics and a model-based rival"


def cases(quick: bool) -> dict[str, Case]:
    steps, seeds = (10_000, 16) if quick else (1_000_000, 120)
    found = {}
    for task in [EntropyTask("lake", 0.03)] if quick else CENTRES:
        states, gamma = mdp_settings.SIZE[task.family]
        best = {name: settings("mdp", task.case, name) for name in CRITIC}
        compared = {name: mdp_settings.method(name, **best[name]) for name in CRITIC}
        compared[BOLD] = mdp_settings.method(FAST, **{**best[FAST], "actor": 4 * best[FAST]["actor"]})
        rival = {RIVAL: tc.PlugIn(compared[FAST], tc.models.EmpiricalMdp(states, 4, gamma, task.temp))}
        rest = {} if quick else {FAST: compared[FAST]}
        found[task.case] = Case(mdp_settings.problem(*task), compared, steps, seeds, title=task.words)
        found[task.counted] = Case(  # each of its samples touches S²A sums: fewer seeds
            mdp_settings.problem(*task), rest | rival, steps, min(seeds, 16), title=f"{task.words}, a model counted"
        )
        if not quick and task not in _BETWEEN:
            nearby = sensitivity.nearby("mdp", task.case, {name: partial(mdp_settings.method, name) for name in CRITIC})
            found[task.around] = Case(
                mdp_settings.problem(*task), nearby, steps, SEEDS, marks=[steps],
                title=f"around the tuned settings, {task.words}", role="tune",
            )  # fmt: skip
    return found


def nearby_settings(records: Records) -> dict[EntropyTask, NearbySettings]:
    return {task: NearbySettings.of(records[task.around], "gap") for task in CENTRES if task.around in records}


ALT = {
    "mdp": "The gap of the actor-critics and of the model-based rival against the number of samples, one panel an MDP "
    "and temperature.",
    "mdp-sensitivity": "Share of the settings around the tuned ones that end within a factor of the best, against the "
    "factor, one row an MDP and temperature.",
    "mdp-rates": "Left, the slopes of the gap over the last decade with their intervals, by method and temperature; "
    "right, the smallest action probability of Fast's policy against the number of samples.",
}


def draw(records: Records) -> dict[str, plot.Figure]:
    # One case has no trend.
    found = {"mdp": _draw_gaps(records)} | ({"mdp-rates": _draw_rates(records)} if len(measured(records)) > 1 else {})
    if shown := {task.words: tried for task, tried in nearby_settings(records).items()}:
        found["mdp-sensitivity"] = sensitivity.draw(shown, "c_α, α's first step and c_β moved")
    return found


def _draw_gaps(records: Records) -> plot.Figure:
    shown = measured(records)
    families = Counter(task.family for task in shown)
    columns = max(families.values())
    fig, axes = plot.figure(len(families), columns, width=5.6 if columns == 1 else 4.0, height=3.6)
    for row, family in zip(axes, families, strict=True):
        for ax, task in zip(row, (task for task in shown if task.family == family), strict=False):
            plot.curves(ax, shown[task], "gap")
            table = shown[task][FAST].summary("gap")
            last = table[table["step"] >= table["step"].max() / 10]
            plot.slope(ax, -1.0, (float(last["step"].iloc[0]), float(last["mean"].iloc[0]) / 4), "1/k")
            ax.set_title(task.words, fontsize="medium")
            ax.set_ylabel("J* − J(π), mean of seeds")
            ax.legend(frameon=False, fontsize="x-small").set_visible(ax is axes[0, 0])
    first = next(iter(shown.values()))
    run, counted = first[FAST].spec, len(first[RIVAL].spec["seeds"])
    plot.caption(
        fig,
        f"{'; '.join(mdp_settings.WORDS[family] for family in families)}; restart sampling, {len(run['seeds'])} seeds, "
        f"{run['steps']:,} samples; bands: 95 % bootstrap interval of the mean. Each method tuned on other seeds "
        f"at 10⁶ samples. Model-based: soft value iteration on the frequencies in Fast's samples, {counted} seeds.",
    )
    return fig


def _draw_rates(records: Records) -> plot.Figure:
    fig, axes = plot.figure(1, 2, width=5.6, height=4.4)
    left, right = axes[0]
    found, shown = mdp_settings.slopes(records, 1.0), measured(records)
    for i, name in enumerate((*CRITIC, BOLD, RIVAL)):
        rows = [of_task[name] for of_task in found.values()]
        at = np.arange(len(rows)) + 0.15 * (i - 2)
        middle, low, high = np.array(rows).T
        left.errorbar(
            middle, at, xerr=[middle - low, high - middle], fmt=plot.MARKERS[i], color=plot.COLOURS[i], markersize=4,
            linewidth=1.2, label=name,
        )  # fmt: skip
    for slope, label in ((-1.0, "−1"), (-2 / 3, "−2/3")):
        left.axvline(slope, color="0.45", linestyle="--", linewidth=1, zorder=1)
        left.annotate(label, (slope, -0.6), fontsize="x-small", color="0.35", backgroundcolor="w", ha="center")
    left.set_yticks(range(len(found)), [task.words for task in found])
    left.set(xlabel="slope of log mean gap, last decade", ylim=(len(found) + 0.9, -0.9))
    left.legend(frameon=False, fontsize="x-small", ncols=2, loc="lower center")
    for i, (task, results) in enumerate(shown.items()):
        table = results[FAST].summary("least_probability")
        table = table[table["step"] > 0]
        style = "-" if task.family == "random" else "--"
        right.plot(table["step"], table["median"], color=plot.COLOURS[i % 3], linestyle=style, linewidth=1.6)
        right.annotate(
            task.words, (table["step"].iloc[-1], table["median"].iloc[-1]), (3, 0),
            textcoords="offset points", fontsize="x-small", color=plot.COLOURS[i % 3], va="center",
        )  # fmt: skip
    right.set(
        xscale="log", yscale="log", xlabel="steps k (one sample each)", ylabel="smallest action probability, Fast"
    )
    right.set_xlim(None, float(table["step"].iloc[-1]) * 60)
    plot.caption(fig, "Left: bars are 95 % bootstrap intervals over the seeds. Right: median of the seeds.")
    return fig


def panel(ax: plot.Axes, records: Records) -> None:
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
        _model(records),
    ]
    for task, tried in nearby_settings(records).items():
        slug, where, cases = task.case.replace(" ", "-"), task.words, (task.around,)
        found += [
            tuned_alike(tried, "mdp", task.case, name=f"mdp-tuned-alike-{slug}", where=where, cases=cases),
            easier(tried, FAST, SAME, name=f"mdp-easier-steps-{slug}", where=where, cases=cases),
        ]
    return found


def _decide(held: Mapping[EntropyTask, bool | None]) -> Verdict:
    return decide_each({task.words: found for task, found in held.items()}, separator="; ")


def _cases(tasks: Iterable[EntropyTask]) -> tuple[str, ...]:
    return tuple(task.case for task in tasks)


def _rate(records: Records, name: str) -> Claim:
    two, one = mdp_settings.slopes(records, 2.0), mdp_settings.slopes(records, 1.0)
    larger = ", with c_α four times what was tuned" if name == BOLD else ""
    return Claim(
        "mdp-rate-larger-steps" if name == BOLD else "mdp-rate",
        f"In entropy-regularised MDPs the fast actor-critic reduces J* − J like 1/k, up to logarithms{larger}",
        "Section 4.3; the theory wants c_α ≥ 2/μ_h" if name == BOLD else "Section 4.3",
        f"the 95 % interval of the slope of log mean gap against log k over the last decade {band(1.0)}; over the last "
        "two, which may hold some of the descent before the rate, for comparison",
        {task.words: f"{two[task][name]}, last decade {one[task][name]}" for task in two},
        _decide({task: like(one[task][name], 1.0) for task in one}),
        _cases(two),
    )


def ratios(records: Records, name: str) -> dict[EntropyTask, Estimate]:
    """A method's gap over Fast's at the last step of each case: the geometric mean over seeds, with its interval."""
    found = {}
    for task in measured(records):
        results = {**records[task.case], **(records[task.counted] if name == RIVAL else {})}
        found[task] = last_ratio(results[name], results[FAST], "gap")
    return found


def _beats(records: Records, name: str) -> Claim:
    found = ratios(records, name)
    return Claim(
        f"mdp-fast-beats-{'same' if name == SAME else 'two-thirds'}",
        f"In entropy-regularised MDPs the fast actor-critic reaches a smaller gap than {name[0].lower()}{name[1:]}",
        "Section 4.3, against the rate k^-2/3 of the standard method",
        f"the geometric mean over shared seeds of the gap of {name} over Fast's at the last step, both tuned, has its "
        "95 % interval above 1.1; not reproduced where it lies below, not decided between",
        {task.words: ratio for task, ratio in found.items()},
        _decide({task: above(ratio, 1.1) for task, ratio in found.items()}),
        _cases(found),
        speed=True,
    )


def _slower(records: Records) -> Claim:
    found, slower = mdp_settings.slopes(records, 1.0), mdp_settings.differences(records, TWO, 1.0)
    return Claim(
        "mdp-standard-is-slower",
        "In entropy-regularised MDPs the standard method with its exponents 1 and 2/3 falls only like k^-2/3",
        "Section 4.3; an upper bound in the paper, read as a rate",
        "over the last decade the 95 % interval of its slope lies above −0.8, and that of its difference to Fast's, on "
        "shared seeds, above 0",
        {task.words: f"{slope[TWO]}, less Fast's {slower[task]}" for task, slope in found.items()},
        _decide({task: all_of(above(found[task][TWO], -0.8), above(slower[task], 0.0)) for task in found}),
        _cases(found),
        speed=True,
    )


def _degrades(records: Records) -> Claim:
    """Not the paper's, which takes the PL constant as given."""
    numbers: dict[str, Measured] = {}
    held: dict[EntropyTask, bool | None] = {}
    before: dict[str, Result] = {}
    for task, results in measured(records).items():
        scaled = results[FAST].spec["steps"] * last_mean(results[FAST], "gap")
        numbers[task.words] = f"k·gap {scaled:.3g} at a smallest probability of {_least_probability(results):.2g}"
        if task.family in before:
            grows = last_ratio(results[FAST], before[task.family], "gap")
            numbers[f"{task.words}, over the warmer one"] = grows
            held[task] = above(grows, 1.0)
        before[task.family] = results[FAST]
    return Claim(
        "mdp-constant-degrades",
        "The colder, the smaller the least action probability and the larger the constant before 1/k",
        "not in the paper; its PL constant is not uniform",
        "Fast's gap after the same steps grows from each temperature to the next lower one: the geometric mean of the "
        "ratio has its 95 % interval above 1",
        numbers,
        _decide(held),
        _cases(measured(records)),
    )


def _least_probability(results: Mapping[str, Result]) -> float:
    """The smallest action probability of Fast's policy at the last step, median over seeds."""
    return float(results[FAST].summary("least_probability")["median"].iloc[-1])


def _model(records: Records) -> Claim:
    found = ratios(records, RIVAL)
    return Claim(
        "mdp-model-based",
        "Soft value iteration on the frequencies in the same samples has a smaller gap than the actor-critic",
        "not in the paper",
        "the geometric mean over shared seeds of the model-based rival's gap over Fast's at the last step has its 95 % "
        "interval below 1",
        {task.words: ratio for task, ratio in found.items()},
        _decide({task: below(ratio, 1.0) for task, ratio in found.items()}),
        tuple(task.counted for task in found),
    )


def captions(records: Records) -> dict[str, str]:
    ends = [f"{name} ends at {span([r.value for r in ratios(records, name).values()])}" for name in (SAME, TWO, RIVAL)]
    found = {"mdp": f"In multiples of Fast's final gap {join_words(ends)}."}
    if len(measured(records)) > 1:
        last = [slope[FAST].value for slope in mdp_settings.slopes(records, 1.0).values()]
        least = [_least_probability(results) for results in measured(records).values()]
        found["mdp-rates"] = (
            f"Fast's slope is {span(last, '.2f')}; its smallest action probability ends at {span(least, '.1g')}."
        )
    return found


def relative_errors(records: Records) -> dict[str, dict[str, float]]:
    """Final mean gaps over the model-based rival's."""
    out = {}
    for task, results in measured(records).items():
        last = last_means(results, "gap")
        out[task.words] = {name: gap / last[RIVAL] for name, gap in last.items() if name != RIVAL}
    return out


def advice(records: Records) -> list[str]:
    """What helps in practice."""
    against, model = ([r.value for r in ratios(records, name).values()] for name in (SAME, RIVAL))
    helps = {
        "yes": "averaging the operators helps here",
        "partly": "averaging the operators helps here in some cases",
        "no": "averaging the operators is not what helps here",
        "undecided": "whether averaging the operators helps here is not decided",
    }[kind(confirm_verdict(lambda some: _beats(some, SAME), records))]
    found = [f"Entropy-regularised MDPs: {helps}: tuned alike, standard's gap ends at {span(against)} times Fast's."]
    if (verdict := kind(confirm_verdict(_model, records))) in ("yes", "partly"):
        found.append(
            f"Where the states can be counted, counting them is better{' in some cases' if verdict == 'partly' else ''}"
            f": soft value iteration on the observed frequencies ends at {span(model, '.2g')} times the actor-critic's "
            "gap on the same samples."
        )
    actors = [f"{task.words}: {settings('mdp', task.case, FAST)['actor']:.3g}" for task in measured(records)]
    return [*found, f"The actor's constants c_α as tuned for Fast, by temperature: {'; '.join(actors)}."]
