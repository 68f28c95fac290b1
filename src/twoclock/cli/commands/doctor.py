"""The compilers, devices and engines of this machine, and whether the engines agree."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from twoclock.cli import print_table, say
from twoclock.cli.options import read_values

_SEEDS, _STEPS, _SHORT = 256, 20_000, 100
# XLA then runs a small loop as one function; it must be set before JAX starts, so the library cannot set it.
SWITCH = "xla_cpu_small_while_loop_byte_threshold"


def command(args: Sequence[str]) -> int:
    """twoclock doctor: show compilers, devices and engines, and check and time each engine."""
    read_values([], args, "twoclock doctor")
    import jax

    from twoclock.codegen import compiler
    from twoclock.engine import cuda_engine, engines, run_batch

    found, cache = compiler.find(), compiler.open_cache()
    devices = jax.devices()
    programs = [path for kind in ("*.so", "*.xla") for path in cache.folder.glob(kind)]
    megabytes = sum(path.stat().st_size for path in programs) / 2**20
    rows = [
        ("C compiler", found if isinstance(found, str) else f"{' '.join(found.command)}: {found.version}"),
        ("vectors", f"{compiler.vector_bits()} bits, {run_batch.count_threads()} threads"),
        ("compiled programs", cache.trouble or f"{cache.folder}: {len(programs)}, {megabytes:.1f} MiB"),
        ("devices", f"{len(devices)} × {devices[0].device_kind}, jax {jax.__version__}"),
        ("cuda", cuda_engine.unavailable() or "cupy is here"),
        (engines.VARIABLE, engines.resolve("auto")),
    ]
    print_table("this machine", ("", ""), rows)
    wrong = _check_engines()
    say(describe_switch(os.environ.get("XLA_FLAGS", "")))
    return 1 if wrong else 0


def describe_switch(flags: str) -> str:
    if SWITCH in flags:
        return f"XLA's switch for small loops is set: {SWITCH}"
    setting = f"XLA_FLAGS=--xla_backend_extra_options={SWITCH}=1000000"
    return f"on a CPU {setting}, set before the start, makes runs of one seed on XLA two to five times faster"


def _check_engines() -> int:
    """Time each engine on one problem beside XLA; return how many engines disagree with XLA."""
    import jax
    import numpy as np

    from twoclock.engine.c_engine import CEngine
    from twoclock.engine.cuda_engine import CudaEngine
    from twoclock.engine.engines import Xla, choose
    from twoclock.engine.loop import drive
    from twoclock.engine.protocol import Engine
    from twoclock.engine.run_batch import Lanes, make_instances
    from twoclock.methods import Fast
    from twoclock.problems import quadratic

    engines: list[Engine] = [Xla(), CEngine(), CudaEngine()]
    rows, wrong, reference = [], 0, None
    with jax.enable_x64(True):
        seeds = tuple(range(_SEEDS))
        work = Lanes.of(make_instances(quadratic(dim=4), seeds), [Fast()], seeds, None)
        for engine in engines:
            programs = engine.compile(work)
            if isinstance(programs, str):
                rows.append((engine.name, "", "", programs))
                continue
            began = time.perf_counter()
            drive(work, [_SHORT], engine=engine)
            ready, began = time.perf_counter() - began, time.perf_counter()
            output = drive(work, [_STEPS], engine=engine)
            nanoseconds = (time.perf_counter() - began) / _STEPS / _SEEDS * 1e9
            theta = np.asarray(output.carry.state.theta)
            reference = theta if reference is None else reference
            difference = float(np.max(np.abs(theta - reference)))
            agrees = difference < 1e-9 and output.engine == engine.name
            wrong += not agrees
            verdict = (
                f"agrees to {difference:.0e}" if agrees else output.engine_reason or f"DIFFERS by {difference:.0e}"
            )
            rows.append((engine.name, f"{ready:.1f}", f"{nanoseconds:.1f}", verdict))
        taken = choose("auto", work, 10**7)
    print_table("engines", ("engine", "s to the first steps", "ns per seed-step", "self-check"), rows)
    say(f"a long run would take {taken.words}")
    return wrong
