"""What is a row? A seed at a mark: what is known of its estimate, and what method and problem say of themselves.

Metrics are measured methods × seeds at each mark; a history has, for each method, the marks inside the seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from twoclock.engine.protocol import LaneState, Row
from twoclock.engine.run_batch import Instances
from twoclock.intervals.bootstrap import TRACKED
from twoclock.protocols import Method, Problem, PyTree

Columns = dict[str, np.ndarray]

# Where nobody says which metric matters: the first of these that was recorded.
PREFERRED_METRICS = ("error", "gap", "gradient")
_PAID = ("mean_return", "mean_cost", "mean_reward")  # to an agent, see ``agents.run``

# Columns of a run's history or a sweep's; no metric may have their names.
RESERVED = ("seed", "step", "problem", "method", "diverged")


def preferred_metric(recorded: Iterable[str]) -> str | None:
    """The metric to judge by where none is named: one of the preferred, else the first; None where there is none."""
    names = list(recorded)
    return next((name for name in (*PREFERRED_METRICS, *_PAID, *names) if name in names), None)


def metrics_of(problem: Problem, method: Method, state: PyTree, env: PyTree) -> dict[str, PyTree]:
    """The metrics of one lane, and what its method tracks for intervals: pytrees of arrays, named as ``TRACKED``."""
    return {**of_state(problem, method, state), **problem.report(env)}


def of_state(problem: object, method: Method, state: PyTree) -> dict[str, PyTree]:
    """The same without what is told of the environment."""
    measure = getattr(problem, "measure", None)
    known = measure(*method.estimate(state)) if measure else {}
    tracked = {TRACKED + kind: tree for kind, tree in method.track(state).items()}
    return {**known, **method.report(state), **tracked}


def flat(row: Mapping[str, PyTree], lanes: int = 0) -> dict[str, Any]:
    """One entry for each number of a lane: ``interval:estimate`` of θ ∈ R² is ``interval:estimate:theta[0]``, ``…[1]``.

    Args:
        row: arrays, or just their shapes.
        lanes: how many leading axes are those of the lanes.
    """
    found: dict[str, Any] = {}
    for name, tree in row.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            place = f":{jax.tree_util.keystr(path, simple=True, separator='.')}" if path else ""
            for index in np.ndindex(leaf.shape[lanes:]):
                entry = f"[{', '.join(map(str, index))}]" if index else ""
                found[name + place + entry] = leaf[(..., *index)] if isinstance(leaf, np.ndarray) else leaf
    return found


def measure(instances: Instances, methods: Method, carry: LaneState) -> Row:
    """The metrics of all lanes, each methods × seeds."""
    return flat(jax.device_get(_measure(instances, methods, carry)), lanes=2)


@jax.jit
def _measure(instances: Instances, methods: Method, carry: LaneState) -> dict[str, PyTree]:
    def lane(problem: Problem, method: Method, carry: LaneState) -> dict[str, PyTree]:
        return metrics_of(problem, method, carry.state, carry.env)

    by_seed = jax.vmap(instances.exact(lane), in_axes=(instances.seed_axis, None, 0))
    return jax.vmap(by_seed, in_axes=(None, 0, 0))(instances.batched, methods, carry)


def estimate_each(method: Method, state: PyTree, program: str) -> tuple[PyTree, PyTree]:
    """Take θ and ω of a method on each of its seeds from its state.

    Args:
        program: the digest of the lane; it tells functions apart that have changed since they were compiled.
    """
    # Mostly they lie in the state, and there is nothing to compile.
    compile_it = _estimate_each.trace(method, state, program).jaxpr.eqns
    return _estimate_each(method, state, program) if compile_it else jax.vmap(method.estimate)(state)


@partial(jax.jit, static_argnums=2)
def _estimate_each(method: Method, state: PyTree, program: str) -> tuple[PyTree, PyTree]:
    return jax.vmap(method.estimate)(state)


def columns(rows: Sequence[Row], method: int, seeds: Sequence[int], marks: Sequence[int]) -> Columns:
    """The history of one method: seed, step and the metrics, seeds outside, marks inside.

    Lanes beyond the given seeds only fill up the program and are left out.
    """
    return {
        "seed": np.repeat(np.asarray(seeds, np.int64), len(marks)),
        "step": np.tile(np.asarray(marks, np.int64), len(seeds)),
        **{name: _seeds_outside([row[name][method, : len(seeds)] for row in rows]) for name in rows[0]},
    }


def _seeds_outside(marks: Sequence[np.ndarray], block: int = 2048) -> np.ndarray:
    """The marks of one seed after those of another. A block of seeds fits the cache; all at once would miss it."""
    every = np.empty((len(marks[0]), len(marks)), np.result_type(*marks))
    for lo in range(0, len(every), block):
        np.stack([mark[lo : lo + block] for mark in marks], axis=1, out=every[lo : lo + block])
    return every.ravel()


def diverged_by(carry: LaneState, method: int, seeds: int, marks: Sequence[int]) -> np.ndarray:
    """For the rows of one method, whether the seed had diverged: the mark lies after its last finite step."""
    alive, last = (np.asarray(part)[method, :seeds, None] for part in (carry.alive, carry.last))
    return (~alive & (last < np.asarray(marks))).ravel()
