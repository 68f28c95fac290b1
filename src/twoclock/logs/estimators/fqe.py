"""Fitted Q-evaluation with linear features: iterate the regression that LSTD-Q solves at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from twoclock.logs.estimator_context import DoesNotApply, Estimated, EstimatorContext
from twoclock.logs.estimators.lstdq import check, resampled

TITLE = "fitted Q-evaluation, linear (FQE)"
_TOLERANCE, _MOST = 1e-12, 200_000


def estimate(work: EstimatorContext) -> Estimated:
    """θ ← C⁻¹(b + γE[φφ̄'ᵀ]θ) until it stands still; v̂ = φ̄₀ᵀθ.

    Its fixed point is LSTD-Q's, and so are its influence and its interval. It diverges iff ρ(γC⁻¹E[φφ̄'ᵀ]) ≥ 1, and is
    then refused.

    Reference: Ernst, Geurts & Wehenkel, *Tree-based batch mode reinforcement learning*, 2005.
    """
    check(work)
    if not work.radius < 1:
        raise DoesNotApply(f"it diverges, the spectral radius of its step is {work.radius:.4g}; take LSTD-Q")
    A, b, phi0 = work.moments.total()
    basis = work.basis
    step, target = basis.matrix(A), basis.down(b)
    if not isinstance(step, np.ndarray):
        from scipy.sparse.linalg import splu

        factors = splu(basis.matrix(work.moments.C))
        theta, count = _iterate(lambda v: v + factors.solve(target - step @ v), np.zeros(basis.rank))
    else:
        theta, count = _iterate(lambda v: v + target - step @ v, np.zeros(basis.rank))
    value = float(basis.down(phi0) @ theta)
    influence = work.scores.score[:, 0] + work.start_influence(work.scores.start[:, 0], value)
    return Estimated(value, influence, resampled(work), (f"{count:,} iterations",))


def _iterate(regress: Callable[[np.ndarray], np.ndarray], theta: np.ndarray) -> tuple[np.ndarray, int]:
    for count in range(1, _MOST + 1):
        new = regress(theta)
        if np.abs(new - theta).max(initial=0.0) <= _TOLERANCE * max(np.abs(new).max(initial=0.0), 1e-300):
            return new, count
        theta = new
    raise DoesNotApply(f"it has not settled after {_MOST:,} iterations; LSTD-Q has the same fixed point")
