"""Learn two zero-sum games from play, and draw how far the players are from the saddle as they learn.

    python examples/markov_game.py [steps] [picture.png]

A matrix game and a pursuit on 3×3 cells, each at a fixed temperature and at one that falls to 0. The tables are used to
make the samples and, for the report, to compute the gain of an exact best response.
"""

from __future__ import annotations

import sys
from pathlib import Path

import twoclock as tc
from twoclock import plot


def settings() -> dict[str, tuple[tc.Problem, tc.Standard]]:
    """The games with a step size per level: the maximiser, then the minimiser and the critic."""
    return {
        "matrix game, τ = 0.5": (
            tc.problems.matrix_game(0.5),
            tc.Standard("100/(k+2000)", ("100/(k+2000)", "400/(k+2000)")),
        ),
        "matrix game, τ falls": (
            tc.problems.matrix_game("8/(k+1000)^0.33"),
            tc.Standard("1/(k+1000)^0.67", ("1/(k+1000)^0.67", "4/(k+1000)^0.67")),
        ),
        "pursuit, τ = 0.1": (
            tc.problems.pursuit(temp=0.1),
            tc.Standard("1000/(k+2e4)", ("2000/(k+2e4)", "4000/(k+2e4)")),
        ),
        "pursuit, τ falls": (
            tc.problems.pursuit(temp="1/(k+1000)^0.33"),
            tc.Standard("10/(k+1e4)^0.67", ("20/(k+1e4)^0.67", "100/(k+1e4)^0.67")),
        ),
    }


def main(steps: int = 1_000_000, seeds: int = 8, out: Path = Path("markov_game.png")) -> dict[str, float]:
    """Train, print and draw; return the mean exploitability at the end of each game, relative to that at the start."""
    results = {label: tc.solve(problem, method, steps, seeds) for label, (problem, method) in settings().items()}
    shares = {}
    for label, result in results.items():
        mean = result.history.groupby("step")["exploitability"].mean()
        shares[label] = float(mean.iloc[-1] / mean.iloc[0])
        print(f"{label}: exploitability {mean.iloc[0]:.3g} at the start, {mean.iloc[-1]:.3g} after {steps:,} samples")
    fig = plot.compare(results, "exploitability")
    fig.axes[0].set_title("Zero-sum games: what exact best responses would still gain")
    out.write_bytes(plot.render(fig)["png"])
    return shares


if __name__ == "__main__":
    main(
        steps=int(float(sys.argv[1])) if len(sys.argv) > 1 else 1_000_000,
        out=Path(sys.argv[2]) if len(sys.argv) > 2 else Path("markov_game.png"),
    )
