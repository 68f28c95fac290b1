"""One setting of averaged Fast for linear policy evaluation, from a number that its user knows."""

from __future__ import annotations

from twoclock.methods.fast import Fast, FastState
from twoclock.methods.polyak import Polyak
from twoclock.protocols import warn_renamed
from twoclock.schedules import Constant, Power
from twoclock.validation import check_number

_FIRST, _HOLD = 0.1, 300.0


def averaged_tdc(mean_sq_feature_norm: float) -> Polyak[FastState]:
    """Fast TDC with its iterates averaged and its steps set by the size of the features alone.

        α_k = β_k = (0.1/E‖φ‖²)·(1 + k/300)^−½,   λ = ¼,   weights of the mean ∝ k^½

    The first step is small against 1/E‖φ‖², beyond which TDC is unstable; it is held for some hundred steps to forget
    the start and then falls as k^−½, slowly enough for the mean to do the work: no curvature has to be guessed. On the
    random MDPs of the paper the mean squared error stays within a factor 1.3 of LSTD's, without a d × d matrix.

    Args:
        mean_sq_feature_norm: E‖φ‖², the mean squared norm of a feature vector over the samples.

    >>> import twoclock as tc
    >>> str(tc.methods.averaged_tdc(mean_sq_feature_norm=10.0).method.lam)
    '0.25'

    Reference: Polyak & Juditsky, *Acceleration of stochastic approximation by averaging*, 1992.
    """
    step = averaged_step(mean_sq_feature_norm)
    return Polyak(Fast(step, step, Constant(0.25)), power=0.5)


def averaged_step(mean_sq_feature_norm: float) -> Power:
    """The step size of ``averaged_tdc``, for other methods whose iterates are averaged."""
    check_number("mean_sq_feature_norm", mean_sq_feature_norm, lambda v: v > 0, "be positive", "it is the mean of ‖φ‖²")
    return Power(_FIRST / mean_sq_feature_norm * _HOLD**0.5, p=0.5, shift=_HOLD)


def averaged(square: float) -> Polyak[FastState]:
    """The old name of ``averaged_tdc``."""
    warn_renamed("`methods.averaged(square)`", "`methods.averaged_tdc(mean_sq_feature_norm)`")
    return averaged_tdc(square)
