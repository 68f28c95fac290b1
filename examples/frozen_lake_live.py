"""Cross Gymnasium's frozen lake, 8×8 and slippery, in the environment itself, and compare with the exact answer.

    python examples/frozen_lake_live.py [samples]

The agent acts and learns from its observations, one sample at a time. A random walk reaches the goal about once in a
thousand episodes. The agent explores because it gives a high value to unknown states (``initial_value=1``). Only the
comparison uses the lake's table: soft value iteration on it gives the optimum.
"""

from __future__ import annotations

import sys
import time

import gymnasium as gym
import numpy as np

import twoclock as tc

TEMPERATURE, GAMMA = 0.003, 0.99


def main(samples: int = 80_000, seed: int = 0) -> dict[str, float]:
    """Learn and print; return the missing share of the best soft return, and the share of episodes at the goal."""
    env = gym.make("FrozenLake-v1", map_name="8x8")
    agent = tc.agents.EntropyActorCritic(
        int(env.observation_space.n), int(env.action_space.n), TEMPERATURE, gamma=GAMMA, initial_value=1.0, seed=seed
    )
    mdp, start = tc.models.from_gymnasium(env, gamma=GAMMA)
    judge = mdp.soft(TEMPERATURE, start)
    best, ignorant = float(judge.J(judge.solve()[0])), float(judge.J(np.zeros((agent.states, agent.actions))))
    print(f"the best return with its bonus is {best:.3f}, of a random walk it is {ignorant:.3f}")

    began = time.perf_counter()
    s, _ = env.reset(seed=seed)
    for i in range(1, samples + 1):
        a = agent.act(s)
        t, reward, terminated, truncated, _ = env.step(a)
        agent.observe(s, a, t, float(reward), terminated, truncated)
        s = env.reset()[0] if terminated or truncated else t
        if i % (samples // 4) == 0:
            J = float(judge.J(np.log(np.maximum(agent.policy, 1e-300))))
            print(f"{i:,} samples: return {J:.3f}; reached the goal in {agent.returns()} of the later half of episodes")
    print(f"{(time.perf_counter() - began) / samples * 1e6:.0f} µs per sample, including the lake's time")
    return {"gap": (best - J) / best, "ignorant": (best - ignorant) / best, "goal": agent.returns().value}


if __name__ == "__main__":
    main(samples=int(float(sys.argv[1])) if len(sys.argv) > 1 else 80_000)
