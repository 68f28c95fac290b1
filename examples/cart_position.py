"""Hold a cart at a set point against a constant wind, from its position alone and without its equations.

Without control it runs away, and the first gain is zero: an unstable start. The regulator makes a state of the last six
positions and the forces between them, fits a model with an intercept, and holds the cart at the set point in the mean.
The picture has the position, and the mean cost with its interval beside the exact optimum (LQG). The optimum knows the
cart, its noise and the wind, sees the same positions, and explores as much.

    python examples/cart_position.py [steps] [picture]
"""

from __future__ import annotations

import sys

import numpy as np
import scipy.linalg

import twoclock as tc

DT, WIND, SET_POINT, SENSOR, SIGMA, LAGS = 0.1, 0.5, 3.0, 0.02, 0.3, 6
CART = tc.models.Lqr.from_continuous(
    A=[[0.0, 1.0], [0.0, -0.2]],  # the speed dies away slowly
    B=[[0.0], [1.0]],
    Q=np.diag([10.0, 0.0]),
    R=[[1.0]],
    dt=DT,
    noise=np.diag([1e-6, 0.02]),
)
POSITION = np.array([[1.0, 0.0]])


def optimum() -> float:
    """The least mean cost per step: noise, hidden states, the sensor, the force against the wind, and exploration."""
    P, K, noise = np.asarray(CART.value), np.asarray(CART.gain), SENSOR**2 * np.eye(1)
    before = scipy.linalg.solve_discrete_are(CART.A.T, POSITION.T, CART.noise, noise)
    innovation = POSITION @ before @ POSITION.T + noise
    unseen = before - before @ POSITION.T @ np.linalg.solve(innovation, POSITION @ before)
    price = CART.R + CART.B.T @ P @ CART.B  # of a deviation of the force
    cost = np.trace(P @ CART.noise) + np.trace(K.T @ price @ K @ unseen) + SIGMA**2 * price[0, 0]
    return float(cost + CART.Q[0, 0] * SENSOR**2 + CART.R[0, 0] * WIND**2)


def main(steps: int = 8000, picture: str | None = None, seed: int = 0) -> dict[str, float]:
    """Learn, and return the cost with its interval, the optimum, and the mean position at the end."""
    agent = tc.agents.Regulator(CART.Q[:1, :1], CART.R, sigma=SIGMA, lags=LAGS, reference=[SET_POINT], seed=seed)
    rng, root = np.random.default_rng(seed), np.linalg.cholesky(CART.noise)
    x, y = np.zeros(2), np.zeros(1)
    positions, costs = [], []
    for k in range(steps):
        u = agent.act(y)
        x = CART.A @ x + CART.B @ (u + WIND) + root @ rng.standard_normal(2)
        after = POSITION @ x + SENSOR * rng.standard_normal(1)
        agent.observe(y, u, after)
        y = after
        positions.append(x[0])
        if k % 50 == 0:
            costs.append((k, *agent.cost()))
    best, found = optimum(), agent.cost()
    print(f"mean cost {found} a step, the optimum {best:.3g}; mean position {np.mean(positions[-1000:]):.3f}")
    print(f"holds {agent.steady_state} by a force of {-WIND} against the wind; warnings: {agent.warnings}")
    if picture:
        draw(np.asarray(positions), np.asarray(costs), best, picture)
    return {
        "cost": found.value,
        "low": found.low,
        "high": found.high,
        "optimum": best,
        "at": np.mean(positions[-1000:]),
    }


def draw(positions: np.ndarray, costs: np.ndarray, best: float, picture: str) -> None:
    """The position, and the mean cost with its interval beside the optimum."""
    fig, ((above,), (below,)) = tc.plot.figure(2, 1)
    above.plot(positions, linewidth=0.8)
    above.axhline(SET_POINT, linestyle="--", color="black", label="set point")
    above.set(ylabel="position", xlabel="samples", xscale="log", xlim=(10, len(positions)))
    above.legend()
    k, value, low, high = costs[costs[:, 0] > 512].T  # from here on the start is not part of the mean
    below.plot(k, value, label="mean cost of the later half")
    below.fill_between(k, low, high, alpha=0.3, label="95 % interval")
    below.axhline(best, linestyle="--", color="black", label=f"exact optimum {best:.3g}")
    below.set(xlabel="samples", ylabel="cost a step")
    below.legend()
    fig.savefig(picture)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:3])
