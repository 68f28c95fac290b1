"""Worlds whose logs are hard to read: finite chains, continuous states, and what their policies are worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float

from twoclock.models import Mdp, from_gymnasium

Policy = Float[np.ndarray, "s a"]
Noise = Callable[[np.random.Generator, int], np.ndarray]
Columns = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Logged:
    """A finite MDP with a behaviour that is logged and a target to evaluate; discount 0 ends an episode."""

    mdp: Mdp
    start: Float[np.ndarray, " s"]
    behaviour: Policy
    target: Policy

    @property
    def gamma(self) -> float:
        return float(self.mdp.gamma.max())

    @property
    def truth(self) -> float:
        return self.worth(self.target)

    def worth(self, policy: Policy) -> float:
        return float(self.start @ self.mdp.values(policy))

    def draw(self, episodes: int, steps: int, seed: int, noise: float | Noise = 0.5) -> Columns:
        """The columns of a log; episodes are truncated after ``steps`` steps, and rewards have noise."""
        mdp, rng = self.mdp, np.random.default_rng(seed)
        P, ends = mdp.P.cumsum(axis=2), np.broadcast_to(mdp.gamma == 0, mdp.P.shape)
        r = np.broadcast_to(mdp.r if mdp.r.ndim == 3 else mdp.r[:, :, None], mdp.P.shape)
        s = _pick(np.broadcast_to(self.start.cumsum(), (episodes, mdp.states)), rng)
        episode, rows = np.arange(episodes), []
        for t in range(steps):
            a = _pick(self.behaviour.cumsum(axis=1)[s], rng)
            after = _pick(P[s, a], rng)
            done = ends[s, a, after]
            added = noise(rng, len(s)) if callable(noise) else noise * rng.standard_normal(len(s))
            rows.append((episode, np.full(len(s), t), s, a, r[s, a, after] + added, after, done, self.behaviour[s, a]))
            episode, s = episode[~done], after[~done]
            if not len(s):
                break
        return _columns(rows)


def _columns(rows: Sequence[tuple[np.ndarray, ...]]) -> Columns:
    """Put what each step added in the order of episodes."""
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    names = ("episode", "step", "state", "action", "reward", "next_state", "terminated", "propensity")
    return {name: column[order] for name, column in zip(names, columns, strict=True)}


def _pick(cumulative: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (cumulative < rng.random(len(cumulative))[:, None]).sum(axis=1).clip(max=cumulative.shape[1] - 1)


def corridor(cells: int = 12) -> Logged:
    """Cells in a row and a goal at the right end: +10 there, −1 per step, one move in ten slips and stays."""
    P, discount = np.zeros((cells + 1, 2, cells + 1)), np.full((cells + 1, 2, cells + 1), 0.99)
    s = np.arange(cells)
    P[s, 0, np.maximum(s - 1, 0)] += 0.9
    P[s, 1, s + 1] += 0.9
    P[s[:, None], np.arange(2), s[:, None]] += 0.1
    P[cells, :, cells] = 1.0
    r = np.full(P.shape, -1.0)
    r[cells - 1, 1], r[cells] = 9.0, 0.0
    discount[:, :, cells] = 0.0
    start = np.eye(cells + 1)[0]
    behaviour, target = np.full((cells + 1, 2), 0.5), np.tile([0.2, 0.8], (cells + 1, 1))
    return Logged(Mdp(P, r, discount), start, behaviour, target)


def two_rooms(door: float = 0.002) -> Logged:
    """Two rings of five cells; a step leads through the door with this probability, and only the other room pays."""
    P = np.zeros((10, 2, 10))
    for room in (0, 5):
        for cell in range(5):
            P[room + cell, 0, room + cell] += 0.9
            P[room + cell, 1, room + (cell + 1) % 5] += 0.9
            P[room + cell, :, room + (cell + 2) % 5] += 0.1
    P *= 1 - door
    s = np.arange(10)
    P[s, :, (s + 5) % 10] += door
    r = np.repeat([0.0, 1.0], 5)[:, None] * np.ones(2)
    return Logged(Mdp(P, r, 0.99), np.eye(10)[0], np.full((10, 2), 0.5), np.tile([0.3, 0.7], (10, 1)))


def ring(states: int = 20) -> Logged:
    """A ring: action 1 goes forward, 0 stays, one in ten does the other; normal mean rewards."""
    P, s = np.zeros((states, 2, states)), np.arange(states)
    forward = (s + 1) % states
    for a in (0, 1):
        P[s, a, s] += 0.9 if a == 0 else 0.1
        P[s, a, forward] += 0.1 if a == 0 else 0.9
    r = np.random.default_rng(11).standard_normal((states, 2))
    even = np.full((states, 2), 0.5)
    return Logged(Mdp(P, r, 0.95), np.full(states, 1 / states), even, np.tile([0.2, 0.8], (states, 1)))


def grid(side: int = 10) -> Logged:
    """A square of cells with a goal in the far corner; the target mostly walks there, the behaviour less often."""
    n = side * side
    P, discount = np.zeros((n, 4, n)), np.full((n, 4, n), 0.97)
    row, column = np.divmod(np.arange(n), side)
    for a, (down, right) in enumerate([(-1, 0), (1, 0), (0, -1), (0, 1)]):
        to = np.clip(row + down, 0, side - 1) * side + np.clip(column + right, 0, side - 1)
        P[np.arange(n), a, to] += 0.9
        P[np.arange(n), a, np.arange(n)] += 0.1
    r = np.full(P.shape, -1.0)
    r[:, :, n - 1] = 9.0
    discount[:, :, n - 1] = 0.0
    behaviour, target = np.tile([0.15, 0.35, 0.15, 0.35], (n, 1)), np.tile([0.05, 0.45, 0.05, 0.45], (n, 1))
    return Logged(Mdp(P, r, discount), np.eye(n)[0], behaviour, target)


def queue(places: int = 15) -> Logged:
    """A queue with a slow and a fast server, the fast one costly; long queues are rare in the log."""
    P, n = np.zeros((places, 2, places)), np.arange(places)
    for a, serve in enumerate((0.4, 0.65)):
        up, down = 0.4 * (1 - serve), serve * 0.6
        P[n, a, np.minimum(n + 1, places - 1)] += up
        P[n, a, np.maximum(n - 1, 0)] += down
        P[n, a, n] += 1 - up - down
    r = -(n[:, None] / 5.0) - np.array([0.0, 0.4])
    behaviour = np.tile([0.5, 0.5], (places, 1))
    return Logged(Mdp(P, r, 0.97), np.eye(places)[0], behaviour, np.tile([0.85, 0.15], (places, 1)))


def sticky(states: int = 8) -> Logged:
    """States that are left seldom, so that an episode sees few of them."""
    rng = np.random.default_rng(5)
    P = 0.05 * rng.dirichlet(np.ones(states), size=(states, 2))
    P[np.arange(states), 0, np.arange(states)] += 0.95
    P[np.arange(states), 1, np.arange(states)] += 0.8
    P[np.arange(states), 1, (np.arange(states) + 1) % states] += 0.15
    r = rng.standard_normal((states, 1)) * np.ones(2)
    even = np.full((states, 2), 0.5)
    return Logged(Mdp(P, r, 0.95), np.full(states, 1 / states), even, np.tile([0.3, 0.7], (states, 1)))


@cache
def gymnasium(name: str, gamma: float, target: float, behaviour: float) -> Logged:
    """A toy text of Gymnasium; either policy does the best but at random with these shares."""
    mdp, start = from_gymnasium(name, gamma=gamma)
    best, any_ = mdp.soft_policy(0), np.full((mdp.states, mdp.actions), 1 / mdp.actions)
    mixed = [(1 - share) * best + share * any_ for share in (behaviour, target)]
    return Logged(mdp, start, *mixed)


def river_swim(length: int = 6) -> Logged:
    """RiverSwim: swimming right is hard and pays at the end, the left bank pays little; the target swims."""
    P, s = np.zeros((length, 2, length)), np.arange(length)
    P[s, 0, np.maximum(s - 1, 0)] = 1.0
    P[s, 1, np.minimum(s + 1, length - 1)] += 0.35
    P[s, 1, s] += 0.6
    P[s, 1, np.maximum(s - 1, 0)] += 0.05
    r = np.zeros((length, 2))
    r[0, 0], r[-1, 1] = 0.005, 1.0
    start = np.eye(length)[0]
    return Logged(Mdp(P, r, 0.9), start, np.tile([0.2, 0.8], (length, 1)), np.tile([0.1, 0.9], (length, 1)))


@dataclass(frozen=True, eq=False)
class Plane:
    """A continuous state with two actions: x' = Ax + b(2a − 1) + noise, reward by a function of x, episodes cut off."""

    reward: Callable[[np.ndarray, np.ndarray], np.ndarray]
    gamma: float = 0.9
    memory: float = 0.8
    sharpness: float = 1.0
    start: Float[np.ndarray, " 2"] | None = None

    def target(self, x: np.ndarray) -> np.ndarray:
        push = 1 / (1 + np.exp(np.clip(4 * self.sharpness * x[:, 0], -50, 50)))
        return np.column_stack([1 - push, push])

    def behaviour(self, x: np.ndarray) -> np.ndarray:
        return 0.5 * self.target(x) + 0.25

    def draw(self, episodes: int, steps: int, seed: int, policy: Any = None, x: np.ndarray | None = None) -> Columns:
        rng, policy, rows = np.random.default_rng(seed), policy or self.behaviour, []
        x = rng.standard_normal((episodes, 2)) if x is None else np.tile(x, (episodes, 1))
        for t in range(steps):
            law = policy(x)
            a = _pick(law.cumsum(axis=1), rng)
            push = np.outer(2 * a - 1, [0.3, 0.1])
            after = self.memory * x @ np.array([[0.9, -0.3], [0.3, 0.9]]) + push + 0.3 * rng.standard_normal(x.shape)
            earned = self.reward(x, a) + 0.1 * rng.standard_normal(len(x))
            ends, number = np.zeros(len(x), bool), np.arange(episodes)
            rows.append((number, np.full(len(x), t), x, a, earned, after, ends, law[np.arange(len(x)), a]))
            x = after
        return _columns(rows)

    @property
    def truth(self) -> float:
        """By 40,000 rollouts of the target."""
        steps = int(np.ceil(np.log(1e-4) / np.log(self.gamma)))
        found = self.draw(40_000, steps, 987_654, self.target, self.start)
        return float((self.gamma ** found["step"] * found["reward"]).sum() / 40_000)


def mountain_car(episodes: int, seed: int, start: np.ndarray | None = None) -> Columns:
    """The mountain car under the policy that pushes where it moves; a third of the pushes is at random."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.uniform(-1.1, 0.4, episodes), rng.uniform(-0.06, 0.06, episodes)])
    x = x if start is None else np.tile(start, (episodes, 1))
    number, rows = np.arange(episodes), []
    for t in range(400):
        law = swing(x)
        a = _pick(law.cumsum(axis=1), rng)
        speed = np.clip(x[:, 1] + 0.001 * (a - 1) - 0.0025 * np.cos(3 * x[:, 0]), -0.07, 0.07)
        place = np.clip(x[:, 0] + speed, -1.2, 0.6)
        after = np.column_stack([place, np.where(place <= -1.2, 0.0, speed)])
        done = place >= 0.5
        rows.append((number, np.full(len(x), t), x, a, np.full(len(x), -1.0), after, done, law[np.arange(len(x)), a]))
        number, x = number[~done], after[~done]
        if not len(x):
            break
    return _columns(rows)


def swing(x: np.ndarray) -> np.ndarray:
    """Push where the car moves with probability .8."""
    law = np.full((len(x), 3), 0.1)
    law[np.arange(len(x)), np.where(x[:, 1] >= 0, 2, 0)] = 0.8
    return law
