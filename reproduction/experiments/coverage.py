"""How often intervals from one run cover the truth: regression, policy evaluation, bilevel problems, a regulator."""

import numpy as np
import pandas as pd

from reproduction.experiment import Case, Claim, Measured, Records
from reproduction.experiments import coverage_settings as settings
from reproduction.experiments.coverage_settings import CONSTANT, FALLING, FAST_TDC, GTD2, HIGH, LOW, LSTD, TD, TDC
from reproduction.experiments.coverage_settings import table as table
from reproduction.verdicts import all_of, decide, decide_each
from twoclock import Result, plot
from twoclock.models import limit_law

TITLE = "Error bars from one run: how often they cover"

ALT = {
    "coverage": "The share of 95 % intervals that cover the truth, a row for each run and a panel for each number of "
    "samples; full where no note warns, hollow where one does; the band is from 93 to 97 %.",
    "coverage-levels": "The share of intervals that cover against samples, for four levels, on some of the runs.",
    "coverage-lengths": "Mean length of 95 % intervals over the oracle's against samples, a line for each run.",
}
QUICK = False  # ours and longer; by name it runs two programs, each of which takes seconds to compile
SHORT = {"linear-5": FALLING, "walk-td-markov": TD}
SHOWN = {"linear-5": CONSTANT, "logistic-5": FALLING, "mdp-tdc-markov": FAST_TDC, "walk-td-markov": TD}
SHOWN |= {"walk-blocks-markov": LSTD, "lqr": "Fast"}
FIRST, MOST, LOOKS = settings.MARKED[0], 2.2, 0.95  # the first look, the length over the oracle's, the share of runs


def cases(quick: bool) -> dict[str, Case]:
    """The runs, with marks at each tenth, so that the notes can compare the parts of a mean."""
    found = {}
    for label in SHORT if quick else settings.LABELS:
        task = settings.task(label)
        methods = {SHORT[label]: task.methods[SHORT[label]]} if quick else task.methods
        steps, seeds = (settings.MARKED[0], 100) if quick else (task.steps, task.seeds)
        looked_at = [n for n in (*settings.MARKED, settings.PUBLISHED_AT.get(label, steps)) if n <= steps]
        marks = sorted({n * tenth // 10 for n in looked_at for tenth in range(1, 11)})
        marks = [steps] if settings.DEFAULT in methods else marks
        found[label] = Case(task.problem(), methods, steps, seeds, marks=marks, title=task.title)
    return found


def draw(records: Records) -> dict[str, plot.Figure]:
    found = table(records)
    levels = pd.concat([settings.of_run(found, *run).assign(label=settings.run_name(*run)) for run in _shown(found)])
    return {
        "coverage": _dots(found),
        "coverage-levels": plot.coverage(levels[levels["step"].isin(settings.MARKED)]),
        "coverage-lengths": _lengths(found),
    }


def _shown(found: pd.DataFrame) -> list[tuple[str, str]]:
    """The runs that have a picture each: some of them, or all where there are few."""
    there = list(dict.fromkeys(zip(found["case"], found["method"], strict=True)))
    return [run for run in SHOWN.items() if run in there] if len(there) > len(SHORT) else there


def _dots(found: pd.DataFrame) -> plot.Figure:
    rows = settings.at_95(found)
    rows = rows[rows["step"].isin(settings.MARKED)]
    steps, runs = sorted(rows["step"].unique()), list(dict.fromkeys(settings.run_names(rows)))
    fig, axes = plot.figure(1, len(steps), width=3.6 if len(steps) > 1 else 7.0, height=1.2 + 0.24 * len(runs))
    for i, (ax, step) in enumerate(zip(axes[0], steps, strict=True)):
        ax.axvspan(LOW, HIGH, color="0.9", zorder=0)
        ax.axvline(0.95, color="0.5", linewidth=0.8, zorder=1)
        at_step = rows[rows["step"] == step]
        for name, (_, row) in zip(settings.run_names(at_step), at_step.iterrows(), strict=True):
            share = np.array([row["coverage"]])
            low, high = plot.binomial(share, np.array([row["runs"]], float))
            ax.errorbar(
                share, [runs.index(name)], xerr=[share - low, high - share], capsize=2, linewidth=1.2, marker="o",
                color=plot.COLOURS["abcd".index(row["part"])], markersize=5,
                markerfacecolor=None if row["quiet"] > 0.5 else "white",
            )  # fmt: skip
        ax.set(title=f"{step:,} samples", ylim=(len(runs) - 0.5, -0.5))
        ax.set_xlabel("95 % intervals that cover", fontsize="small")
        ax.set_xlim(max(0.0, float(rows["coverage"].min()) - 0.08), 1.01)
        ax.set_yticks(range(len(runs)), runs if i == 0 else [""] * len(runs), fontsize="x-small")
    plot.caption(
        fig,
        "over all outputs; full: most intervals carry no note, hollow: most carry one; bars: 95 % binomial error of as "
        "many runs as there are seeds; shaded: 93 to 97 %",
    )
    return fig


def _lengths(found: pd.DataFrame) -> plot.Figure:
    rows = settings.at_95(found)
    fig, axes = plot.figure(1, 1, width=6.4, height=4.6)
    ax = axes[0, 0]
    for part, label in zip("abcd", ("regression", "policy evaluation", "bilevel", "regulator"), strict=True):
        for i, (_, run) in enumerate(rows[rows["part"] == part].groupby(["case", "method"], sort=False)):
            blocks = run["method"].iloc[0] == LSTD
            ax.plot(
                run["step"], run["ratio"], color=plot.COLOURS["abcd".index(part)], marker="s" if blocks else "o",
                markersize=4, linewidth=1.0, linestyle="--" if blocks else "-", label=label if i == 0 else None,
            )  # fmt: skip
    ax.axhline(1.30, color="0.5", linewidth=0.8, linestyle=":")
    ax.set(xscale="log", xlabel="samples", ylabel="mean length / oracle's")
    ax.legend(frameon=False, fontsize="small")
    plot.caption(
        fig,
        "95 % intervals; dashed with squares: block scores; dotted: 1.30, the limit of random scaling; the oracle "
        "knows the limit law (for the bilevel problem and the regulator: the spread over seeds)",
    )
    return fig


def panel(ax: plot.Axes, records: Records) -> None:
    """Coverage of 95 % intervals against samples, a line for each of some runs."""
    rows = settings.at_95(table(records))
    ax.axhspan(LOW, HIGH, color="0.9", zorder=0)
    for i, (case, method) in enumerate(_shown(rows)):
        run, colour = settings.of_run(rows, case, method), plot.COLOURS[i]
        ax.plot(run["step"], run["coverage"], color=colour)
        for step, share, quiet in run[["step", "coverage", "quiet"]].itertuples(index=False):
            ax.plot([step], [share], color=colour, marker="o", markerfacecolor=colour if quiet > 0.5 else "white")
    ax.set(xscale="log", xlabel="samples (hollow: most carry a note)", ylabel="coverage of 95 % intervals")
    ax.text(0.97, 0.05, "a line for each problem and method", transform=ax.transAxes, ha="right", fontsize="x-small")


def captions(records: Records) -> dict[str, str]:
    found = table(records)
    rows, (clean, noted) = settings.judged(found), settings.failures(found)
    missing = "" if np.isnan(clean) else f"Of intervals without a note {clean:.1%} miss"
    missing += "" if np.isnan(noted) else f"{', with one ' if missing else 'Of intervals with a note '}{noted:.1%}"
    last = settings.at_95(found).query("step == step.max()")
    within = int(rows["clean"].between(LOW, HIGH).sum())
    return {
        "coverage": f"{within} of {len(rows)} runs and numbers of samples cover in 93 to 97 % where "
        f"no note warns. {missing}.",
        "coverage-levels": f"At the end 95 % intervals cover in {last['coverage'].min():.1%} to "
        f"{last['coverage'].max():.1%} of the cases, the notes aside.",
        "coverage-lengths": f"At the end they are {last['ratio'].min():.2f} to {last['ratio'].max():.2f} times as long "
        "as an oracle's.",
    }


def advice(records: Records) -> list[str]:
    found, lines = table(records), []
    clean, noted = settings.failures(found)
    if not np.isnan(clean) and not np.isnan(noted):
        lines.append(
            f"Read the notes: of 95 % intervals without one {clean:.1%} miss the truth, of those with one {noted:.1%}."
        )
    blocks = settings.at_95(settings.of_run(found, "walk-blocks-markov", LSTD))
    if len(blocks):
        lines.append(
            "Linear policy evaluation along a slow chain: take LSTD with block scores, which from "
            f"{blocks['step'].min():,} samples on cover in {blocks['coverage'].min():.1%} of the runs or more; an "
            "average of iterates also carries a bias of the size of its steps there."
        )
    return lines


def claims(records: Records) -> list[Claim]:
    found = table(records)
    judges = (_cover, _notes, _published, _independent, _blocks, _same_limit)
    kept = {case: results[LSTD] for case, results in records.items() if LSTD in results}
    return [claim for judge in judges if (claim := judge(found)) is not None] + ([_of_all_looks(kept)] if kept else [])


_FEW = "of 100 to 400 runs it may be two standard errors outside, of fewer it is not decided"


def _cover(found: pd.DataFrame) -> Claim:
    rows = settings.judged(found)
    names = [f"{run}, {step:,} samples" for run, step in zip(settings.run_names(rows), rows["step"], strict=True)]
    numbers: dict[str, Measured] = {name: round(v, 4) for name, v in zip(names, rows["clean"], strict=True)}
    return Claim(
        name="95 % intervals cover",
        statement="Intervals of 95 % cover the truth in 93 to 97 % of the runs from "
        f"{settings.late(found)['step'].min():,} samples on wherever no note warns",
        place="ours: what an interval promises",
        rule=f"for each run and number of samples, the share of the intervals without a note that cover lies in "
        f"[{LOW}, {HIGH}]; {_FEW}. Where fewer than one in twenty is without a note, nothing is judged",
        numbers=numbers or {"intervals without a note": "none"},
        verdict=decide_each(dict(zip(names, rows["held"], strict=True)), "it is {}", "; "),
    )


def _notes(found: pd.DataFrame) -> Claim:
    clean, noted = settings.failures(found)
    rounded = ["none" if np.isnan(value) else round(value, 4) for value in (clean, noted)]
    by_part = {
        f"({part}) missing, without and with a note": [round(v, 4) for v in settings.failures(rows) if not np.isnan(v)]
        for part, rows in found.groupby("part")
    }
    return Claim(
        name="Notes warn rightly",
        statement="Where a note warns, intervals miss more often than where none does",
        place="ours: what a note is for",
        rule="over all runs and numbers of samples, the share of 95 % intervals that miss is larger among those with a "
        "note than among those without",
        numbers={"missing without a note": rounded[0], "missing with a note": rounded[1], **by_part},
        verdict=decide(noted > clean),
    )


def _published(found: pd.DataFrame) -> Claim | None:
    """Only their first coefficient was looked at in what was published."""
    held: dict[str, bool] = {}
    numbers: dict[str, Measured] = {}
    for case, (cover, length, batch_cover, batch_length) in settings.PUBLISHED.items():
        rows = settings.at_95(settings.of_run(found, case, CONSTANT)).query(f"step == {settings.PUBLISHED_AT[case]}")
        if not len(rows):
            continue
        row, what = rows.iloc[0], rows["title"].iloc[0]
        numbers |= {
            f"{what}: coverage, ours and published": [round(float(row["first"]), 3), cover],
            f"{what}: length, ours and published": [round(float(row["first_length"]), 4), length],
            f"{what}: published of batch means, coverage and length": [batch_cover, batch_length],
        }
        error = np.sqrt(cover * (1 - cover) / 1000 + row["first"] * (1 - row["first"]) / row["runs"])
        held[what] = bool(abs(row["first"] - cover) < 3 * error and abs(row["first_length"] / length - 1) < 0.05)
    if not held:
        return None
    return Claim(
        name="Published figures",
        statement="Random scaling covers, and is as long, as was published",
        place="not in the paper: Lee et al. 2022, figures of github.com/bangoz/sa-inference",
        rule="for the first coefficient, of constant steps of .01 without burn-in, our coverage is within three "
        "standard errors of the published one and our mean length within 5 %",
        numbers=numbers,
        verdict=decide_each(held, "it is {}", "; "),
        cases=[case for case in settings.PUBLISHED if case in set(found["case"])],
    )


def _at_the_end(found: pd.DataFrame) -> pd.DataFrame:
    rows = settings.late(found)
    return rows[(rows["step"] == rows["step"].max()) & (rows["step"] >= settings.MARKED[1])]


def _independent(found: pd.DataFrame) -> Claim | None:
    """What taking the steps of the slow walk for independent would do, by the exact law, against what was measured."""
    rows = _at_the_end(found[found["case"].isin(["walk-td-markov", "walk-blocks-markov"])])
    if not len(rows):
        return None
    given = settings.parts("walk")
    predicted = limit_law(**given, sampling="markov").coverage(np.eye(given["features"].shape[1]))
    ours = dict(zip(settings.run_names(rows), rows["coverage"].round(4).tolist(), strict=True))
    return Claim(
        name="Steps of a chain are not independent",
        statement="On a slow chain whose values are out of the features' reach, intervals that take steps for "
        "independent cover far less than they say, and ours do not",
        place="ours: against independent bootstrap weights for each step",
        rule="the exact law gives such intervals of 95 % less than 60 %, and the share of ours that cover at the end "
        f"lies in [{LOW}, {HIGH}]; {_FEW}",
        numbers={"steps taken for independent, predicted": round(float(np.median(predicted)), 4), **ours},
        verdict=decide(all_of(bool(np.median(predicted) < 0.6), *map(settings.covers, rows["coverage"], rows["runs"]))),
        cases=sorted(set(rows["case"])),
    )


def _blocks(found: pd.DataFrame) -> Claim | None:
    held: dict[str, bool] = {}
    numbers: dict[str, Measured] = {}
    used: list[str] = []
    for chain in ("walk", "mdp"):
        ours, theirs = f"{chain}-blocks-markov", f"{chain}-td-markov"
        one, two = (
            settings.at_95(settings.of_run(found, ours, LSTD)),
            settings.at_95(settings.of_run(found, theirs, TD)),
        )
        both = one.merge(two, on="step", suffixes=("", "_scaled"))
        if len(both):
            used += [ours, theirs]
            last, name = both.iloc[-1], settings.CHAINS[chain]
            numbers |= {
                f"{name}: length / oracle's, block scores": round(float(last["ratio"]), 3),
                f"{name}: length / oracle's, random scaling": round(float(last["ratio_scaled"]), 3),
            }
            held[name] = bool(last["ratio"] < last["ratio_scaled"])
    if not held:
        return None
    return Claim(
        name="Block scores are shorter",
        statement="Intervals by block scores are shorter than by random scaling",
        place="ours: what 32 blocks and a d × d matrix buy",
        rule="the mean length of LSTD's 95 % intervals by block scores is below that of TD's by random scaling at the "
        "last number of samples that both have",
        numbers=numbers,
        verdict=decide_each(held, "it is {}"),
        cases=used,
    )


def _same_limit(found: pd.DataFrame) -> Claim | None:
    rows = _at_the_end(found[found["method"].isin([TD, TDC, FAST_TDC, GTD2]) & (found["part"] == "b")])
    if not len(rows):
        return None
    names = settings.run_names(rows)
    bar = {name: 4 / np.sqrt(2 * runs) for name, runs in zip(names, rows["runs"], strict=True)}
    spread = dict(zip(names, rows["spread"].round(4).tolist(), strict=True))
    return Claim(
        name="One limit law",
        statement="TD, TDC, Fast TDC and GTD2, averaged, all have the spread of the exact limit law",
        place="not in the paper: Hu, Doshi & Eun 2024, for TDC and GTD2",
        rule="the standard deviation over seeds at the end, over the exact one, is within four standard errors of 1 "
        "in the mean over coordinates",
        numbers=spread,
        verdict=decide_each({name: bool(abs(spread[name] - 1) < bar[name]) for name in names}, "it is {}", "; "),
        cases=sorted(set(rows["case"])),
    )


def _of_all_looks(kept: dict[str, Result]) -> Claim:
    numbers, held = dict[str, Measured](), dict[str, bool]()
    for case, result in kept.items():
        name = settings.task(case).short
        for first in (1_000, FIRST):
            once, all_, length, looks = at_all_looks(result, case, first)
            what = f"{name}, {looks} looks from {first:,} samples on"
            numbers[f"{what}: intervals for one look, the sequence"] = [round(once, 4), round(all_, 4)]
            numbers[f"{what}: largest mean length / oracle's"] = round(length, 3)
        slack = 2 * float(np.sqrt(LOOKS * (1 - LOOKS) / len(result.spec["seeds"])))
        held[name] = bool(all_ >= LOOKS - slack and length <= MOST)
    return Claim(
        name="Intervals that one may look at",
        statement=f"From {FIRST:,} samples on, intervals with anytime=True hold at all marks at once, and are at most "
        f"{MOST} times as long as the oracle's for one look",
        place="ours: intervals from block scores",
        rule=f"the share of runs and outputs whose 95 % intervals cover at all marks from {FIRST:,} samples on is "
        f"{LOOKS} or more, less two standard errors of it, and the mean length at each mark is at most {MOST} times "
        "the oracle's",
        numbers=numbers,
        verdict=decide_each(held, "it is {}"),
        cases=list(kept),
    )


def at_all_looks(result: Result, case: str, first: int) -> tuple[float, float, float, int]:
    """The shares covered at all marks by intervals for one look and by the sequence, its largest length, the looks."""
    of, share, longest = settings.task(case), list[float](), 0.0
    looks = [step for step in sorted(result.history["step"].unique().tolist()) if step >= first]
    assert of.spread is not None
    for anytime in (False, first):
        held: np.ndarray = np.array(True)
        for step in looks:
            frame = result.interval(0.95, "blocks", step=step, anytime=anytime)
            low, high = (frame[name].to_numpy().reshape(frame["seed"].nunique(), -1) for name in ("low", "high"))
            held = held & (low <= of.truth) & (of.truth <= high)
            longest = float(((high - low).mean(axis=0) * np.sqrt(step) / (2 * 1.96 * of.spread)).mean().clip(longest))
        share.append(float(held.mean()))
    return share[0], share[1], longest, len(looks)
