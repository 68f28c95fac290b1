"""Bilevel and minimax least squares in a hundred dimensions: known methods and Fast, tuned alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import twoclock as tc
from reproduction import sensitivity
from reproduction.comparisons import Paired, at_equal_seconds, join_words, last_mean, seconds_a_step, standing
from reproduction.experiment import Case, Claim, Measured, Records
from reproduction.experiments import bilevel_settings
from reproduction.experiments.bilevel_settings import (
    COMPARED,
    FAST,
    ITEMS,
    PANELS,
    REDUCED,
    SABA,
    SETTING,
    SVRG,
    WORDS,
    nearby,
    reduced_marks,
    reduced_nearby,
    reduced_tuned,
    tuned,
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
    for kind, batch in [("bilevel", 16)] if quick else PANELS:
        steps, made = ITEMS[quick] // batch, bilevel_settings.problem(kind, batch)
        if not quick:
            found[f"around-{kind}-{batch}"] = Case(
                made, nearby(kind, batch), steps, SEEDS[:4], marks=[steps],
                title=f"around the tuned settings, {where(kind, batch)}", role="tune",
            )  # fmt: skip
        # A quick run leaves out averaging and variance reduction, each a program more to compile.
        methods = {name: tuned(name, kind, batch) for name in COMPARED[kind][: -1 if quick else None]}
        marks = dict.fromkeys(methods, tc.log_marks(steps))
        if not quick:
            marks |= dict.fromkeys(REDUCED[kind], reduced_marks(batch))
            methods |= {name: reduced_tuned(name, kind) for name in REDUCED[kind]}
            short = marks[SABA][-1] // 4
            found[f"near-{kind}-{batch}"] = Case(
                made, reduced_nearby(kind), short, SEEDS[:4], marks=[short],
                title=f"around the settings of {join_words(list(REDUCED[kind]))}, {where(kind, batch)}", role="tune",
            )  # fmt: skip
        for name, method in methods.items():
            seeds = 5 if quick else 20
            # Once for a few steps, so that the run that is timed compiles nothing.
            found[f"warm-{kind}-{batch}-{name}"] = Case(made, {name: method}, 10, seeds, role="warm up")
            found[f"{kind}-{batch}-{name}"] = Case(
                made, {name: method}, marks[name][-1], seeds, marks[name], title=f"{where(kind, batch)}: {name}"
            )
    return found


def panels(records: Records) -> dict[tuple[str, int], dict[str, Result]]:
    """Kind and batch → method → its run."""
    found = {
        (kind, batch): {
            name: records[label][name]
            for name in (*COMPARED[kind], *REDUCED[kind])
            if (label := f"{kind}-{batch}-{name}") in records
        }
        for kind, batch in PANELS
    }
    return {key: results for key, results in found.items() if results}


def _near(records: Records, role: str = "around") -> dict[tuple[str, int], NearbySettings]:
    """Kind and batch → the settings around the tuned ones; with the role "near" of those with variance reduction."""
    labels = {(kind, batch): f"{role}-{kind}-{batch}" for kind, batch in PANELS}
    return {key: NearbySettings.of(records[label], "error") for key, label in labels.items() if label in records}


def draw(records: Records) -> dict[str, plot.Figure]:
    shown = panels(records)
    figures = {}
    for name, kinds in {"bilevel": ("bilevel", "replaced"), "bilevel-minimax": ("minimax",)}.items():
        rows = {(kind, batch): results for (kind, batch), results in shown.items() if kind in kinds}
        if not rows:
            continue
        fig, axes = plot.figure(len(rows), 2)
        for row, ((kind, batch), results) in zip(axes, rows.items(), strict=True):
            per_step = {label: seconds_a_step(r) for label, r in results.items()}
            items = dict.fromkeys(results, float(batch))
            plot.against(row[0], results, "error", items, "items drawn from each level")
            plot.against(row[1], results, "error", per_step, "seconds for all seeds, compiling aside")
            # Reshuffled data leave less noise than independent draws: the square of the rate.
            power = 1 if kind == "replaced" else 2
            plot.slope(row[0], -float(power), _anchor(streaming(results), batch), "∝ 1/k" + "²" * (power - 1))
            row[0].set_title(f"batches of {batch}, {WORDS[kind]}", fontsize="medium")
            row[1].set_title(f"batches of {batch}, {WORDS[kind]}, by the clock", fontsize="medium")
        run = next(iter(next(iter(rows.values())).values())).spec
        plot.caption(
            fig,
            f"mean over {len(run['seeds'])} seeds, {SETTING['samples']:,} items a level, dimensions 100/100; bands: 95 "
            "% bootstrap interval; settings from a search on other seeds (the claims say how good they are); one step "
            "is one inner and one outer batch for every method, also where it moves nothing",
        )
        figures[name] = fig
    if near := {where(*key): found for key, found in _near(records).items()}:
        figures["bilevel-sensitivity"] = sensitivity.draw(near, "c and the method's second number moved")
    return figures


def panel(ax: plot.Axes, records: Records) -> None:
    """The methods that the first claim compares, and the others on the same batches."""
    (_, batch), results = next(iter(panels(records).items()))
    plot.against(ax, results, "error", dict.fromkeys(results, float(batch)), "items drawn from each level")
    ax.legend(frameon=False, fontsize="x-small")


def claims(records: Records) -> list[Claim]:
    found = []
    for (kind, batch), results in panels(records).items():
        found += [_beats(results[FAST], results[rival], rival, kind, batch) for rival in results if rival != FAST]
    for key, near in _near(records).items():
        found += _around(near, *key)
    found += [_well_set(near, *key) for key, near in _near(records, "near").items()]
    return found


def captions(records: Records) -> dict[str, str]:
    shown = panels(records)
    found = {}
    for name, kinds in {"bilevel": ("bilevel", "replaced"), "bilevel-minimax": ("minimax",)}.items():
        ends = [f"{where(*key)}: {_ranking(streaming(results))}" for key, results in shown.items() if key[0] in kinds]
        if ends:
            found[name] = f"Errors at the end, in multiples of the lowest: {'; '.join(ends)}.{_reduced(shown, kinds)}"
    return found


def streaming(results: Mapping[str, Result]) -> dict[str, Result]:
    """Those that need no finite data."""
    return {label: result for label, result in results.items() if label not in (SABA, SVRG)}


def _reduced(shown: Mapping[tuple[str, int], Mapping[str, Result]], kinds: Sequence[str]) -> str:
    """Where variance reduction ends, beside Fast."""
    found = [
        f" {where(*key)[0].upper()}{where(*key)[1:]}: {label} is at {last_mean(result, 'error'):.2g} after "
        f"{result.spec['steps'] * key[1]:,} items, Fast at {last_mean(results[FAST], 'error'):.2g} after "
        f"{results[FAST].spec['steps'] * key[1]:,}."
        for key, results in shown.items()
        if key[0] in kinds
        for label, result in results.items()
        if label in (SABA, SVRG)
    ]
    return "".join(found)


def _ranking(results: Mapping[str, Result]) -> str:
    last = {label: last_mean(result, "error") for label, result in results.items()}
    ranked = sorted(last, key=last.__getitem__)
    return ", ".join(f"{label} {last[label] / last[ranked[0]]:.3g}" for label in ranked)


def advice(records: Records) -> list[str]:
    found = []
    shown = panels(records)
    for key, every in shown.items():
        results = streaming(every)
        last = {label: last_mean(result, "error") for label, result in results.items()}
        best = min(last, key=last.__getitem__)
        level = [
            label
            for label in results
            if label != best and Paired.of(results[best], results[label], "error").at_the_end != "better"
        ]
        ties = f", level with {join_words(level)}" if level else ""
        found.append(
            f"Bilevel least squares, {where(*key)}: {best} ends lowest{ties}, at a mean squared error of "
            f"{last[best]:.2g}; in multiples of that: {_ranking(results)}."
        )
        reduced = {label: last_mean(result, "error") for label, result in every.items() if label in (SABA, SVRG)}
        if reduced:
            lowest = min(reduced, key=reduced.__getitem__)
            pays = "use it where the data are finite and its memory fits" if lowest == SABA else "use it on finite data"
            found.append(
                f"Variance reduction, {where(*key)}: "
                + (f"{lowest} ends below all of these; {pays}." if reduced[lowest] < last[best] else "it does not pay.")
                + _reduced({key: every}, key[:1])
            )
    return found


def _beats(fast: Result, rival: Result, name: str, kind: str, batch: int) -> Claim:
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
        f"geometric mean of the error ratio after {pair.steps[-1] * batch:,} items": float(f"{pair.ratio[-1]:.4g}"),
        "at half the marks": float(f"{pair.ratio[half]:.4g}"),
        "at the end": pair.at_the_end,
        "time a step / the rival's": round(seconds_a_step(fast) / seconds_a_step(rival), 2),
        "geometric mean of the error ratio at equal seconds": by_the_clock,
        "by the clock": standing(by_the_clock),
    }
    return Claim(
        name=f"Fast beats {name}, {kind}, batches of {batch}",
        statement=f"Fast has a smaller error than {name} after as many items ({where(kind, batch)})",
        place="ours: the paper's remark on bilevel problems, put to the test",
        rule="the 99 % interval of the mean log-ratio of ‖x−x*‖² on shared seeds lies below 0 at every mark of the "
        "later half that both have; only where: from some mark to the end. By the clock: beside it, not in the verdict",
        numbers=numbers,
        verdict=verdict,
        cases=(f"{kind}-{batch}-{FAST}", f"{kind}-{batch}-{name}"),
        ours=True,
        speed=True,
    )


def _around(found: NearbySettings, kind: str, batch: int) -> list[Claim]:
    named, cases, rival = f"{kind}, batches of {batch}", (f"around-{kind}-{batch}",), COMPARED[kind][1]
    return [
        tuned_alike(
            found, "bilevel", f"{kind}-{batch}", name=f"All methods are tuned alike, {named}", where=where(kind, batch),
            cases=cases,
        ),
        easier(
            found, FAST, rival, name=f"Fast's steps are easier to choose than {rival}'s, {named}",
            where=where(kind, batch), cases=cases,
        ),
    ]  # fmt: skip


def _well_set(found: NearbySettings, kind: str, batch: int) -> Claim:
    behind = {method: found.behind(method) for method in found.logs}
    words = f"{join_words(list(behind))} {'runs' if len(behind) == 1 else 'run'} with settings as good as any around"
    return Claim(
        name=f"{words}, {kind}, batches of {batch}",
        statement=f"{words} ({where(kind, batch)})",
        place="ours, not the paper's",
        rule=f"on other seeds, the geometric mean of the setting's error over that of the best of {found.count - 1} "
        "around it, after a quarter of its run, has its 95 % interval below 10 for each method (they converge "
        "linearly: an error is its exponent); not so where one lies above; not decided between",
        numbers={f"{method}: set / best around": ratio for method, ratio in behind.items()},
        verdict=decide(all_of(*(below(ratio, 10.0) for ratio in behind.values()))),
        cases=(f"near-{kind}-{batch}",),
        ours=True,
    )


def _anchor(results: Mapping[str, Result], batch: int) -> tuple[float, float]:
    """Where the 1/k line starts: under the lowest curve, a decade before the end."""
    tables = [r.summary("error") for r in results.values()]
    k = float(tables[0]["step"].iloc[-1]) / 10
    lowest = min(float(t[t["step"] >= k]["mean"].iloc[0]) for t in tables)
    return k * batch, lowest / 4
