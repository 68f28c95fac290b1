"""The same loop on whatever device JAX finds: cost per seed-step from a thousand to a hundred thousand seeds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from tabular import METHOD, TabularTdc, best_of, random_tables

from twoclock.engine.drive import drive
from twoclock.engine.instances import Instances
from twoclock.engine.lanes import Lanes


def walk(problem: TabularTdc, seeds: int, steps: int) -> float:
    lanes = Lanes.of(Instances(problem, per_seed=False), [METHOD], range(seeds), None)
    return float(drive(lanes, [steps]).rows[-1]["error"].mean())


def main() -> None:
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}")
    for precision in ("float64", "float32"):
        with jax.enable_x64(precision == "float64"):
            problem = jax.tree.map(jnp.asarray, TabularTdc(**random_tables()))
            for seeds, steps in ((1_000, 4_000), (10_000, 4_000), (100_000, 2_000)):
                error = walk(problem, seeds, steps)
                cost = best_of(3, lambda p=problem, n=seeds, k=steps: walk(p, n, k)) / seeds / steps
                print(f"{seeds:>7,} seeds, {precision}: {cost * 1e9:8.2f} ns a seed-step; mean error {error:.4g}")


if __name__ == "__main__":
    main()
