"""Set-ups of logs for bandit estimators, and for quantiles and the mean of the worst returns (CVaR)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from reproduction.experiments.logs_fresh import pareto
from reproduction.experiments.logs_setups import Setup, finite, lognormal
from reproduction.experiments.logs_unseen import SimulatedWorld, ward
from reproduction.experiments.logs_worlds import Logged, Noise
from twoclock.models import Mdp

_EPISODES = 20_000  # of a policy whose returns are known by rollouts, times five


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

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        earned = (2 * a - 1) * (np.sin(3 * x[:, 0]) + x[:, 1]) + noise(rng, len(x))
        return earned, x, np.ones(len(x), bool)

    def law(steep: float) -> Callable[[np.ndarray], np.ndarray]:
        return lambda x: np.column_stack([1 / (1 + np.exp(steep * x[:, 0])), 1 / (1 + np.exp(-steep * x[:, 0]))])

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
