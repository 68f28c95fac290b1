"""What was computed for each policy, and policies against each other on the same episodes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from twoclock.logs.diagnostics import Finding
from twoclock.logs.estimator_context import Estimated
from twoclock.logs.intervals import interval

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class PolicyEstimate:
    """All that was computed for one policy."""

    estimates: dict[str, Estimated]
    refused: dict[str, str]
    findings: list[Finding]
    stream: bool
    weights: np.ndarray
    support: pd.DataFrame | None

    @property
    def fatal(self) -> bool:
        return any(finding.grade == "fatal" for finding in self.findings)


def differences(singles: Mapping[str, PolicyEstimate], name: str, level: float) -> pd.DataFrame:
    """Each pair of policies: the second less the first, with the interval of the difference on the same episodes."""
    import pandas as pd

    rows = []
    for one, other in itertools.combinations(singles, 2):
        a, b = singles[one].estimates[name], singles[other].estimates[name]
        if a.influence is None or b.influence is None:
            continue
        gap = b.value - a.value
        band = interval(gap, b.influence - a.influence, level, stream=singles[one].stream)
        told = all(not singles[p].fatal for p in (one, other))
        rows.append((other, one, gap, band.se, band.low, band.high, told))
    return pd.DataFrame(rows, columns=["policy", "minus", "difference", "se", "low", "high", "told"])
