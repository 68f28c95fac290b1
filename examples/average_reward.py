"""Learn whom to serve and where to swim for the highest reward per step, and draw it beside the exact answers.

    python examples/average_reward.py [steps] [picture.png]

Access-control queuing (Sutton & Barto, example 10.2) and RiverSwim, each by an actor, a gain and a differential critic
on separate clocks, with the same step sizes for both.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import twoclock as tc
from twoclock import plot

TEMP = 0.1


def main(steps: int = 1_000_000, seeds: int = 8, out: Path = Path("average_reward.png")) -> dict[str, float]:
    """Train, print and draw; return how far the policies' mean gain is below the best gain, as a share of it."""
    actor, gain, critic, average = (tc.Power(c * 1e5, shift=1e5) for c in (0.03, 0.002, 0.2, 0.5))
    methods = {
        "Fast": tc.Fast(actor, (gain, critic), average),
        "Standard": tc.Standard(actor, (gain, critic)),
    }
    fig, axes = plot.figure(1, 3, width=4.4, height=3.6)
    short = {}
    cases = {"Access control": tc.problems.access_control, "RiverSwim": tc.problems.river_swim}
    for ax, (title, make) in zip(axes[0], cases.items(), strict=False):
        problem, best = make(TEMP), float(make().best)
        results = tc.solve(problem, methods, steps=steps, seeds=seeds)
        for label, result in results.items():
            reached = float(result.summary("gain")["mean"].iloc[-1])
            short[f"{title}, {label}"] = 1 - reached / best
            print(f"{title}, {label}: mean gain {reached:.5f} of {best:.6f} after {steps:,} samples")
        plot.compare(results, "gain", title=f"{title}: the best gain is {best:.4f}", ax=ax, scale="linear")
        ax.set_xscale("log")
        ax.axhline(best, color="black", linewidth=0.8, linestyle=":")
        if title == "Access control":
            taken = np.mean([problem.policy(theta)[:, 1] for theta in results["Fast"].theta], axis=0).reshape(-1, 4)[1:]
            exact = np.exp(make().truth.solve().log_pi)[:, 1].reshape(-1, 4)[1:]
    ax = axes[0, 2]
    shown = ax.imshow(
        taken.T, origin="lower", vmin=0, vmax=1, cmap="Blues", aspect="auto", extent=(0.5, 10.5, -0.5, 3.5)
    )
    fig.colorbar(shown, ax=ax, label="taken, by Fast")
    n, i = np.nonzero(exact > 0.5)
    ax.plot(n + 1, i, "o", color="black", markersize=4, fillstyle="none")
    ax.set_title("○ taken by the best policy", fontsize="medium")
    ax.set(xlabel="free servers", ylabel="the customer pays", xticks=range(1, 11))
    ax.set_yticks(range(4), ["1", "2", "4", "8"])
    out.write_bytes(plot.render(fig)["png"])
    return short


if __name__ == "__main__":
    main(
        steps=int(float(sys.argv[1])) if len(sys.argv) > 1 else 1_000_000,
        out=Path(sys.argv[2]) if len(sys.argv) > 2 else Path("average_reward.png"),
    )
