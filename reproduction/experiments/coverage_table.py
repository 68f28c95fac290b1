"""Coverage: what the records say, as one table with a row for each run, mark and level."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd

from reproduction.experiment import Records
from reproduction.experiments.coverage_settings import CHAINS, LEVELS, MARKED, PUBLISHED_AT, SAMPLINGS, Task, task
from twoclock import Result

LOW, HIGH = 0.93, 0.97
# So many runs put the standard error of a share at .01; fewer than the least say next to nothing.
_MANY, _LEAST = 400, 100
_ENOUGH = 0.05  # the share of intervals without a note from which on their coverage is judged


def table(records: Records) -> pd.DataFrame:
    """One row for each case, method, step and level.

    coverage, length: of all intervals · clean, noted: the coverage of those without and with a note; NaN where there
    are none · quiet: the share without · ratio: the mean length over the oracle's · first, first_length: of the first
    output alone · spread: the standard deviation of the estimates over seeds, over the oracle's · runs: the seeds
    """
    every = [
        _read(_One(result), case).assign(method=method)
        for case, results in records.items()
        for method, result in results.items()
    ]
    return pd.concat(every, ignore_index=True)


class _One:
    """A result as a key: read once, whichever of the experiment's parts asks first."""

    def __init__(self, result: Result) -> None:
        self.result = result

    def __hash__(self) -> int:
        return id(self.result)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _One) and other.result is self.result


@lru_cache(maxsize=64)
def _read(one: _One, case: str) -> pd.DataFrame:
    known = set(one.result.history["step"].unique().tolist())
    steps = sorted(known & {*MARKED, PUBLISHED_AT.get(case, MARKED[0])}) or [max(known)]
    return pd.DataFrame([_row(one.result, task(case), step, level) for step in steps for level in LEVELS]).assign(
        case=case
    )


def _row(result: Result, of: Task, step: int, level: float) -> dict[str, float | str]:
    from scipy.special import ndtri

    frame = result.interval(level, of.how, step=step)
    outputs = len(frame["output"].unique())
    estimate, low, high = (frame[name].to_numpy().reshape(-1, outputs) for name in ("estimate", "low", "high"))
    quiet = (frame["note"] == "").to_numpy().reshape(-1, outputs)
    truth = of.truth[:outputs]
    covers, length = (low <= truth) & (truth <= high), high - low
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
    kind, *rest = case.split("-")
    if kind in CHAINS:
        where = {"mdp": "random MDP", "walk": "slow walk"}[kind]
        return f"{where}, {SAMPLINGS[rest[-1]]}: {method}"
    what = {"bilevel": "bilevel least squares", "lqr": "the regulator's gain"}
    return f"{what[kind]}: {method}" if kind in what else f"{kind} regression, {rest[0]} coefficients: {method}"


def run_names(found: pd.DataFrame) -> list[str]:
    """The run of each row."""
    return [run_name(str(case), str(method)) for case, method in zip(found["case"], found["method"], strict=True)]


def at_95(found: pd.DataFrame) -> pd.DataFrame:
    return found[found["level"] == 0.95]


def late(found: pd.DataFrame) -> pd.DataFrame:
    """The rows of 95 % intervals from 10⁵ samples on; of a shorter run those at its end."""
    rows = at_95(found)
    enough = rows[(rows["step"] >= MARKED[1]) & rows["step"].isin(MARKED)]
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
