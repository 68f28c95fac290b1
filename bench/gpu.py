"""What the engines do on a GPU, as ratios, in one run. Each part runs in a separate process and prints its lines.

    python bench/gpu.py              # everything, in some ten minutes on an H200
    python bench/gpu.py lqr scan     # some parts
    python bench/gpu.py --small      # small sizes, also on a CPU: that the parts run at all
    python bench/gpu.py --quick lqr whole minimax    # fewer repeats, in some three minutes

It uses the installed JAX and cupy and prints their versions. A part that cannot run says why in one line, and the
others run. No network or installation is needed. If the machine lacks pandas, python-dateutil, jaxtyping,
wadler_lindig or threadpoolctl, wheels of them may be in a folder:

    for wheel in wheels/*.whl; do python3 -m zipfile -e $wheel /tmp/more; done
    PYTHONPATH=src:/tmp/more python3 bench/gpu.py

With ``OUT`` set, the lines are also written to ``$OUT/gpu.json``, and the profile of a whole call to ``$OUT``.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import json
import os
import platform
import pstats
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

Line = dict[str, object]
SMALL = QUICK = False
SECONDS = {"lqr": 180, "networks": 60, "bilevel": 300, "minimax": 300, "promises": 180}  # that a process may take


def show_versions() -> Iterator[Line]:
    found = {"python": platform.python_version(), "processors": os.cpu_count()}
    for name in ("jax", "jaxlib", "cupy", "numpy", "scipy", "pandas", "jaxtyping", "twoclock"):
        try:
            found[name] = importlib.import_module(name).__version__
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:80]
    import jax

    yield {**found, "devices": ", ".join(f"{d.platform} {d.device_kind}" for d in jax.devices())}


def on_gpu() -> bool:
    import jax

    return jax.default_backend() == "gpu"


def time_lanes(name: str, seed_counts: dict[int, int]) -> Iterator[Line]:
    """The engine cuda beside CUDA by hand, ns per step and seed; with and without fused sums for the latter."""
    import device
    import jax
    from workloads import Timed, figure_1, lqr

    from twoclock.engine.c_engine import CEngine
    from twoclock.engine.cuda_engine import CudaEngine

    jax.config.update("jax_enable_x64", True)
    workload = {"figure_1": figure_1, "lqr": lqr}[name]
    for seeds, steps in seed_counts.items():
        ours = Timed(workload, seeds, CudaEngine() if on_gpu() else CEngine())
        ours.walk(10)
        repeats = 1 if QUICK else 3
        line: Line = {"work": name, "seeds": seeds, "ours, ns": device.slope(ours.walk, steps, seeds, repeats)}
        if on_gpu():
            for label, options in (("by hand", ()), ("by hand unfused", ("--fmad=false",))):
                hand = device.BY_HAND[workload](seeds, options)
                line[f"{label}, ns"] = device.slope(hand.walk, steps, seeds, repeats)
                line[f"ours / {label}"] = line["ours, ns"] / line[f"{label}, ns"]
            hand.walk(steps)
            line["difference"] = device.difference(ours.numbers(steps)[:, : hand.end.shape[1]], hand.end.get())
            line["registers + stack"] = registers(ours.programs[0])
        yield line


def registers(program) -> str:
    """The registers of a thread, and the bytes that did not fit into them."""
    from twoclock.engine.cuda_engine import load_kernel

    kernel = load_kernel(program.unchecked.text, program.device)
    return f"{kernel.num_regs} + {kernel.local_size_bytes} B"


def who_measures(problem, method) -> str:
    """Whether the engine has a kernel for the metrics, or why XLA measures them."""
    import jax

    from twoclock.codegen import Unsupported
    from twoclock.engine import lane_program
    from twoclock.engine.run_batch import Lanes, make_instances

    with jax.enable_x64(True):
        try:
            lines = lane_program.metrics_source(Lanes.of(make_instances(problem, (0,)), [method], (0,), None))
        except Unsupported as reason:
            return f"XLA, because {reason}"
    return f"a kernel of {lines.source.lines} lines"


def time_whole() -> Iterator[Line]:
    """A whole call of ``solve`` with the default marks, and where its time goes."""
    from workloads import lqr

    import twoclock as tc

    problem, method = lqr()
    seeds, steps = (1_000, 200) if SMALL else (100_000, 1_000)

    def call() -> float:
        began = time.perf_counter()
        tc.solve(problem, method, steps, seeds, engine="cuda" if on_gpu() else "c")
        return time.perf_counter() - began

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        times = [call() for _ in range(6)]
    yield {"metrics": who_measures(problem, method), "said": "; ".join(str(w.message)[:300] for w in caught)}
    yield {
        "work": "solve of the LQR",
        "seeds": seeds,
        "first, s": times[0],
        "s": min(times[1:]),
        "s / 0.14": min(times[1:]) / 0.14,
    }
    profile = cProfile.Profile()
    profile.runcall(call)
    folder = Path(os.environ.get("OUT", "/tmp"))
    with (folder / "whole_call.txt").open("w") as file:
        for order in ("cumulative", "tottime"):
            pstats.Stats(profile, stream=file).sort_stats(order).print_stats(45)
    rows = sorted(pstats.Stats(profile).stats.items(), key=lambda item: -item[1][2])[:12]
    for (where, line, name), (_, calls, own, total, _) in rows:
        yield {"where": f"{Path(where).name}:{line} {name}", "calls": calls, "own, s": own, "total, s": total}


def time_scan() -> Iterator[Line]:
    """``tc.scan`` of a Markov chain; ``lax.scan`` on fewer steps, and as if it took as many."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    import twoclock as tc

    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    cdf = jnp.asarray(rng.dirichlet(np.ones(4), 4).cumsum(1)[:, :3])

    def chain(scan, u):
        def step(s, u):
            s = jnp.sum(u > cdf[s], dtype=jnp.int32)
            return s, s

        return scan(step, jnp.int32(0), u)

    def seconds(call, n):
        u = jnp.asarray(rng.random(n))
        out = jax.block_until_ready(call(u))
        took = []
        for _ in range(3):
            began = time.perf_counter()
            out = jax.block_until_ready(call(u))
            took.append(time.perf_counter() - began)
        return min(took), np.asarray(out[1])

    steps, few = 10_000_000, 20_000
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call = jax.jit(lambda u: chain(tc.scan, u))
        ours, _ = seconds(call, few)
        said = "; ".join(str(w.message)[:120] for w in caught)
        ours = ours * steps / few if caught else seconds(call, steps)[0]
    xla, _ = seconds(jax.jit(lambda u: chain(lax.scan, u)), few)
    yield {
        "work": "Markov chain", "steps": steps, "tc.scan, s": ours, "lax.scan, s": xla * steps / few,
        "lax.scan / tc.scan": xla * steps / few / ours, "said": said,
    }  # fmt: skip


def network_sizes() -> dict[str, int]:
    return {"0.3": 3} if SMALL else {"0.3": 480, "2": 288, "20": 64}


def measure_network(kind: str, millions: str, way: str, steps: int, without: tuple[str, ...] = ()) -> Line:
    asked = f"networks.measure({kind!r}, {millions!r}, {way!r}, {steps}, {without!r})"
    code = f"import json, networks; print(json.dumps({asked}))"
    return in_process([sys.executable, "-c", code], SECONDS["networks"])[-1]


def time_promises() -> Iterator[Line]:
    """What the looks for numbers that are not finite, and the residues, cost a step of a network."""
    for millions, steps in network_sizes().items():
        if millions != "2":
            for without in (("checks",), ("checks", "residues")):
                line = {"million weights": millions, "without": " and ".join(without)}
                yield {**line, **measure_network("minimax", millions, "ours", steps, without)}


def time_networks(kind: str) -> Iterator[Line]:
    """Networks beside loops by hand, the largest first: ratios of time and of memory, and the kernels of a step."""
    for millions, steps in reversed(network_sizes().items()):
        ways = ("by hand", "ours", *(["ours, in epochs"] if millions == "0.3" else []))
        found = {way: measure_network(kind, millions, way, steps) for way in ways}
        if any("failed" in line for line in found.values()):
            yield {"work": kind, "million weights": millions, **{w: str(line) for w, line in found.items()}}
            continue
        line: Line = {"work": kind, "million weights": millions}
        for unit in ("us", "MB"):
            hand, ours = found["by hand"][unit], found["ours"][unit]
            line |= {f"by hand, {unit}": hand, f"ours, {unit}": ours, f"ratio of {unit}": ours / hand}
        if len(found) > 2:
            line["ratio in epochs"] = found["ours, in epochs"]["us"] / found["by hand"]["us"]
        yield line
        for way, of_way in found.items():
            yield {"way": way, **{name: of_way[name] for name in ("kernels a step", "longest") if name in of_way}}


def lanes_of(name: str) -> Iterator[Line]:
    if SMALL:
        return time_lanes(name, {100: 200})
    return time_lanes(
        name, {"lqr": {1_000: 10_000, 10_000: 4_000, 1_000_000: 150}, "figure_1": {1_000: 10_000, 100_000: 1_000}}[name]
    )


PARTS = {
    "versions": show_versions,
    "lqr": lambda: lanes_of("lqr"),
    "whole": time_whole,
    "scan": time_scan,
    "bilevel": lambda: time_networks("bilevel"),
    "minimax": lambda: time_networks("minimax"),
    "promises": time_promises,
    "figure_1": lambda: lanes_of("figure_1"),
}


def in_process(command: list[str], seconds: float) -> list[Line]:
    """The lines that a process prints as JSON; one that says why, where it fails or takes too long."""
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "src"), os.environ.get("PYTHONPATH", "")]
    # cupy and JAX share the memory, and what JAX reserves ahead would hide what a run needs.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=seconds)
        out, trouble = done.stdout, done.stderr.strip().splitlines()[-3:] if done.returncode else []
    except subprocess.TimeoutExpired as late:
        out, trouble = (late.stdout or b"").decode(), [f"it took more than {seconds} s"]
    lines = [json.loads(text) for text in out.splitlines() if text.startswith("{")]
    return [*lines, *([{"failed": " | ".join(trouble)[-600:]}] if trouble or not lines else [])]


def main() -> None:
    global SMALL, QUICK
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all if none is named")
    options.add_argument("--small", action="store_true", help="small sizes")
    options.add_argument("--quick", action="store_true", help="fewer repeats")
    options.add_argument("--here", action="store_true", help="in this process, one part, lines as JSON")
    given = options.parse_args()
    SMALL, QUICK = given.small, given.quick
    if given.here:
        for line in PARTS[given.parts[0]]():
            print(json.dumps(line), flush=True)
        return
    found, began = {}, time.perf_counter()
    for part in given.parts or PARTS:
        flags = ["--here", *(f"--{name}" for name in ("small", "quick") if getattr(given, name))]
        limit = SECONDS.get(part, 90)
        found[part] = in_process([sys.executable, __file__, *flags, part], limit)
        print(f"\n{part}, after {time.perf_counter() - began:.0f} s", flush=True)
        for line in found[part]:
            shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in line.items())
            print("  " + "; ".join(shown), flush=True)
        if "OUT" in os.environ:
            (Path(os.environ["OUT"]) / "gpu.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
