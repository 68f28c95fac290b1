"""Set-ups drawn to judge by: ``unseen``, on which nothing of ``tc.evaluate`` was tuned, and ``judged``, of its notes.

The first were written before its last changes and tried once after them. The others say when richer features are a
warning and when a note: features that hold the value, or nearly. They were written before the rule was tried on them;
of the tiles of the tanks only the limit of ten rows a feature was learnt. The finite ones have pairs without data, or
rewards that hardly ever come.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import twoclock as tc
from reproduction.experiments.logs_worlds import (
    Logged,
    Setup,
    SimulatedWorld,
    Step,
    always,
    finite,
    gymnasium,
    sigmoid,
    two,
)
from twoclock.models import Mdp


def admission(places: int = 7) -> Logged:
    """Two queues, one after the other; customers who are let in pay 1, and each who waits costs."""
    n = places * places
    P, r = np.zeros((n, 2, n)), np.zeros((n, 2))
    for s in range(n):
        i, j = divmod(s, places)
        for a in (0, 1):
            moves = [(0.35, (min(i + a, places - 1), j)), (0.3, (i - 1, min(j + 1, places - 1)) if i else (i, j)),
                     (0.35, (i, max(j - 1, 0)))]  # fmt: skip
            for p, (k, m) in moves:
                P[s, a, k * places + m] += p
            r[s, a] = 0.35 * a * (i < places - 1) - 0.05 * (i + 1.5 * j)
    return Logged(Mdp(P, r, 0.97), np.eye(n)[0], np.full((n, 2), 0.5), np.tile([0.25, 0.75], (n, 1)))


def maze(side: int = 6) -> Logged:
    """A maze with one way between any two cells and a prize in the far corner; one move in seven slips and stays."""
    rng, n = np.random.default_rng(17), side * side
    open_, seen, stack = set[tuple[int, int]](), {0}, [0]
    steps = {0: -side, 1: side, 2: -1, 3: 1}
    while stack:
        s = stack[-1]
        near = [s + d for a, d in steps.items() if 0 <= s + d < n and (a < 2 or (s + d) // side == s // side)]
        near = [t for t in near if t not in seen]
        if not near:
            stack.pop()
            continue
        t = int(rng.choice(near))
        open_ |= {(s, t), (t, s)}
        seen.add(t)
        stack.append(t)
    P, discount = np.zeros((n, 4, n)), np.full((n, 4, n), 0.98)
    for s in range(n):
        for a, d in steps.items():
            P[s, a, s + d if (s, s + d) in open_ else s] += 6 / 7
            P[s, a, s] += 1 / 7
    r = np.full(P.shape, -1.0)
    r[:, :, n - 1] = 19.0
    discount[:, :, n - 1] = 0.0
    mdp = Mdp(P, r, discount)
    best, even = mdp.soft_policy(0), np.full((n, 4), 0.25)
    return Logged(mdp, np.eye(n)[0], 0.5 * best + 0.5 * even, 0.75 * best + 0.25 * even)


def garnet(states: int = 30, actions: int = 3) -> Logged:
    """A random MDP in which a pair leads to one of three states."""
    rng = np.random.default_rng(23)
    P = np.zeros((states, actions, states))
    for s in range(states):
        for a in range(actions):
            P[s, a, rng.choice(states, 3, replace=False)] = rng.dirichlet(np.ones(3))
    law = rng.dirichlet(np.full(actions, 2.0), size=(2, states))
    return Logged(Mdp(P, rng.standard_normal((states, actions)), 0.9), np.eye(states)[0], *(0.8 * law + 0.2 / actions))


def ward() -> Logged:
    """Patients of ten severities; treatment helps and costs, the worst may die (−100), the best go home (+10)."""
    n, dead, home = 12, 10, 11
    P, discount = np.zeros((n, 2, n)), np.full((n, 2, n), 0.99)
    for s in range(10):
        for a in (0, 1):
            worse, better = (0.3, 0.25) if a == 0 else (0.2, 0.4)
            death = 0.004 * max(s - 5, 0)
            P[s, a, dead] = death
            P[s, a, min(s + 1, 9)] += worse * (1 - death)
            P[s, a, s - 1 if s else home] += better * (1 - death)
            P[s, a, s] += (1 - worse - better) * (1 - death)
    P[[dead, home], :, [dead, home]] = 1.0
    r = np.zeros(P.shape)
    r[:, 1], r[:, :, dead], r[:, :, home] = -0.5, -100.0, 10.0
    r[[dead, home]] = 0.0
    discount[:, :, [dead, home]] = 0.0
    start = np.r_[0, 0, 0.3, 0.3, 0.2, 0.2, np.zeros(6)]
    severe = np.clip(np.arange(n) / 10, 0.1, 0.9)[:, None]
    target = np.hstack([1 - severe, severe])
    return Logged(Mdp(P, r, discount), start, 0.5 * target + 0.25, target)


def machine(wear: int = 9) -> Logged:
    """A machine that wears; it may be replaced for 4, and breaks seldom, which costs 40."""
    P, r, s = np.zeros((wear, 2, wear)), np.zeros((wear, 2, wear)), np.arange(wear)
    breaks = 0.002 * s**1.5
    P[s, 0, np.minimum(s + 1, wear - 1)] += 0.4 * (1 - breaks)
    P[s, 0, s] += 0.6 * (1 - breaks)
    P[s, 0, 0] += breaks
    P[:, 1, 0] = 1.0
    r += 1.0
    r[1:, 0, 0], r[:, 1] = -40.0, -3.0
    return Logged(Mdp(P, r, 0.95), np.eye(wear)[0], np.tile([0.85, 0.15], (wear, 1)), np.tile([0.93, 0.07], (wear, 1)))


def claims_paid(rng: np.random.Generator, n: int) -> np.ndarray:
    """One row in a hundred has a claim of 15 on average."""
    return 0.15 - np.where(rng.random(n) < 0.01, rng.exponential(15.0, n), 0.0)


def _inventory() -> SimulatedWorld:
    """Stock of at most 20; orders of 0, 4 or 8 at 1 each; 2 earned a piece, demand with a heavy tail, lost sales."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        stock = np.minimum(x + 4 * a, 20)
        demand = np.floor(rng.lognormal(0.7, 1.3, len(x)))
        sold = np.minimum(stock, demand).astype(int)
        earned = 2.0 * sold - (stock - x) - 0.05 * stock - 0.5 * (demand - sold)
        return earned, stock - sold, np.zeros(len(x), bool)

    def low(x: np.ndarray) -> np.ndarray:
        return np.where((x < 6)[:, None], [0.1, 0.2, 0.7], [0.7, 0.2, 0.1])

    return SimulatedWorld(lambda rng, n: np.full(n, 10), step, low, lambda x: 0.4 * low(x) + 0.2, 0.95)


def _swinging(width: float = 1.0) -> SimulatedWorld:
    """An angle that is pushed left or right; what is earned is a peak near the top, narrower than coarse features."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        speed = 0.9 * x[:, 1] - 0.25 * np.sin(x[:, 0]) + 0.35 * (2 * a - 1) + 0.15 * rng.standard_normal(len(x))
        angle = np.clip(x[:, 0] + 0.3 * speed, -3, 3)
        earned = np.exp(-((angle - 1) ** 2) / (2 * (0.3 * width) ** 2)) + 0.1 * rng.standard_normal(len(x))
        return earned, np.column_stack([angle, speed]), np.zeros(len(x), bool)

    def target(x: np.ndarray) -> np.ndarray:
        return two(sigmoid(3 * (1 - x[:, 0])))

    return SimulatedWorld(
        lambda rng, n: 0.5 * rng.standard_normal((n, 2)), step, target, lambda x: 0.5 * target(x) + 0.25, 0.93
    )


def _crash() -> SimulatedWorld:
    """A point that drifts and is pushed back, logged by the policy itself; it ends beyond a circle, at −5."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        after = x + 0.1 * np.column_stack([2.0 * a - 1, x[:, 0]]) + 0.12 * rng.standard_normal(x.shape)
        done = (after**2).sum(axis=1) > 2.0
        return np.where(done, -5.0, 0.1), after, done

    def back(x: np.ndarray) -> np.ndarray:
        return two(sigmoid(-4 * (x[:, 0] + x[:, 1])))

    return SimulatedWorld(lambda rng, n: 0.3 * rng.standard_normal((n, 2)), step, back, back, 0.97)


def _linear() -> SimulatedWorld:
    """Three dimensions, moved linearly, with a quadratic reward: quadratic features hold the value."""
    A = 0.85 * np.array([[0.8, 0.3, 0.0], [-0.3, 0.8, 0.2], [0.1, 0.0, 0.9]])

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        after = x @ A.T + np.outer(2 * a - 1, [0.3, 0.0, 0.2]) + 0.3 * rng.standard_normal(x.shape)
        return 1.0 * a - x[:, 0] ** 2 - 0.5 * x[:, 1] * x[:, 2], after, np.zeros(len(x), bool)

    return SimulatedWorld(lambda rng, n: rng.standard_normal((n, 3)), step, always(0.8), always(0.5), 0.9)


def quadratic(x: np.ndarray, action: np.ndarray) -> np.ndarray:
    """All products of two of (1, x), for each action."""
    i, j = np.triu_indices(4)
    one = np.column_stack([np.ones(len(x)), x])
    products = one[:, i] * one[:, j]
    return np.hstack([products * (action == 0)[:, None], products * (action == 1)[:, None]])


def unseen() -> dict[str, Setup]:
    """Every set-up by its name."""
    lanes, way, random, sick, worn, swing = admission(), maze(), garnet(), ward(), machine(), _swinging()
    poor = tc.logs.features.Rbf(4)
    return {
        "two queues, 80 × 50": finite(lanes, 80, 50),
        "two queues, 300 × 50": finite(lanes, 300, 50),
        "maze cut at 40, 150": finite(way, 150, 40, 0.0),
        "maze cut at 40, 600": finite(way, 600, 40, 0.0),
        "inventory with heavy demand, 50 × 40": _inventory().setup(50, 40),
        "inventory with heavy demand, 250 × 40": _inventory().setup(250, 40),
        "swing, rbf, 150": swing.setup(150, 40, features="rbf"),
        "swing, poor rbf, 150": swing.setup(150, 40, features=poor),
        "swing, poor rbf, 600": swing.setup(600, 40, features=poor),
        "crash on-policy, rbf, 150": _crash().setup(150, 80, features="rbf"),
        "crash on-policy, poor rbf, 400": _crash().setup(400, 80, features=poor),
        "ward, 150 whole": finite(sick, 150, 5000, 0.0),
        "ward cut at 25, 400": finite(sick, 400, 25, 0.0),
        "machine, 3,000 rows": finite(worn, 1, 3000, 0.0),
        "machine, 60 × 50": finite(worn, 60, 50, 0.0),
        "garnet, 60 × 50": finite(random, 60, 50),
        "garnet, 300 × 50": finite(random, 300, 50),
        "garnet + claims, 80 × 40": finite(random, 80, 40, claims_paid),
        "linear, exact features, 100 × 40": _linear().setup(100, 40, features=quadratic),
        "linear, one-sided features, 100 × 40": _linear().setup(100, 40, features=lambda x, a: quadratic(x, a)[:, :12]),
    }


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


def _four_numbers(steady: bool = False) -> SimulatedWorld:
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


def _of_four(x: np.ndarray, a: np.ndarray) -> np.ndarray:
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
        "four numbers, rbf(30), 150 × 30": _four_numbers().setup(150, 30, features=basis.Rbf(30)),
        "four numbers, exact features, 100 × 30": _four_numbers(steady=True).setup(100, 30, features=_of_four),
        "four numbers, first column, 200 × 30": _four_numbers().setup(200, 30, features=_first_column),
        "bumps, rbf, 150 × 40": _bumps().setup(150, 40, features="rbf"),
        "bumps, few rbf, 500 × 40": _bumps().setup(500, 40, features=basis.Rbf(6)),
        "large lake cut at 30, 300": finite(lake, 300, 30),
        "habits, 80 × 40": finite(usual, 80, 40),
        "habits, 300 × 40": finite(usual, 300, 40),
        "way out cut at 25, 100": finite(hall, 100, 25),
        "way out cut at 25, 400": finite(hall, 400, 25),
    }
