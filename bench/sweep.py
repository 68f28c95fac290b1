"""What a sweep costs beside one `solve` of as many seed-steps, and what a second Ray worker brings.

200 settings × 50 seeds × 100,000 steps of the paper's policy-evaluation problem, everything included: planning, drawing
the instances, compiling, recording, writing. `python bench/sweep.py 4000` takes fewer steps, and
`… 4000 ray` looks at Ray alone.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import psutil
from results import report

import twoclock as tc

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
SETTINGS, SEEDS = 200, 50
METHOD = tc.Fast(alpha="0.5/(k+1000)^0.5", beta="2/(k+1000)^0.5", lam="8/(k+20)^0.7")
GRID = tc.grid(METHOD, **{"alpha.c": np.geomspace(0.05, 5, 20).tolist(), "lam.c": np.geomspace(1, 8, 10).tolist()})


def one_mdp():
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, tc.problems.random_policy_evaluation(jax.random.key(0)))


def seconds(work) -> np.ndarray:
    """Wall-clock seconds, and processor seconds of all cores; the second hardly depends on other programs."""
    jax.clear_caches()
    began = np.array([time.perf_counter(), time.process_time()])
    work()
    return np.array([time.perf_counter(), time.process_time()]) - began


def swept(problem, **options):
    with tempfile.TemporaryDirectory() as out:
        return tc.sweep({"paper": problem}, {"fast": GRID}, STEPS, SEEDS, out=Path(out) / "sweep", **options)


def on_ray() -> None:
    """Shards of one thread each on one worker and on two, Ray started and the loop compiled before the clock runs."""
    import ray

    grid = tc.grid(METHOD, **{"alpha.c": np.geomspace(0.05, 5, 80).tolist()})
    times = {}
    for workers in (1, 2):
        ray.init("local", num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="error")

        def work(steps):
            tc.sweep({"one MDP": one_mdp()}, {"fast": grid}, steps, SEEDS, on="ray", lanes=500)

        for _ in range(2):
            work(200)  # once for each worker
        began = time.perf_counter()
        work(max(STEPS // 4, 5_000))
        times[workers] = time.perf_counter() - began
        sizes = [p.memory_info().rss >> 20 for p in psutil.process_iter() if "ray::" in " ".join(_line(p))]
        print(f"Ray, {workers} worker(s): {times[workers]:.1f} s; MiB of each worker: {sizes}")
        ray.shutdown()
    print(f"two workers are {times[1] / times[2]:.2f} times as fast as one")


def _line(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def main() -> None:
    if sys.argv[2:] != ["ray"]:
        beside_solve()
    on_ray()
    print(f"on {psutil.cpu_count()} cores, load {psutil.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}")


def beside_solve() -> None:
    # As many seed-steps in one solve: few seeds for long, since 10,000 instances of the problem would take 5 GB.
    rows = []
    kinds = {
        "an MDP each": (tc.problems.random_policy_evaluation, 1_000, SETTINGS * SEEDS * STEPS // 1_000),
        "one MDP": (one_mdp(), SETTINGS * SEEDS, STEPS),
    }
    for name, (problem, seeds, steps) in kinds.items():
        times = {"sweep": np.full(2, np.inf), "solve": np.full(2, np.inf)}
        for _ in range(2):  # in turns, so that a disturbance of the machine falls on both alike
            times["sweep"] = np.minimum(times["sweep"], seconds(lambda p=problem: swept(p)))
            times["solve"] = np.minimum(
                times["solve"], seconds(lambda p=problem, n=seeds, k=steps: tc.solve(p, METHOD, k, n))
            )
        wall, processor = times["sweep"] / times["solve"]
        rows.append(
            {
                "problem": name,
                "sweep, s": times["sweep"][0],
                "solve, s": times["solve"][0],
                "ratio": wall,
                "ratio of processor time": processor,
            }
        )
    report("sweep", f"{SETTINGS} settings × {SEEDS} seeds × {STEPS:,} steps, beside one solve of as many", rows)


if __name__ == "__main__":
    main()
