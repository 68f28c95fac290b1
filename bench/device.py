"""The same loop on whatever device JAX finds: cost per seed-step from a thousand to a hundred thousand seeds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from tabular import METHOD, TabularTdc, best_of, random_tables

from twoclock.run import run, stack, start


def main() -> None:
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}")
    for x64 in (True, False):
        with jax.enable_x64(x64):
            problem = jax.tree.map(jnp.asarray, TabularTdc(**random_tables()))
            methods = stack([METHOD])
            for seeds, steps in ((1_000, 4_000), (10_000, 4_000), (100_000, 2_000)):

                def walk(seeds: int = seeds, steps: int = steps) -> float:
                    carry = start(problem, methods, range(seeds))
                    *_, last = run(problem, methods, range(seeds), [steps], carry)
                    return float(last.row["error"].mean())

                walk()
                cost = best_of(3, walk) / seeds / steps
                precision = "float64" if x64 else "float32"
                print(
                    f"{seeds:>7,} seeds, {precision}: {cost * 1e9:8.2f} ns a seed-step; mean error {walk():.4g}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
