"""DICE: the weights of the target's visits and its values as one saddle point, solved by ``solve`` in O(d) memory."""

from __future__ import annotations

import jax
import numpy as np

from twoclock.logs.operators import LogProblem, largest, rows_of
from twoclock.logs.scores import Scores, part_scores
from twoclock.logs.work import DoesNotApply, Estimated, Work
from twoclock.methods import Standard
from twoclock.schedules import Constant
from twoclock.solve import solve

TITLE = "DICE, two operators on two clocks"
TOLERANCE = 1e-10
_STEPS = (5_000, 10_000, 20_000, 40_000, 80_000, 160_000)
_LOOSE = 1e-3


def estimate(work: Work) -> Estimated:
    """The saddle of φ̄₀ᵀθ + E[(φᵀω)(r + (γφ̄' − φ)ᵀθ)] − (c/2)E[(φᵀω)²]; v̂ = E[(φᵀω)r], the dual value.

    It equals LSTD-Q's for every c. Each step takes the operators' means over the whole log, so that the iteration
    converges geometrically; steps are 1/L of what they step along, from power iteration. ω gives the weights and with θ
    the influence.

    Reference: Nachum, Chow, Dai & Li, *DualDICE*, 2019; Yang et al., *Off-policy evaluation via the regularized
    Lagrangian*, 2020.
    """
    target = work.target
    phi0 = start_features(work)
    problem, scale = rows_of(target, phi0)
    top, top_difference = largest(problem)
    method = Standard(alpha=Constant(0.5 * problem.c / top_difference), beta=Constant(1 / (problem.c * top)))
    result = None
    for steps in _STEPS:
        result = solve(problem, method, steps, 1, marks=[steps], engine="xla", start=result)
        theta, omega = result.theta[0], result.omega[0]
        left = _residual(problem, omega)
        if left < TOLERANCE:
            break
    if not left < _LOOSE:
        raise DoesNotApply(
            f"it has not converged after {steps:,} steps, residual {left:.1e}: the features are too alike"
        )
    n = len(problem.reward)
    value = float(weights(problem, omega) @ problem.reward) / n
    notes = (
        (f"{steps:,} steps",)
        if left < TOLERANCE
        else (f"residual {left:.1e} after {steps:,} steps: fewer digits are right",)
    )
    pair = (theta * scale)[:, None], (omega * scale)[:, None] / n
    found = work.summed("dice", Scores.empty(target, 1), part_scores, *pair)
    starts = found.starts.sum()
    influence = found.score[:, 0] - found.score[:, 0].mean()
    if starts:
        influence = influence + (found.start[:, 0] - found.starts * found.start[:, 0].sum() / starts) / starts
    return Estimated(value, influence, None, notes)


def _residual(problem: LogProblem, omega: np.ndarray) -> float:
    """How far ω is from the equation of the weights, relative to φ̄₀."""
    w, d = weights(problem, omega), len(omega)
    with jax.enable_x64(True):
        forward, ahead = (np.asarray(rows.back(w, d)) for rows in (problem.phi, problem.after))
    left = problem.phi0 - (forward - ahead) / len(problem.reward)
    return float(np.linalg.norm(left) / max(float(np.linalg.norm(problem.phi0)), 1e-300))


def weights(problem: LogProblem, omega: np.ndarray) -> np.ndarray:
    """φᵀω of each row."""
    with jax.enable_x64(True):
        return np.asarray(problem.phi.dot(omega))


def start_features(work: Work) -> np.ndarray:
    """φ̄₀, without the d × d sums."""
    if work.target.start is not None:
        return work.target.start
    total, count = np.zeros(work.target.features.size), 0
    for batch in work.target.log:
        found = work.target.starts(batch)
        total += np.asarray(found.sum(axis=0)).ravel()
        count += found.shape[0]
    return total / count
