"""What many seeds say together: mean, median, interquartile mean, and how sure one may be of the mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from twoclock.core import InputError

if TYPE_CHECKING:
    import pandas as pd

# Beyond this a mean over seeds is no number any more; squares of it would overflow.
_HUGE = 1e150


def summarise(
    history: pd.DataFrame, metric: str, last_step: Mapping[int, int], confidence: float = 0.95
) -> pd.DataFrame:
    """One row a step: mean, median, iqm, a bootstrap interval [low, high] of the mean, seeds, and how many diverged.

    A diverged seed stays in the statistics at its last finite state: leaving it out would flatter the method.

    Args:
        history: columns seed, step and the metrics.
        metric: which of them.
        last_step: the last finite step of each seed.
        confidence: coverage of the interval (percentile bootstrap over seeds).
    """
    import pandas as pd

    if metric not in history.columns or metric in ("seed", "step"):
        known = ", ".join(c for c in history.columns if c not in ("seed", "step")) or "none"
        raise InputError(f"`metric` must be one that was recorded ({known}), got {metric!r}")
    table = history.pivot(index="step", columns="seed", values=metric)
    values = table.to_numpy(float)
    low, high = bootstrap_mean(values, confidence)
    ended = np.asarray([last_step[int(seed)] for seed in table.columns])
    return pd.DataFrame(
        {
            "step": table.index,
            "mean": values.mean(axis=1),
            "median": np.median(values, axis=1),
            "iqm": interquartile_mean(values),
            "low": low,
            "high": high,
            "seeds": values.shape[1],
            "diverged": (ended[None, :] < table.index.to_numpy()[:, None]).sum(axis=1),
        }
    )


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """The mean of the middle half of each row; robust to the best and the worst quarter of the seeds."""
    from scipy.stats import trim_mean

    return np.asarray(trim_mean(values, 0.25, axis=-1))


def bootstrap_mean(values: np.ndarray, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Percentile-bootstrap interval of each row's mean over its columns; NaN for one column, which says nothing."""
    from scipy.stats import bootstrap

    if values.shape[-1] < 2:
        nothing = np.full(values.shape[:-1], np.nan)
        return nothing, nothing.copy()
    finite = np.clip(np.nan_to_num(values, nan=_HUGE, posinf=_HUGE), None, _HUGE)
    interval: Any = bootstrap(
        (finite,), np.mean, axis=-1, confidence_level=confidence, n_resamples=999, batch=111, method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    low, high = (np.where(end > _HUGE / 1e6, np.inf, end) for end in (interval.low, interval.high))
    return low, high
