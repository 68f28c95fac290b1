"""The numbers of a report as tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from twoclock.engine.metrics import PREFERRED_METRICS
from twoclock.intervals import bootstrap_mean

if TYPE_CHECKING:
    from reproduction.runner import Outcome


def final_numbers(outcome: Outcome, root: Path) -> pd.DataFrame:
    """Each method's progress at the last step of each case: mean, its 95 % bootstrap interval, and the run's folder."""
    rows = []
    for case, results in outcome.records.items():
        for method, result in results.items():
            last = result.history[result.history["step"] == result.history["step"].max()]
            metric = next((name for name in PREFERRED_METRICS if name in last.columns), None)
            values = last[metric].to_numpy(float) if metric else np.array([np.nan])
            low, high = bootstrap_mean(values[None, :])
            rows.append(
                {
                    "case": case,
                    "method": method,
                    "metric": metric or "",
                    "mean": float(values.mean()),
                    "low": float(low[0]),
                    "high": float(high[0]),
                    "steps": int(result.spec["steps"]),
                    "seeds": len(result.spec["seeds"]),
                    "diverged": int(result.diverged.sum()),
                    "folder": Path(os.path.relpath(outcome.home(case, method), root)).as_posix() + "/",
                }
            )
    return pd.DataFrame(rows)


def claims_table(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """One row a claim, its numbers as JSON; a number with its interval is a list [value, low, high]."""
    return pd.DataFrame(
        [
            {
                "experiment": outcome.name,
                "claim": claim.name,
                "statement": claim.statement,
                "place": claim.place,
                "rule": claim.rule,
                "numbers": json.dumps(dict(claim.numbers), ensure_ascii=False),
                "verdict": claim.verdict,
                "cases": " ".join(claim.cases or outcome.records),
                "ours": claim.ours,
            }
            for outcome in outcomes
            for claim in outcome.claims
        ],
        columns=["experiment", "claim", "statement", "place", "rule", "numbers", "verdict", "cases", "ours"],
    )
