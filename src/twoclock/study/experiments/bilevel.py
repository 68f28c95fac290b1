"""Bilevel and minimax least squares in a hundred dimensions: known methods and Fast, tuned alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TypedDict

import twoclock as tc
from twoclock import plot
from twoclock.core import Method, Problem
from twoclock.result import Result
from twoclock.study import sensitivity
from twoclock.study.experiment import Case, Claim, Records
from twoclock.study.sensitivity import SEEDS, Around, around, easier, labelled, tuned_alike
from twoclock.study.steps import decaying, holding
from twoclock.study.tuned import Limits, Search, settings
from twoclock.study.verdicts import Paired, decide, last_mean, only_where
from twoclock.study.words import listed

TITLE = "Bilevel and minimax least squares, 100/100 dimensions"
TIMED = True


class Size(TypedDict):
    """The size of the data, as the problems' factories take it."""

    dim_x: int
    dim_y: int
    samples: int


SETTING: Size = {"dim_x": 100, "dim_y": 100, "samples": 1024}
# Items drawn from each level in a whole run; a run of batch B has as many steps as that takes.
ITEMS = {True: 32_000, False: 640_000}
SOBA, MA_SOBA, TTSA, FAST, FAST_MEAN, SGDA = "SOBA", "MA-SOBA", "TTSA steps", "Fast", "Fast, averaged", "SGDA"
BILEVEL = (FAST, SOBA, MA_SOBA, TTSA, FAST_MEAN)
COMPARED = {"bilevel": BILEVEL, "replaced": BILEVEL, "minimax": (FAST, SGDA, FAST_MEAN)}
WORDS = {"bilevel": "without replacement", "replaced": "with replacement", "minimax": "minimax, without replacement"}
PANELS = (("bilevel", 1), ("bilevel", 16), ("replaced", 16), ("minimax", 16))
# The box in which `tc.tune` looks first; it widens it while the leader lies at an edge. No order is imposed.
_RATIO, _ITEMS = (0.5, 32.0), (100.0, 100_000.0)
BOXES: dict[str, Limits] = {
    name: {"c": (1.0, 64.0), "second": _ITEMS if name in (TTSA, FAST_MEAN) else _RATIO}
    for name in (FAST, SOBA, MA_SOBA, TTSA, FAST_MEAN, SGDA)
}
ALT = {
    "bilevel": "Mean squared distance to the solution against items drawn and against seconds, one row for each batch "
    "size and way of drawing, one line a method.",
    "bilevel-sensitivity": "Share of the settings around the tuned ones that end within a factor of the best, against "
    "the factor, one row for each batch size and way of drawing.",
    "bilevel-minimax": "Mean squared distance to the solution of the saddle problem against items drawn and against "
    "seconds, for stochastic gradient descent-ascent, Fast and averaged Fast.",
}


def make(name: str, c: float, second: float, batch: int) -> Method:
    """A method with two numbers to tune: c, of α = c/(k + shift), and one of its own.

    SOBA, SGDA, MA-SOBA, Fast: β/α at the end; the averages have λ/β = 4 there. TTSA: for how many items β
    holds before it falls as k^−⅔. Fast, averaged: for how many items α = β holds, at c/32 of the first step, before it
    falls as k^−½; weights ∝ k². The first step is half of what a batch of this size is stable with.
    """
    first = 0.5 * batch / (batch + 40.0)  # E‖a‖² is about 40
    alpha = decaying(c, first / 2)
    if name in (SOBA, SGDA):
        return tc.methods.soba(alpha, decaying(second * c, first))
    if name == TTSA:
        return tc.Standard(alpha, holding(first, second / batch, 2 / 3))
    if name == MA_SOBA:
        return tc.methods.ma_soba(alpha, decaying(second * c, first), decaying(4 * second * c, 0.25))
    if name == FAST:
        return tc.Fast(alpha, decaying(second * c, first), decaying(4 * second * c, 0.25))
    step = holding(first * c / 32, second / batch, 0.5)
    return tc.Polyak(tc.Fast(step, step, 0.25), power=2.0)


def builder(name: str, batch: int) -> Callable[..., Method]:
    """The method as a function of its two numbers."""
    return partial(make, name, batch=batch)


def searches() -> dict[str, Search]:
    """What is tuned: every method of a panel, on its data."""
    return {
        f"{kind}-{batch}": Search(
            problem(kind, batch), {name: (builder(name, batch), BOXES[name]) for name in COMPARED[kind]},
            ITEMS[False] // batch, "error", runs=228, title=where(kind, batch),
        )
        for kind, batch in PANELS
    }  # fmt: skip


def tuned(name: str, kind: str, batch: int) -> Method:
    """The method with the settings that were found."""
    return make(name, **settings("bilevel", f"{kind}-{batch}", name), batch=batch)


def nearby(kind: str, batch: int) -> dict[str, Method]:
    """Settings around the tuned ones."""
    found: dict[str, Method] = {}
    for name in COMPARED[kind]:
        chosen = settings("bilevel", f"{kind}-{batch}", name)
        found |= labelled(name, around(builder(name, batch), chosen, count=16))
    return found


@cache
def problem(kind: str, batch: int) -> Problem:
    """The data are one draw, the same for all batches, methods and seeds; seeds draw the batches."""
    if kind == "minimax":
        return tc.problems.quadratic_minimax(**SETTING, batch=batch)
    return tc.problems.quadratic_bilevel(**SETTING, batch=batch, replace=kind == "replaced", v_scale=1.0)


def cases(quick: bool) -> dict[str, Case]:
    found = {}
    for kind, batch in [("bilevel", 16)] if quick else PANELS:
        steps, made = ITEMS[quick] // batch, problem(kind, batch)
        if not quick:
            found[f"around-{kind}-{batch}"] = Case(
                made, nearby(kind, batch), steps, SEEDS[:4], marks=[steps],
                title=f"around the tuned settings, {where(kind, batch)}", role="tune",
            )  # fmt: skip
        for name in COMPARED[kind][: -1 if quick else None]:  # averaging is a program more to compile
            method = tuned(name, kind, batch)
            seeds = 5 if quick else 20
            # Once for a few steps, so that the run that is timed compiles nothing.
            found[f"warm-{kind}-{batch}-{name}"] = Case(made, {name: method}, 10, seeds, role="warm up")
            found[f"{kind}-{batch}-{name}"] = Case(
                made, {name: method}, steps, seeds, title=f"{where(kind, batch)}: {name}"
            )
    return found


def panels(records: Records) -> dict[tuple[str, int], dict[str, Result]]:
    found: dict[tuple[str, int], dict[str, Result]] = {}
    for case, results in records.items():
        kind, *rest = case.split("-", 2)
        if kind in COMPARED:
            found.setdefault((kind, int(rest[0])), {}).update(results)
    return found


def draw(records: Records) -> dict[str, plot.Figure]:
    shown = panels(records)
    figures = {}
    for name, kinds in {"bilevel": ("bilevel", "replaced"), "bilevel-minimax": ("minimax",)}.items():
        rows = {(kind, batch): results for (kind, batch), results in shown.items() if kind in kinds}
        if not rows:
            continue
        fig, axes = plot.figure(len(rows), 2)
        for row, ((kind, batch), results) in zip(axes, rows.items(), strict=True):
            per_step = {label: _seconds_a_step(r) for label, r in results.items()}
            items = dict.fromkeys(results, float(batch))
            plot.against(row[0], results, "error", items, "items drawn from each level")
            plot.against(row[1], results, "error", per_step, "seconds for all seeds, compiling aside")
            # Reshuffled data leave less noise than independent draws: the square of the rate.
            power = 1 if kind == "replaced" else 2
            plot.slope(row[0], -float(power), _anchor(results, batch), "∝ 1/k" + "²" * (power - 1))
            row[0].set_title(f"batches of {batch}, {WORDS[kind]}", fontsize="medium")
            row[1].set_title(f"batches of {batch}, {WORDS[kind]}, by the clock", fontsize="medium")
        run = next(iter(next(iter(rows.values())).values())).spec
        plot.caption(
            fig,
            f"mean over {len(run['seeds'])} seeds, {SETTING['samples']:,} items a level, dimensions 100/100; bands: 95 "
            "% bootstrap interval; every method tuned alike; one step is one inner and one outer "
            "batch for every method",
        )
        figures[name] = fig
    if near := {where(*key): found for key, found in _near(records).items()}:
        figures["bilevel-sensitivity"] = sensitivity.draw(near, "c and the method's second number moved")
    return figures


def where(kind: str, batch: int) -> str:
    return f"{WORDS[kind]}, batches of {batch}"


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
    return found


def captions(records: Records) -> dict[str, str]:
    shown = panels(records)
    found = {}
    for name, kinds in {"bilevel": ("bilevel", "replaced"), "bilevel-minimax": ("minimax",)}.items():
        ends = [f"{where(*key)}: {_ranking(results)}" for key, results in shown.items() if key[0] in kinds]
        if ends:
            found[name] = f"Errors at the end, in multiples of the lowest: {'; '.join(ends)}."
    return found


def _ranking(results: Mapping[str, Result]) -> str:
    last = {label: last_mean(result, "error") for label, result in results.items()}
    ranked = sorted(last, key=last.__getitem__)
    return ", ".join(f"{label} {last[label] / last[ranked[0]]:.2f}" for label in ranked)


def advice(records: Records) -> list[str]:
    found = []
    for key, results in panels(records).items():
        last = {label: last_mean(result, "error") for label, result in results.items()}
        best = min(last, key=last.__getitem__)
        level = [
            label
            for label in results
            if label != best and Paired.of(results[best], results[label], "error").at_the_end != "better"
        ]
        ties = f", level with {listed(level)}" if level else ""
        found.append(
            f"Bilevel least squares, {where(*key)}: {best} ends lowest{ties}, at a mean squared error of "
            f"{last[best]:.2g}; in multiples of that: {_ranking(results)}."
        )
    return found


def _beats(fast: Result, rival: Result, name: str, kind: str, batch: int) -> Claim:
    pair = Paired.of(fast, rival, "error")
    half = len(pair.steps) // 2
    if pair.ahead[half:].all():
        verdict = decide(True)
    elif pair.ahead[-1]:
        verdict = only_where(f"k ≥ {pair.final_lead()[0]:,}")
    else:
        verdict = decide(False)
    return Claim(
        name=f"Fast beats {name}, {kind}, batches of {batch}",
        statement=f"Fast has a smaller error than {name} after the same oracle calls ({where(kind, batch)})",
        place="ours: the paper's remark on bilevel problems, put to the test",
        rule="the 99 % interval of the mean log-ratio of ‖x−x*‖² on shared seeds lies below 0 at every mark of the "
        "later half; only where: from some mark to the end",
        numbers={
            "geometric mean of the error ratio at the end": round(float(pair.ratio[-1]), 3),
            "at half the marks": round(float(pair.ratio[half]), 3),
            "at the end": pair.at_the_end,
            "time a step / the rival's": round(_seconds_a_step(fast) / _seconds_a_step(rival), 2),
        },
        verdict=verdict,
        cases=(f"{kind}-{batch}-{FAST}", f"{kind}-{batch}-{name}"),
        ours=True,
        speed=True,
    )


def _near(records: Records) -> dict[tuple[str, int], Around]:
    """The settings around the tuned ones, by panel."""
    parts = {case: case.split("-") for case in records if case.startswith("around-")}
    return {(kind, int(batch)): Around.of(records[case], "error") for case, (_, kind, batch) in parts.items()}


def _around(found: Around, kind: str, batch: int) -> list[Claim]:
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


def _seconds_a_step(result: Result) -> float:
    return float(result.spec["wall_seconds"]) / int(result.spec["steps"])


def _anchor(results: Mapping[str, Result], batch: int) -> tuple[float, float]:
    """Where the 1/k line starts: under the lowest curve, a decade before the end."""
    tables = [r.summary("error") for r in results.values()]
    k = float(tables[0]["step"].iloc[-1]) / 10
    lowest = min(float(t[t["step"] >= k]["mean"].iloc[0]) for t in tables)
    return k * batch, lowest / 4
