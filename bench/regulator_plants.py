"""The regulator on random plants: does its guard hold, how good is its law, and does a unit matter?

    python bench/regulator_plants.py guard [plants] [seeds] [steps] [draw] [first]
    python bench/regulator_plants.py proofs [plants] [seeds] [steps] [draw]
    python bench/regulator_plants.py law [plants] [seeds] [steps] [draw]
    python bench/regulator_plants.py outputs [plants] [seeds] [steps] [draw]

``guard``: on every plant a guarded regulator learns from each seed, even seeds with the q critic, odd ones with the
model critic; in half of the runs each state is pushed to twelve times its largest value in the log. The rules: no run
ends with a certified gain that does not stabilise the true plant; no such gain ever acts; K0 takes over a pushed state
at the very next step, and the agent says so. ``proofs``: the same of random gains, a third of
them unstable. ``law``: the excess cost of the learnt law over the optimum, as a ratio to certainty equivalence on the
same samples. That is least squares with an intercept, the Riccati equation and the steady state in full. It is tried
with constant disturbances and without, in the plant's units, a thousand times and a thousandth of them. ``outputs``: a
regulator with ``lags=6`` and no first gain sees two noisy outputs of a plant of three states. The rule: the law that it
has learnt after 20,000 samples costs at most 1.05 times LQG, on every plant. ``draw`` is the seed of the plants, and
``first`` the first seed, if a study is run in parts.
"""

from __future__ import annotations

import sys
import time
import warnings

import numpy as np
import scipy.linalg

import twoclock as tc
from twoclock.agents.gain_supervisor import GainSupervisor
from twoclock.agents.plant_statistics import PlantStatistics
from twoclock.problems.lqr.model_based import steady_state


class Plant:
    """A random plant with one to three states in different units, a cost, and a gain that stabilises it."""

    def __init__(self, rng: np.random.Generator, disturbed: bool = True, units: bool = True) -> None:
        n, m = int(rng.integers(1, 4)), int(rng.integers(1, 3))
        A = rng.normal(size=(n, n))
        A *= rng.uniform(0.8, 1.15) / np.abs(np.linalg.eigvals(A)).max()
        unit = 10.0 ** rng.uniform(-3, 3, n) if units else np.ones(n)
        self.A, self.B = unit[:, None] * A / unit, unit[:, None] * rng.normal(size=(n, m))
        self.root = unit[:, None] * (0.3 * rng.normal(size=(n, n)) + 0.5 * np.eye(n))
        self.d = disturbed * unit * rng.normal(size=n)
        self.Q, self.R = np.diag(unit**-2.0), 10.0 ** rng.uniform(-1, 1) * np.eye(m)
        self.exact = tc.models.Lqr(self.A, self.B, self.Q, self.R, self.root @ self.root.T)
        self.K0 = np.asarray(tc.models.Lqr(self.A, self.B, self.Q, 10.0 ** rng.uniform(0, 1.5) * self.R).gain)

    def step(self, x: np.ndarray, u: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self.A @ x + self.B @ u + self.d + self.root @ rng.standard_normal(len(x))

    def radius(self, K: np.ndarray) -> float:
        return float(self.exact.spectral_radius(K))

    def law_cost(self, K: np.ndarray, x: np.ndarray, u: np.ndarray) -> float:
        """The mean cost per step of u − K(· − x) on the true plant, exploration left out."""
        mean = np.linalg.solve(np.eye(len(x)) - self.A + self.B @ K, self.B @ (u + K @ x) + self.d)
        action = u - K @ (mean - x)
        return float(self.exact.J(K)) + float(mean @ self.Q @ mean + action @ self.R @ action)


def guard(plants: int = 20, seeds: int = 60, steps: int = 800, draw: int = 0, first: int = 0) -> int:
    """Count the exceptions to the guard's promise."""
    drawn = [Plant(np.random.default_rng([draw, number])) for number in range(plants)]
    wrong = acted = flagged = moved = pushed = missed = 0
    largest = 0.0
    for seed in range(first, seeds):
        for number, plant in enumerate(drawn):
            agent = tc.agents.Regulator(
                plant.Q, plant.R, plant.K0, critic="model" if seed % 2 else "q",
                guard=tc.problems.Guard(log=300), seed=seed,
            )  # fmt: skip
            rng, x, sizes = np.random.default_rng([draw, number, seed]), np.zeros(len(plant.A)), []
            used, push = plant.K0, 3 * steps // 4 if seed % 4 >= 2 else -1
            for k in range(steps):
                u = agent.act(x)
                after = plant.step(x, u, rng)
                if k == push:
                    after = 12 * np.max(sizes[:300], axis=0) * np.where(after < 0, -1.0, 1.0)
                elif k == push + 1 and k > 0:
                    pushed += 1
                    missed += not agent._supervisor.held or not any("`K0` took over" in w for w in agent.warnings)
                agent.observe(x, u, after)
                x = after
                sizes.append(np.abs(x))
                acting = agent._supervisor.acting
                if acting is not used:
                    used, moved = acting, moved + 1
                    acted += plant.radius(acting) >= 1
            wrong += plant.radius(agent.gain) >= 1 and agent.certified
            flagged += not agent.certified
            size = np.asarray(sizes)
            largest = max(largest, float((size / size[:300].max(axis=0)).max()))
        print(
            f"{plants} plants × seeds {first} to {seed}: {wrong} unstable gains called certified, "
            f"{acted} acted of {moved}; {missed} pushes of {pushed} missed; {flagged} runs not certified; "
            f"states up to {largest:.3g} times the log's largest",
            flush=True,
        )
    return wrong + acted + missed


def proofs(plants: int = 20, seeds: int = 60, steps: int = 800, draw: int = 0) -> int:
    """The same with gains that no critic would propose: the optimum off by up to three times its size."""
    wrong = proved = proposed = unstable = 0
    for number in range(plants):
        plant = Plant(np.random.default_rng([draw, number]))
        n, m = plant.exact.shape
        best = np.asarray(plant.exact.gain)
        for seed in range(seeds):
            rng = np.random.default_rng([draw, number, seed])
            statistics = PlantStatistics(n, m)
            watcher = GainSupervisor(tc.problems.Guard(log=300), plant.K0, plant.Q, plant.R, 1.0, statistics)
            x, older = np.zeros(n), np.zeros(n + m)
            for k in range(steps):
                u = rng.standard_normal(m) - watcher.acting @ x
                after = plant.step(x, u, rng)
                statistics.add(np.concatenate([x, u]), older, after)
                x, older = after, np.concatenate([x, u])
                if k > 300 and k % 10 == 0:
                    off = rng.normal(size=best.shape) * 10.0 ** rng.uniform(-1, 1.2)
                    K = best + off * np.abs(best).max(axis=0)
                    proposed, unstable = proposed + 1, unstable + (plant.radius(K) >= 1)
                    before = watcher.acting
                    watcher.consider(K)
                    if watcher.acting is not before:
                        proved, wrong = proved + 1, wrong + (plant.radius(watcher.acting) >= 1)
    print(f"{plants} plants × {seeds} seeds: {proposed} gains, {unstable} unstable; {proved} let act, {wrong} wrongly")
    return wrong


def law(plants: int = 5, seeds: int = 16, steps: int = 1000, draw: int = 0) -> None:
    """Print the ratio of the excess cost to certainty equivalence's."""
    for disturbed in (True, False):
        for scale in (1.0, 1e3, 1e-3):
            excess = np.zeros((plants, 2))
            for number in range(plants):
                plant = Plant(np.random.default_rng([draw, number]), disturbed, units=False)
                plant.d, plant.root = plant.d * scale, plant.root * scale
                plant.exact = tc.models.Lqr(plant.A, plant.B, plant.Q, plant.R, plant.root @ plant.root.T)
                ab = np.hstack([plant.A, plant.B])
                best = plant.law_cost(plant.exact.gain, *steady_state(ab, plant.d, plant.Q, plant.R, 1.0))
                for seed in range(seeds):
                    agent = tc.agents.Regulator(plant.Q, plant.R, plant.K0, sigma=scale, seed=seed)
                    rng, x, rows = np.random.default_rng([draw, number, seed]), np.zeros(len(plant.A)), []
                    for _ in range(steps):
                        u = agent.act(x)
                        after = plant.step(x, u, rng)
                        agent.observe(x, u, after)
                        rows.append(np.concatenate([x, u, [1.0], after]))
                        x = after
                    v, n = np.asarray(rows), len(x)
                    fitted = np.linalg.lstsq(v[:, :-n], v[:, -n:])[0].T
                    A, B = fitted[:, :n], fitted[:, n:-1]
                    P = scipy.linalg.solve_discrete_are(A, B, plant.Q, plant.R)
                    K = np.linalg.solve(plant.R + B.T @ P @ B, B.T @ P @ A)
                    rest = steady_state(fitted[:, :-1], fitted[:, -1], plant.Q, plant.R, 1.0)
                    excess[number] += (
                        plant.law_cost(agent.gain, *agent.steady_state) - best,
                        plant.law_cost(K, *rest) - best,
                    )
            ratios = excess[:, 0] / excess[:, 1]
            print(
                f"{'disturbed' if disturbed else 'without'}, scale {scale:g}: ratios {np.round(ratios, 3).tolist()}",
                flush=True,
            )


def outputs(plants: int = 10, seeds: int = 2, steps: int = 20_000, draw: int = 0) -> int:
    """Print the ratios of the cost of the law learnt from outputs alone to LQG's; count those above 1.05."""
    worst = np.zeros((plants, seeds))
    for number in range(plants):
        rng = np.random.default_rng([draw, number])
        m, sensor = int(rng.integers(1, 3)), 10.0 ** rng.uniform(-1, 0)
        A, C = rng.normal(size=(3, 3)), rng.normal(size=(2, 3))
        A *= rng.uniform(0.8, 1.05) / np.abs(np.linalg.eigvals(A)).max()
        root = 0.3 * rng.normal(size=(3, 3)) + 0.5 * np.eye(3)
        R = 10.0 ** rng.uniform(-1, 1) * np.eye(m)
        plant = tc.models.Lqr(A, rng.normal(size=(3, m)), C.T @ C, R, root @ root.T)
        best = lqg_cost(plant, C, sensor)
        for seed in range(seeds):
            agent = tc.agents.Regulator(np.eye(2), R, lags=6, seed=seed)
            rng, x, y = np.random.default_rng([draw, number, seed]), np.zeros(3), np.zeros(2)
            for _ in range(steps):
                u = agent.act(y)
                x = plant.A @ x + plant.B @ u + root @ rng.standard_normal(3)
                after = C @ x + sensor * rng.standard_normal(2)
                agent.observe(y, u, after)
                y = after
            worst[number, seed] = lagged_cost(agent, plant, C, sensor) / best
        print(f"plant {number}, {m} actions, sensor {sensor:.2f}: over LQG {worst[number].round(4)}", flush=True)
    print(f"{plants} plants × {seeds} seeds, {steps:,} samples: {worst.min():.3f} to {worst.max():.3f} times LQG")
    return int((worst > 1.05).sum())


def lqg_cost(plant: tc.models.Lqr, C: np.ndarray, sensor: float) -> float:
    """The least mean cost per step where only Cx with noise is seen, x estimated with the present output."""
    P, K, noise = np.asarray(plant.value), np.asarray(plant.gain), sensor**2 * np.eye(len(C))
    S = scipy.linalg.solve_discrete_are(plant.A.T, C.T, plant.noise, noise)
    S = S - S @ C.T @ np.linalg.solve(C @ S @ C.T + noise, C @ S)
    return float(np.trace(P @ plant.noise) + np.trace(K.T @ (plant.R + plant.B.T @ P @ plant.B) @ K @ S))


def lagged_cost(agent: tc.agents.Regulator, plant: tc.models.Lqr, C: np.ndarray, sensor: float) -> float:
    """The mean cost per step of the learnt law without exploration, by its stationary covariance on the true plant."""
    K, shift, n, p = agent.gain, agent._history.known, len(plant.A), len(C)
    k = K.shape[1]
    below = shift[:, :k] - shift[:, k:] @ K
    loop = np.block(
        [[plant.A, -plant.B @ K], [C @ plant.A, -C @ plant.B @ K], [np.zeros((k - p, n)), below]],
    )
    if np.abs(np.linalg.eigvals(loop)).max() >= 1:
        return np.inf
    root, enter = np.linalg.cholesky(plant.noise), np.zeros((n + k, n + p))
    enter[:n, :n], enter[n : n + p, :n], enter[n : n + p, n:] = root, C @ root, sensor * np.eye(p)
    X = scipy.linalg.solve_discrete_lyapunov(loop, enter @ enter.T)
    return float(np.trace(plant.Q @ X[:n, :n]) + np.trace(plant.R @ K @ X[n:, n:] @ K.T))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    began = time.process_time()
    numbers = [int(value) for value in sys.argv[2:]]
    failures = {"guard": guard, "proofs": proofs, "law": law, "outputs": outputs}[sys.argv[1]](*numbers)
    print(f"{time.process_time() - began:.0f} s of CPU")
    sys.exit(bool(failures))
