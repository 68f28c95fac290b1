"""Set-ups of logs to hold intervals to: how a log is drawn, what is asked of it, and the exact answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

import twoclock as tc
from reproduction.experiments.logs_worlds import (
    Columns,
    Logged,
    Noise,
    Plane,
    corridor,
    grid,
    gymnasium,
    mountain_car,
    queue,
    ring,
    river_swim,
    sticky,
    swing,
    two_rooms,
)

READ = {"next_state": "next_state", "episode": "episode", "step": "step", "propensity": "propensity"}


@dataclass(frozen=True, eq=False)
class Setup:
    """Logs of one kind, and the exact value of the policy to evaluate.

    Args:
        draw: the columns of a log by its seed.
        policy: to evaluate.
        gamma: the discount.
        truth: the value, computed once.
        options: of ``tc.evaluate``.
        read: options of ``tc.logs.read``.
        measure: what is asked of the evaluation, and the ends of its interval; the value if None.
    """

    draw: Callable[[int], Columns]
    policy: Any
    gamma: float
    truth: Callable[[], float]
    options: dict[str, Any] = field(default_factory=dict)
    read: dict[str, Any] = field(default_factory=lambda: dict(READ))
    measure: Callable[[Any], tuple[float, float, float]] | None = None


def lognormal(rng: np.random.Generator, n: int) -> np.ndarray:
    """Centred, of parameter σ = 2, as the costs of an insurer are."""
    return rng.lognormal(sigma=2.0, size=n) - np.exp(2.0)


def student(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_t(2.1, size=n)


def two_modes(rng: np.random.Generator, n: int) -> np.ndarray:
    """Nothing nearly always, and fifty times in a thousand a large win; mean 0."""
    return 20.0 * (rng.random(n) < 0.05) - 1.0


def finite(world: Logged, episodes: int, steps: int, noise: float | Noise = 0.0, **options: Any) -> Setup:
    return Setup(
        partial(world.draw, episodes, steps, noise=noise), world.target, world.gamma, lambda: world.truth, options
    )


def _aliased(state: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Pairs of cells share a feature."""
    return np.eye(14)[(state // 2) * 2 + action]


def _cells(state: np.ndarray, action: np.ndarray) -> Any:
    """Where the taxi and its passenger are, without where they want to go: 750 features, each pair one of them."""
    from scipy.sparse import csr_array

    n = len(state)
    return csr_array((np.ones(n), (state // 4) * 6 + action, np.arange(n + 1)), shape=(n, 750))


def _of_action(state: np.ndarray, action: np.ndarray) -> np.ndarray:
    return np.eye(2)[action]


def _square(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    return -(x[:, 0] ** 2) + 0.5 * a


def _cliff(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    return np.where(x[:, 0] + x[:, 1] > 0.6, 1.0, 0.0) - 0.2 * a


def plane(world: Plane, episodes: int, steps: int, **options: Any) -> Setup:
    return Setup(partial(world.draw, episodes, steps), world.target, world.gamma, cache(lambda: world.truth), options)


def _mountain(start: np.ndarray) -> float:
    returns = mountain_car(4000, 77, start)
    return float(-((0.99 ** returns["step"]).sum()) / 4000)


def setups() -> dict[str, Setup]:
    """Every set-up by its name."""
    hall, rooms, wheel, square = corridor(), two_rooms(), ring(), grid()
    at = np.array([-0.5, 0.03])
    flat, edge = Plane(_square), Plane(_cliff)
    cliff = gymnasium("CliffWalking-v1", 0.95, 0.1, 0.5)
    return {
        "corridor, 40 whole": finite(hall, 40, 5000),
        "corridor, 100 whole": finite(hall, 100, 5000),
        "corridor cut at 30, 200": finite(hall, 200, 30),
        "corridor cut at 30, 400": finite(hall, 400, 30),
        "corridor cut at 30, 1000": finite(hall, 1000, 30),
        "corridor cut at 60, 100": finite(hall, 100, 60),
        "two rooms, 300 × 20": finite(rooms, 300, 20),
        "ring + t(2.1), 50": finite(wheel, 50, 40, student),
        "ring + t(2.1), 200": finite(wheel, 200, 40, student),
        "ring + lognormal(2), 50": finite(wheel, 50, 40, lognormal),
        "ring + lognormal(2), 200": finite(wheel, 200, 40, lognormal),
        "aliased corridor, start": finite(hall, 200, 400, features=_aliased, start=np.array([0])),
        "aliased corridor": finite(hall, 200, 400, features=_aliased),
        "aliased corridor, long": finite(hall, 3000, 400, features=_aliased),
        "plane by action, 200": plane(flat, 200, 30, features=_of_action),
        "plane by action, 600": plane(flat, 600, 30, features=_of_action),
        "plane by action, 1500": plane(flat, 1500, 30, features=_of_action),
        "plane, fourier, 200": plane(flat, 200, 30, features="fourier"),
        "plane, rbf, 200": plane(flat, 200, 30, features="rbf"),
        "plane with an edge, rbf, 100": plane(edge, 100, 30, features="rbf"),
        "plane with an edge, rbf, 400": plane(edge, 400, 30, features="rbf"),
        "plane with an edge, poor rbf, 400": plane(edge, 400, 30, features=tc.logs.features.Rbf(3)),
        "taxi without destination": Setup(
            partial(gymnasium("Taxi-v4", 0.99, 0.1, 0.5).draw, 500, 400, noise=0.0),
            gymnasium("Taxi-v4", 0.99, 0.1, 0.5).target,
            0.99,
            lambda: gymnasium("Taxi-v4", 0.99, 0.1, 0.5).truth,
            {"features": _cells},
        ),
        "grid, 400 × 100": finite(square, 400, 100),
        "grid, 100 × 50": finite(square, 100, 50),
        "cliff cut at 15, 100": finite(cliff, 100, 15),
        "cliff cut at 15, 400": finite(cliff, 400, 15),
        "queue, 100 × 40": finite(queue(), 100, 40),
        "queue, 30 × 40": finite(queue(), 30, 40),
        "sticky, 60 × 30": finite(sticky(), 60, 30),
        "sticky, 200 × 30, exact rewards": finite(sticky(), 200, 30),
        "ring + two modes, 60": finite(wheel, 60, 40, two_modes),
        "river, 1,000 rows": finite(river_swim(), 1, 1000, start=np.array([0])),
        "river, 5,000 rows": finite(river_swim(), 1, 5000, start=np.array([0])),
        "river, 20,000 rows": finite(river_swim(), 1, 20_000, start=np.array([0])),
        "mountain car, rbf": Setup(
            partial(mountain_car, 250),
            swing,
            0.99,
            cache(partial(_mountain, at)),
            {"features": "rbf", "start": at[None]},
        ),
    }
