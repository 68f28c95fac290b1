"""How fast is ``tc.scan``? Beside ``lax.scan``, with and without XLA's switch for small loops, and hand-written C.

All in one run, in turns, one thread each, float64; the switch works only before XLA starts, so that column is measured
in a separate process. ``python bench/scan.py`` prints the table.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from results import report

import twoclock as tc

SWITCH = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1000000"
STEPS = {"Markov chain": 10_000_000, "60 scalars": 614, "Kalman filter": 100_000, "TD(0)": 1_000_000}


def markov(scan, cdf, u):
    def step(s, u):
        s = jnp.sum(u > cdf[s], dtype=jnp.int32)
        return s, s

    return scan(step, jnp.int32(0), u)


def leaves(scan, weight, start, x):
    """A dictionary of sixty scalars, as a model written by hand has them; only their means come back."""

    def step(h, x):
        z = {i: weight[i] * h[(i + 1) % 60] + x for i in range(60)}
        h = {i: 0.9 * h[i] + 0.1 * z[i] / (1 + jnp.abs(z[i])) for i in range(60)}
        return h, sum(h.values()) / 60

    return scan(step, start, x)[1]


def loss(scan, weight, start, x):
    return leaves(scan, weight, start, x).sum()


def kalman(scan, F, Q, r, y):
    def step(carry, y):
        m, P = carry
        m, C = F @ m, F @ P @ F.T + Q
        S = C[:2, :2] + r * jnp.eye(2)
        inverse = jnp.array([[S[1, 1], -S[0, 1]], [-S[1, 0], S[0, 0]]]) / (S[0, 0] * S[1, 1] - S[0, 1] * S[1, 0])
        K = C[:, :2] @ inverse
        m = m + K @ (y - m[:2])
        return (m, C - K @ C[:2]), m

    return scan(step, (jnp.zeros(4), jnp.eye(4)), y)


def td(scan, states, following, reward):
    def step(V, x):
        s, t, r = x
        delta = r + 0.95 * V[t] - V[s]
        return V.at[s].add(0.05 * delta), delta

    return scan(step, jnp.zeros(1000), (states, following, reward))


def arguments():
    rng = np.random.default_rng(0)
    F = np.eye(4) + 0.1 * np.eye(4, k=2)
    weight, start = rng.normal(size=60), rng.normal(size=60)
    n = STEPS["TD(0)"]
    as_leaves = {i: jnp.asarray(start[i]) for i in range(60)}
    states = [jnp.asarray(rng.integers(0, 1000, n), jnp.int32) for _ in range(2)]
    cdf = rng.dirichlet(np.ones(4), 4).cumsum(1)[:, :3]
    return {
        "Markov chain": (jnp.asarray(cdf), jnp.asarray(rng.random(STEPS["Markov chain"]))),
        "60 scalars": (jnp.asarray(weight), as_leaves, jnp.asarray(rng.normal(size=614))),
        "Kalman filter": (
            jnp.asarray(F),
            jnp.asarray(0.01 * np.eye(4)),
            0.5,
            jnp.asarray(rng.normal(size=(STEPS["Kalman filter"], 2))),
        ),
        "TD(0)": (*states, jnp.asarray(rng.normal(size=n))),
    }


def questions():
    """The compiled calls of both scans, by question."""
    args = arguments()
    loops = {"Markov chain": markov, "60 scalars": leaves, "Kalman filter": kalman, "TD(0)": td}
    for name, loop in loops.items():
        for scan in (tc.scan, lax.scan):
            yield name, scan, jax.jit(partial(loop, scan)), args[name]
    for scan in (tc.scan, lax.scan):
        yield "60 scalars, gradient", scan, jax.jit(jax.grad(partial(loss, scan))), args["60 scalars"]


def by_hand():
    """Calls of the C in scan.c, by question, on the same numbers."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "scan.so")
        flags = ["-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, "-o", library, Path(__file__).with_suffix(".c"), "-lm"], check=True)
        c = ctypes.CDLL(os.fspath(library))
    args = {name: jax.tree.map(np.asarray, of) for name, of in arguments().items()}

    def call(function, *values):
        function(*(v.ctypes.data_as(ctypes.c_void_p) if isinstance(v, np.ndarray) else v for v in values))

    def run_markov(cdf, u):
        rows = np.concatenate([cdf, np.ones((4, 1))], 1)
        path, last = np.empty(len(u), np.int32), np.empty(1, np.int32)
        call(c.markov, ctypes.c_int64(len(u)), rows, u, path, last)
        return last[0], path

    def flat(leaves):
        return np.array([leaves[i] for i in range(60)])

    weight, start, x = args["60 scalars"][0], flat(args["60 scalars"][1]), args["60 scalars"][2]

    def run_leaves():
        h, mean = start.copy(), np.empty(len(x))
        call(c.leaves, ctypes.c_int64(len(x)), weight, x, h, mean)
        return mean

    store = np.empty((len(x), 60))

    def run_gradient():
        grad = np.empty(60)
        call(c.leaves_gradient, ctypes.c_int64(len(x)), weight, x, start, store, grad)
        return grad

    def run_kalman(F, Q, r, y):
        m, P, out = np.zeros(4), np.eye(4), np.empty((len(y), 4))
        call(c.kalman, ctypes.c_int64(len(y)), F, Q, ctypes.c_double(r), y, m, P, out)
        return (m, P), out

    def run_td(states, following, reward):
        V, error = np.zeros(1000), np.empty(len(reward))
        call(c.td, ctypes.c_int64(len(reward)), states, following, reward, V, error)
        return V, error

    return {
        "Markov chain": partial(run_markov, *args["Markov chain"]),
        "60 scalars": run_leaves,
        "60 scalars, gradient": run_gradient,
        "Kalman filter": partial(run_kalman, *args["Kalman filter"]),
        "TD(0)": partial(run_td, *args["TD(0)"]),
    }


def seconds(call, *args):
    """Processor time of all threads: a busy machine does not change it much."""
    start = time.process_time()
    jax.block_until_ready(call(*args))
    return time.process_time() - start


def times(rounds=7):
    """The least seconds of each question by each scan, and by hand; in turns, so that a disturbance falls on all."""
    hand = {(name, "C by hand"): (call, ()) for name, call in by_hand().items()}
    calls = {(name, "tc.scan" if scan is tc.scan else "lax.scan"): (f, args) for name, scan, f, args in questions()}
    found = {key: seconds(f, *args) for key, (f, args) in {**calls, **hand}.items()}  # compiles
    for name in hand:
        agree(calls[name[0], "tc.scan"], hand[name])
    best = dict.fromkeys(found, np.inf)
    for _ in range(rounds):
        for key, (f, args) in {**hand, **calls}.items():
            for _ in range(1 if found[key] > 0.1 else 20):
                best[key] = min(best[key], seconds(f, *args))
    return best


def agree(ours, hand):
    """Check that the hand-written loop computes the same."""

    def numbers(tree):
        return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(tree)])

    np.testing.assert_allclose(*(numbers(f(*args)) for f, args in (ours, hand)), rtol=1e-8, atol=1e-10)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    if sys.argv[1:] == ["--switched"]:
        print(json.dumps([[*key, value] for key, value in times(3).items()]))
        return
    flags = f"{os.environ.get('XLA_FLAGS', '')} {SWITCH}"
    command = [sys.executable, __file__, "--switched"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "XLA_FLAGS": flags}, check=True)
    switched = {(name, way): value for name, way, value in json.loads(done.stdout.splitlines()[-1])}
    found, rows = times(), []
    for name in dict.fromkeys(name for name, _ in found):
        ours, xla, hand = (found[name, way] for way in ("tc.scan", "lax.scan", "C by hand"))
        fast = switched[name, "lax.scan"] * hand / switched[name, "C by hand"]  # as if the two processes ran alike
        rows.append(
            {
                "loop": name,
                "steps": STEPS[name.partition(",")[0]],
                "tc.scan, ms": ours * 1e3,
                "C by hand, ms": hand * 1e3,
                "tc.scan / C": ours / hand,
                "lax.scan / tc.scan": xla / ours,
                "with the switch / tc.scan": fast / ours,
            }
        )
    report("scan", "processor time of one call under jax.jit, float64", rows)


if __name__ == "__main__":
    main()
