"""A plant that changes while it is regulated: a regulator that forgets beside one that does not.

The actuator of a second-order plant wears out: after a third of the run the effect of its actions is a quarter of what
it was. Both regulators learn a model while they act. The one that forgets follows the plant; the other one still
averages over the old plant.

    python examples/drifting_plant.py [steps]
"""

from __future__ import annotations

import sys
import warnings

import numpy as np

import twoclock as tc

A, Q, R = np.array([[1.0, 0.5], [-0.1, 0.9]]), np.eye(2), np.eye(1)
NEW, WORN = np.array([[0.0], [1.0]]), np.array([[0.0], [0.25]])


def excess(gain: np.ndarray, B: np.ndarray) -> float:
    """J(K) − J* on the plant as it is."""
    lqr = tc.models.Lqr(A, B, Q, R)
    return float(lqr.J(gain) - lqr.J(lqr.gain))


def run(forgetting: float, steps: int, seed: int = 0) -> float:
    """The excess cost on the worn plant at the end."""
    agent = tc.agents.Regulator(Q, R, K0=[[0.3, 0.5]], sigma=0.5, forgetting=forgetting)
    rng, x = np.random.default_rng(seed), np.zeros(2)
    for k in range(steps):
        B = NEW if k < steps // 3 else WORN
        u = agent.act(x)
        after = A @ x + B @ u + 0.3 * rng.standard_normal(2)
        agent.observe(x, u, after)
        x = after
    return excess(agent.gain, WORN)


def main(steps: int = 6000) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tc.agents.PlantWarning)  # they notice that the plant is not one linear plant
        found = {name: run(forgetting, steps) for name, forgetting in {"forgets": 0.003, "static": 0.0}.items()}
    for name, value in found.items():
        print(f"{name}: J(K) − J* on the worn plant {value:.4g}")
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
