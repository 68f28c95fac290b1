"""Drive a method by hand from a real environment, one transition at a time.

A random policy acts on Gymnasium's frozen lake. We learn the value of every cell by TDC with averaged operators, and
compare with the Bellman equation. The library's loop is not used: a method consists of ``method.init`` and
``method.step``.

    python examples/own_loop_gymnasium.py
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

import twoclock as tc

GAMMA = 0.95


def F(theta: Any, omega: Any, x: Any) -> Any:
    """The slow operator of TDC with one feature per cell: s and t are cells, γ is 0 where the episode ended."""
    s, reward, t, gamma = x
    delta = reward + gamma * theta[t] - theta[s]
    return jnp.zeros_like(theta).at[s].add(-2 * delta).at[t].add(2 * gamma * omega[s])


def G(theta: Any, omega: Any, x: Any) -> Any:
    s, reward, t, gamma = x
    delta = reward + gamma * theta[t] - theta[s]
    return jnp.zeros_like(omega).at[s].set(omega[s] - delta)


def exact_values(env: Any) -> np.ndarray:
    """The Bellman equation of the random policy, from the table that this environment happens to publish."""
    table = env.unwrapped.P
    A, b = np.eye(len(table)), np.zeros(len(table))
    for s, actions in table.items():
        for outcomes in actions.values():
            for probability, t, reward, ended in outcomes:
                b[s] += probability * reward / len(actions)
                A[s, t] -= 0 if ended else GAMMA * probability / len(actions)
    return np.linalg.solve(A, b)


def main(steps: int, seed: int) -> float:
    """Learn, print the start's value and the error over the cells that were visited, and return that error."""
    method = tc.Polyak(tc.Fast(alpha=0.1, beta=0.4, lam=0.5, order="fresh"), power=1.0)
    step = jax.jit(lambda state, x, k: method.step(F, G, state, x, k))

    env = gym.make("FrozenLake-v1", is_slippery=True)
    env.action_space.seed(seed)
    cells = env.observation_space.n
    state = method.init(jnp.zeros(cells), jnp.zeros(cells))
    visits = np.zeros(cells, int)
    s, _ = env.reset(seed=seed)
    for k in range(steps):
        t, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        state = step(state, (s, reward, t, 0.0 if terminated else GAMMA), k)
        visits[s] += 1
        s = env.reset()[0] if terminated or truncated else t
    truth = exact_values(env)
    env.close()

    theta, _ = method.estimate(state)
    seen = visits > 0
    error = float(np.sqrt(np.average((np.asarray(theta) - truth)[seen] ** 2, weights=visits[seen])))
    print(f"value of the start after {steps:,} transitions: {theta[0]:.4f}; by the Bellman equation: {truth[0]:.4f}")
    print(f"root mean square error over visited cells: {error:.4f} (values up to {truth.max():.3f})")
    return error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    main(options.steps, options.seed)
