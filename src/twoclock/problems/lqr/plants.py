"""Known regulators, by name."""

from __future__ import annotations

import numpy as np

from twoclock.models.lqr import Lqr
from twoclock.problems.lqr.actor_critic import LqrActorCritic, lqr_actor_critic

__all__ = ["boeing_747", "double_integrator", "paper_lqr"]

PAPER = Lqr(
    A=[[0.5, 0.01, 0.0], [0.01, 0.5, 0.01], [0.0, 0.01, 0.5]],
    B=[[1.0, 0.1], [0.0, 0.1], [0.0, 0.1]],
    Q=np.eye(3),
    R=np.eye(2),
)

DOUBLE_INTEGRATOR = Lqr(A=[[1.0, 1.0], [0.0, 1.0]], B=[[0.0], [1.0]], Q=np.eye(2), R=np.eye(1))

_GUST = np.array(
    [
        [1.0, -0.01, 0.5, -0.5, -0.5],
        [0.0, 1.0, 0.1, -0.01, -0.01],
        [0.0, 0.0, 1.0, -0.5, -0.5],
        [0.0, 0.0, 0.0, 1.0, 0.5],
        [0.0, 0.0, 0.0, 0.0, 1.0],
    ]
)

BOEING = Lqr(
    A=[
        [1.0, -1.1267, -0.6528, -8.0749, 1.589],
        [0.0, 0.7741, 0.3176, -0.9772, -2.969],
        [0.0, 0.1157, 0.0201, -0.0005, -0.3628],
        [0.0, 0.0111, 0.0033, -0.0349, -0.0447],
        [0.0, 0.1388, -0.0862, 0.2935, 0.7579],
    ],
    B=[
        [89.1973, -50.1685, 1.1267, -19.3472],
        [5.2231, 6.3614, 0.2259, -0.3176],
        [-9.4731, 5.9294, -0.1157, 0.9799],
        [-0.3236, 0.3178, -0.0111, -0.0033],
        [-4.5318, 3.2146, -0.1388, 0.0862],
    ],
    Q=np.eye(5),
    R=np.eye(4),
    noise=_GUST @ _GUST.T,
)


def paper_lqr(
    sigma: float = 1.0, kappa: float = 2.0, expected_action: bool = False, guard: bool = False
) -> LqrActorCritic:
    """The paper's system of three states and two actions, from K₀ = 0 with Ψ = I (Zeng & Doan, Section 6).

    >>> round(float(paper_lqr().J_star), 6)
    6.95782
    """
    return lqr_actor_critic(PAPER, sigma, None, kappa, expected_action, guard)


def double_integrator(
    sigma: float = 1.0, kappa: float = 2.0, expected_action: bool = False, guard: bool = False
) -> LqrActorCritic:
    """A mass pushed by a force, not stable by itself, from K₀ = [0.5, 1]."""
    return lqr_actor_critic(DOUBLE_INTEGRATOR, sigma, [[0.5, 1.0]], kappa, expected_action, guard)


def boeing_747(
    sigma: float = 1.0, kappa: float = 12.0, expected_action: bool = False, guard: bool = True
) -> LqrActorCritic:
    """The lateral motion of a Boeing 747 in its usual units, from K₀ = 0.005 everywhere.

    Its states differ in scale by two hundred and its cost is in the ten thousands: without the guard no ordinary step
    size survives ten steps. κ = 2 is too small for a monotone critic here, 12 is enough.
    """
    return lqr_actor_critic(BOEING, sigma, np.full((4, 5), 0.005), kappa, expected_action, guard)
