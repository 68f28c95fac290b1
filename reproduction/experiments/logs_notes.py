"""Set-ups drawn to judge when richer features are a warning and when a note: features that hold the value, or nearly.

They were written before the rule was tried on them; of the tiles of the tanks only the limit of ten rows a feature was
learnt. The finite ones have pairs without data, or rewards that hardly ever come.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import twoclock as tc
from reproduction.experiments.logs_setups import Setup, finite
from reproduction.experiments.logs_unseen import SimulatedWorld
from reproduction.experiments.logs_worlds import Logged, gymnasium
from twoclock.models import Mdp

Step = tuple[np.ndarray, np.ndarray, np.ndarray]


def _even(x: np.ndarray) -> np.ndarray:
    return np.full((len(x), 2), 0.5)


def _two(right: np.ndarray) -> np.ndarray:
    return np.column_stack([1 - right, right])


def _tanks() -> SimulatedWorld:
    """An upper tank that is filled and runs into a lower one, whose level is to be 3; the upper one may run over."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        flow = 0.15 * np.maximum(x[:, 0] - x[:, 1], 0)
        upper = np.clip(x[:, 0] + 0.6 * a + 0.3 * rng.random(len(x)) - flow - 0.05 * x[:, 0], 0, 10)
        lower = np.clip(x[:, 1] + flow - 0.12 * x[:, 1], 0, 10)
        earned = -np.abs(lower - 3.0) - 0.3 * a - 4.0 * (upper > 9.0)
        return earned, np.column_stack([upper, lower]), np.zeros(len(x), bool)

    def law(x: np.ndarray) -> np.ndarray:
        p = 1 / (1 + np.exp(2 * (x[:, 1] - 3.0)))
        return np.column_stack([0.9 * (1 - p) + 0.05, np.full(len(x), 0.05), 0.9 * p])

    return SimulatedWorld(lambda rng, n: rng.uniform(0, 6, (n, 2)), step, law, lambda x: 0.5 * law(x) + 1 / 6, 0.95)


def _glider() -> SimulatedWorld:
    """Height, speed and lift; the flight ends on the ground, at −3."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        lift = 0.9 * x[:, 2] + 0.3 * rng.standard_normal(len(x))
        speed = x[:, 1] + 0.5 * (a - 0.5) - 0.1 * (x[:, 1] - 5) + 0.1 * rng.standard_normal(len(x))
        height = x[:, 0] - 0.4 - 0.03 * (speed - 4) ** 2 + 0.5 * lift
        done = height <= 0
        return np.where(done, -3.0, speed / 10), np.column_stack([np.minimum(height, 30), speed, lift]), done

    def law(x: np.ndarray) -> np.ndarray:
        return _two(1 / (1 + np.exp(-(x[:, 0] - 6) / 2)))

    def begin(rng: np.random.Generator, n: int) -> np.ndarray:
        return np.column_stack([rng.uniform(3, 15, n), 5 + rng.standard_normal(n), rng.standard_normal(n)])

    return SimulatedWorld(begin, step, law, lambda x: 0.6 * law(x) + 0.2, 0.95)


def _patrol() -> SimulatedWorld:
    """A place on a circle, of which a short arc pays."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        place = np.mod(x + 0.5 * (a - 0.5) + 0.3 * rng.standard_normal(len(x)), 2 * np.pi)
        return np.where(np.abs(place - 4.0) < 0.4, 1.0, 0.0) - 0.05 * a, place, np.zeros(len(x), bool)

    return SimulatedWorld(
        lambda rng, n: rng.uniform(0, 2 * np.pi, n), step, lambda x: _two(np.where(x < 4.0, 0.8, 0.2)), _even, 0.9
    )


def _linear(steady: bool = False) -> SimulatedWorld:
    """Four numbers, a linear step and a quadratic cost; a policy that looks at one of them, or at none."""
    A = 0.85 * np.array([[0.9, 0.3, 0, 0], [-0.3, 0.9, 0.1, 0], [0, 0, 0.8, 0.4], [0, 0.1, -0.4, 0.8]])

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        after = x @ A.T + np.outer(2.0 * a - 1, [0.2, 0, 0.3, 0]) + 0.3 * rng.standard_normal(x.shape)
        return -(x**2).sum(axis=1) - 0.2 * a, after, np.zeros(len(x), bool)

    def law(x: np.ndarray) -> np.ndarray:
        return _two(np.full(len(x), 0.7) if steady else np.clip(0.5 - 0.3 * np.tanh(x[:, 2]), 0.1, 0.9))

    return SimulatedWorld(lambda rng, n: rng.standard_normal((n, 4)), step, law, _even, 0.9)


def _bumps() -> SimulatedWorld:
    """A ball on a ribbed slope: the ribs are narrower than the features."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        speed = 0.8 * x[:, 1] + 0.2 * (2.0 * a - 1) - 0.1 * x[:, 0] + 0.1 * rng.standard_normal(len(x))
        place = x[:, 0] + speed
        return np.cos(6 * place) - 0.1 * place**2, np.column_stack([place, speed]), np.zeros(len(x), bool)

    def law(x: np.ndarray) -> np.ndarray:
        return _two(1 / (1 + np.exp(2 * x[:, 0])))

    return SimulatedWorld(lambda rng, n: rng.standard_normal((n, 2)), step, law, lambda x: 0.5 * law(x) + 0.25, 0.9)


def habits(states: int = 25, actions: int = 4) -> Logged:
    """A random MDP whose behaviour nearly always does the same in a state; the target does so a little less often."""
    rng = np.random.default_rng(91)
    P = np.zeros((states, actions, states))
    for s in range(states):
        for a in range(actions):
            P[s, a, rng.choice(states, 2, replace=False)] = rng.dirichlet(np.ones(2))
    usual = np.eye(actions)[rng.integers(actions, size=states)]
    r = rng.standard_normal((states, actions))
    return Logged(Mdp(P, r, 0.9), np.full(states, 1 / states), 0.01 + 0.96 * usual, 0.03 + 0.88 * usual)


def way_out(cells: int = 20) -> Logged:
    """A corridor without chance: left, right, or back to the start at −5; the exit at the end pays 20."""
    P, s = np.zeros((cells, 3, cells)), np.arange(cells)
    P[s, 0, np.maximum(s - 1, 0)] = P[s, 1, np.minimum(s + 1, cells - 1)] = P[s, 2, 0] = 1.0
    P[-1] = np.eye(cells)[-1]
    r, discount = np.full(P.shape, -1.0), np.full(P.shape, 0.95)
    r[s, 2, 0], r[cells - 2, 1], r[-1] = -5.0, 20.0, 0.0
    discount[:, :, -1] = 0.0
    policies = np.tile([0.2, 0.7, 0.1], (cells, 1)), np.tile([0.05, 0.92, 0.03], (cells, 1))
    return Logged(Mdp(P, r, discount), np.eye(cells)[0], *policies)


def _cubic(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    z = np.asarray(x).reshape(-1, 1) / 3 - 1
    base = np.hstack([z**0, z, z**2, z**3])
    return np.hstack([base * (np.asarray(a) == k)[:, None] for k in (0, 1)])


def _quadratic(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    i, j = np.triu_indices(4)
    base = np.column_stack([np.ones(len(x)), x, x[:, i] * x[:, j]])
    return np.hstack([base, base * np.asarray(a)[:, None]])


def _first_column(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    z = np.asarray(x)[:, :1]
    base = np.hstack([z**0, z, z**2])
    return np.hstack([base, base * np.asarray(a)[:, None]])


def judged() -> dict[str, Setup]:
    """Every set-up by its name."""
    basis: Any = tc.logs.features
    lake, usual, hall = gymnasium("FrozenLake8x8-v1", 0.95, 0.1, 0.5), habits(), way_out()
    return {
        "tanks, tiles, 120 × 40": _tanks().setup(120, 40, features=basis.Tiles(tilings=4, bins=4)),
        "tanks, fourier, 120 × 40": _tanks().setup(120, 40, features="fourier"),
        "tanks, few rbf, 300 × 40": _tanks().setup(300, 40, features=basis.Rbf(12)),
        "glider, fourier(2), 200 × 50": _glider().setup(200, 50, features=basis.Fourier(2)),
        "glider, rbf, 80 × 50": _glider().setup(80, 50, features="rbf"),
        "patrol, cubic, 100 × 60": _patrol().setup(100, 60, features=_cubic),
        "patrol, rbf, 60 × 60": _patrol().setup(60, 60, features="rbf"),
        "four numbers, rbf(30), 150 × 30": _linear().setup(150, 30, features=basis.Rbf(30)),
        "four numbers, exact features, 100 × 30": _linear(steady=True).setup(100, 30, features=_quadratic),
        "four numbers, first column, 200 × 30": _linear().setup(200, 30, features=_first_column),
        "bumps, rbf, 150 × 40": _bumps().setup(150, 40, features="rbf"),
        "bumps, few rbf, 500 × 40": _bumps().setup(500, 40, features=basis.Rbf(6)),
        "large lake cut at 30, 300": finite(lake, 300, 30),
        "habits, 80 × 40": finite(usual, 80, 40),
        "habits, 300 × 40": finite(usual, 300, 40),
        "way out cut at 25, 100": finite(hall, 100, 25),
        "way out cut at 25, 400": finite(hall, 400, 25),
    }
