"""What a step costs where the variables are networks, beside a JAX loop written by hand, with the memory of both.

``bilevel`` reweights data: x has a weight for each item and y is a network, by SOBA. ``minimax`` trains two networks
against each other, by the averaged method. The loops by hand take the same derivatives in the same way, and draw their
batches with replacement, as ours do here. They keep plain float32, reuse the memory of the last step, check nothing and
record nothing. "Ours, in epochs" draws each item once before any twice. A step's time is a slope, so that what a
mark costs is left out. Each run has a separate process, so that its peak memory can be measured.
"""

from __future__ import annotations

import gzip
import itertools
import json
import resource
import tempfile
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import twoclock as tc
from twoclock import tree_math
from twoclock.engine import large_lane

ITEMS, FEATURES, BATCH, RIDGE = 8192, 512, 256, 1e-3
WIDTHS = {"0.3": 350, "2": 1180, "20": 4220}  # of the hidden layers, by millions of weights
SIZES = (0.001, 0.002, 0.02)  # α, β, λ


def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ITEMS, FEATURES), dtype=np.float32)
    return X, np.tanh(X[:, 0] + 0.1 * rng.standard_normal(ITEMS, dtype=np.float32)), np.arange(ITEMS, dtype=np.int32)


def network(width, seed):
    rng = np.random.default_rng(seed)
    shapes = (FEATURES, width), (width, width), (width,)
    return [rng.standard_normal(shape, dtype=np.float32) / np.float32(shape[0] ** 0.5) for shape in shapes]


def values(y, X):
    return jnp.tanh(jnp.tanh(X @ y[0]) @ y[1]) @ y[2]


def squares(y):
    return sum(jnp.sum(leaf**2) for leaf in y)


def outer(x, y, batch):
    return jnp.mean((values(y, batch[0]) - batch[1]) ** 2)


def inner(x, y, batch):
    losses = (values(y, batch[0]) - batch[1]) ** 2
    return jnp.mean(jax.nn.sigmoid(x[batch[2]]) * losses) + RIDGE * squares(y)


def saddle(x, y, batch):
    """A network that fits a target, and one that finds where it errs."""
    error = values(x, batch[0]) - batch[1]
    return jnp.mean(error * values(y, batch[0])) - RIDGE * squares(y) / 2


def moved(old, size, along):
    return jax.tree.map(lambda a, d: a - size * d, old, along)


def blended(mean, weight, value):
    return jax.tree.map(lambda m, v: (1 - weight) * m + weight * v, mean, value)


def bilevel_step(carry, inner_batch, outer_batch):
    x, y, v = carry
    (_, g_y), (xy_v, yy_v) = jax.jvp(lambda y: jax.grad(inner, (0, 1))(x, y, inner_batch), (y,), (v,))
    f_x, f_y = jax.grad(outer, (0, 1))(x, y, outer_batch)
    alpha, beta, _ = SIZES
    row = jax.tree.map(jnp.subtract, yy_v, f_y)
    return moved(x, alpha, f_x - xy_v), moved(y, beta, g_y), moved(v, beta, row)


def minimax_step(carry, batch, _):
    x, y, f, g = carry
    F, G = jax.grad(saddle, (0, 1))(x, y, batch)
    alpha, beta, lam = SIZES
    return moved(x, alpha, f), moved(y, -beta, g), blended(f, lam, F), blended(g, lam, G)


@partial(jax.jit, static_argnames=("step", "steps"), donate_argnums=0)
def by_hand(carry, columns, step, steps):
    def one(k, at):
        carry, key = at
        key, *keys = jax.random.split(key, 3)
        drawn = [jax.random.randint(key, (BATCH,), 0, ITEMS) for key in keys]
        return step(carry, *([column[i] for column in columns] for i in drawn)), key

    return jax.lax.fori_loop(0, steps, one, carry)


def start(kind, width):
    zeros = partial(jax.tree.map, np.zeros_like)
    if kind == "bilevel":
        y = network(width, 0)
        return np.zeros(ITEMS, np.float32), y, zeros(y)
    x, y = network(width, 0), network(width, 1)
    return x, y, zeros(x), zeros(y)


@contextmanager
def traced(folder):
    """Record what the device does, where a folder is given."""
    if folder is not None:
        jax.profiler.start_trace(folder)
    yield
    if folder is not None:
        jax.profiler.stop_trace()


def kernels(folder, steps):
    """The kernels of a trace, the longest first: their names, how many a step takes, and their microseconds a step."""
    found: dict[str, list[float]] = {}
    for path in Path(folder).rglob("*.trace.json.gz"):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
        lines = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
        for e in events:
            on_stream = "Stream" in lines.get((e.get("pid"), e.get("tid")), "")
            if e.get("ph") == "X" and on_stream and "GPU" in names[e["pid"]]:
                found.setdefault(e["name"], []).append(e["dur"])
    by_time = sorted(found.items(), key=lambda item: -sum(item[1]))
    return [(name[:60], round(len(t) / steps, 2), round(sum(t) / steps, 2)) for name, t in by_time]


def time_by_hand(kind, millions, steps, folder=None):
    step = {"bilevel": bilevel_step, "minimax": minimax_step}[kind]
    columns = jax.tree.map(jnp.asarray, data())
    at = jax.tree.map(jnp.asarray, (start(kind, WIDTHS[millions]), jax.random.key(0)))
    at, took = jax.block_until_ready(by_hand(at, columns, step, steps)), []
    for _ in range(3):
        began = time.perf_counter()
        at = jax.block_until_ready(by_hand(at, columns, step, steps))
        took.append(time.perf_counter() - began)
    with traced(folder):
        jax.block_until_ready(by_hand(at, columns, step, steps))
    return min(took) / steps


def time_ours(kind, millions, steps, folder=None, replace=True):
    first, columns = start(kind, WIDTHS[millions]), data()
    batches = tuple(tc.samplers.Minibatches(columns, BATCH, replace) for _ in range(2))
    if kind == "bilevel":
        problem = tc.problems.bilevel(outer, inner, batches, first[0], first[1], v_scale=1.0, check=False)
        method = tc.methods.soba(*SIZES[:2])
    else:
        problem = tc.problems.minimax(saddle, batches[0], *first[:2], check=False)
        method = tc.Fast(*SIZES)
    reached, stack, marks = {}, ExitStack(), [steps * n for n in (1, 2, 3, 6, 9, 10)]

    def look(event):
        if event.row is not None:
            reached[event.step] = time.perf_counter()
        if event.step == marks[-2]:
            stack.enter_context(traced(folder))

    with stack:
        run = tc.solve(problem, method, marks[-1], 1, marks=marks, precision="float32", progress=look, engine="xla")
    if run.diverged.any():
        raise RuntimeError("the run diverged, and a step that looks after that is not the usual one")
    took = [reached[b] - reached[a] for a, b in itertools.pairwise(marks)]
    return (min(took[2:4]) - min(took[:2])) / (2 * steps)


def peak_bytes() -> int:
    """The most memory that this process ever had: on the device, or on the host where that is the device."""
    known = jax.devices()[0].memory_stats()
    return known["peak_bytes_in_use"] if known else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def leave_out(part: str) -> None:
    """What a step does beyond one by hand: look for numbers that are not finite, and keep rounding errors."""
    if part == "checks":
        large_lane._all_finite = lambda tree: jnp.asarray(True)
    elif part == "residues":
        tree_math.start = lambda value, name="value": tree_math.Sum(tree_math.as_floats(name, value), None)


def measure(kind: str, millions: str, way: str, steps: int, without: tuple[str, ...] = ()) -> dict[str, object]:
    """A run in one of three ``way``s, "ours", "ours, in epochs" or "by hand", ``without`` some of what ours does."""
    for part in without:
        leave_out(part)
    before = 0 if jax.devices()[0].memory_stats() else peak_bytes()
    on_device = jax.default_backend() == "gpu"
    with tempfile.TemporaryDirectory() as folder:
        walk = time_by_hand if way == "by hand" else partial(time_ours, replace=way == "ours")
        seconds = walk(kind, millions, steps, folder if on_device else None)
        found = kernels(folder, steps)
    longest = [f"{name} ×{count:g} {us:g} us" for name, count, us in found[:60]]
    of_all = {"kernels a step": sum(count for _, count, _ in found), "longest": longest} if found else {}
    return {"us": seconds * 1e6, "MB": (peak_bytes() - before) / 1e6, **of_all}
