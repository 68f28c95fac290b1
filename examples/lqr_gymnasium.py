"""Tune a regulator on a Gymnasium environment that is seen only through reset and step.

The environment has linear dynamics and a quadratic cost, but its matrices are not used here. The two operators use
what ``step`` returns, and the method is called by its public ``step``. Any environment with box spaces and the cost
−reward works.

    python examples/lqr_gymnasium.py [steps]
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import jax
import numpy as np

import twoclock as tc


class LinearPlant(gym.Env):
    """x' = Ax + Bu + w, reward −(xᵀQx + uᵀRu)."""

    def __init__(self, lqr: tc.models.Lqr) -> None:
        n, m = lqr.shape
        self._lqr = lqr
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (n,), np.float64)
        self.action_space = gym.spaces.Box(-np.inf, np.inf, (m,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._x = np.zeros(self.observation_space.shape)
        return self._x, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        lqr, x = self._lqr, self._x
        cost = x @ lqr.Q @ x + action @ lqr.R @ action
        noise = self.np_random.multivariate_normal(np.zeros(len(x)), lqr.noise)
        self._x = lqr.A @ x + lqr.B @ action + noise
        return self._x, -float(cost), False, False, {}


def train(env: gym.Env, K0: np.ndarray, method: tc.Fast, steps: int, sigma: float = 1.0, seed: int = 0) -> Any:
    """The state of the method after learning online from one trajectory; ``state.theta`` is the gain."""
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        operators = tc.problems.ActorCritic(kappa=2.0)
        state = method.init(*operators.start(K0))
        update = jax.jit(lambda state, sample, k: method.step(operators.F, operators.G, state, sample, k))

        def act(x: np.ndarray) -> np.ndarray:
            return -np.asarray(state.theta) @ x + sigma * rng.standard_normal(len(K0))

        x, _ = env.reset(seed=seed)
        u = act(x)
        for k in range(steps):
            after, reward, terminated, truncated, _ = env.step(u)
            then = act(after)
            sample = {"z": np.append(x, u), "next": np.append(after, then), "c": -reward}
            state = update(state, sample, k)
            x, u = after, then
            if terminated or truncated:
                x, _ = env.reset()
                u = act(x)
    return state


def main(steps: int = 50_000) -> None:
    lqr = tc.problems.paper_lqr().lqr
    method = tc.Fast(tc.Power(1.0, shift=1000.0), tc.Power(2.0, shift=1000.0), tc.Power(80.0, shift=1000.0))
    K0 = np.zeros((2, 3))
    state = train(LinearPlant(lqr), K0, method, steps)
    best = lqr.J(lqr.gain, 1.0)
    print(
        f"J − J* at the start {lqr.J(K0, 1.0) - best:.2g}, after {steps:,} steps {lqr.J(state.theta, 1.0) - best:.2g}"
    )
    print(f"K  = {np.asarray(state.theta).round(3).tolist()}\nK* = {lqr.gain.round(3).tolist()}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
