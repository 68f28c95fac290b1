"""Cross the slippery frozen lake and fall at most 0.05 times: the price of a limit, learnt on three clocks.

    python examples/constrained_mdp.py [steps] [picture.png]

The multiplier of the limit is the slowest clock, then the policy, then the critics of reward and cost. The same run
with a step of the multiplier that is a hundred times larger never settles, which shows why the order matters.
"""

from __future__ import annotations

import sys
from pathlib import Path

import twoclock as tc
from twoclock import plot

POLICY, CRITICS, LAM = "10000/(k+200000)", "5000/(k+20000)", "20000/(k+80000)"  # from 1/20, 1/4 and 1/4 on
METHODS = {
    "multiplier slowest": tc.Fast("20/(k+400000)", (POLICY, CRITICS), LAM),
    "a hundred times quicker": tc.Fast("2000/(k+400000)", (POLICY, CRITICS), LAM),
}


def main(steps: int = 1_000_000, seeds: int = 8, out: Path = Path("constrained_mdp.png")) -> dict[str, float]:
    """Learn, print and draw; the mean multiplier, gap and violation at the end of the run in the right order."""
    problem = tc.problems.constrained_frozen_lake(limit=0.05, temp=0.01)
    kappa, reward = float(problem.multipliers[0]), float(problem.reward_star)
    results = tc.solve(problem, METHODS, steps, seeds)
    print(f"exact: multiplier {kappa:.4f}, reward with its bonus {reward:.4f}")
    ends = {}
    for name, result in results.items():
        last = result.history[result.history["step"] == steps]
        ends[name] = {metric: float(last[metric].mean()) for metric in ("multiplier", "gap", "violation")}
        off = float(last["error"].mean()) ** 0.5
        print(f"{name}: " + ", ".join(f"{m} {v:.4f}" for m, v in ends[name].items()) + f", κ off by {off:.4f}")

    fig, axes = plot.figure(1, 3, width=3.4, height=3.2)
    for name, result in results.items():
        for ax, metric in zip(axes[0], ("multiplier", "gap", "violation"), strict=True):
            table = result.history.pivot(index="step", columns="seed", values=metric)
            color = ax.plot(table.index, table.mean(axis=1), label=name)[0].get_color()
            ax.fill_between(table.index, table.min(axis=1), table.max(axis=1), color=color, alpha=0.2)
            ax.set(xscale="log", xlim=(1e3, steps), xlabel="samples", title=metric)
    axes[0, 0].axhline(kappa, color="black", linestyle="--", linewidth=1)
    axes[0, 0].set(yscale="symlog", ylim=(0, None))
    axes[0, 1].set(yscale="log")
    axes[0, 2].legend()
    plot.caption(
        fig, f"FrozenLake 4×4, falls ≤ 0.05, γ = 0.95, τ = 0.01; {seeds} seeds: mean, least, largest. Dashed: exact."
    )
    out.write_bytes(plot.render(fig)["png"])
    return ends["multiplier slowest"]


if __name__ == "__main__":
    main(
        steps=int(float(sys.argv[1])) if len(sys.argv) > 1 else 1_000_000,
        out=Path(sys.argv[2]) if len(sys.argv) > 2 else Path("constrained_mdp.png"),
    )
