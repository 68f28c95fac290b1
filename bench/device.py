"""How fast are the engines on a GPU? The engine cuda beside XLA and CUDA written by hand, in one run, in float64.

Times are slopes: the additional time of three times as many steps. So the cost before the first step is left out.
Then whole calls of ``solve``, the second time and later, with all that it measures at the default marks.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tabular import NUMBERS, best_of, random_tables
from workloads import Timed, entropy_mdp, figure_1, lqr

import twoclock as tc
from twoclock import prng
from twoclock.engine.cuda_engine import CudaEngine
from twoclock.engine.engines import Xla

WHOLE = ((1_000, 100_000), (10_000, 10_000), (100_000, 1_000), (1_000_000, 1_000))
SEEDS = ((1_000, 10_000), (10_000, 4_000), (100_000, 1_000), (1_000_000, 150))


class Figure1:
    """The kernel of yardstick.cu, and θ where it ends."""

    def __init__(self, seeds: int, options: tuple[str, ...] = ()) -> None:
        import cupy

        self.seeds = seeds
        text = Path(__file__).with_name("yardstick.cu").read_text()
        self.kernel = cupy.RawKernel(text, "run", options, backend="nvrtc")
        tables = random_tables()
        tables.pop("theta_star")
        self.arrays = [cupy.asarray(table) for table in (*tables.values(), prng.stream_words(range(seeds)))]
        self.end = cupy.empty((seeds, 10))

    def walk(self, steps: int) -> None:
        numbers = [np.float64(n) for n in NUMBERS]
        shape = [np.int32(n) for n in (steps, self.seeds, 50, 50)]
        launch(self.kernel, -(-self.seeds // 64), 64, (*shape, *self.arrays, *numbers, self.end))


class Lqr:
    """The kernels of lqr.cu, and all that a lane carries where they end."""

    def __init__(self, seeds: int, options: tuple[str, ...] = ()) -> None:
        import cupy

        self.seeds = seeds
        # The fastest form on an H200: one warp steps and others draw its noise, which saves 7/8 of the time with 10³
        # seeds and half of it with 10⁴.
        name, self.block, self.threads = "many", 64, 64
        if seeds <= 20_000:
            name, (self.block, self.threads) = "few", (8, 128) if seeds <= 2_000 else (32, 256)
        text = Path(__file__).with_name("lqr.cu").read_text()
        module = cupy.RawModule(code=text, options=(f"-DLANES={self.block}", *options), backend="nvrtc")
        self.kernel = module.get_function(name)
        problem, method = lqr()
        plant, schedules = problem.lqr, (method.alpha, method.beta, method.lam)
        numbers = [plant.A, plant.B, plant.Q, plant.R, problem.sigma, problem.operators.kappa]
        numbers += [*(schedule.c for schedule in schedules), method.lam.shift]
        given = np.concatenate([np.ravel(np.asarray(n, float)) for n in numbers])
        cupy.ndarray(given.shape, float, module.get_global("given")).set(given)
        begin = jax.vmap(lambda seed: problem.init(prng.start_key(seed))[2][0])(jnp.arange(seeds, dtype=jnp.uint32))
        self.arrays = cupy.asarray(prng.stream_words(range(seeds))), cupy.asarray(np.asarray(begin))
        self.end = cupy.empty((seeds, 69))

    def walk(self, steps: int) -> None:
        shape = np.int32(steps), np.int32(self.seeds)
        launch(self.kernel, -(-self.seeds // self.block), self.threads, (*shape, *self.arrays, self.end))


def launch(kernel, blocks: int, threads: int, arguments) -> None:
    import cupy

    kernel((blocks,), (threads,), arguments)
    cupy.cuda.get_current_stream().synchronize()


BY_HAND = {figure_1: Figure1, lqr: Lqr}


def slope(walk, steps: int, seeds: int, repeats: int = 3) -> float:
    """Nanoseconds per step and seed."""
    few, many = (best_of(repeats + 1, lambda n=n: walk(n)) for n in (steps, 3 * steps))
    return (many - few) / (2 * steps * seeds) * 1e9


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest, relative to the largest number; refused where it is more than rounding."""
    found = float(np.max(np.abs(a - b)) / np.max(np.abs(b)))
    if not found < 1e-9:
        raise RuntimeError(f"the programs differ by {found:.1e} of the largest number")
    return found


def whole(seeds: int, steps: int) -> dict[str, object]:
    """A call of ``solve`` of the LQR, after one that compiled it."""
    problem, method = lqr()
    first, best = (best_of(n, lambda: tc.solve(problem, method, steps, seeds, engine="cuda")) for n in (1, 4))
    times = {"first_s": round(first, 2), "s": round(best, 3), "ns": best / (seeds * steps) * 1e9}
    return {"work": "LQR, solve", "seeds": seeds, "steps": steps, **times}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    print(f"{len(jax.devices())} × {jax.devices()[0].device_kind}, jax {jax.__version__}", flush=True)
    rows = []
    for name, workload in (("Figure 1", figure_1), ("LQR", lqr), ("entropy MDP", entropy_mdp)):
        for seeds, steps in SEEDS:
            began = time.perf_counter()
            runs = {"cuda": Timed(workload, seeds, CudaEngine())}
            runs["cuda"].walk(10)
            ready = time.perf_counter() - began
            runs["xla"] = Timed(workload, seeds, Xla())
            if workload in BY_HAND:
                runs["by hand"] = BY_HAND[workload](seeds)
            row: dict[str, object] = {"work": name, "seeds": seeds, "ready_s": round(ready, 2)}
            for key, run in runs.items():
                n = steps if key != "xla" else max(min(1_000, 5_000_000 // seeds), 5)
                row[key] = slope(run.walk, n, seeds, 1 if key == "xla" else 3)
            if "by hand" in runs:
                row["ratio"] = row["cuda"] / row["by hand"]
            if seeds == 1_000:
                ours = runs["cuda"].numbers(1_000)
                row["difference from xla"] = difference(ours, runs["xla"].numbers(1_000))
                if "by hand" in runs:
                    runs["by hand"].walk(1_000)
                    hand = runs["by hand"].end.get()
                    row["difference from by hand"] = difference(ours[:, : hand.shape[1]], hand)
            rows.append(row)
            print(json.dumps(row), flush=True)
    for seeds, steps in WHOLE:
        rows.append(whole(seeds, steps))
        print(json.dumps(rows[-1]), flush=True)
    if "OUT" in os.environ:
        (Path(os.environ["OUT"]) / "device.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
