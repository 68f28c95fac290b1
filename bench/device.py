"""How fast are the engines on a GPU? The engine cuda beside XLA and CUDA written by hand, in one run, in float64.

Times are slopes: what three times as many steps take longer. So what a run costs before its first step is left out.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import jax
import numpy as np
from tabular import NUMBERS, best_of, random_tables
from workloads import Timed, entropy_mdp, figure_1, lqr, streams

from twoclock.engine.cuda import Cuda
from twoclock.engine.xla import Xla

SEEDS = ((1_000, 10_000), (10_000, 4_000), (100_000, 1_000), (1_000_000, 150))


class Yardstick:
    def __init__(self, seeds: int) -> None:
        import cupy

        self.seeds = seeds
        self.kernel = cupy.RawKernel(Path(__file__).with_name("yardstick.cu").read_text(), "run", backend="nvrtc")
        tables = random_tables()
        tables.pop("theta_star")
        self.arrays = [cupy.asarray(table) for table in (*tables.values(), streams(seeds))]
        self.theta = cupy.empty((seeds, 10))

    def walk(self, steps: int) -> None:
        import cupy

        numbers = [np.float64(n) for n in NUMBERS]
        shape = [np.int32(n) for n in (steps, self.seeds, 50, 50)]
        blocks = -(-self.seeds // 64)
        self.kernel((blocks,), (64,), (*shape, *self.arrays, *numbers, self.theta))
        cupy.cuda.get_current_stream().synchronize()


def slope(walk, steps: int, seeds: int, repeats: int = 3) -> float:
    """Nanoseconds a seed-step."""
    few, many = (best_of(repeats + 1, lambda n=n: walk(n)) for n in (steps, 3 * steps))
    return (many - few) / (2 * steps * seeds) * 1e9


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    print(f"{len(jax.devices())} × {jax.devices()[0].device_kind}, jax {jax.__version__}", flush=True)
    rows = []
    for name, workload in (("Figure 1", figure_1), ("LQR", lqr), ("entropy MDP", entropy_mdp)):
        for seeds, steps in SEEDS:
            began = time.perf_counter()
            runs = {"cuda": Timed(workload, seeds, Cuda())}
            runs["cuda"].walk(10)
            ready = time.perf_counter() - began
            runs["xla"] = Timed(workload, seeds, Xla())
            if workload is figure_1:
                runs["by hand"] = Yardstick(seeds)
            row: dict[str, object] = {"work": name, "seeds": seeds, "ready_s": round(ready, 2)}
            for key, run in runs.items():
                n = steps if key != "xla" else max(min(1_000, 5_000_000 // seeds), 5)
                row[key] = slope(run.walk, n, seeds, 1 if key == "xla" else 3)
            if seeds == 1_000:
                ours = runs["cuda"].theta(2_000).reshape(seeds, -1)
                row["difference from xla"] = float(np.max(np.abs(ours - runs["xla"].theta(2_000).reshape(seeds, -1))))
                if workload is figure_1:
                    runs["by hand"].walk(2_000)
                    row["difference from by hand"] = float(np.max(np.abs(ours - runs["by hand"].theta.get())))
            rows.append(row)
            print(json.dumps(row), flush=True)
    if "OUT" in os.environ:
        (Path(os.environ["OUT"]) / "device.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
