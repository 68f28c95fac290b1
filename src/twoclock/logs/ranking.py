"""Several policies on one log: intervals that hold for all at once, which may be the best, and tails of their returns.

    T = max_j |D_j|/se_j,   D_j the deviation of v̂_j on resampled episodes

The quantile of T, over resamples that are the same for all policies, replaces that of a single interval (max-t). With
the T of all differences a policy is ruled out if another one is better at that level; the others may be the best.

The quantiles of a policy's return, and the mean of its worst ones (CVaR), are from whole episodes with ratio ρ and
return G:

    F̂(y) = Σρ1{G ≤ y}/Σρ,   q = F̂⁻¹(p),   CVaR_p = q − Σρ(q − G)₊/(pΣρ)

Reference: Romano & Wolf, *Stepwise multiple testing as formalized data snooping*, 2005; Chandak et al., *Universal
off-policy evaluation*, 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from twoclock.intervals import Estimate
from twoclock.intervals.batch_means import in_blocks
from twoclock.logs.estimators import ValueEstimate, effective_size
from twoclock.logs.standard_error import Interval, interval, interval_of, missing_side_by_side
from twoclock.protocols import InputError

if TYPE_CHECKING:
    import pandas as pd

_RESAMPLES, _MOST_GROUPS = 2_000, 1_000
_TINY = 1e-300
_FEWEST = 5.0  # effective episodes in the requested tail


@dataclass(frozen=True, eq=False)
class PolicyComparison:
    """Estimates of several policies on the same clusters, and their joint deviations on resamples."""

    estimates: Mapping[str, ValueEstimate]
    level: float
    stream: bool
    stretch: float  # the stretch of an interval that holds at many looks
    deviations: Float[np.ndarray, "b m"]

    @classmethod
    def of(
        cls, estimates: Mapping[str, ValueEstimate], level: float, *, stream: bool, stretch: float = 1.0
    ) -> PolicyComparison:
        """Resample clusters (in groups if they are many), together with errors that are not in the clusters."""
        rng, ones = np.random.default_rng(0), list(estimates.values())
        influence = np.column_stack([one.influence for one in ones])  # type: ignore[misc]
        groups = in_blocks(influence)[0] if stream else influence
        if len(groups) > _MOST_GROUPS:
            groups = in_blocks(groups, _MOST_GROUPS)[0]
        groups = groups - groups.mean(axis=0)
        k = len(groups)
        counts = rng.multinomial(k, np.full(k, 1 / k), size=_RESAMPLES)
        deviations = (counts - 1.0) @ groups * np.sqrt(k / max(k - 1, 1))
        if len(thin := missing_side_by_side(ones)):
            values, vectors = np.linalg.eigh(thin.T @ thin)
            root = vectors * np.sqrt(np.maximum(values, 0.0))
            deviations = deviations + rng.standard_normal((_RESAMPLES, len(ones))) @ root.T
        return cls(estimates, level, stream, stretch, deviations)

    def differences(self) -> dict[tuple[str, str], Interval]:
        """(one, other) → the interval of other − one, for all pairs at once."""
        names, D = list(self.estimates), self.deviations
        i, j = np.triu_indices(len(names), 1)
        largest = np.zeros(len(D))
        for a, b in zip(i, j, strict=True):
            gap = D[:, b] - D[:, a]
            largest = np.maximum(largest, np.abs(gap) / max(gap.std(), _TINY))
        stretch = self._stretch(largest, len(i))
        found, ones = {}, list(self.estimates.values())
        for a, b in zip(i, j, strict=True):
            band = interval_of(ones[b], self.level, stream=self.stream, minus=ones[a], stretch=stretch)
            found[names[a], names[b]] = band
        return found

    def ranking(self, differences: Mapping[tuple[str, str], Interval]) -> pd.DataFrame:
        """One row per policy, the largest value first: an interval for all at once, and whether it may be the best."""
        import pandas as pd

        names, D = list(self.estimates), self.deviations
        stretch = self._stretch((np.abs(D) / np.maximum(D.std(axis=0), _TINY)).max(axis=1), len(names))
        bands = [interval_of(one, self.level, stream=self.stream, stretch=stretch) for one in self.estimates.values()]
        values = np.array([one.value for one in self.estimates.values()])
        beaten = {one for (one, other), band in differences.items() if band.low > 0}
        beaten |= {other for (one, other), band in differences.items() if band.high < 0}
        best = np.bincount(np.argmax(values + D, axis=1), minlength=len(names)) / len(D)
        table = pd.DataFrame(
            {
                "policy": names, "value": values, "low": [band.low for band in bands],
                "high": [band.high for band in bands], "may_be_best": [name not in beaten for name in names],
                "probability": best,
            }
        )  # fmt: skip
        return table.sort_values("value", ascending=False, ignore_index=True)

    def _stretch(self, largest: np.ndarray, count: int) -> float:
        """The factor by which intervals are longer if they hold for ``count`` numbers at once."""
        from scipy.special import ndtri

        if count < 2:
            return self.stretch
        return self.stretch * max(1.0, float(np.quantile(largest, self.level) / ndtri((1 + self.level) / 2)))


def quantile(returns: Float[np.ndarray, "2 e"], p: float, level: float) -> Estimate:
    """The p-quantile of the return; its ends are where F̂ ± its error crosses p."""
    G, weights = _sorted(returns, p)
    at = np.cumsum(weights)
    place = int(np.searchsorted(at, p))
    value = G[min(place, len(G) - 1)]
    band = interval(p, weights * ((value >= G) - p), level)
    low, high = (int(np.searchsorted(at, end)) for end in (band.low, band.high))
    return Estimate(
        float(value), float(G[low]) if band.low > 0 else -np.inf, float(G[high]) if high < len(G) else np.inf
    )


def cvar(returns: Float[np.ndarray, "2 e"], p: float, level: float) -> Estimate:
    """The mean of the worst share p of returns."""
    G, weights = _sorted(returns, p)
    q = G[min(int(np.searchsorted(np.cumsum(weights), p)), len(G) - 1)]
    short = q - np.maximum(q - G, 0.0) / p
    value = float(weights @ short)
    band = interval(value, weights * (short - value), level)
    return Estimate(value, band.low, band.high)


def _sorted(returns: np.ndarray, p: float) -> tuple[np.ndarray, np.ndarray]:
    """The returns in order, and their weights, which sum to 1."""
    G, ratio = returns[:, np.argsort(returns[0], kind="stable")]
    tail = min(p, 1 - p) * effective_size(ratio)
    if not tail >= _FEWEST:
        raise InputError(
            f"`v` has {tail:.1f} effective episodes in the tail beyond {p:g}, fewer than {_FEWEST:g}; log more "
            "episodes, or ask for less of a tail"
        )
    return G, ratio / ratio.sum()
