"""Set-ups drawn for the rule that a shift which still richer features confirm is a note; nothing was tuned on them.

And those for bandit estimators, quantiles and the mean of the worst returns (CVaR).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

import twoclock as tc
from reproduction.experiments.logs_fresh import named, pareto
from reproduction.experiments.logs_unseen import ward
from reproduction.experiments.logs_worlds import (
    Columns,
    Logged,
    Noise,
    Setup,
    SimulatedWorld,
    Step,
    finite,
    lognormal,
    sigmoid,
    two,
)
from twoclock.models import Mdp

_EPISODES = 20_000  # of a policy whose returns are known by rollouts, times five


def _acrobat() -> SimulatedWorld:
    """Two joints, of which the second is pushed; what is earned is the height of the tip."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        push, both = 0.25 * (a - 1.0), x[:, 0] + x[:, 1]
        one = 0.97 * x[:, 2] - 0.15 * np.sin(x[:, 0]) - 0.08 * np.sin(both) - 0.3 * push
        two = 0.95 * x[:, 3] - 0.12 * np.sin(both) + push
        one, two = (speed + 0.05 * rng.standard_normal(len(x)) for speed in (one, two))
        after = np.column_stack([x[:, 0] + 0.5 * one, x[:, 1] + 0.5 * two, one, two])
        return -np.cos(after[:, 0]) - np.cos(after[:, 0] + after[:, 1]), after, np.zeros(len(x), bool)

    def law(x: np.ndarray) -> np.ndarray:
        up = 0.8 * sigmoid(4 * x[:, 3]) + 0.05
        return np.column_stack([0.9 - up, np.full(len(x), 0.1), up])

    def begin(rng: np.random.Generator, n: int) -> np.ndarray:
        return 0.3 * rng.standard_normal((n, 4))

    return SimulatedWorld(begin, step, law, lambda x: 0.6 * law(x) + 0.4 / 3, 0.93)


def _wheel() -> SimulatedWorld:
    """A pendulum on a wheel, whose angle wraps; what is earned is a bump at the top."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        speed = 0.92 * x[:, 1] + 0.3 * np.sin(x[:, 0]) + 0.35 * (2 * a - 1) + 0.12 * rng.standard_normal(len(x))
        angle = np.mod(x[:, 0] + 0.3 * speed + np.pi, 2 * np.pi) - np.pi
        return np.exp(-((angle / 0.6) ** 2)) - 0.02 * speed**2, np.column_stack([angle, speed]), np.zeros(len(x), bool)

    def law(x: np.ndarray) -> np.ndarray:
        return two(0.1 + 0.8 * sigmoid(-3 * x[:, 0] * np.sign(x[:, 1])))

    def begin(rng: np.random.Generator, n: int) -> np.ndarray:
        return np.column_stack([rng.uniform(-np.pi, np.pi, n), 0.3 * rng.standard_normal(n)])

    return SimulatedWorld(begin, step, law, lambda x: 0.5 * law(x) + 0.25, 0.94)


def _hidden_load(episodes: int, steps: int, **options: Any) -> Setup:
    """A load that changes seldom moves the place and pays; the log has the place alone."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        load = np.where(rng.random(len(x)) < 0.04, 1 - x[:, 1], x[:, 1])
        place = 0.8 * x[:, 0] + 0.3 * (2 * a - 1) + 0.8 * (load - 0.5) + 0.3 * rng.standard_normal(len(x))
        return -(place**2) + 0.5 * load * a, np.column_stack([place, load]), np.zeros(len(x), bool)

    def law(x: np.ndarray) -> np.ndarray:
        return two(sigmoid(-2 * np.asarray(x).reshape(len(x), -1)[:, 0]))

    def begin(rng: np.random.Generator, n: int) -> np.ndarray:
        return np.column_stack([rng.standard_normal(n), (rng.random(n) < 0.5) * 1.0])

    world = SimulatedWorld(begin, step, law, lambda x: 0.4 * law(x) + 0.3, 0.93)
    whole = world.setup(episodes, steps, **options)

    def draw(seed: int) -> Columns:
        columns = whole.draw(seed)
        return columns | {name: columns[name][:, :1] for name in ("state", "next_state")}

    return Setup(draw, law, world.gamma, whole.truth, options)


def two_counters(places: int = 6) -> Logged:
    """Customers at two counters; a clerk serves one of them, and the right ones are twice as costly to keep."""
    n = places * places
    P, r = np.zeros((n, 2, n)), np.zeros((n, 2))
    for s in range(n):
        i, j = divmod(s, places)
        for p, more, most in ((0.25, 1, 0), (0.15, 0, 1), (0.1, 1, 1), (0.5, 0, 0)):
            x, y = min(i + more, places - 1), min(j + most, places - 1)
            P[s, 0, max(x - 1, 0) * places + y] += 0.8 * p
            P[s, 1, x * places + max(y - 1, 0)] += 0.8 * p
            P[s, :, x * places + y] += 0.2 * p
        r[s] = -(i + 2.0 * j)
    longer = np.repeat(np.arange(places), places) > np.tile(np.arange(places), places)
    target = np.where(longer[:, None], [0.85, 0.15], [0.2, 0.8])
    return Logged(Mdp(P, r, 0.96), np.eye(n)[0], 0.5 * target + 0.25, target)


def chain_with_resets(states: int = 12) -> Logged:
    """A chain that is climbed, with a reset in a tenth of the steps."""
    P, s = np.zeros((states, 2, states)), np.arange(states)
    P[s, 0, np.minimum(s + 1, states - 1)] += 0.9
    P[s, 0, 0] += 0.1
    P[s, 1, np.maximum(s - 2, 0)] += 0.7
    P[s, 1, s] += 0.3
    r = np.sqrt(s)[:, None] + np.array([0.0, 0.5])
    even = np.full((states, 2), 0.5)
    return Logged(Mdp(P, r, 0.95), np.eye(states)[3], even, np.tile([0.7, 0.3], (states, 1)))


def two_tails(rng: np.random.Generator, n: int) -> np.ndarray:
    return 3.0 * rng.standard_t(2.3, size=n) + 0.5 * (rng.lognormal(sigma=1.8, size=n) - np.exp(1.62))


def confirmed() -> dict[str, Setup]:
    """Every set-up by its name."""
    basis: Any = tc.logs.features
    desks, climb, names = two_counters(), chain_with_resets(), ["serve left", "serve right"]
    return {
        "acrobat, fourier(1), 150 × 50": _acrobat().setup(150, 50, features=basis.Fourier(1)),
        "acrobat, rbf, 150 × 50": _acrobat().setup(150, 50, features="rbf"),
        "wheel, fourier, 100 × 50": _wheel().setup(100, 50, features="fourier"),
        "wheel, fourier, 400 × 50": _wheel().setup(400, 50, features="fourier"),
        "wheel, few rbf, 200 × 50": _wheel().setup(200, 50, features=basis.Rbf(6)),
        "hidden load, rbf, 150 × 50": _hidden_load(150, 50, features="rbf"),
        "hidden load, rbf, 600 × 50": _hidden_load(600, 50, features="rbf"),
        "two counters, named, 60 × 50": named(desks, names, 60, 50),
        "two counters, named, 250 × 50": named(desks, names, 250, 50),
        "chain with tails, 60 × 40": finite(climb, 60, 40, two_tails),
        "chain with tails, 250 × 40": finite(climb, 250, 40, two_tails),
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
