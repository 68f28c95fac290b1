"""Set-ups drawn to judge when richer features are a warning and when a note; then those of bandits and of tails.

The first, with features that hold the value, or nearly, were written before the rule was tried on them; of the tiles of
the tanks only the limit of ten rows a feature was learnt. The finite ones have pairs without data, or rewards that
hardly ever come. The others are for bandit estimators, quantiles and the mean of the worst returns (CVaR).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

import twoclock as tc
from reproduction.experiments.logs_fresh import pareto
from reproduction.experiments.logs_unseen import ward
from reproduction.experiments.logs_worlds import (
    Logged,
    Noise,
    Setup,
    SimulatedWorld,
    Step,
    always,
    finite,
    gymnasium,
    lognormal,
    sigmoid,
    two,
)
from twoclock.models import Mdp

_EPISODES = 20_000  # of a policy whose returns are known by rollouts, times five


def _tanks() -> SimulatedWorld:
    """An upper tank that is filled and runs into a lower one, whose level is to be 3; the upper one may run over."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        flow = 0.15 * np.maximum(x[:, 0] - x[:, 1], 0)
        upper = np.clip(x[:, 0] + 0.6 * a + 0.3 * rng.random(len(x)) - flow - 0.05 * x[:, 0], 0, 10)
        lower = np.clip(x[:, 1] + flow - 0.12 * x[:, 1], 0, 10)
        earned = -np.abs(lower - 3.0) - 0.3 * a - 4.0 * (upper > 9.0)
        return earned, np.column_stack([upper, lower]), np.zeros(len(x), bool)

    def law(x: np.ndarray) -> np.ndarray:
        p = sigmoid(-2 * (x[:, 1] - 3.0))
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
        return two(sigmoid((x[:, 0] - 6) / 2))

    def begin(rng: np.random.Generator, n: int) -> np.ndarray:
        return np.column_stack([rng.uniform(3, 15, n), 5 + rng.standard_normal(n), rng.standard_normal(n)])

    return SimulatedWorld(begin, step, law, lambda x: 0.6 * law(x) + 0.2, 0.95)


def _patrol() -> SimulatedWorld:
    """A place on a circle, of which a short arc pays."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        place = np.mod(x + 0.5 * (a - 0.5) + 0.3 * rng.standard_normal(len(x)), 2 * np.pi)
        return np.where(np.abs(place - 4.0) < 0.4, 1.0, 0.0) - 0.05 * a, place, np.zeros(len(x), bool)

    return SimulatedWorld(
        lambda rng, n: rng.uniform(0, 2 * np.pi, n), step, lambda x: two(np.where(x < 4.0, 0.8, 0.2)), always(0.5), 0.9
    )


def _linear(steady: bool = False) -> SimulatedWorld:
    """Four numbers, a linear step and a quadratic cost; a policy that looks at one of them, or at none."""
    A = 0.85 * np.array([[0.9, 0.3, 0, 0], [-0.3, 0.9, 0.1, 0], [0, 0, 0.8, 0.4], [0, 0.1, -0.4, 0.8]])

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        after = x @ A.T + np.outer(2.0 * a - 1, [0.2, 0, 0.3, 0]) + 0.3 * rng.standard_normal(x.shape)
        return -(x**2).sum(axis=1) - 0.2 * a, after, np.zeros(len(x), bool)

    def law(x: np.ndarray) -> np.ndarray:
        return two(np.full(len(x), 0.7) if steady else np.clip(0.5 - 0.3 * np.tanh(x[:, 2]), 0.1, 0.9))

    return SimulatedWorld(lambda rng, n: rng.standard_normal((n, 4)), step, law, always(0.5), 0.9)


def _bumps() -> SimulatedWorld:
    """A ball on a ribbed slope: the ribs are narrower than the features."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        speed = 0.8 * x[:, 1] + 0.2 * (2.0 * a - 1) - 0.1 * x[:, 0] + 0.1 * rng.standard_normal(len(x))
        place = x[:, 0] + speed
        return np.cos(6 * place) - 0.1 * place**2, np.column_stack([place, speed]), np.zeros(len(x), bool)

    def law(x: np.ndarray) -> np.ndarray:
        return two(sigmoid(-2 * x[:, 0]))

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


def shop(contexts: int = 12, actions: int = 5) -> Logged:
    """Contexts of unequal frequency; the behaviour prefers one offer in each, the target mostly makes the best."""
    rng, s = np.random.default_rng(4), np.arange(contexts)
    reward = rng.standard_normal((contexts, actions))
    behaviour, target = np.full((contexts, actions), 0.5 / actions), np.full((contexts, actions), 0.3 / actions)
    behaviour[s, rng.integers(actions, size=contexts)] += 0.5
    target[s, reward.argmax(axis=1)] += 0.7
    P = np.broadcast_to(np.eye(contexts)[:, None], (contexts, actions, contexts))
    return Logged(Mdp(P, reward, 0.0), rng.dirichlet(np.ones(contexts)), behaviour, target)


def _offers(noise: Noise) -> SimulatedWorld:
    """Contexts in the plane and two actions; what is earned is no sum of a few radial features."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        earned = (2 * a - 1) * (np.sin(3 * x[:, 0]) + x[:, 1]) + noise(rng, len(x))
        return earned, x, np.ones(len(x), bool)

    def law(steep: float) -> Callable[[np.ndarray], np.ndarray]:
        return lambda x: np.column_stack([sigmoid(-steep * x[:, 0]), sigmoid(steep * x[:, 0])])

    return SimulatedWorld(lambda rng, n: rng.standard_normal((n, 2)), step, law(3.0), law(-1.5), 0.5)


def normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return 0.5 * rng.standard_normal(n)


def _of_returns(world: Logged, episodes: int, noise: float | Noise, p: float, what: str) -> Setup:
    """A quantile of the policy's own returns, or the mean of the worst share p of them."""
    own = Logged(world.mdp, world.start, world.target, world.target)

    def truth() -> float:
        found = []
        for seed in range(5):
            columns = own.draw(_EPISODES, 5000, 1_000_000 + seed, noise=noise)
            found.append(np.bincount(columns["episode"], own.gamma ** columns["step"] * columns["reward"]))
        returns = np.sort(np.concatenate(found))
        return float(returns[int(p * len(returns))] if what == "quantile" else returns[: int(p * len(returns))].mean())

    def measure(v: Any) -> tuple[float, float, float]:
        return getattr(v, what)(p)

    return replace(finite(own, episodes, 5000, noise), truth=cache(truth), measure=measure)


def returns_of_a_walk(states: int = 6) -> Logged:
    """A random MDP that ends in .15 of the steps."""
    rng = np.random.default_rng(3)
    P, discount = np.zeros((states, 2, states)), np.full((states, 2, states), 0.9)
    P[:-1, :, :-1] = 0.85 * rng.dirichlet(np.full(states - 1, 0.5), size=(states - 1, 2))
    P[:-1, :, -1], P[-1, :, -1], discount[:, :, -1] = 0.15, 1.0, 0.0
    r = np.r_[rng.random((states - 1, 2)), np.zeros((1, 2))]
    law = np.full((states, 2), 0.5)
    return Logged(Mdp(P, r, discount), np.r_[np.full(states - 1, 1 / (states - 1)), 0.0], law, law)


def tails() -> dict[str, Setup]:
    """Every set-up by its name."""
    offers, walk = shop(), returns_of_a_walk()
    plane, heavy = partial(_offers(normal).setup, features="rbf"), partial(_offers(lognormal).setup, features="rbf")
    by_ratios = {
        f"shop, {name}, 200": finite(offers, 200, 1, 1.0, estimator=name)
        for name in ("ips", "snips", "bandit_dr", "switch")
    }
    return by_ratios | {
        "shop, ips + lognormal(2), 200": finite(offers, 200, 1, lognormal, estimator="ips"),
        "shop, switch + lognormal(2), 200": finite(offers, 200, 1, lognormal, estimator="switch"),
        "offers in the plane, ips, 200": plane(200, 1, estimator="ips"),
        "offers in the plane, doubly robust, 200": plane(200, 1, estimator="bandit_dr"),
        "offers in the plane + lognormal(2), snips, 400": heavy(400, 1, estimator="snips"),
        "offers in the plane + lognormal(2), doubly robust, 400": heavy(400, 1, estimator="bandit_dr"),
        "quantile .25 of returns, 40": _of_returns(walk, 40, 0.5, 0.25, "quantile"),
        "quantile .1 of returns + lognormal(2), 100": _of_returns(walk, 100, lognormal, 0.1, "quantile"),
        "CVaR .25 of returns + Pareto(2.2), 100": _of_returns(walk, 100, pareto, 0.25, "cvar"),
        "quantile .1 of returns, ward, 150": _of_returns(ward(), 150, 0.0, 0.1, "quantile"),
        "CVaR .1 of returns, ward, 150": _of_returns(ward(), 150, 0.0, 0.1, "cvar"),
    }
