"""What a run takes of the memory, told from shapes before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from twoclock.engine.metrics import flat, metrics_of
from twoclock.engine.run_batch import Instances, group_by_program, make_placeholder
from twoclock.engine.step import lane_start
from twoclock.protocols import Method, Problem, ProblemSource, PyTree
from twoclock.validation import memory

# Below this nobody runs out, and the shapes need not be traced.
_LITTLE = 256 << 20
# A generous guess of the bytes of a small lane and of a row, to tell what is little.
_SMALL_LANE, _SMALL_ROW = 4096, 256


@dataclass(frozen=True)
class Footprint:
    """The columns of a run, the bytes that one lane carries, and those of its own instance of the problem."""

    metrics: list[str]
    lane: int
    instance: int

    def rows(self, marks: int) -> int:
        """The bytes of one lane's rows, as they are measured and as a history."""
        return 2 * marks * len(self.metrics) * 8


def footprint(instances: Instances, method: Method) -> Footprint:
    """Of a method on a problem; only shapes are looked at."""
    problem = instances.example
    numbers = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(float)), method)
    carry = jax.eval_shape(lambda problem, method: lane_start(problem, method, 0), problem, numbers)
    row = jax.eval_shape(metrics_of, problem, numbers, carry.state, carry.env)
    # An instance is there twice: among those of all seeds, and in its group.
    return Footprint(
        list(flat(row)), _bytes((carry.state, carry.env)), 2 * _bytes(problem) if instances.per_seed else 0
    )


def check_memory(problem: ProblemSource, methods: Mapping[str, Method], seeds: int, marks: int) -> None:
    """Refuse a run that the memory cannot hold, and say how to split it.

    It counts the lanes before and after a block, their instances, and their rows; an estimate from below.
    """
    if (
        isinstance(problem, Problem)
        and len(methods) * seeds * (_SMALL_LANE + marks * _SMALL_ROW) + _bytes(problem) < _LITTLE
    ):
        return
    example, needed = make_placeholder(problem), 0
    for labels in group_by_program(methods):
        size = footprint(example, methods[labels[0]])
        needed = max(needed, seeds * (len(labels) * (2 * size.lane + size.rows(marks)) + size.instance))
    free = memory.available()
    fits = seeds if free is None else int(seeds * free / (2 * max(needed, 1)))
    memory.check(
        needed,
        f"`seeds`: {seeds:,} seeds at {marks:,} marks",
        f"take seeds=range({fits:,}) and the next so many after it, fewer marks, or `tc.sweep`, which works in shards"
        if fits
        else "take a smaller problem",
    )


def _bytes(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))
