"""TDC on samples of the log, by the fast two-time-scale method."""

from __future__ import annotations

import numpy as np

from twoclock.logs.dice_operators import LogProblem, largest, longest
from twoclock.logs.estimator_context import DoesNotApply, Estimated, EstimatorContext
from twoclock.logs.estimators.lstdq import check
from twoclock.logs.subsample import Pass, most_rows, scaling
from twoclock.methods import Fast, Polyak
from twoclock.schedules import Constant
from twoclock.solve import solve

TITLE = "Fast TDC on samples of the log"
STEPS, BATCH, SEEDS = 20_000, 256, 4


def estimate(work: EstimatorContext) -> Estimated:
    """TDC's operators on ``BATCH`` rows of the log a step, averaged iterates; v̂ = φ̄₀ᵀθ.

    Its fixed point is LSTD-Q's, so its influence is the same; what the iteration still lacks to it is told.

    Reference: Zeng & Doan, Algorithm 1; Sutton et al., *Fast gradient-descent methods for TD learning*, 2009.
    """
    check(work)
    target, nothing = work.target, np.zeros(work.target.features.size)
    if (rows := most_rows(target)) < target.log.rows:
        raise DoesNotApply(f"it keeps all rows at hand, with so many features at most {rows:,}; take LSTD-Q")
    found = Pass.over(work, nothing, nothing, 0, rows)
    phi0, scale = found.phi0(target), scaling(found.squares, found.rows)
    begins = -scale * found.earned / found.rows
    phi, after, count = found.sample(scale, target)
    problem = LogProblem(phi, after, begins, begins, count, kind="tdc", batch=BATCH)
    top, top_difference = largest(problem)
    length, length_difference = longest(problem)
    # Stable for means over a batch: a step must not overshoot on the mean, nor on the longest row with its share of it.
    beta = 0.2 / (top + length / BATCH)
    alpha = min(0.1 / (top_difference + length_difference / BATCH), beta)
    method = Polyak(Fast(alpha=Constant(alpha), beta=Constant(beta), lam=Constant(0.25)), power=1.0)
    result = solve(problem, method, STEPS, SEEDS, marks=[STEPS], engine="xla")
    values = np.asarray(result.theta) @ (scale * phi0)
    value = float(values.mean())
    short = abs(value - float(phi0 @ work.main.theta))
    if not short < float(np.sqrt(np.square(work.scores.score[:, 0]).sum())):
        raise DoesNotApply(f"it has not converged, it ends {short:.2g} from its fixed point; take LSTD-Q")
    influence = work.scores.score[:, 0] + work.start_influence(work.scores.start[:, 0], value)
    return Estimated(value, influence, None, (f"ends {short:.2g} from its fixed point",), comparable=False)
