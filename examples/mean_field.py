"""A mean field on two clocks: a slow population and a slow policy lead to different answers.

The cost of an agent grows with its distance from 0.6, with that from 1.5 times the mean of all, and with the square of
the mean. If the population is slow, each agent responds to a fixed crowd, and the run finds the Nash equilibrium, mean
0.8. If the policy is slow, the crowd follows it, and the run finds the social optimum, mean 0.192. Exact answers are
dashed.

    python examples/mean_field.py --out mean_field.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import twoclock as tc
from twoclock import plot

ANSWERS = {"population": "Nash equilibrium", "policy": "social optimum"}
# Slow; population or policy, critic.
METHOD = tc.Polyak(tc.Standard("1/(k+3000)^0.6", ("1/(k+3000)^0.6", "2/(k+3000)^0.6")), power=2)


def main(steps: int, seeds: int, out: Path | None) -> dict[str, float]:
    """Learn both, print the means beside the exact ones, draw, and return the learnt means."""
    model = tc.models.LinearQuadraticField(c1=0.25, c2=1.5, c3=0.5, c4=0.6, c5=1.0, sigma=0.3)
    results = {slow: tc.solve(tc.problems.mean_field(model, slow), METHOD, steps, seeds) for slow in ANSWERS}
    found = {}
    for slow, result in results.items():
        ends = result.history[result.history["step"] == steps]
        found[slow] = float(ends["mean"].mean())
        policy = result.omega[0] if slow == "population" else result.theta
        print(
            f"slow {slow}: mean {found[slow]:.4f}, exact {model.mean(slow):.4f} ({ANSWERS[slow]}); "
            f"gain {policy[:, 0].mean():.4f}, exact {model.gain:.4f}"
        )
    if out is not None:
        draw(results, model, out)
        print(f"picture: {out}")
    return found


def draw(results: dict[str, tc.Result], model: tc.models.LinearQuadraticField, out: Path) -> None:
    fig, ((left, right),) = plot.figure(1, 2)
    x = np.linspace(-1.0, 2.0)
    for i, (slow, result) in enumerate(results.items()):
        label, colour = f"{slow} slow: {ANSWERS[slow]}", plot.COLOURS[i]
        by_step = result.history.groupby("step")["mean"]
        shown = by_step.mean().iloc[1:]
        left.plot(shown.index, shown, color=colour, label=label)
        left.fill_between(shown.index, by_step.min().iloc[1:], by_step.max().iloc[1:], color=colour, alpha=0.2, lw=0)
        left.axhline(float(model.mean(slow)), color=colour, linestyle="--", linewidth=1)
        K, b = np.mean(result.omega[0] if slow == "population" else result.theta, axis=0)
        right.plot(x, b - K * x, color=colour, label=label)
        K, b = np.asarray(model.answer(slow))
        right.plot(x, b - K * x, color="0.2", linestyle="--", linewidth=1)
    left.set(xscale="log", xlabel="samples", ylabel="mean of the population")
    left.legend(frameon=False, fontsize="small", loc="upper left")
    right.axhline(0.0, color="0.8", linewidth=0.8)
    right.set(xlabel="state x of an agent", ylabel="mean action b − Kx")
    right.legend(frameon=False, fontsize="small")
    run = next(iter(results.values())).spec
    plot.caption(fig, f"mean and range of {len(run['seeds'])} seeds, {run['steps']:,} samples; exact answers dashed")
    out.write_bytes(plot.render(fig)["png"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=None)
    main(**vars(parser.parse_args()))
