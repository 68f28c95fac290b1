"""One setting of averaged Fast for linear policy evaluation, from a number that its user knows."""

from __future__ import annotations

from twoclock.core import InputError
from twoclock.methods.fast import Fast
from twoclock.methods.polyak import Polyak
from twoclock.schedules import Constant, Power

_FIRST, _HOLD = 0.1, 300.0


def averaged(square: float) -> Polyak:
    """Fast with its iterates averaged and its steps set by the size of the features alone.

        α_k = β_k = (0.1/square)·(1 + k/300)^−½,   λ = ¼,   weights of the mean ∝ k^½

    The first step is small against 1/E‖φ‖², beyond which TDC is unstable; it is held for some hundred steps to forget
    the start and then falls as k^−½, slowly enough for the mean to do the work: no curvature has to be guessed. On the
    random MDPs of the paper the mean squared error stays within a factor 1.3 of LSTD's, without a d × d matrix.

    Args:
        square: the mean squared norm of a feature vector, E‖φ‖², over the samples.

    >>> import twoclock as tc
    >>> str(tc.methods.averaged(square=10.0).method.lam)
    '0.25'

    Reference: Polyak & Juditsky, *Acceleration of stochastic approximation by averaging*, 1992.
    """
    step = averaged_step(square)
    return Polyak(Fast(step, step, Constant(0.25)), power=0.5)


def averaged_step(square: float) -> Power:
    """The step size of ``averaged``, for other methods whose iterates are averaged."""
    if not square > 0:
        raise InputError(f"`square` must be positive, the mean squared norm of a feature vector, got {square}")
    return Power(_FIRST / square * _HOLD**0.5, p=0.5, shift=_HOLD)
