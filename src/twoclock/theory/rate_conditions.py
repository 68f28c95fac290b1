"""What turns the descent of V into a rate: V must fall fast enough, and the noise must die fast enough.

    1/k steps     V₊ ≤ (1 − 2/n)V + A·B/n²                   asks 2/n ≤ fall of V and λ ≤ λ₀·n₀/n
    1/√k steps    V₊ ≤ V − r√(n₀/n)·‖∇h‖² + A·B·n₀/n         asks r√(n₀/n) ≤ fall of V and λ ≤ λ₀·√(n₀/n)

with n = k + n₀. A certificate asks for both at its first step, n = n₀, where they are hardest; ``check`` follows them
along a user's own schedules. Without the second, constant steps would pass: V falls at each, down to a floor of noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from twoclock.protocols import Schedule
from twoclock.schedules import Power
from twoclock.theory.certificate import Numbers


def conditions(
    structure: str, name: str, fall: Numbers, promised: float, lam: Numbers, lam0: float, n: Numbers, n0: float
) -> list[tuple[str, Numbers, Numbers]]:
    """The two inequalities, each as its name, its left and its right side.

    Args:
        name: the fall as the proof writes it.
        fall: how much V falls at step n: its share of V, or of ‖∇h‖² for non-convex h.
        promised: r, for non-convex h.
        lam, lam0: λ at step n, and at the first one.
        n, n0: the step k + n₀, and the first one.
    """
    if structure == "non-convex":
        share = np.sqrt(n0 / n)
        return [(f"r√(n₀/n) ≤ {name}", promised * share, fall), ("λ ≤ λ₀√(n₀/n)", lam, lam0 * share)]
    return [(f"2/n ≤ {name}", 2 / n, fall), ("λ ≤ λ₀n₀/n", lam, lam0 * (n0 / n))]


def first_n(
    lams: Sequence[Schedule], structure: str, values: Callable[[Schedule, NDArray[np.float64]], NDArray[np.float64]]
) -> float:
    """The n₀ for which λ is c/(k+n₀), or c/√(k+n₀) for non-convex h, told by its first two values; 1 if it is neither.

    A larger n₀ asks for less, so of two averaging weights it is the larger that counts, and rounding is rounded up.
    """
    p = 0.5 if structure == "non-convex" else 1.0
    found = [1.0]
    for lam in lams:
        if isinstance(lam, Power) and float(np.asarray(lam.p)) == p:
            found.append(float(np.asarray(lam.shift)))
            continue
        first, second = values(lam, np.arange(2.0)) ** (1 / p)
        if first > second:
            found.append(float(second / (first - second)) * (1 + 1e-6))
    return max(found)
