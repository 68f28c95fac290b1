"""A log of 10⁷ transitions with 100 features: seconds and memory of reading and evaluating it.

    python bench/logs.py [ROWS] [--state]

Targets: 60 s and 2 GiB on two cores. ``--state`` takes 50 columns of the state as features instead of 50 radial ones.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

EPISODE = 200


def write(path, rows, wide):
    """A stable linear system with two actions, in row groups of 131,072."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, k = np.random.default_rng(0), 50 if wide else 4
    A = 0.9 * np.linalg.qr(rng.standard_normal((k, k)))[0]
    push = rng.standard_normal(k) / np.sqrt(k)
    names = [f"x{i}" for i in range(k)]
    schema = pa.schema([*((n, pa.float32()) for n in names), ("action", pa.int8()), ("reward", pa.float32()),
                        ("episode", pa.int32())])  # fmt: skip
    lanes = 655
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, rows, lanes * EPISODE):
            x, states, actions = rng.standard_normal((lanes, k)), [], []
            for _ in range(EPISODE):
                a = rng.integers(2, size=lanes)
                states.append(x)
                actions.append(a)
                x = x @ A.T + np.outer(2 * a - 1, push) + 0.3 * rng.standard_normal((lanes, k))
            state = np.stack(states, 1).reshape(-1, k)
            reward = -(state[:, 0] ** 2) + 0.1 * rng.standard_normal(len(state))
            episode = np.repeat(np.arange(first // EPISODE, first // EPISODE + lanes), EPISODE)
            columns = [*state.astype(np.float32).T, np.stack(actions, 1).ravel().astype(np.int8), reward, episode]
            table = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
            writer.write_table(table.slice(0, min(rows - first, len(table))), row_group_size=lanes * EPISODE)


def measure(path, wide):
    import twoclock as tc

    def push_back(state):
        right = 1 / (1 + np.exp(2 * state[:, 0]))
        return np.column_stack([1 - right, right])

    k = 50 if wide else 4
    began = time.perf_counter()
    log = tc.logs.read(path, state=[f"x{i}" for i in range(k)], episode="episode", terminated=None)
    read = time.perf_counter() - began
    features = _Plain() if wide else tc.logs.features.Rbf(centres=49)
    v = tc.evaluate(log, push_back, 0.95, features=features, bootstrap=200)
    took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{log!r}: {v.settings['size']} features")
    print(f"reading {read:.1f} s, all {took:.1f} s ({time.process_time():.1f} s of processors), peak {peak:.2f} GiB")
    print(v.verdict)


class _Plain:
    """The state itself as features."""

    size = 50

    def fit(self, sample):
        return self

    def __call__(self, x):
        return x


if __name__ == "__main__":
    numbers = [int(float(arg)) for arg in sys.argv[1:] if arg[0].isdigit()]
    rows, wide = (numbers or [10_000_000])[0], "--state" in sys.argv
    if "--measure" in sys.argv:
        measure(sys.argv[-1], wide)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log.parquet"
            write(path, rows, wide)
            print(f"{path.stat().st_size / 2**30:.2f} GiB of Parquet")
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--measure", str(path)], check=True)
