"""What a step of a bilevel problem costs, beside a hand-written jitted loop of the same update, in turns in one run.

SOBA on the experiment's least-squares problem, dimensions 100/100 and 1,024 items per level. The loop by hand draws its
batches with replacement by `jax.random.randint`, has the derivatives worked out on paper, keeps no record, makes no
check and stops at no mark: the least that a careful user would write. It has a `vmap` over its seeds.
"""

from __future__ import annotations

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from results import report

import twoclock as tc

ALPHA, BETA, RIDGE = 0.02, 0.05, 0.1


@partial(jax.jit, static_argnames=("steps", "batch"))
def by_hand(inner, outer, seeds, steps, batch):
    def lane(seed):
        def step(k, carry):
            x, y, v, key = carry
            key, i_key, j_key = jax.random.split(key, 3)
            i = jax.random.randint(i_key, (batch,), 0, len(inner[2]))
            j = jax.random.randint(j_key, (batch,), 0, len(outer[1]))
            a, b, c = (column[i] for column in inner)
            p, r = (column[j] for column in outer)
            av = a @ v
            y_row = (a @ y - b @ x - c) @ a / batch + RIDGE * y
            v_row = (av @ a - (p @ y - r) @ p) / batch + RIDGE * v
            x_row = av @ b / batch + RIDGE * x
            return x - ALPHA * x_row, y - BETA * y_row, v - BETA * v_row, key

        d = inner[0].shape[1]
        start = jnp.zeros(inner[1].shape[1]), jnp.zeros(d), jnp.zeros(d), jax.random.key(seed)
        return jax.lax.fori_loop(0, steps, step, start)[0]

    return jax.vmap(lane)(seeds)


def clocks():
    """Wall-clock seconds and processor seconds of this process; on a busy machine the second is more reliable."""
    return np.array([time.perf_counter(), time.process_time()])


def ours(problem, steps, seeds):
    """Seconds per step between two marks of one run, without compiling."""
    reached = {}

    def look(tick):
        if tick.row is not None:
            reached[tick.step] = clocks()

    marks = [steps, 2 * steps, 3 * steps]
    tc.solve(problem, tc.methods.soba(ALPHA, BETA), 3 * steps, seeds, marks=marks, progress=look)
    return np.minimum(reached[marks[1]] - reached[marks[0]], reached[marks[2]] - reached[marks[1]]) / steps


def theirs(problem, steps, seeds, batch):
    with jax.enable_x64(True):
        levels = (jax.tree.map(jnp.asarray, part.data) for part in (problem.sampler.inner, problem.sampler.outer))
        work = partial(by_hand, *levels, jnp.arange(seeds), steps, batch)
        jax.block_until_ready(work())
        took = []
        for _ in range(2):
            began = clocks()
            jax.block_until_ready(work())
            took.append(clocks() - began)
    return np.min(took, axis=0) / steps


def main() -> None:
    rows = []
    for batch in (1, 16, 64):
        problem = tc.problems.quadratic_bilevel(dim_x=100, dim_y=100, samples=1024, batch=batch, v_scale=1.0)
        for seeds in (1, 20):
            steps = max(500, 100_000 // (seeds * batch))
            pairs = [(theirs(problem, steps, seeds, batch), ours(problem, steps, seeds)) for _ in range(3)]
            hand, library = np.min(pairs, axis=0)
            wall, processor = library / hand
            rows.append(
                {
                    "batch": batch,
                    "seeds": seeds,
                    "by hand, µs": hand[0] * 1e6,
                    "twoclock, µs": library[0] * 1e6,
                    "ratio": wall,
                    "ratio of processor time": processor,
                }
            )
    report("bilevel", "SOBA, float64, time per step of all seeds", rows)
    print(f"on {psutil.cpu_count()} cores, load {psutil.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}")


if __name__ == "__main__":
    main()
