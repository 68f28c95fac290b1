"""Evaluate a policy off-policy from logged transitions of a real task, with a neural network as the value function.

The task is Gymnasium's CartPole. The behaviour policy pushes to either side at random; the target pushes towards the
side to which the pole falls three times in four, and does not act while its value is learnt. An Equinox network learns
the target's value from the behaviour's log, by nonlinear TDC, standard and Fast, and by TD(0). The truth is Monte
Carlo: many episodes of the target from states that the log does not hold.

    python examples/nonlinear_gymnasium.py --out value.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

import twoclock as tc
from twoclock import plot
from twoclock.sampling.transitions import Transition

GAMMA = 0.95
TARGET, BEHAVIOUR = 0.75, 0.5
SCALE = np.array([1.0, 1.0, 0.1, 1.0])


def pushes_with(state: np.ndarray, skill: float, rng: np.random.Generator) -> tuple[int, bool]:
    """The action, and whether it is towards the side to which the pole falls."""
    good = int(state[2] + 0.25 * state[3] > 0)
    sound = bool(rng.random() < skill)
    return (good if sound else 1 - good), sound


def collect(transitions: int, seed: int) -> Transition:
    """The behaviour's log: observations, rewards, discounts (0 where the pole fell) and ratios π/b."""
    env = gym.make("CartPole-v1", max_episode_steps=100_000)
    rng = np.random.default_rng(seed)
    s, _ = env.reset(seed=seed)
    rows = []
    for _ in range(transitions):
        action, sound = pushes_with(s, BEHAVIOUR, rng)
        t, reward, fell, _, _ = env.step(action)
        rho = TARGET / BEHAVIOUR if sound else (1 - TARGET) / (1 - BEHAVIOUR)
        # A reward of 1 − γ per step keeps values in [0, 1], which suits a network.
        rows.append((s / SCALE, t / SCALE, rho, (1 - GAMMA) * reward, 0.0 if fell else GAMMA))
        s = env.reset()[0] if fell else t
    env.close()
    return Transition(*(np.asarray(column, dtype=np.float64) for column in zip(*rows, strict=True)))


def monte_carlo(states: np.ndarray, episodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The target's value of each state and the standard error: the mean of many discounted returns."""
    env = gym.make("CartPole-v1").unwrapped
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    returns = np.zeros((len(states), episodes))
    for i, j in np.ndindex(returns.shape):
        env.state, env.steps_beyond_terminated = tuple(states[i] * SCALE), None
        s, weight, fell = states[i] * SCALE, 1.0, False
        while not fell and weight > 1e-3:
            s, reward, fell, _, _ = env.step(pushes_with(s, TARGET, rng)[0])
            returns[i, j] += weight * (1 - GAMMA) * reward
            weight *= GAMMA
    return returns.mean(axis=1), returns.std(axis=1, ddof=1) / np.sqrt(episodes)


def evaluation(log: Transition, states: np.ndarray, truth: np.ndarray, operator: str, seed: int) -> Any:
    """The log as a problem: each step draws one of its transitions, and the Monte Carlo value measures."""
    network = eqx.nn.MLP(4, "scalar", width_size=32, depth=2, activation=jnp.tanh, key=jax.random.key(seed))
    params, rest = eqx.partition(network, eqx.is_array)

    def value(params: Any, state: Any) -> Any:
        return eqx.combine(params, rest)(state)

    F, G = tc.problems.value_operators(value, operator, factor=1.0)
    size = len(log.r)

    def measure(theta: Any, omega: Any) -> dict[str, Any]:
        wrong = jax.vmap(lambda s: value(theta, s))(jnp.asarray(states)) - jnp.asarray(truth)
        return {"rmsve": jnp.sqrt(jnp.mean(jnp.square(wrong)))}

    return tc.problems.custom(
        F=F,
        G=G,
        noise=lambda key: jax.random.randint(key, (), 0, size),
        draw=lambda u, theta, env: (jax.tree.map(lambda column: jnp.asarray(column)[u], log), env),
        theta=params,
        omega=() if operator == "td" else jax.tree.map(jnp.zeros_like, params),
        measure=measure,
    )


def main(steps: int, seeds: int, transitions: int, episodes: int, out: Path | None) -> dict[str, float]:
    """Learn with each method, print and draw the errors against Monte Carlo, and return them."""
    log = collect(transitions, seed=0)
    held_out = collect(2_000, seed=1).s[::20]
    truth, doubt = monte_carlo(held_out, episodes, seed=2)
    print(f"Monte Carlo truth at {len(truth)} states: mean {truth.mean():.3f}, standard error {doubt.mean():.4f}")

    # The best of six settings for TDC and of four for TD(0), on two seeds and a shorter log.
    slow, quick, td = (tc.Power(c, p=0.5, shift=1_000.0) for c in (8.0, 0.3, 4.0))
    runs = {
        "nonlinear TDC, Fast": ("tdc", tc.Fast(slow, quick, 0.25)),
        "nonlinear TDC, standard": ("tdc", tc.Standard(slow, quick)),
        "nonlinear TD(0)": ("td", tc.Standard(td, 0.0)),
    }
    results = {
        label: tc.solve(evaluation(log, held_out, truth, operator, seed=0), method, steps, seeds)
        for label, (operator, method) in runs.items()
    }
    last = {label: float(result.summary("rmsve")["mean"].iloc[-1]) for label, result in results.items()}
    for label, error in last.items():
        print(f"{label}: root mean square value error {error:.3f} (spread of the truth {truth.std():.3f})")
    if out is not None:
        fig = plot.compare(results, "rmsve", title="CartPole, off-policy from a log, neural value function")
        out.write_bytes(plot.render(fig)["png"])
        print(f"picture: {out}")
    return last


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--transitions", type=int, default=50_000)
    parser.add_argument("--episodes", type=int, default=100, help="Monte Carlo episodes a state")
    parser.add_argument("--out", type=Path, default=None)
    main(**vars(parser.parse_args()))
