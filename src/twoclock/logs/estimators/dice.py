"""DICE: the weights of the target's visits and its values as one saddle point, solved by ``solve`` in O(d) memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from twoclock.logs.dice_operators import C, LogProblem, kept, largest, longest
from twoclock.logs.estimator_context import DoesNotApply, Estimated, EstimatorContext
from twoclock.logs.influence import Scores, part_scores
from twoclock.logs.subsample import Pass, most_rows, scaling
from twoclock.methods import Standard
from twoclock.schedules import Constant
from twoclock.solve import solve

TITLE = "DICE, two operators on two clocks"
TOLERANCE = 1e-10
STEPS, ROUNDS = 5_000, 64
_LOOSE = 1e-3
_PATIENCE = 24  # rounds in which the residual must halve
_WILD = 1e4  # the weights overshoot by 1/c before they settle; beyond that a sample was too small for its steps
_A_STEP = 1 << 18  # numbers; a larger sample is stepped through by draws from it


def estimate(work: EstimatorContext) -> Estimated:
    """The saddle of φ̄₀ᵀθ + E[(φᵀω)(r + (γφ̄' − φ)ᵀθ)] − (c/2)E[(φᵀω)²]; v̂ = E[(φᵀω)r], the dual value.

    It equals LSTD-Q's for every c. A round is a pass over the log, which gives the operators' means where the round
    begins and draws a sample of rows, and a run of ``solve`` on that sample: it finds what is still missing, and the
    less that is, the smaller its noise, so that rounds converge geometrically to the solution on the whole log. Beside
    the log there are vectors and the sample, which has the same size for every log. ω gives the weights and with θ the
    influence.

    Reference: Nachum, Chow, Dai & Li, *DualDICE*, 2019; Yang et al., *Off-policy evaluation via the regularized
    Lagrangian*, 2020; the rounds: Johnson & Zhang, *Accelerating stochastic gradient descent using predictive variance
    reduction*, 2013.
    """
    target, rows = work.target, most_rows(work.target)
    theta, omega = np.zeros((2, target.features.size))
    best: tuple[float, Any, Any, Any] = (np.inf, theta, omega, None)
    lefts: list[float] = []
    pace, sample, scale, first = 1.0, None, theta, None
    for number in range(ROUNDS):
        found = Pass.over(work, scale * theta, scale * omega, number, rows if sample is None else 0)
        if first is None:
            first, scale = found, scaling(found.squares, found.rows)
        n, phi0 = found.rows, first.phi0(target)
        f = scale * (phi0 - found.back / n)
        g = scale * (C * found.fast - found.earned + found.left) / n
        left = float(np.linalg.norm(f) / max(float(np.linalg.norm(scale * phi0)), 1e-300))
        if left < best[0]:
            best = left, theta, omega, f
        lefts.append(left)
        if not left < _WILD * best[0]:  # taken back; it is tried again from there, more slowly
            _, theta, omega, _ = best
            pace, sample = pace / 2, None
            continue
        if left < TOLERANCE or (number >= _PATIENCE and not left < lefts[-1 - _PATIENCE] / 2):
            break
        if found.drawn:
            sample = found.sample(scale, target)
        assert sample is not None
        step = _run(LogProblem(*sample[:2], f, g, sample[2]), pace, number)
        theta, omega = theta + step[0], omega + step[1]
        if target.log.rows > rows:
            sample = None
    assert first is not None
    left, theta, omega, f = best
    if not left < _LOOSE:
        raise DoesNotApply(
            f"it has not converged after {number + 1} rounds, residual {left:.1e}: the features are too alike"
        )
    # θᵀf is what the dual value still lacks, up to the product of both errors.
    value = float(scale * omega @ first.earned / n + theta @ f)
    passes = f"{number + 1} passes over the log"
    notes = (passes,) if left < TOLERANCE else (f"residual {left:.1e} after {passes}: fewer digits are right",)
    pair = (theta * scale)[:, None], (omega * scale)[:, None] / n
    scored = work.summed("dice", Scores.empty(target, 1), part_scores, *pair)
    starts = scored.starts.sum()
    influence = scored.score[:, 0] - scored.score[:, 0].mean()
    if starts:
        influence = influence + (scored.start[:, 0] - scored.starts * scored.start[:, 0].sum() / starts) / starts
    return Estimated(value, influence, None, notes)


def _run(problem: LogProblem, pace: float, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The two clocks on a sample; steps are 1/L of what they step along, from power iteration."""
    rows, width = problem.count, kept(problem.phi).shape[1]
    (top, top_difference), (length, length_difference) = largest(problem), longest(problem)
    if rows * width > _A_STEP:
        batch = max(_A_STEP // width, 1)
        problem = dataclasses.replace(problem, batch=batch)
        top, top_difference = top + length / batch, top_difference + length_difference / batch
    method = Standard(alpha=Constant(0.5 * pace * C / top_difference), beta=Constant(pace / (C * top)))
    result = solve(problem, method, STEPS, [number], marks=[STEPS], engine="xla")
    return result.theta[0], result.omega[0]
