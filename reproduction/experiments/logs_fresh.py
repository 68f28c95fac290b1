"""Set-ups drawn after the intervals of ``tc.evaluate`` were final: other units, skew, rare states, orders of names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import twoclock as tc
from reproduction.experiments.logs_worlds import (
    READ,
    Columns,
    Logged,
    Noise,
    Setup,
    SimulatedWorld,
    Step,
    always,
    finite,
    sigmoid,
    two,
)
from twoclock.models import Mdp


def named(world: Logged, names: list[str], episodes: int, steps: int, noise: float | Noise = 0.0) -> Setup:
    """Actions are text, whose order in the alphabet is not that of the world; states are text too."""

    def draw(seed: int) -> Columns:
        columns = world.draw(episodes, steps, seed, noise=noise)
        for name in ("state", "next_state"):
            columns[name] = np.char.add("at ", columns[name].astype(str))
        return columns | {"action": np.asarray(names)[columns["action"]]}

    states = [f"at {s}" for s in range(world.mdp.states)]
    policy = pd.DataFrame(world.target, index=states, columns=names)
    return Setup(draw, policy, world.gamma, lambda: world.truth, {}, dict(READ))


def rented_cars(lot: int = 12) -> Logged:
    """Cars on a lot; each day some are rented for 90 € and some come back; three may be fetched for 120 €."""
    n, days = lot + 1, np.arange(9)
    out, back = (np.exp(-m) * m**days / np.cumprod(np.maximum(days, 1)) for m in (2.5, 2.0))
    P, r = np.zeros((n, 2, n)), np.zeros((n, 2))
    for s in range(n):
        for a in (0, 1):
            there = min(s + 3 * a, lot)
            for x, p in zip(days.tolist(), out / out.sum(), strict=True):
                left = max(there - x, 0)
                r[s, a] += p * 90.0 * (there - left)
                for y, q in zip(days.tolist(), back / back.sum(), strict=True):
                    P[s, a, min(left + y, lot)] += p * q
            r[s, a] -= 120.0 * a
    few = np.clip(1.1 - np.arange(n) / 6, 0.05, 0.95)[:, None]
    return Logged(Mdp(P, r, 0.96), np.eye(n)[4], np.full((n, 2), 0.5), np.hstack([1 - few, few]))


def ladder(rungs: int = 20) -> Logged:
    """One rung up or a rest; a fall to the ground in .03 of the climbs; only the upper half pays, the top most."""
    P, s = np.zeros((rungs, 2, rungs)), np.arange(rungs)
    P[s, 0, s] = 1.0
    P[s, 1, np.minimum(s + 1, rungs - 1)] += 0.97
    P[s, 1, 0] += 0.03
    r = np.maximum(s - rungs / 2, 0.0)[:, None] * [1.0, 0.8]
    start = np.r_[np.full(5, 0.2), np.zeros(rungs - 5)]
    return Logged(Mdp(P, r, 0.95), start, np.tile([0.4, 0.6], (rungs, 1)), np.tile([0.2, 0.8], (rungs, 1)))


def call_centre(places: int = 25) -> Logged:
    """Callers wait and may hang up; the target staffs less than the behaviour, so that its queues are longer."""
    P, n = np.zeros((places, 2, places)), np.arange(places)
    for a, serve in enumerate((0.42, 0.6)):
        leave = np.minimum(serve + 0.01 * n, 0.9)
        up, down = 0.45 * (1 - leave), 0.55 * leave
        P[n, a, np.minimum(n + 1, places - 1)] += up
        P[n, a, np.maximum(n - 1, 0)] += down
        P[n, a, n] += 1 - up - down
    r = -2.0 * n[:, None] - np.array([0.0, 3.0])
    even = np.full((places, 2), 0.5)
    return Logged(Mdp(P, r, 0.97), np.eye(places)[1], even, np.tile([0.7, 0.3], (places, 1)))


def rare_fault(states: int = 8) -> Logged:
    """A line that runs, with a fault in .004 of the steps that costs 300 and takes some steps to repair."""
    P, s = np.zeros((states, 2, states)), np.arange(states)
    P[s, 0, (s + 1) % 5] = P[s, 1, (s + 2) % 5] = 1.0
    P[5:, :, :] = 0.0
    P[[5, 6], :, [6, 7]] = 1.0
    P[7, :, 0] = 1.0
    P[:5] *= 1 - np.array([0.004, 0.008])[None, :, None]
    P[:5, :, 5] = [0.004, 0.008]
    r = np.zeros((states, 2))
    r[:5] = [1.0, 1.6]
    r[5] = -300.0
    start = np.eye(states)[0]
    return Logged(Mdp(P, r, 0.97), start, np.full((states, 2), 0.5), np.tile([0.8, 0.2], (states, 1)))


def needle(states: int = 40) -> Logged:
    """A random MDP with four actions that pays 50 in one state, which is visited seldom."""
    rng = np.random.default_rng(41)
    P = np.zeros((states, 4, states))
    for s in range(states):
        for a in range(4):
            P[s, a, rng.choice(states, 4, replace=False)] = rng.dirichlet(np.ones(4))
    P = 0.98 * P
    P[:, :, 0] += 0.02
    r = np.zeros((states, 4))
    r[np.argsort(P.sum(axis=(0, 1)))[2]] = 50.0
    law = rng.dirichlet(np.full(4, 1.5), size=states)
    start = np.full(states, 1 / states)
    return Logged(Mdp(P, r, 0.93), start, 0.5 * law + 0.125, 0.9 * law + 0.025)


def skewed_starts(states: int = 9) -> Logged:
    """One start in seventy is a hopeless one, worth −200 more than the others."""
    P, s = np.zeros((states, 2, states)), np.arange(states - 1)
    P[s, 0, np.maximum(s - 1, 0)] = P[s, 1, np.minimum(s + 1, states - 2)] = 1.0
    P[states - 1, :, states - 1] = 0.9
    P[states - 1, :, 0] = 0.1
    r = 0.2 * np.arange(states)[:, None] * np.ones(2)
    r[states - 1] = -27.0
    start = np.r_[np.full(states - 1, (1 - 1 / 70) / (states - 1)), 1 / 70]
    return Logged(Mdp(P, r, 0.95), start, np.full((states, 2), 0.5), np.tile([0.35, 0.65], (states, 1)))


def wandering(states: int = 14) -> Logged:
    """A walk that turns seldom: neighbouring rows of a stream are alike."""
    P, s = np.zeros((states, 2, states)), np.arange(states)
    for a, (left, right) in enumerate([(0.15, 0.05), (0.05, 0.15)]):
        P[s, a, np.maximum(s - 1, 0)] += left
        P[s, a, np.minimum(s + 1, states - 1)] += right
        P[s, a, s] += 1 - left - right
    r = np.sin(s)[:, None] + np.array([0.0, 0.1])
    even = np.full((states, 2), 0.5)
    return Logged(Mdp(P, r, 0.9), np.full(states, 1 / states), even, np.tile([0.4, 0.6], (states, 1)))


def stairs(steps: int = 15) -> Logged:
    """Steps up; each attempt slips to the middle in .02 and to the ground in .01; costs 2 a step, the top pays 30."""
    P, s = np.zeros((steps, 2, steps)), np.arange(steps)
    P[s, 0, np.maximum(s - 1, 0)] = 1.0
    P[s, 1, np.minimum(s + 1, steps - 1)] += 0.97
    P[s, 1, s // 2] += 0.02
    P[s, 1, 0] += 0.01
    r = np.where(s == steps - 1, 30.0, -2.0)[:, None] * np.ones(2)
    return Logged(Mdp(P, r, 0.97), np.eye(steps)[3], np.tile([0.3, 0.7], (steps, 1)), np.tile([0.15, 0.85], (steps, 1)))


def help_desk(places: int = 30) -> Logged:
    """Two kinds of arrivals, one at a time or three; the cost of waiting is in thousands and grows as a square."""
    P, n = np.zeros((places, 2, places)), np.arange(places)
    for a, serve in enumerate((0.5, 0.7)):
        for p, more in ((0.25, 1), (0.03, 3), (serve * 0.72, -1)):
            P[n, a, np.clip(n + more, 0, places - 1)] += p
        P[n, a, n] += 0.72 * (1 - serve)
    r = -1e3 * (n[:, None] / 10.0) ** 2 - np.array([0.0, 400.0])
    even = np.full((places, 2), 0.5)
    return Logged(Mdp(P, r, 0.98), np.eye(places)[2], even, np.tile([0.75, 0.25], (places, 1)))


def trap(cells: int = 10) -> Logged:
    """A ring with a trap that catches in .01 of the steps next to it and lets go in .2; only there rewards are bad."""
    n, s = cells + 1, np.arange(cells)
    P = np.zeros((n, 2, n))
    for a in (0, 1):
        P[s, a, (s + 1 - 2 * a) % cells] = 0.8
        P[s, a, s] += 0.2
    P[4:6] *= 0.99
    P[4:6, :, cells] += 0.01
    P[cells, :, cells], P[cells, :, 0] = 0.8, 0.2
    r = np.r_[np.cos(s), -25.0][:, None] * np.ones(2)
    start = np.r_[np.full(cells, 1 / cells), 0.0]
    return Logged(Mdp(P, r, 0.95), start, np.full((n, 2), 0.5), np.tile([0.3, 0.7], (n, 1)))


def pareto(rng: np.random.Generator, n: int) -> np.ndarray:
    return 4.0 * (rng.pareto(2.2, size=n) - 1 / 1.2)


def losses(rng: np.random.Generator, n: int) -> np.ndarray:
    """Few and large, as of fires."""
    return 0.02 * np.exp(4.0 + 1.1**2 / 2) - np.where(rng.random(n) < 0.02, rng.lognormal(4.0, 1.1, n), 0.0)


def _thermostat() -> SimulatedWorld:
    """Kelvin around 293; joules of heating in millions; comfort is a quadratic of the distance from 294."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        after = x + 0.1 * (285.0 - x) + 1.6 * a + 0.4 * rng.standard_normal(x.shape)
        return -1e5 * (x - 294.0) ** 2 - 6e5 * a, after, np.zeros(len(x), bool)

    def cold(x: np.ndarray) -> np.ndarray:
        return two(sigmoid(293.0 - x))

    return SimulatedWorld(
        lambda rng, n: 293.0 + 2 * rng.standard_normal(n), step, cold, lambda x: 0.6 * cold(x) + 0.2, 0.95
    )


def _boat() -> SimulatedWorld:
    """Three columns of different size: the place in metres, the wind, the rudder; runs end on the shore, at −40."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        wind = 0.9 * x[:, 1] + 0.02 * rng.standard_normal(len(x))
        rudder = 0.7 * x[:, 2] + (a - 1.0)
        place = x[:, 0] + 100 * wind + 12 * rudder + 5 * rng.standard_normal(len(x))
        done = np.abs(place) > 150
        return np.where(done, -40.0, 1.0 - (place / 100) ** 2), np.column_stack([place, wind, rudder]), done

    def steer(x: np.ndarray) -> np.ndarray:
        right = sigmoid(-(x[:, 0] + 200 * x[:, 1]) / 30)
        return np.column_stack([0.8 * (1 - right), np.full(len(x), 0.2), 0.8 * right])

    def begin(rng: np.random.Generator, n: int) -> np.ndarray:
        return np.column_stack([40 * rng.standard_normal(n), 0.05 * rng.standard_normal(n), np.zeros(n)])

    return SimulatedWorld(begin, step, steer, lambda x: 0.6 * steer(x) + 0.4 / 3, 0.95)


def _pendulum(steep: float) -> SimulatedWorld:
    """An angle and a speed; the reward is a step of the given steepness, which smooth features cannot hold."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        speed = 0.95 * x[:, 1] - 0.3 * np.sin(x[:, 0]) + 0.3 * (2 * a - 1) + 0.1 * rng.standard_normal(len(x))
        angle = x[:, 0] + 0.2 * speed
        return np.tanh(steep * angle), np.column_stack([angle, speed]), np.zeros(len(x), bool)

    return SimulatedWorld(lambda rng, n: rng.normal(size=(n, 2)), step, always(0.6), always(0.5), 0.9)


def _reservoir() -> SimulatedWorld:
    """Water in thousands of cubic metres; below a level the town pays, above another the valley is flooded."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        level = np.clip(x + rng.gamma(2.0, 4.0, len(x)) - 4.0 - 8.0 * a, 0.0, 100.0)
        earned = 2.0 * a - 0.3 * np.maximum(20 - level, 0) - 0.8 * np.maximum(level - 80, 0)
        return earned, level, np.zeros(len(x), bool)

    def open_above(x: np.ndarray) -> np.ndarray:
        return two(sigmoid((x - 45) / 8))

    return SimulatedWorld(
        lambda rng, n: rng.uniform(20, 80, n), step, open_above, lambda x: 0.5 * open_above(x) + 0.25, 0.95
    )


def last() -> dict[str, Setup]:
    """Set-ups drawn after those of ``fresh`` had shown that a quiet pair must borrow the residuals of others."""
    up, desk, caught = stairs(), help_desk(), trap()
    return {
        "stairs cut at 20, 120": finite(up, 120, 20),
        "stairs cut at 20, 500": finite(up, 500, 20),
        "stairs, named, 250 × 30": named(up, ["rest", "climb"], 250, 30),
        "help desk, 50 × 80": finite(desk, 50, 80),
        "help desk, 250 × 80": finite(desk, 250, 80),
        "trap, 80 × 40": finite(caught, 80, 40),
        "trap, 300 × 40": finite(caught, 300, 40),
        "trap + Pareto(2.2), 150 × 40": finite(caught, 150, 40, pareto),
        "reservoir, rbf, 80 × 50": _reservoir().setup(80, 50, features="rbf"),
        "reservoir, tiles, 80 × 50": _reservoir().setup(80, 50, features="tiles"),
        "reservoir, fourier, 300 × 50": _reservoir().setup(300, 50, features="fourier"),
    }


def fresh() -> dict[str, Setup]:
    """Every set-up by its name."""
    lot, up, calls, line, hay = rented_cars(), ladder(), call_centre(), rare_fault(), needle()
    starts, walk = skewed_starts(), wandering()
    on_policy = Logged(hay.mdp, hay.start, hay.target, hay.target)
    bandit = Logged(Mdp(hay.mdp.P, np.arange(160.0).reshape(40, 4) % 7, 0.0), hay.start, hay.behaviour, hay.target)
    tiles: Any = tc.logs.features.Tiles(tilings=4, bins=5)
    return {
        "rented cars, named, 80 × 30": named(lot, ["stay", "fetch"], 80, 30),
        "rented cars, named, 300 × 30": named(lot, ["stay", "fetch"], 300, 30),
        "ladder cut at 25, 150": finite(up, 150, 25),
        "ladder cut at 25, 600": finite(up, 600, 25),
        "call centre, 60 × 60": finite(calls, 60, 60),
        "call centre, 300 × 60": finite(calls, 300, 60),
        "rare fault, 100 × 50": finite(line, 100, 50),
        "rare fault, 400 × 50": finite(line, 400, 50),
        "needle, 100 × 60": finite(hay, 100, 60),
        "needle, on-policy, 60 × 60": finite(on_policy, 60, 60),
        "skewed starts, 100 × 40": finite(starts, 100, 40),
        "skewed starts, 500 × 40": finite(starts, 500, 40),
        "walk + Pareto(2.2), 80 × 40": finite(walk, 80, 40, pareto),
        "walk + losses, 120 × 40": finite(walk, 120, 40, losses),
        "walk, one stream of 4,000": finite(walk, 1, 4000, start=walk.start),
        "walk, one stream of 20,000": finite(walk, 1, 20_000, start=walk.start),
        "bandit + Pareto(2.2), 600": finite(bandit, 600, 1, pareto),
        "thermostat, rbf, 100 × 40": _thermostat().setup(100, 40, features="rbf"),
        "boat, rbf, 150 × 60": _boat().setup(150, 60, features="rbf"),
        "boat, tiles, 150 × 60": _boat().setup(150, 60, features=tiles),
        "pendulum, fourier, 120 × 40": _pendulum(1.0).setup(120, 40, features="fourier"),
        "pendulum with a step, rbf, 120 × 40": _pendulum(8.0).setup(120, 40, features="rbf"),
        "pendulum with a step, poor rbf, 400 × 40": _pendulum(8.0).setup(400, 40, features=tc.logs.features.Rbf(4)),
    }
