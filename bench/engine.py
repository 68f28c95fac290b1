"""How fast are the engines? The C engine, XLA and C written by hand, in turns in one run, in float64.

Figure 1's workload is TDC with operator averaging on 50 states, 50 actions and 10 features, also with a third level.
All sides derive a Threefry key for every seed and step. The other workloads are the paper's regulator, a small
entropy-regularised MDP and the README's problem.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import jax
import numpy as np
from results import report
from tabular import GAIN_STEP, NUMBERS, best_of, random_tables
from workloads import Timed, entropy_mdp, figure_1, large_mdp, lqr, quadratic_20, readme, three_levels

from twoclock import prng
from twoclock.codegen import ProgramSource, compiler
from twoclock.engine import lane_program, run_batch
from twoclock.engine.c_engine import CEngine, choose_target
from twoclock.engine.engines import Xla

FLAGS = ("-O3", "-march=native", "-ffast-math", "-mprefer-vector-width=512", "-shared", "-fPIC")


class Yardstick:
    """The loop by hand, W seeds side by side, groups of seeds divided among threads."""

    def __init__(self, width: int, seeds: int, *flags: str) -> None:
        found = compiler.find()
        if isinstance(found, str):
            raise SystemExit(found)
        self.width, self.groups = width, -(-seeds // width)
        self.tables = random_tables()
        self.tables.pop("theta_star")
        self.streams = prng.stream_words(range(self.groups * width))
        self.theta = np.empty((self.groups * width, 10))
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "yardstick.so"
            source = Path(__file__).with_name("yardstick.c")
            subprocess.run([*found.command, *FLAGS, f"-DW={width}", *flags, "-o", made, source], check=True)
            self.run = ctypes.CDLL(os.fspath(made)).run

    def walk(self, steps: int) -> np.ndarray:
        pointer = [ctypes.c_void_p(table.ctypes.data) for table in (*self.tables.values(), self.streams)]
        numbers = [ctypes.c_double(n) for n in NUMBERS]
        workers = min(run_batch.count_threads(), self.groups)
        cuts = [self.groups * i // workers for i in range(workers + 1)]
        threads = [
            threading.Thread(
                target=self.run,
                args=(steps, a, b, 50, 50, *pointer, *numbers, ctypes.c_void_p(self.theta.ctypes.data)),
            )
            for a, b in itertools.pairwise(cuts)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.theta


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--only", default="", help="workloads with this in their name")
    given = options.parse_args()
    jax.config.update("jax_enable_x64", True)
    compare(given.repeats, given.only)
    if not given.only:
        begin()
    print(f"{run_batch.count_threads()} threads, {compiler.find().version}, {time.strftime('%Y-%m-%d')}")


def compare(repeats: int, only: str) -> None:
    third = f"-DGAIN={GAIN_STEP}"
    hand = {
        (workload, seeds): Yardstick(width, seeds, *flags)
        for workload, flags in ((figure_1, ()), (three_levels, (third,)))
        for seeds, width in ((992, 16), (1, 1))
    }
    works = [
        ("Figure 1, 992 seeds", figure_1, 992, 20_000),
        ("Figure 1, 1 seed", figure_1, 1, 500_000),
        ("three levels, 992 seeds", three_levels, 992, 20_000),
        ("three levels, 1 seed", three_levels, 1, 500_000),
        ("LQR", lqr, 992, 4_000),
        ("entropy MDP", entropy_mdp, 992, 8_000),
        ("README", readme, 992, 20_000),
        ("quadratic, 20 dimensions", quadratic_20, 992, 500),
        ("100/100/30", large_mdp, 992, 4_000),
    ]
    rows = []
    for name, workload, seeds, steps in works:
        if only not in name:
            continue
        runs = {"c": Timed(workload, seeds, CEngine()), "xla": Timed(workload, seeds, Xla())}
        if (yardstick := hand.get((workload, seeds))) is not None:
            runs["by hand"] = yardstick
            difference = np.max(np.abs(runs["c"].theta(2_000) - yardstick.walk(2_000)[:seeds]))
            assert difference < 1e-9, difference
        for run in runs.values():
            run.walk(100)
        best = dict.fromkeys(runs, np.inf)
        for _ in range(repeats):  # in turns, so that a disturbance of the machine falls on all alike
            for key, run in runs.items():
                n = steps if key != "xla" else max(steps // 4, 100)
                best[key] = min(best[key], best_of(1, lambda run=run, n=n: run.walk(n)) / n / seeds * 1e9)
        by_hand = best.get("by hand", np.nan)
        rows.append(
            {
                "workload": name,
                "C by hand, ns": by_hand,
                "engine c, ns": best["c"],
                "XLA, ns": best["xla"],
                "c / C by hand": best["c"] / by_hand,
                "XLA / c": best["xla"] / best["c"],
            }
        )
    report("engine", f"time per step and seed, float64, {run_batch.count_threads()} threads", rows, store=not only)


def compile_source(source: ProgramSource) -> compiler.Build:
    return compiler.compile_text(source.text, source.target.width, compiler.find())


def begin() -> None:
    """The time before the first step: generating the text, compiling it, and starting again with what was stored."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TWOCLOCK_CACHE"] = folder
        for name, workload in (("Figure 1", figure_1), ("LQR", lqr), ("entropy MDP", entropy_mdp), ("README", readme)):
            work = Timed(workload, 992, CEngine()).lanes
            lane_program._cache.clear()
            seconds = [best_of(1, lambda w=work: lane_program.checked_source(w, choose_target(w, None)))]
            source = lane_program.checked_source(work, choose_target(work, None))
            for _ in range(2):
                compiler._builds.clear()
                seconds.append(best_of(1, lambda s=source: compile_source(s).function()))
            columns = zip(("generate, s", "compile, s", "from the cache, s"), seconds, strict=True)
            rows.append({"workload": name, "lines": source.lines, **dict(columns)})
    report("engine_start", "time before the first step", rows)


if __name__ == "__main__":
    main()
