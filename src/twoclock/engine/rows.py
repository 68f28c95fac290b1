"""What is a row? A seed at a mark: what is known of its estimate, and what method and problem say of themselves.

Metrics are measured methods × seeds at each mark; a history has, for each method, the marks inside the seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax
import numpy as np

from twoclock.core import Method, Problem, PyTree
from twoclock.engine.instances import Instances
from twoclock.engine.step import Carry

Row = dict[str, np.ndarray]
Columns = dict[str, np.ndarray]

# Where nobody says which metric matters: the first of these that was recorded.
PREFERRED_METRICS = ("error", "gap", "gradient")

# Columns of a run's history or a sweep's; no metric may have their names.
RESERVED = ("seed", "step", "problem", "method", "diverged")


def preferred_metric(recorded: Iterable[str]) -> str | None:
    """The metric to judge by where none is named: one of the preferred, else the first; None where there is none."""
    names = list(recorded)
    return next((name for name in (*PREFERRED_METRICS, *names) if name in names), None)


def metrics_of(problem: Problem, method: Method, state: PyTree, env: PyTree) -> dict[str, jax.Array]:
    """The metrics of one lane."""
    known = problem.measure(*method.estimate(state)) if hasattr(problem, "measure") else {}
    of_method = method.report(state) if hasattr(method, "report") else {}
    of_problem = problem.report(env) if hasattr(problem, "report") else {}
    return {**known, **of_method, **of_problem}


def measure(instances: Instances, methods: Method, carry: Carry) -> Row:
    """The metrics of all lanes, each methods × seeds."""
    return {name: np.asarray(value) for name, value in _measure(instances, methods, carry).items()}


@jax.jit
def _measure(instances: Instances, methods: Method, carry: Carry) -> dict[str, jax.Array]:
    def lane(problem: Problem, method: Method, carry: Carry) -> dict[str, jax.Array]:
        return metrics_of(problem, method, carry.state, carry.env)

    by_seed = jax.vmap(lane, in_axes=(instances.seed_axis, None, 0))
    return jax.vmap(by_seed, in_axes=(None, 0, 0))(instances.batched, methods, carry)


def columns(rows: Sequence[Row], method: int, seeds: Sequence[int], marks: Sequence[int]) -> Columns:
    """The history of one method: seed, step and the metrics, seeds outside, marks inside.

    Lanes beyond the given seeds only fill up the program and are left out.
    """
    return {
        "seed": np.repeat(np.asarray(seeds, np.int64), len(marks)),
        "step": np.tile(np.asarray(marks, np.int64), len(seeds)),
        **{name: np.stack([row[name][method, : len(seeds)] for row in rows], axis=1).ravel() for name in rows[0]},
    }


def diverged_by(carry: Carry, method: int, seeds: int, marks: Sequence[int]) -> np.ndarray:
    """For the rows of one method, whether the seed had diverged: the mark lies after its last finite step."""
    alive, last = (np.asarray(part)[method, :seeds, None] for part in (carry.alive, carry.last))
    return (~alive & (last < np.asarray(marks))).ravel()
