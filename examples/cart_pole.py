"""Keep a pole upright with a regulator that learns on the cart, from a gain that barely stabilises it.

The simulator is nonlinear, in plain Python, and is seen only through its states. The regulator starts with a gain that
costs eight times the optimum. It fits a model and takes one step of the Riccati recursion per sample. A guard returns
the cart to the first gain if a state leaves the range of the first thousand samples. The learnt gain is compared with
the optimum of the true linearisation, which it never sees, by the cost of both on the nonlinear cart.

    python examples/cart_pole.py [steps]
"""

from __future__ import annotations

import sys

import numpy as np

import twoclock as tc

DT, GRAVITY, CART, POLE, HALF_LENGTH = 0.02, 9.8, 1.0, 0.1, 0.5
Q, R = np.diag([1.0, 0.1, 10.0, 0.1]), np.array([[0.1]])
SHAKE = np.array([0.0, 0.02, 0.0, 0.05])  # what wind and rails do to the two velocities, each step


def step(x: np.ndarray, force: float) -> np.ndarray:
    """Position and speed of the cart, angle and angular speed of the pole, 20 ms on (Barto, Sutton & Anderson 1983)."""
    _, speed, angle, turning = x
    mass = CART + POLE
    push = (force + POLE * HALF_LENGTH * turning**2 * np.sin(angle)) / mass
    fall = GRAVITY * np.sin(angle) - np.cos(angle) * push
    fall /= HALF_LENGTH * (4 / 3 - POLE * np.cos(angle) ** 2 / mass)
    pull = push - POLE * HALF_LENGTH * fall * np.cos(angle) / mass
    return x + DT * np.array([speed, pull, turning, fall])


def linearised() -> tc.models.Lqr:
    """The plant around the upright pole, by central differences."""
    eye, h = np.eye(4), 1e-5
    A = np.stack([(step(h * e, 0.0) - step(-h * e, 0.0)) / (2 * h) for e in eye], axis=1)
    B = ((step(np.zeros(4), h) - step(np.zeros(4), -h)) / (2 * h))[:, None]
    return tc.models.Lqr(A, B, Q, R, noise=np.diag(SHAKE**2))


def cost(gain: np.ndarray, steps: int, seed: int = 1) -> float:
    """The mean cost per step of u = −Kx on the cart."""
    rng, x, total = np.random.default_rng(seed), np.zeros(4), 0.0
    for shake in rng.standard_normal((steps, 4)) * SHAKE:
        u = -gain @ x
        total += float(x @ Q @ x + u @ R @ u)
        x = step(x, float(u[0])) + shake
        if abs(x[2]) > 1.0:
            return np.inf  # it fell
    return total / steps


def main(steps: int = 10_000, seed: int = 0, trial: int = 20_000) -> dict[str, float]:
    """Learn, and return the mean costs of the first gain, the learnt one and the optimum, and the widest angle."""
    plant = linearised()
    first = tc.models.Lqr(plant.A, plant.B, np.diag([1.0, 0.1, 1.0, 0.1]), [[30.0]]).gain
    agent = tc.agents.Regulator(Q, R, K0=first, sigma=1.0, critic="model", guard=True, seed=seed)
    rng, x, widest = np.random.default_rng(seed), np.zeros(4), 0.0
    for shake in rng.standard_normal((steps, 4)) * SHAKE:
        u = agent.act(x)
        after = step(x, float(u[0])) + shake
        agent.observe(x, u, after)
        x, widest = after, max(widest, abs(float(after[2])))
    gains = {"first": first, "learnt": agent.gain, "optimum": plant.gain}
    found = {name: cost(np.asarray(gain), trial) for name, gain in gains.items()}
    for name, value in found.items():
        print(f"{name} gain: mean cost {value:.4f}")
    print(
        f"widest angle while learning {widest:.2f} rad; {agent.cost()} a step with exploration; {agent.interventions}"
    )
    return found | {"angle": widest}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
