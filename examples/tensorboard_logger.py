"""Watch a run in TensorBoard: a logger is a function that is called with every progress event.

``tick.metrics`` holds plain floats, the mean over seeds of each metric ("label/metric" where several methods run), and
is empty between marks. For MLflow the body is one line: ``mlflow.log_metrics(tick.metrics, step=tick.step)``.

    python examples/tensorboard_logger.py --out runs/tensorboard
    tensorboard --logdir runs/tensorboard
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tensorboardX import SummaryWriter

import twoclock as tc
from twoclock import Result


def main(steps: int, seeds: int, out: Path) -> dict[str, Result]:
    """Run two methods on a quadratic, log the metrics at each mark, and print the last ones."""
    methods = {"fast": tc.Fast(), "standard": tc.Standard()}
    with SummaryWriter(str(out)) as writer:

        def log(tick: tc.ProgressEvent) -> None:
            for name, value in tick.metrics.items():
                writer.add_scalar(name, value, tick.step)
            if tick.step == steps:
                print(tick)

        results = tc.solve(tc.problems.quadratic(dim=3), methods, steps, seeds, progress=log)
    print(f"logged to {out}; look at it with: tensorboard --logdir {out}")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/tensorboard"))
    options = parser.parse_args()
    main(options.steps, options.seeds, options.out)
