"""Learn to cross Gymnasium's frozen lake, 8×8 and slippery, and draw what was learnt beside the exact answer.

    python examples/frozen_lake.py [steps] [picture.png]

The actor and the critic see one sample per step. The lake's table is used to make the samples and, for the report, to
compute the optimum.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np

import twoclock as tc
from twoclock import plot


def main(steps: int = 3_000_000, seeds: int = 2, size: int = 8, out: Path = Path("frozen_lake.png")) -> float:
    """Train, print and draw; return the mean gap as a share of the best return."""
    env = gym.make("FrozenLake-v1", map_name=f"{size}x{size}")
    mdp, start = tc.models.from_gymnasium(env, gamma=0.95)
    problem = tc.problems.entropy_mdp(mdp, temp=0.01, start=start)
    best = float(problem.truth.J_star)
    method = tc.Fast(
        alpha=tc.Power(3e5, shift=6e6), beta=tc.Power(5e4, shift=2e5), lam=tc.Power(4e5, shift=1.6e6)
    )  # from 0.05, 1/4 and 1/4 on

    began = time.perf_counter()
    result = tc.solve(problem, method, steps=steps, seeds=seeds)
    took = time.perf_counter() - began

    table = result.summary("gap")
    share = float(table["mean"].iloc[-1]) / best
    under = table["step"][(table["mean"] < 0.01 * best).to_numpy()]
    print(f"{steps:,} steps of {seeds} seeds in {took:.1f} s, compiling and recording included")
    print(
        f"J* = {best:.4f}; mean gap {share:.2%} of it"
        + (f", under 1 % from step {under.iloc[0]:,}" if len(under) else "")
    )

    pi = np.asarray(problem.policy(result.theta[0]))
    fig, axes = plot.figure(1, 2, width=0.72 * size, height=0.79 * size)
    for ax, title, values, policy in (
        (axes[0, 0], f"learnt in {steps:,} samples", result.omega[0], pi),
        (axes[0, 1], "exact", mdp.soft_values(0.01), mdp.soft_policy(0.01)),
    ):
        plot.grid_world(ax, values, policy, env.unwrapped.desc)
        ax.set_title(title, fontsize="medium")
    plot.caption(
        fig,
        "FrozenLake, slippery, γ = 0.95, τ = 0.01. Numbers: V. An arrow is as long as its action is likely.",
    )
    out.write_bytes(plot.render(fig)["png"])
    return share


if __name__ == "__main__":
    main(
        steps=int(float(sys.argv[1])) if len(sys.argv) > 1 else 3_000_000,
        out=Path(sys.argv[2]) if len(sys.argv) > 2 else Path("frozen_lake.png"),
    )
