"""The distribution of a policy's return from whole episodes: quantiles, and the mean of the worst ones (CVaR).

    F̂(y) = Σρ1{G ≤ y}/Σρ,   q = F̂⁻¹(p),   CVaR_p = q − Σρ(q − G)₊/(pΣρ)

ρ is the ratio of a whole episode, G its return.

Reference: Chandak et al., *Universal off-policy evaluation*, 2021.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from twoclock.intervals import Estimate
from twoclock.logs.estimators import effective_size
from twoclock.logs.standard_error import interval
from twoclock.protocols import InputError

_FEWEST = 5.0  # effective episodes in the requested tail


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
