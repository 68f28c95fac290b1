"""Bilevel and minimax least squares in a hundred dimensions: known methods and Fast, tuned alike."""

from collections.abc import Callable, Mapping
from functools import cache, partial

import twoclock as tc
from reproduction import comparisons, tuned_settings
from reproduction.comparisons import Paired, join_words, last_mean, last_means, seconds_a_step
from reproduction.experiment import Case, Claim, Measured, Records
from reproduction.tuned_settings import (
    SEEDS,
    Limits,
    MethodSearch,
    NearbySettings,
    decaying,
    easier,
    holding,
    settings,
    tuned_alike,
)
from reproduction.verdicts import REPRODUCED, all_of, below, decide, only_for_steps
from twoclock import Method, Problem, Result, plot

TITLE = "Bilevel and minimax least squares, 100/100 dimensions"
QUICK = False  # ours and longer
TIMED = True


ALT = {
    "bilevel": "Mean squared distance to the solution against items drawn and against seconds, one row for each batch "
    "size and way of drawing, one line a method; SABA and SVRG end at a fifteenth of the items.",
    "bilevel-sensitivity": "Share of the settings around the tuned ones that end within a factor of the best, against "
    "the factor, one row for each batch size and way of drawing.",
    "bilevel-minimax": "Mean squared distance to the solution of the saddle problem against items drawn and against "
    "seconds, for stochastic gradient descent-ascent, Fast and averaged Fast.",
}


BATCH, SAMPLES = 16, 1024
# Items drawn from each level in a whole run; it has as many steps as that takes.
ITEMS = {True: 32_000, False: 640_000}
SOBA, MA_SOBA, TTSA, FAST, FAST_MEAN, SGDA = "SOBA", "MA-SOBA", "TTSA steps", "Fast", "Fast, averaged", "SGDA"
BILEVEL = (FAST, SOBA, MA_SOBA, TTSA, FAST_MEAN)
COMPARED = {"bilevel": BILEVEL, "replaced": BILEVEL, "minimax": (FAST, SGDA, FAST_MEAN)}
# Methods that need finite data, to go through it again: SVRG every item equally often. They converge linearly, so a
# fifteenth of the items is enough to see where they go.
SABA, SVRG = "SABA", "SVRG"
FIGURES = {"bilevel": ("bilevel", "replaced"), "bilevel-minimax": ("minimax",)}
REDUCED = {"bilevel": (SABA, SVRG), "replaced": (SABA,), "minimax": (SABA, SVRG)}
WORDS = {"bilevel": "without replacement", "replaced": "with replacement", "minimax": "minimax, without replacement"}
# The box in which `tc.tune` looks first; it widens it while the leader lies at an edge. No order is imposed.
_RATIO, _ITEMS = (0.5, 32.0), (100.0, 100_000.0)
_REDUCED_BOX: Limits = {"c": (1.0, 32.0), "second": (0.25, 16.0)}
# As few runs as a search of four rungs takes: seeds differ little here.
_RUNS = 228


def where(kind: str) -> str:
    return f"{WORDS[kind]}, batches of {BATCH}"


def make(name: str, c: float, second: float, levels: int = 2) -> Method:
    """A method with two numbers to tune: c, of α = c/(k + shift), and one that depends on the method.

    SOBA, SGDA, MA-SOBA, Fast: β/α at the end; the averages have λ/β = 4 there. TTSA: for how many items β
    holds before it falls as k^−⅔. Fast, averaged: for how many items α = β holds, at c/32 of the first step, before it
    falls as k^−½; weights ∝ k². SABA, SVRG: β/α, and α is constant, c/16 of the first step; the first has a memory for
    each of the ``levels``. The first step is half of what a batch of this size is stable with.
    """
    first = 0.5 * BATCH / (BATCH + 40.0)  # E‖a‖² is about 40
    if name in (SABA, SVRG):
        steps = tc.Constant(first * c / 16), tc.Constant(second * first * c / 16)
        items = (SAMPLES,) * levels
        return tc.methods.SABA(*steps, items=items) if name == SABA else tc.methods.SVRG(*steps)
    alpha = decaying(c, first / 2)
    if name in (SOBA, SGDA):
        return tc.methods.soba(alpha, decaying(second * c, first))
    if name == TTSA:
        return tc.Standard(alpha, holding(first, second / BATCH, 2 / 3))
    if name == MA_SOBA:
        return tc.methods.ma_soba(alpha, decaying(second * c, first), decaying(4 * second * c, 0.25))
    if name == FAST:
        return tc.Fast(alpha, decaying(second * c, first), decaying(4 * second * c, 0.25))
    step = holding(first * c / 32, second / BATCH, 0.5)
    return tc.Polyak(tc.Fast(step, step, 0.25), power=2.0)


def builders(kind: str, reduced: bool) -> dict[str, Callable[..., Method]]:
    """The methods of a panel, or those with variance reduction, each as a function of its two numbers."""
    levels = 1 if kind == "minimax" else 2
    return {name: partial(make, name, levels=levels) for name in (REDUCED if reduced else COMPARED)[kind]}


def searched(kind: str, reduced: bool) -> str:
    """The search that the settings of a panel's methods come from."""
    return f"{kind}-{BATCH}{'-reduced' if reduced else ''}"


def searches() -> dict[str, MethodSearch]:
    """What is tuned: every method of a panel, on its data; those with variance reduction at their own horizon."""
    found = {}
    for kind in COMPARED:
        made, title = problem(kind), where(kind)
        methods: dict[str, tuple[Callable[..., Method], Limits]] = {
            name: (build, {"c": (1.0, 64.0), "second": _ITEMS if name in (TTSA, FAST_MEAN) else _RATIO})
            for name, build in builders(kind, False).items()
        }
        found[searched(kind, False)] = MethodSearch(made, methods, ITEMS[False] // BATCH, "error", _RUNS, title)
        methods = {name: (build, _REDUCED_BOX) for name, build in builders(kind, True).items()}
        steps, title = reduced_marks()[-1], f"{title}, variance reduced"
        found[searched(kind, True)] = MethodSearch(made, methods, steps, "error", _RUNS, title)
    return found


def tuned(kind: str, reduced: bool) -> dict[str, Method]:
    case = searched(kind, reduced)
    return {name: build(**settings("bilevel", case, name)) for name, build in builders(kind, reduced).items()}


@cache
def problem(kind: str) -> Problem:
    """The data are one draw, the same for all methods and seeds; seeds draw the batches."""
    if kind == "minimax":
        return tc.problems.quadratic_minimax(100, 100, SAMPLES, batch=BATCH)
    return tc.problems.quadratic_bilevel(100, 100, SAMPLES, batch=BATCH, replace=kind == "replaced", v_scale=1.0)


def reduced_marks() -> list[int]:
    """Those of a whole run up to a fifteenth of it."""
    marks = tc.log_marks(ITEMS[False] // BATCH)
    return [mark for mark in marks if mark <= marks[-1] // 15]


def cases(quick: bool) -> dict[str, Case]:
    found = {}
    for kind in ["bilevel"] if quick else COMPARED:
        steps, made = ITEMS[quick] // BATCH, problem(kind)
        methods = tuned(kind, False)
        marks = dict.fromkeys(methods, tc.log_marks(steps))
        if quick:  # leaves out averaging and variance reduction, each a program more to compile
            methods.popitem()
        else:
            marks |= dict.fromkeys(REDUCED[kind], reduced_marks())
            methods |= tuned(kind, True)
            near = f"the settings of {join_words(REDUCED[kind])}"
            for role, reduced, end, count, words in (
                ("around", False, steps, 16, "the tuned settings"),
                ("near", True, marks[SABA][-1] // 4, 4, near),
            ):
                builds = builders(kind, reduced)
                nearby = tuned_settings.nearby("bilevel", searched(kind, reduced), builds, count)
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
    found: dict[str, dict[str, Result]] = {}
    for kind, names in COMPARED.items():
        for name in (*names, *REDUCED[kind]):
            if _case(kind, name) in records:
                found.setdefault(kind, {})[name] = records[_case(kind, name)][name]
    return found


def _near(records: Records, role: str = "around") -> dict[str, NearbySettings]:
    """Kind → the settings around the tuned ones; with the role "near" of those with variance reduction."""
    labels = {kind: f"{role}-{kind}-{BATCH}" for kind in COMPARED}
    return {kind: NearbySettings.of(records[label], "error") for kind, label in labels.items() if label in records}


def draw(records: Records) -> dict[str, plot.Figure]:
    shown = panels(records)
    figures = {}
    for name, kinds in FIGURES.items():
        rows = {kind: results for kind, results in shown.items() if kind in kinds}
        if not rows:
            continue
        fig, axes = plot.figure(len(rows), 2)
        for row, (kind, results) in zip(axes, rows.items(), strict=True):
            per_step = {label: seconds_a_step(r) for label, r in results.items()}
            _draw_by_items(row[0], results)
            plot.curves(row[1], results, "error", unit=per_step, xlabel="seconds for all seeds, compiling aside")
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
            f"mean over {len(run['seeds'])} seeds, {SAMPLES:,} items a level, dimensions 100/100; bands: 95 "
            "% bootstrap interval; settings from a search on other seeds (the claims say how good they are); one step "
            "is one inner and one outer batch for every method, also where it moves nothing",
        )
        figures[name] = fig
    if near := {where(kind): found for kind, found in _near(records).items()}:
        figures["bilevel-sensitivity"] = tuned_settings.draw_nearby(near, "c and the method's second number moved")
    return figures


def panel(ax: plot.Axes, records: Records) -> None:
    """The methods that the first claim compares, and the others on the same batches."""
    _draw_by_items(ax, next(iter(panels(records).values())))
    ax.legend(frameon=False, fontsize="x-small")


def _draw_by_items(ax: plot.Axes, results: Mapping[str, Result]) -> None:
    plot.curves(ax, results, "error", unit=dict.fromkeys(results, float(BATCH)), xlabel="items drawn from each level")


def claims(records: Records) -> list[Claim]:
    found = []
    for kind, results in panels(records).items():
        found += [_beats(results[FAST], results[rival], rival, kind) for rival in results if rival != FAST]
    for kind, near in _near(records).items():
        named, rival, cases = f"{kind}, batches of {BATCH}", COMPARED[kind][1], (f"around-{kind}-{BATCH}",)
        alike, simpler = f"All methods are tuned alike, {named}", f"Fast's steps are easier to choose than {rival}'s"
        found += [
            tuned_alike(near, "bilevel", searched(kind, False), name=alike, where=where(kind), cases=cases),
            easier(near, FAST, rival, name=f"{simpler}, {named}", where=where(kind), cases=cases),
        ]
    return found + [_well_set(near, kind) for kind, near in _near(records, "near").items()]


def captions(records: Records) -> dict[str, str]:
    found = {}
    for name, kinds in FIGURES.items():
        shown = {kind: results for kind, results in panels(records).items() if kind in kinds}
        ends = [f"{where(kind)}: {_ranking(streaming(results))}" for kind, results in shown.items()]
        if ends:
            reduced = "".join(_reduced(kind, results) for kind, results in shown.items())
            found[name] = f"Errors at the end, in multiples of the lowest: {'; '.join(ends)}.{reduced}"
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
        pairs = {label: Paired.of(results[best], results[label], "error") for label in results if label != best}
        level = [label for label, pair in pairs.items() if pair.at_the_end != "better"]
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
    verdict = decide(bool(pair.ahead[half:].all()))
    if verdict != REPRODUCED and pair.ahead[-1]:
        verdict = only_for_steps(pair.final_lead()[0])
    by_the_clock = comparisons.at_equal_seconds(fast, rival, "error")
    numbers: dict[str, Measured] = {
        f"geometric mean of the error ratio after {pair.steps[-1] * BATCH:,} items": float(f"{pair.ratio[-1]:.4g}"),
        "at half the marks": float(f"{pair.ratio[half]:.4g}"),
        "at the end": pair.at_the_end,
        "time a step / the rival's": round(seconds_a_step(fast) / seconds_a_step(rival), 2),
        "geometric mean of the error ratio at equal seconds": by_the_clock,
        "by the clock": comparisons.standing(by_the_clock),
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
