"""Estimators that ``solve`` computes with two step sizes: DICE, and TDC by the fast method."""

from __future__ import annotations

import dataclasses

import numpy as np

from twoclock.logs.estimator_context import DoesNotApply, EstimatorContext, ValueEstimate, estimator
from twoclock.logs.log_problem import C, LogProblem, OperatorSums, curvatures, most_rows
from twoclock.methods import Fast, Polyak, Standard
from twoclock.schedules import Constant
from twoclock.solve import solve

TOLERANCE = 1e-10
DICE_STEPS, DICE_ROUNDS = 5_000, 64
TDC_STEPS, TDC_BATCH, TDC_SEEDS = 20_000, 256, 4
_LOOSE = 1e-3
_PATIENCE = 24  # rounds in which the residual must halve
_WILD = 1e4  # the weights overshoot by 1/c before they settle; beyond that a sample was too small for its steps
_A_STEP = 1 << 18  # numbers; a larger sample is stepped through by draws from it


@estimator("DICE, two operators on two clocks")
def dice(context: EstimatorContext) -> ValueEstimate:
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
    estimand, most = context.estimand, most_rows(context.estimand)
    theta, omega = np.zeros((2, estimand.features.size))
    first = sums = OperatorSums.over_log(context, theta, omega, 0, most)
    n, phi0, scale = first.rows, first.phi0(estimand), first.scale()
    size = max(float(np.linalg.norm(scale * phi0)), 1e-300)
    best = np.inf, theta, omega, theta
    residuals: list[float] = []
    pace, sample = 1.0, None
    for number in range(DICE_ROUNDS):
        if number:
            sums = OperatorSums.over_log(context, scale * theta, scale * omega, number, most if sample is None else 0)
        f = scale * (phi0 - sums.back / n)
        g = scale * (C * sums.fast - sums.earned + sums.left) / n
        residual = float(np.linalg.norm(f) / size)
        if residual < best[0]:
            best = residual, theta, omega, f
        residuals.append(residual)
        if not residual < _WILD * best[0]:  # back to the best; it is tried again from there, more slowly
            theta, omega = best[1:3]
            pace, sample = pace / 2, None
            continue
        if residual < TOLERANCE or (number >= _PATIENCE and not residual < residuals[-1 - _PATIENCE] / 2):
            break
        if sums.drawn:
            sample = sums.sample(scale, estimand)
        assert sample is not None
        phi, after, rows = sample
        width = phi.entries.shape[1]
        batch = max(_A_STEP // width, 1) if rows * width > _A_STEP else 0
        problem = LogProblem(phi, after, f, g, rows, batch=batch)
        top, top_difference = curvatures(problem)  # a step is 1/L of what it steps along
        method = Standard(alpha=Constant(0.5 * pace * C / top_difference), beta=Constant(pace / (C * top)))
        result = solve(problem, method, DICE_STEPS, [number], marks=[DICE_STEPS], engine="xla")
        theta, omega = theta + result.theta[0], omega + result.omega[0]
        if estimand.log.rows > most:
            sample = None
    residual, theta, omega, f = best
    if not residual < _LOOSE:
        raise DoesNotApply(
            f"it has not converged after {number + 1} rounds, residual {residual:.1e}: the features are too alike"
        )
    # θᵀf is what the dual value still lacks, up to the product of both errors.
    value = float(scale * omega @ first.earned / n + theta @ f)
    passes = f"{number + 1} passes over the log"
    note = passes if residual < TOLERANCE else f"residual {residual:.1e} after {passes}: fewer digits are right"
    scores = context.sum_scores("dice", (theta * scale)[:, None], (omega * scale)[:, None] / n)
    starts = scores.starts.sum()
    influence = scores.score[:, 0] - scores.score[:, 0].mean()
    if starts:
        influence = influence + (scores.start[:, 0] - scores.starts * scores.start[:, 0].sum() / starts) / starts
    return ValueEstimate(value, influence, None, (note,))


@estimator("Fast TDC on samples of the log")
def fast_tdc(context: EstimatorContext) -> ValueEstimate:
    """TDC's operators on ``TDC_BATCH`` rows of the log a step, averaged iterates; v̂ = φ̄₀ᵀθ.

    Its fixed point is LSTD-Q's, so its influence is the same; its note says how far the iteration is from it.

    Reference: Zeng & Doan, Algorithm 1; Sutton et al., *Fast gradient-descent methods for TD learning*, 2009.
    """
    context.require_matrix()
    estimand, zero = context.estimand, np.zeros(context.estimand.features.size)
    if (rows := most_rows(estimand)) < estimand.log.rows:
        raise DoesNotApply(f"it keeps all rows at hand, with so many features at most {rows:,}; take LSTD-Q")
    sums = OperatorSums.over_log(context, zero, zero, 0, rows)
    phi0, scale = sums.phi0(estimand), sums.scale()
    begins = -scale * sums.earned / sums.rows
    phi, after, count = sums.sample(scale, estimand)
    problem = LogProblem(phi, after, begins, begins, count, kind="tdc", batch=TDC_BATCH)
    top, top_difference = curvatures(problem)
    # Stable for means over a batch: a step must not overshoot on the mean, nor on the longest row with its share of it.
    beta = 0.2 / top
    alpha = min(0.1 / top_difference, beta)
    method = Polyak(Fast(alpha=Constant(alpha), beta=Constant(beta), lam=Constant(0.25)), power=1.0)
    result = solve(problem, method, TDC_STEPS, TDC_SEEDS, marks=[TDC_STEPS], engine="xla")
    value = float((np.asarray(result.theta) @ (scale * phi0)).mean())
    short = abs(value - float(phi0 @ context.solution.theta))
    if not short < float(np.sqrt(np.square(context.scores.score[:, 0]).sum())):
        raise DoesNotApply(f"it has not converged, it ends {short:.2g} from its fixed point; take LSTD-Q")
    note = f"ends {short:.2g} from its fixed point"
    return dataclasses.replace(context.fixed_point_estimate(value, note, bootstrap=False), comparable=False)
