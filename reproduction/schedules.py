"""Step sizes as the experiments set them: by how they end and by their first step."""

from __future__ import annotations

from twoclock.schedules import Power


def decaying(c: float, first: float, p: float = 1.0) -> Power:
    """c/(k + shift)^p with the first step ``first``.

    >>> print(decaying(2.0, 0.1))
    2/(k+20)
    """
    return Power(c, p=p, shift=(c / first) ** (1 / p))


def holding(first: float, hold: float, power: float) -> Power:
    """first·(1 + k/hold)^−power: nearly constant for ``hold`` steps, then a power."""
    return Power(first * hold**power, p=power, shift=hold)
