"""Worlds whose logs are hard to read, finite and simulated; how a log is drawn, what is asked, the exact answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
from jaxtyping import Float

import twoclock as tc
from twoclock.models import Mdp, from_gymnasium

Policy = Float[np.ndarray, "s a"]
Noise = Callable[[np.random.Generator, int], np.ndarray]
Columns = dict[str, np.ndarray]
Step = tuple[np.ndarray, np.ndarray, np.ndarray]  # the reward, the next state, whether it ended


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
        return float(self.start @ self.mdp.values(self.target))

    def draw(self, episodes: int, steps: int, seed: int, noise: float | Noise = 0.5) -> Columns:
        """The columns of a log; episodes are truncated after ``steps`` steps, and rewards have noise."""
        mdp, rng = self.mdp, np.random.default_rng(seed)
        ends = np.broadcast_to(mdp.gamma == 0, mdp.P.shape)
        r = np.broadcast_to(mdp.r if mdp.r.ndim == 3 else mdp.r[:, :, None], mdp.P.shape)

        def step(rng: np.random.Generator, s: np.ndarray, a: np.ndarray) -> Step:
            after = _pick(mdp.P[s, a], rng)
            added = noise(rng, len(s)) if callable(noise) else noise * rng.standard_normal(len(s))
            return r[s, a, after] + added, after, ends[s, a, after]

        first = _pick(np.broadcast_to(self.start, (episodes, mdp.states)), rng)
        return _play(rng, first, steps, lambda s: self.behaviour[s], step)


@dataclass(frozen=True, eq=False)
class SimulatedWorld:
    """A world by its step; the value of the target is known by rollouts.

    Args:
        begin: the first states, by a generator and how many there are.
        step: (generator, states, actions) → the reward, the next state, whether it ended.
        target: probabilities of actions by a batch of states.
        behaviour: the same.
        gamma: the discount.
        seed: of the rollouts.
    """

    begin: Callable[[np.random.Generator, int], np.ndarray]
    step: Callable[[np.random.Generator, np.ndarray, np.ndarray], Step]
    target: Callable[[np.ndarray], np.ndarray]
    behaviour: Callable[[np.ndarray], np.ndarray]
    gamma: float
    seed: int = 555_666

    def draw(self, episodes: int, steps: int, seed: int) -> Columns:
        rng = np.random.default_rng(seed)
        return _play(rng, self.begin(rng, episodes), steps, self.behaviour, self.step)

    def setup(self, episodes: int, steps: int, **options: Any) -> Setup:
        return Setup(partial(self.draw, episodes, steps), self.target, self.gamma, cache(self.worth), options)

    def worth(self, rollouts: int = 40_000, steps: int = 0) -> float:
        """The mean return of the target; by default over as many steps as count for 10⁻⁴."""
        rng, steps = np.random.default_rng(self.seed), steps or int(np.ceil(np.log(1e-4) / np.log(self.gamma)))
        found = _play(rng, self.begin(rng, rollouts), steps, self.target, self.step)
        return float((self.gamma ** found["step"] * found["reward"]).sum() / rollouts)


def _play(
    rng: np.random.Generator,
    x: np.ndarray,
    steps: int,
    policy: Callable[[np.ndarray], np.ndarray],
    step: Callable[[np.random.Generator, np.ndarray, np.ndarray], Step],
) -> Columns:
    """The columns of a log with an episode from each state, which ends by itself or is truncated after ``steps``."""
    number, rows = np.arange(len(x)), []
    for t in range(steps):
        law = policy(x)
        a = _pick(law, rng)
        earned, after, done = step(rng, x, a)
        rows.append((number, np.full(len(x), t), x, a, earned, after, done, law[np.arange(len(x)), a]))
        number, x = number[~done], after[~done]
        if not len(x):
            break
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    names = ("episode", "step", "state", "action", "reward", "next_state", "terminated", "propensity")
    return {name: column[order] for name, column in zip(names, columns, strict=True)}


def _pick(chances: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An index for each row of probabilities."""
    beyond = chances.cumsum(axis=1) < rng.random(len(chances))[:, None]
    return beyond.sum(axis=1).clip(max=chances.shape[1] - 1)


def two(second: np.ndarray) -> np.ndarray:
    """The law of two actions, by the probability of the second in each state."""
    return np.column_stack([1 - second, second])


def always(share: float) -> Callable[[np.ndarray], np.ndarray]:
    """The second of two actions with the same probability in every state."""
    return lambda x: np.tile([1 - share, share], (len(x), 1))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def finite(world: Logged, episodes: int, steps: int, noise: float | Noise = 0.0, **options: Any) -> Setup:
    return Setup(
        partial(world.draw, episodes, steps, noise=noise), world.target, world.gamma, lambda: world.truth, options
    )


def lognormal(rng: np.random.Generator, n: int) -> np.ndarray:
    """Centred, of parameter σ = 2, as the costs of an insurer are."""
    return rng.lognormal(sigma=2.0, size=n) - np.exp(2.0)


def student(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_t(2.1, size=n)


def two_modes(rng: np.random.Generator, n: int) -> np.ndarray:
    """Nothing nearly always, and fifty times in a thousand a large win; mean 0."""
    return 20.0 * (rng.random(n) < 0.05) - 1.0


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


def plane(reward: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> SimulatedWorld:
    """A continuous state with two actions: x' = Ax + b(2a − 1) + noise, a reward by a function of x; no end."""

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        push = np.outer(2 * a - 1, [0.3, 0.1])
        after = 0.8 * x @ np.array([[0.9, -0.3], [0.3, 0.9]]) + push + 0.3 * rng.standard_normal(x.shape)
        return reward(x, a) + 0.1 * rng.standard_normal(len(x)), after, np.zeros(len(x), bool)

    def target(x: np.ndarray) -> np.ndarray:
        return two(sigmoid(-np.clip(4 * x[:, 0], -50, 50)))

    begin = lambda rng, n: rng.standard_normal((n, 2))  # noqa: E731
    return SimulatedWorld(begin, step, target, lambda x: 0.5 * target(x) + 0.25, 0.9, seed=987_654)


def mountain_car(at: np.ndarray | None = None) -> SimulatedWorld:
    """The mountain car under the policy that pushes where it moves; a third of the pushes is at random."""

    def begin(rng: np.random.Generator, n: int) -> np.ndarray:
        x = np.column_stack([rng.uniform(-1.1, 0.4, n), rng.uniform(-0.06, 0.06, n)])
        return x if at is None else np.tile(at, (n, 1))

    def step(rng: np.random.Generator, x: np.ndarray, a: np.ndarray) -> Step:
        speed = np.clip(x[:, 1] + 0.001 * (a - 1) - 0.0025 * np.cos(3 * x[:, 0]), -0.07, 0.07)
        place = np.clip(x[:, 0] + speed, -1.2, 0.6)
        after = np.column_stack([place, np.where(place <= -1.2, 0.0, speed)])
        return np.full(len(x), -1.0), after, place >= 0.5

    def swing(x: np.ndarray) -> np.ndarray:
        """Push where the car moves with probability .8."""
        law = np.full((len(x), 3), 0.1)
        law[np.arange(len(x)), np.where(x[:, 1] >= 0, 2, 0)] = 0.8
        return law

    return SimulatedWorld(begin, step, swing, swing, 0.99, seed=77)


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


def setups() -> dict[str, Setup]:
    """Every set-up by its name."""
    hall, rooms, wheel, square = corridor(), two_rooms(), ring(), grid()
    at = np.array([-0.5, 0.03])
    flat, edge = plane(_square), plane(_cliff)
    car = mountain_car().setup(250, 400, features="rbf", start=at[None])
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
        "plane by action, 200": flat.setup(200, 30, features=_of_action),
        "plane by action, 600": flat.setup(600, 30, features=_of_action),
        "plane by action, 1500": flat.setup(1500, 30, features=_of_action),
        "plane, fourier, 200": flat.setup(200, 30, features="fourier"),
        "plane, rbf, 200": flat.setup(200, 30, features="rbf"),
        "plane with an edge, rbf, 100": edge.setup(100, 30, features="rbf"),
        "plane with an edge, rbf, 400": edge.setup(400, 30, features="rbf"),
        "plane with an edge, poor rbf, 400": edge.setup(400, 30, features=tc.logs.features.Rbf(3)),
        "taxi without destination": finite(gymnasium("Taxi-v4", 0.99, 0.1, 0.5), 500, 400, features=_cells),
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
        "mountain car, rbf": replace(car, truth=cache(lambda: mountain_car(at).worth(4000, 400))),
    }
