"""The behaviour's probabilities where the log lacks them: estimated on other episodes, and checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from twoclock.logs.dataset import Batch
from twoclock.logs.estimator_context import DoesNotApply, EstimatorContext
from twoclock.logs.features.protocol import Crossed, Matrix

CLIP = 0.01
_MOST_ROWS = 100_000
_CALIBRATION = 0.05
_PENALTY = 1e-3


@dataclass(frozen=True, eq=False)
class Given:
    """Those of the log."""

    def __call__(self, batch: Batch) -> Float[np.ndarray, " n"]:
        assert batch.propensity is not None
        return batch.propensity


@dataclass(frozen=True, eq=False)
class Fitted:
    """Multinomial logit of the features of the state, one for each half of the episodes, used on the other."""

    features: Crossed
    coefficients: tuple[Float[np.ndarray, "k a"], Float[np.ndarray, "k a"]]

    def __call__(self, batch: Batch) -> Float[np.ndarray, " n"]:
        encoded = self.features.encode(batch.state)
        found = np.empty(len(batch))
        for half in (0, 1):
            rows = np.flatnonzero(batch.episode % 2 == half)
            law = softmax(encoded[rows] @ self.coefficients[1 - half])
            found[rows] = np.maximum(law[np.arange(len(rows)), batch.action[rows]], CLIP)
        if batch.propensity is not None:
            found = np.where(np.isnan(batch.propensity), found, batch.propensity)
        return found


def behaviour(work: EstimatorContext) -> tuple[Given | Fitted, tuple[str, ...]]:
    """What gives the propensities of a batch, and what to say about them."""
    log = work.target.log
    if log.propensities == log.rows:
        return Given(), ()
    if "behaviour" not in work.settings:
        work.settings["behaviour"] = _fit(work)
    return work.settings["behaviour"]


def _fit(work: EstimatorContext) -> tuple[Fitted, tuple[str, ...]]:
    features, log = work.target.features, work.target.log
    if not isinstance(features, Crossed):
        raise DoesNotApply(
            "it needs propensities, which the log lacks and which cannot be estimated with such features"
        )
    step = -(-log.rows // _MOST_ROWS)
    batches = [_thinned(batch, step) for batch in log]
    state, action, episode = (np.concatenate(column) for column in zip(*batches, strict=True))
    encoded = features.encode(state)
    halves = [np.flatnonzero(episode % 2 == half) for half in (0, 1)]
    coefficients = [_logit(encoded[rows], action[rows], features.actions) for rows in halves]
    fitted = Fitted(features, (coefficients[0], coefficients[1]))
    miss = max(
        _miscalibration(softmax(encoded[rows] @ coefficients[1 - half]), action[rows])
        for half, rows in enumerate(halves)
    )
    known = (
        f"given for {log.propensities / log.rows:.0%} of the rows and " if log.propensities else "not in the log but "
    )
    notes: tuple[str, ...] = (f"propensities are {known}estimated by a cross-fitted logit, none below {CLIP:g}",)
    if miss > _CALIBRATION:
        notes += (f"the estimated propensities are off by up to {miss:.2f} on average: do not trust this row",)
    return fitted, notes


def _thinned(batch: Batch, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return batch.state[::step], batch.action[::step], batch.episode[::step]


def softmax(scores: np.ndarray) -> Float[np.ndarray, "n a"]:
    top = np.exp(scores - scores.max(axis=1, keepdims=True))
    return top / top.sum(axis=1, keepdims=True)


def _logit(x: Matrix, action: np.ndarray, actions: int) -> Float[np.ndarray, "k a"]:
    from scipy.optimize import minimize  # slow to load

    n, k = x.shape
    taken = np.eye(actions)[action]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        B = flat.reshape(k, actions)
        law = softmax(x @ B)
        likelihood = -np.log(np.maximum(law[np.arange(n), action], 1e-300)).mean()
        gradient = x.T @ (law - taken) / n + _PENALTY / n * B
        return float(likelihood + _PENALTY / n / 2 * (B**2).sum()), np.asarray(gradient).ravel()

    return minimize(loss, np.zeros(k * actions), jac=True, method="L-BFGS-B", options={"maxiter": 300}).x.reshape(
        k, actions
    )


def _miscalibration(law: np.ndarray, action: np.ndarray) -> float:
    """The mean gap between predicted and true frequencies over tenths of the predictions, worst action."""
    worst = 0.0
    for a in range(law.shape[1]):
        order = np.argsort(law[:, a])
        tenths = np.array_split(order, 10)
        gaps = [abs(law[rows, a].mean() - (action[rows] == a).mean()) for rows in tenths if len(rows)]
        worst = max(worst, float(np.mean(gaps)))
    return worst
