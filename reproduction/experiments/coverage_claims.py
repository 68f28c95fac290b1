"""Coverage: what the records say, as one table, and the claims, each with the rule that decides it."""

from functools import lru_cache

import numpy as np
import pandas as pd

from reproduction.experiment import Claim, Measured, Records
from reproduction.experiments import coverage_settings as settings
from reproduction.experiments.coverage_settings import CONSTANT, FAST_TDC, GTD2, LSTD, TD, TDC
from reproduction.verdicts import all_of, decide, decide_each
from twoclock import Result
from twoclock.models import limit_law

LOW, HIGH = 0.93, 0.97
# The runs at which the standard error of a share is .01, and the fewest from which a share says anything.
_MANY, _LEAST = 400, 100
_ENOUGH = 0.05  # the share of intervals without a note from which on their coverage is judged


def table(records: Records) -> pd.DataFrame:
    """One row for each case, method, step and level.

    coverage, length: of all intervals · clean, noted: the coverage of those without and with a note; NaN where there
    are none · quiet: the share without · ratio: the mean length over the oracle's · first, first_length: of the first
    output alone · spread: the standard deviation of the estimates over seeds, over the oracle's · runs: the seeds
    """
    runs = [(case, method, result) for case, results in records.items() for method, result in results.items()]
    return pd.concat([_read(result, case).assign(method=method) for case, method, result in runs], ignore_index=True)


@lru_cache(maxsize=64)  # several of the experiment's parts ask for the table
def _read(result: Result, case: str) -> pd.DataFrame:
    known = set(result.history["step"].unique().tolist())
    steps = sorted(known & {*settings.MARKED, settings.PUBLISHED_AT.get(case, settings.MARKED[0])}) or [max(known)]
    rows = [_row(result, settings.task(case), step, level) for step in steps for level in settings.LEVELS]
    return pd.DataFrame(rows).assign(case=case)


def _row(result: Result, of: settings.Task, step: int, level: float) -> dict[str, float | str]:
    from scipy.special import ndtri

    frame = result.interval(level, of.how, step=step)
    outputs = len(frame["output"].unique())
    estimate, low, high = (frame[name].to_numpy().reshape(-1, outputs) for name in ("estimate", "low", "high"))
    quiet = (frame["note"] == "").to_numpy().reshape(-1, outputs)
    covers, length = (low <= of.truth[:outputs]) & (of.truth[:outputs] <= high), high - low
    over_seeds = estimate.std(axis=0)
    oracle = over_seeds if of.spread is None else of.spread[:outputs] / np.sqrt(step)
    return {
        "part": of.part,
        "title": of.title,
        "step": step,
        "level": level,
        "runs": len(estimate),
        "coverage": float(covers.mean()),
        "quiet": float(quiet.mean()),
        "clean": _mean(covers[quiet]),
        "noted": _mean(covers[~quiet]),
        "length": float(np.nanmean(length)),
        "ratio": float(np.mean(np.nanmean(length, axis=0) / (2 * ndtri((1 + level) / 2) * oracle))),
        "first": float(covers[:, 0].mean()),
        "first_length": float(np.nanmean(length[:, 0])),
        "spread": float(np.mean(over_seeds / oracle)),
    }


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")


def of_run(found: pd.DataFrame, case: str, method: str) -> pd.DataFrame:
    """The rows of one run."""
    return found[(found["case"] == case) & (found["method"] == method)]


def run_name(case: str, method: str) -> str:
    """A run in few words.

    >>> run_name("walk-tdc-markov", "Fast TDC")
    'slow walk, one chain: Fast TDC'
    """
    return f"{settings.task(case).short}: {method}"


def run_names(found: pd.DataFrame) -> list[str]:
    """The run of each row."""
    return [run_name(str(case), str(method)) for case, method in zip(found["case"], found["method"], strict=True)]


def at_95(found: pd.DataFrame) -> pd.DataFrame:
    return found[found["level"] == 0.95]


def late(found: pd.DataFrame) -> pd.DataFrame:
    """The rows of 95 % intervals from 10⁵ samples on; of a shorter run those at its end."""
    rows = at_95(found)
    enough = rows[(rows["step"] >= settings.MARKED[1]) & rows["step"].isin(settings.MARKED)]
    return enough if len(enough) else rows[rows["step"] == rows["step"].max()]


def judged(found: pd.DataFrame) -> pd.DataFrame:
    """The late rows with enough intervals that carry no note, and whether those cover as often as they should."""
    rows = late(found)
    rows = rows[rows["quiet"] >= _ENOUGH]
    held = [covers(share, runs) for share, runs in zip(rows["clean"], rows["runs"], strict=True)]
    return rows.assign(held=pd.Series(held, rows.index, dtype=object))


def covers(share: float, runs: int) -> bool | None:
    """Whether a share of runs lies in [.93, .97]; of fewer than 400 whether it is within two standard errors of it.

    >>> covers(0.925, 1000), covers(0.925, 250), covers(0.90, 250), covers(0.95, 20)
    (False, True, False, None)
    """
    if runs < _LEAST:
        return None
    slack = 0.0 if runs >= _MANY else 2 * float(np.sqrt(0.95 * 0.05 / runs))
    return bool(LOW - slack <= share <= HIGH + slack)


def failures(found: pd.DataFrame) -> tuple[float, float]:
    """The share of 95 % intervals that miss, without and with a note, over all runs and marks alike."""
    rows = at_95(found)

    def missing(column: str, share: pd.Series) -> float:
        known = rows[column].notna() & (share > 0)
        return float(np.average(1 - rows[column][known], weights=share[known])) if known.any() else float("nan")

    return missing("clean", rows["quiet"]), missing("noted", 1 - rows["quiet"])


def claims(records: Records) -> list[Claim]:
    found = table(records)
    judges = (_cover, _notes, _published, _independent, _blocks, _same_limit)
    return [claim for judge in judges if (claim := judge(found)) is not None]


_FEW = "of 100 to 400 runs it may be two standard errors outside, of fewer it is not decided"


def _cover(found: pd.DataFrame) -> Claim:
    rows = judged(found)
    names = [f"{run}, {step:,} samples" for run, step in zip(run_names(rows), rows["step"], strict=True)]
    numbers: dict[str, Measured] = {name: round(v, 4) for name, v in zip(names, rows["clean"], strict=True)}
    return Claim(
        name="95 % intervals cover",
        statement=f"Intervals of 95 % cover the truth in 93 to 97 % of the runs from {late(found)['step'].min():,} "
        "samples on wherever no note warns",
        place="ours: what an interval promises",
        rule=f"for each run and number of samples, the share of the intervals without a note that cover lies in "
        f"[{LOW}, {HIGH}]; {_FEW}. Where fewer than one in twenty is without a note, nothing is judged",
        numbers=numbers or {"intervals without a note": "none"},
        verdict=decide_each(dict(zip(names, rows["held"], strict=True)), "it is {}", "; "),
    )


def _notes(found: pd.DataFrame) -> Claim:
    clean, noted = failures(found)
    rounded = ["none" if np.isnan(value) else round(value, 4) for value in (clean, noted)]
    by_part = {
        f"({part}) missing, without and with a note": [round(v, 4) for v in failures(rows) if not np.isnan(v)]
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
        rows = at_95(of_run(found, case, CONSTANT)).query(f"step == {settings.PUBLISHED_AT[case]}")
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
    rows = late(found)
    return rows[(rows["step"] == rows["step"].max()) & (rows["step"] >= settings.MARKED[1])]


def _independent(found: pd.DataFrame) -> Claim | None:
    """What taking the steps of the slow walk for independent would do, by the exact law, against what was measured."""
    rows = _at_the_end(found[found["case"].isin(["walk-td-markov", "walk-blocks-markov"])])
    if not len(rows):
        return None
    given = settings.parts("walk")
    predicted = limit_law(**given, sampling="markov").coverage(np.eye(given["features"].shape[1]))
    ours = dict(zip(run_names(rows), rows["coverage"].round(4).tolist(), strict=True))
    return Claim(
        name="Steps of a chain are not independent",
        statement="On a slow chain whose values are out of the features' reach, intervals that take steps for "
        "independent cover far less than they say, and ours do not",
        place="ours: against independent bootstrap weights for each step",
        rule="the exact law gives such intervals of 95 % less than 60 %, and the share of ours that cover at the end "
        f"lies in [{LOW}, {HIGH}]; {_FEW}",
        numbers={"steps taken for independent, predicted": round(float(np.median(predicted)), 4), **ours},
        verdict=decide(all_of(bool(np.median(predicted) < 0.6), *map(covers, rows["coverage"], rows["runs"]))),
        cases=sorted(set(rows["case"])),
    )


def _blocks(found: pd.DataFrame) -> Claim | None:
    held: dict[str, bool] = {}
    numbers: dict[str, Measured] = {}
    used: list[str] = []
    for chain in ("walk", "mdp"):
        ours, theirs = f"{chain}-blocks-markov", f"{chain}-td-markov"
        one, two = at_95(of_run(found, ours, LSTD)), at_95(of_run(found, theirs, TD))
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
    names = run_names(rows)
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
