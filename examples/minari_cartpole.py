"""Evaluate a policy on a Minari dataset that another policy recorded, and check it against rollouts.

A hesitant policy drives CartPole while Minari records it, with the probability of each action. From that dataset alone
we estimate what a steadier policy would earn, with an interval. Then we let that policy drive, which may be impossible
on a real machine, and compare.

    python examples/minari_cartpole.py
"""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any

import gymnasium as gym
import numpy as np

import twoclock as tc

GAMMA = 0.95


def pushes_right(state: Any, steady: float) -> np.ndarray:
    """The probability of a push to the right, higher if the pole falls there; near 0 or 1 if steady."""
    x = np.atleast_2d(state)
    return 1 / (1 + np.exp(-steady * (x[:, 2] + 0.3 * x[:, 3])))


def policy(steady: float) -> Any:
    """A function from a batch of states to the probabilities of left and right."""
    return lambda state: np.column_stack([1 - pushes_right(state, steady), pushes_right(state, steady)])


class TellsPropensity(gym.Wrapper):  # type: ignore[type-arg]
    """The info of each step has the probability of its action."""

    def __init__(self, env: gym.Env[Any, Any], steady: float) -> None:
        super().__init__(env)
        self.steady = steady

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self.state, info = self.env.reset(**options)
        return self.state, {**info, "action_log_prob": 0.0}

    def step(self, action: Any) -> Any:
        right = float(pushes_right(self.state, self.steady)[0])
        self.state, reward, terminated, truncated, info = self.env.step(action)
        return (
            self.state,
            reward,
            terminated,
            truncated,
            {**info, "action_log_prob": np.log(right if action else 1 - right)},
        )


def drive(env: Any, steady: float, episodes: int, seed: int) -> np.ndarray:
    """The discounted return of each episode."""
    rng, returns = np.random.default_rng(seed), []
    for episode in range(episodes):
        state, _ = env.reset(seed=seed * 100_000 + episode)
        total, discount, over = 0.0, 1.0, False
        while not over:
            state, reward, terminated, truncated, _ = env.step(int(rng.random() < pushes_right(state, steady)[0]))
            total, discount, over = total + discount * reward, discount * GAMMA, terminated or truncated
        returns.append(total)
    return np.array(returns)


def record(name: str, episodes: int, steady: float) -> None:
    """A Minari dataset of the hesitant policy, in the folder that MINARI_DATASETS_PATH names."""
    import minari

    collector = minari.DataCollector(TellsPropensity(gym.make("CartPole-v1"), steady), record_infos=True)
    drive(collector, steady, episodes, seed=1)
    collector.create_dataset(
        name, algorithm_name="hesitant", author="twoclock", code_permalink="examples/minari_cartpole.py"
    )
    collector.close()


def main(episodes: int = 300, rollouts: int = 300, centres: int = 100) -> tuple[Any, float, float]:
    """The evaluation, and the Monte-Carlo truth with its standard error."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder
        record("cartpole/hesitant-v0", episodes, steady=2.0)
        log = tc.logs.read("cartpole/hesitant-v0")
        print(log)
        v = tc.evaluate(
            log, {"as logged": policy(2.0), "steadier": policy(4.0)}, GAMMA, features=tc.logs.features.Rbf(centres)
        )
    print(v)
    print(v.table.to_string())
    returns = drive(gym.make("CartPole-v1", max_episode_steps=200), 4.0, rollouts, seed=2)
    truth, error = float(returns.mean()), float(returns.std(ddof=1) / np.sqrt(rollouts))
    print(f"The steadier policy's rollouts earn {truth:.4g} ± {1.96 * error:.2g}.")
    return v, truth, error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--rollouts", type=int, default=300)
    main(**vars(parser.parse_args()))
