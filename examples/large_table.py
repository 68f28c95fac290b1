"""Evaluate a policy on a table of 100,000 states, exactly and from samples, and draw both.

    python examples/large_table.py [steps] [picture.png]

A field of 400 × 250 cells, given as lists of successors. A walker heads for the goal, but the wind takes it to one of
nine cells around its aim. A walk that ends restarts at one of nine gates. The exact values come from a sparse
solve. TD learns them from one walk, with one weight for each tile of 25 × 25 cells.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import twoclock as tc
from twoclock import plot

WIDTH, HEIGHT, TILE = 400, 250, 25
GOAL = (320, 125)


def field(gamma: float = 0.995) -> tuple[tc.models.Mdp, np.ndarray]:
    """The field as a sparse MDP, and a policy that mostly heads for the goal."""
    cell = np.arange(WIDTH * HEIGHT)
    x, y = cell % WIDTH, cell // WIDTH
    moves = ((-1, 0), (1, 0), (0, -1), (0, 1))
    around = [(dx, dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)]
    successors = np.empty((len(cell), len(moves), len(around)), np.int32)
    for a, (ax, ay) in enumerate(moves):
        for k, (dx, dy) in enumerate(around):
            column, row = np.clip(x + ax + dx, 0, WIDTH - 1), np.clip(y + ay + dy, 0, HEIGHT - 1)
            successors[:, a, k] = row * WIDTH + column
    P = np.tile([0.05, 0.05, 0.05, 0.05, 0.6, 0.05, 0.05, 0.05, 0.05], (len(cell), len(moves), 1))
    goal = GOAL[1] * WIDTH + GOAL[0]
    P[goal] = 1 / 9  # the gates
    reward = np.where(successors == goal, 1.0, 0.0)
    discount = np.where(successors == goal, 0.0, gamma)
    gates = [row * WIDTH + column for row in (0, HEIGHT // 2, HEIGHT - 1) for column in (0, WIDTH // 2, WIDTH - 1)]
    successors[goal], reward[goal], discount[goal] = gates, 0.0, gamma  # where the next walk begins
    mdp = tc.models.Mdp(P, reward, discount, successors)
    toward = np.column_stack([x - GOAL[0], GOAL[0] - x, y - GOAL[1], GOAL[1] - y])
    return mdp, np.where(toward > 0, 2.0, 1.0) / np.where(toward > 0, 2.0, 1.0).sum(axis=1, keepdims=True)


def main(steps: int = 1_000_000, seeds: int = 4, out: Path = Path("large_table.png")) -> dict[str, float]:
    """Solve, learn, print and draw; return the error of the learnt values and that of the best values on tiles."""
    mdp, policy = field()
    cell = np.arange(mdp.states)
    tile = cell // WIDTH // TILE * (WIDTH // TILE) + cell % WIDTH // TILE
    problem = tc.problems.policy_evaluation(mdp, np.eye(tile.max() + 1)[tile], policy, operator="td", sampling="markov")
    result = tc.solve(problem, tc.Standard(tc.Power(1e4, shift=2e4)), steps=steps, seeds=seeds)
    floor = float(problem.truth.rmsve(problem.truth.theta_star))
    error = float(result.summary("rmsve")["mean"].iloc[-1])
    print(f"{mdp.states:,} states, {steps:,} transitions: error {error:.4f}; of the fixed point on tiles {floor:.4f}")

    fig, axes = plot.figure(1, 3, width=4.2, height=3.0)
    learnt = problem.features @ np.mean(result.theta, axis=0)
    for ax, values, title in (
        (axes[0, 0], problem.truth.values, "exact"),
        (axes[0, 1], learnt, "learnt from one walk"),
    ):
        shown = ax.imshow(values.reshape(HEIGHT, WIDTH), origin="lower", vmin=0, vmax=problem.truth.values.max())
        ax.set(title=f"V_π, {title}", xticks=[], yticks=[])
        fig.colorbar(shown, ax=ax, shrink=0.7)
    plot.compare({"TD": result}, "rmsve", title="‖V − V_π‖, weighed by visits", ax=axes[0, 2])
    axes[0, 2].axhline(floor, color="black", linewidth=0.8, linestyle=":")
    out.write_bytes(plot.render(fig)["png"])
    return {"error": error, "floor": floor}


if __name__ == "__main__":
    main(
        steps=int(float(sys.argv[1])) if len(sys.argv) > 1 else 1_000_000,
        out=Path(sys.argv[2]) if len(sys.argv) > 2 else Path("large_table.png"),
    )
