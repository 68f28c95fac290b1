"""Bilevel and minimax least squares in a hundred dimensions: known methods and Fast, tuned alike."""

from __future__ import annotations

from collections.abc import Mapping

import twoclock as tc
from reproduction import sensitivity
from reproduction.comparisons import (
    Paired,
    at_equal_seconds,
    join_words,
    last_mean,
    last_means,
    seconds_a_step,
    standing,
)
from reproduction.experiment import Case, Claim, Measured, Records
from reproduction.experiments import bilevel_settings
from reproduction.experiments.bilevel_settings import (
    BATCH,
    COMPARED,
    FAST,
    ITEMS,
    REDUCED,
    SABA,
    SETTING,
    SVRG,
    WORDS,
    where,
)
from reproduction.experiments.bilevel_settings import searches as searches
from reproduction.sensitivity import SEEDS, NearbySettings, easier, tuned_alike
from reproduction.verdicts import all_of, below, decide, only_for_steps
from twoclock import Result, plot

TITLE = "Bilevel and minimax least squares, 100/100 dimensions"
TIMED = True


ALT = {
    "bilevel": "Mean squared distance to the solution against items drawn and against seconds, one row for each batch "
    "size and way of drawing, one line a method; SABA and SVRG end at a fifteenth of the items.",
    "bilevel-sensitivity": "Share of the settings around the tuned ones that end within a factor of the best, against "
    "the factor, one row for each batch size and way of drawing.",
    "bilevel-minimax": "Mean squared distance to the solution of the saddle problem against items drawn and against "
    "seconds, for stochastic gradient descent-ascent, Fast and averaged Fast.",
}


def cases(quick: bool) -> dict[str, Case]:
    found = {}
    for kind in ["bilevel"] if quick else COMPARED:
        steps, made = ITEMS[quick] // BATCH, bilevel_settings.problem(kind)
        methods = bilevel_settings.tuned(kind, False)
        marks = dict.fromkeys(methods, tc.log_marks(steps))
        if quick:  # leaves out averaging and variance reduction, each a program more to compile
            methods.popitem()
        else:
            marks |= dict.fromkeys(REDUCED[kind], bilevel_settings.reduced_marks())
            methods |= bilevel_settings.tuned(kind, True)
            near = f"the settings of {join_words(REDUCED[kind])}"
            for role, reduced, end, count, words in (
                ("around", False, steps, 16, "the tuned settings"),
                ("near", True, marks[SABA][-1] // 4, 4, near),
            ):
                builds = bilevel_settings.builders(kind, reduced)
                nearby = sensitivity.nearby("bilevel", bilevel_settings.searched(kind, reduced), builds, count)
                title = f"around {words}, {where(kind)}"
                found[f"{role}-{kind}-{BATCH}"] = Case(made, nearby, end, SEEDS[:4], [end], title=title, role="tune")
        for name, method in methods.items():
            seeds, title = 5 if quick else 20, f"{where(kind)}: {name}"
            # Once for a few steps, so that the run that is timed compiles nothing.
            found[f"warm-{_case(kind, name)}"] = Case(made, {name: method}, 10, seeds, role="warm up")
            found[_case(kind, name)] = Case(made, {name: method}, marks[name][-1], seeds, marks[name], title=title)
    return found


def _case(kind: str, name: str) -> str:
    return f"{kind}-{BATCH}-{name}"


def panels(records: Records) -> dict[str, dict[str, Result]]:
    """Kind → method → its run."""
    found = {
        kind: {
            name: records[_case(kind, name)][name] for name in (*names, *REDUCED[kind]) if _case(kind, name) in records
        }
        for kind, names in COMPARED.items()
    }
    return {kind: results for kind, results in found.items() if results}


def _near(records: Records, role: str = "around") -> dict[str, NearbySettings]:
    """Kind → the settings around the tuned ones; with the role "near" of those with variance reduction."""
    labels = {kind: f"{role}-{kind}-{BATCH}" for kind in COMPARED}
    return {kind: NearbySettings.of(records[label], "error") for kind, label in labels.items() if label in records}


def draw(records: Records) -> dict[str, plot.Figure]:
    shown = panels(records)
    figures = {}
    for name, kinds in {"bilevel": ("bilevel", "replaced"), "bilevel-minimax": ("minimax",)}.items():
        rows = {kind: results for kind, results in shown.items() if kind in kinds}
        if not rows:
            continue
        fig, axes = plot.figure(len(rows), 2)
        for row, (kind, results) in zip(axes, rows.items(), strict=True):
            per_step = {label: seconds_a_step(r) for label, r in results.items()}
            _draw_by_items(row[0], results)
            plot.against(row[1], results, "error", per_step, "seconds for all seeds, compiling aside")
            # Reshuffled data leave less noise than independent draws: the square of the rate.
            power = 1 if kind == "replaced" else 2
            # The line starts under the lowest curve, a decade before the end.
            tables = [result.summary("error") for result in streaming(results).values()]
            k = float(tables[0]["step"].iloc[-1]) / 10
            lowest = min(float(table[table["step"] >= k]["mean"].iloc[0]) for table in tables)
            plot.slope(row[0], -float(power), (k * BATCH, lowest / 4), "∝ 1/k" + "²" * (power - 1))
            row[0].set_title(f"batches of {BATCH}, {WORDS[kind]}", fontsize="medium")
            row[1].set_title(f"batches of {BATCH}, {WORDS[kind]}, by the clock", fontsize="medium")
        run = next(iter(next(iter(rows.values())).values())).spec
        plot.caption(
            fig,
            f"mean over {len(run['seeds'])} seeds, {SETTING['samples']:,} items a level, dimensions 100/100; bands: 95 "
            "% bootstrap interval; settings from a search on other seeds (the claims say how good they are); one step "
            "is one inner and one outer batch for every method, also where it moves nothing",
        )
        figures[name] = fig
    if near := {where(kind): found for kind, found in _near(records).items()}:
        figures["bilevel-sensitivity"] = sensitivity.draw(near, "c and the method's second number moved")
    return figures


def panel(ax: plot.Axes, records: Records) -> None:
    """The methods that the first claim compares, and the others on the same batches."""
    _draw_by_items(ax, next(iter(panels(records).values())))
    ax.legend(frameon=False, fontsize="x-small")


def _draw_by_items(ax: plot.Axes, results: Mapping[str, Result]) -> None:
    plot.against(ax, results, "error", dict.fromkeys(results, float(BATCH)), "items drawn from each level")


def claims(records: Records) -> list[Claim]:
    found = []
    for kind, results in panels(records).items():
        found += [_beats(results[FAST], results[rival], rival, kind) for rival in results if rival != FAST]
    for kind, near in _near(records).items():
        named, cases, rival = f"{kind}, batches of {BATCH}", (f"around-{kind}-{BATCH}",), COMPARED[kind][1]
        found += [
            tuned_alike(
                near, "bilevel", bilevel_settings.searched(kind, False), name=f"All methods are tuned alike, {named}",
                where=where(kind), cases=cases,
            ),
            easier(
                near, FAST, rival, name=f"Fast's steps are easier to choose than {rival}'s, {named}",
                where=where(kind), cases=cases,
            ),
        ]  # fmt: skip
    return found + [_well_set(near, kind) for kind, near in _near(records, "near").items()]


def captions(records: Records) -> dict[str, str]:
    found = {}
    for name, kinds in {"bilevel": ("bilevel", "replaced"), "bilevel-minimax": ("minimax",)}.items():
        shown = {kind: results for kind, results in panels(records).items() if kind in kinds}
        ends = [f"{where(kind)}: {_ranking(streaming(results))}" for kind, results in shown.items()]
        reduced = [_reduced(kind, results) for kind, results in shown.items()]
        if ends:
            found[name] = f"Errors at the end, in multiples of the lowest: {'; '.join(ends)}.{''.join(reduced)}"
    return found


def streaming(results: Mapping[str, Result]) -> dict[str, Result]:
    """Those that need no finite data."""
    return {label: result for label, result in results.items() if label not in (SABA, SVRG)}


def _reduced(kind: str, results: Mapping[str, Result]) -> str:
    """Where variance reduction ends, beside Fast."""
    fast = results[FAST]
    return "".join(
        f" {where(kind)[0].upper()}{where(kind)[1:]}: {label} is at {last_mean(result, 'error'):.2g} after "
        f"{result.spec['steps'] * BATCH:,} items, Fast at {last_mean(fast, 'error'):.2g} after "
        f"{fast.spec['steps'] * BATCH:,}."
        for label, result in results.items()
        if label in (SABA, SVRG)
    )


def _ranking(results: Mapping[str, Result]) -> str:
    last = last_means(results, "error")
    ranked = sorted(last, key=last.__getitem__)
    return ", ".join(f"{label} {last[label] / last[ranked[0]]:.3g}" for label in ranked)


def advice(records: Records) -> list[str]:
    found = []
    for kind, every in panels(records).items():
        results = streaming(every)
        last = last_means(results, "error")
        best = min(last, key=last.__getitem__)
        level = [
            label
            for label in results
            if label != best and Paired.of(results[best], results[label], "error").at_the_end != "better"
        ]
        ties = f", level with {join_words(level)}" if level else ""
        found.append(
            f"Bilevel least squares, {where(kind)}: {best} ends lowest{ties}, at a mean squared error of "
            f"{last[best]:.2g}; in multiples of that: {_ranking(results)}."
        )
        reduced = {label: last_mean(result, "error") for label, result in every.items() if label in (SABA, SVRG)}
        if reduced:
            lowest = min(reduced, key=reduced.__getitem__)
            pays = "use it where the data are finite and its memory fits" if lowest == SABA else "use it on finite data"
            found.append(
                f"Variance reduction, {where(kind)}: "
                + (f"{lowest} ends below all of these; {pays}." if reduced[lowest] < last[best] else "it does not pay.")
                + _reduced(kind, every)
            )
    return found


def _beats(fast: Result, rival: Result, name: str, kind: str) -> Claim:
    pair = Paired.of(fast, rival, "error")
    half = len(pair.steps) // 2
    if pair.ahead[half:].all():
        verdict = decide(True)
    elif pair.ahead[-1]:
        verdict = only_for_steps(pair.final_lead()[0])
    else:
        verdict = decide(False)
    by_the_clock = at_equal_seconds(fast, rival, "error")
    numbers: dict[str, Measured] = {
        f"geometric mean of the error ratio after {pair.steps[-1] * BATCH:,} items": float(f"{pair.ratio[-1]:.4g}"),
        "at half the marks": float(f"{pair.ratio[half]:.4g}"),
        "at the end": pair.at_the_end,
        "time a step / the rival's": round(seconds_a_step(fast) / seconds_a_step(rival), 2),
        "geometric mean of the error ratio at equal seconds": by_the_clock,
        "by the clock": standing(by_the_clock),
    }
    return Claim(
        name=f"Fast beats {name}, {kind}, batches of {BATCH}",
        statement=f"Fast has a smaller error than {name} after as many items ({where(kind)})",
        place="ours: the paper's remark on bilevel problems, put to the test",
        rule="the 99 % interval of the mean log-ratio of ‖x−x*‖² on shared seeds lies below 0 at every mark of the "
        "later half that both have; only where: from some mark to the end. By the clock: beside it, not in the verdict",
        numbers=numbers,
        verdict=verdict,
        cases=(_case(kind, FAST), _case(kind, name)),
        speed=True,
    )


def _well_set(found: NearbySettings, kind: str) -> Claim:
    behind = {method: found.behind(method) for method in found.logs}
    words = f"{join_words(list(behind))} {'runs' if len(behind) == 1 else 'run'} with settings as good as any around"
    return Claim(
        name=f"{words}, {kind}, batches of {BATCH}",
        statement=f"{words} ({where(kind)})",
        place="ours, not the paper's",
        rule=f"on other seeds, the geometric mean of the setting's error over that of the best of {found.count - 1} "
        "around it, after a quarter of its run, has its 95 % interval below 10 for each method (they converge "
        "linearly: an error is its exponent); not so where one lies above; not decided between",
        numbers={f"{method}: set / best around": ratio for method, ratio in behind.items()},
        verdict=decide(all_of(*(below(ratio, 10.0) for ratio in behind.values()))),
        cases=(f"near-{kind}-{BATCH}",),
    )
