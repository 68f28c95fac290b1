"""The steps of an evaluator: those that it takes by itself, and which ones fit an eligibility trace."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from twoclock.methods import Fast, Intentional, ObGD, Standard
from twoclock.protocols import InputError, Method
from twoclock.schedules import Constant, Power

# A tenth of what E‖φ‖² allows, held for so many samples and then falling as k^−0.6.
_FIRST, _HOLD = 0.1, 300.0


def steps(operator: str, decay: float, shown: Float[np.ndarray, "at d"] | None) -> Method:
    """The steps where none are given.

    Args:
        operator: of the evaluator.
        decay: γλ, of the trace.
        shown: features, whose size sets the steps; None for a network.
    """
    if shown is None:
        if operator != "td":
            raise InputError(
                f"`method` must be given for a network with operator '{operator}': its steps are not known beforehand; "
                "with operator='td' none are needed"
            )
        return ObGD()
    size = float(np.max(np.sum(shown**2, axis=1)))
    if size == 0:
        raise InputError("`features` must not be zero at all of `at`: their size sets the steps; give `method`")
    step = Power(_FIRST * (1 - decay) / size * _HOLD**0.6, p=0.6, shift=_HOLD)
    return ObGD(step) if decay else Fast(step, step, 0.25)


def has_trace(operator: str, lam: float, method: Method) -> bool:
    """Whether ω is an eligibility trace; a complaint where operator or method do not fit one."""
    inner: Any = method
    while hasattr(inner, "method"):  # inside those that average
        inner = inner.method
    streaming = isinstance(inner, (ObGD, Intentional))
    if not (lam or streaming):
        return False
    if operator != "td":
        raise InputError(f"`operator` must be 'td' with `lam`, ObGD or Intentional, got '{operator}'; leave those out")
    if not streaming and not (isinstance(inner, Standard) and isinstance(inner.beta, Constant) and inner.beta.c == 1):
        raise InputError(
            f"`method` must move the trace whole where there is `lam`, got {inner}; write `Standard(alpha, 1.0)`, or "
            "take ObGD or Intentional"
        )
    return True
