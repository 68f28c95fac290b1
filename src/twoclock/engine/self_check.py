"""A short self-check: a few steps of a few lanes, by a program and by XLA from the same carry."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from twoclock import prng
from twoclock.engine.protocol import LaneState, lane_step
from twoclock.engine.run_batch import Lanes
from twoclock.engine.tracing import TracedProgram
from twoclock.protocols import Method, Problem, PyTree, Scalar

STEPS = 8
# Methods and seeds that are looked at, evenly spread: a compiler may be wrong in one branch and right in the others.
METHODS, SEEDS = 2, 8
# Differences that rounding may make in so few steps, relative to the size of an array's numbers.
_ROUNDING = {"float64": 1e-9, "float32": 1e-3}


class Reference:
    """What XLA makes of some of the lanes."""

    def __init__(self, lanes: Lanes) -> None:
        methods, seeds = _spread(lanes.count, METHODS), _spread(len(lanes.seeds), SEEDS)
        self.where = np.ix_(methods, seeds)
        self.bound, self.traced = lanes.bound, lanes.instances.traced
        self.words = prng.stream_words(jnp.asarray(np.asarray(lanes.seeds, np.uint32)[seeds]))
        self.methods = jax.tree.map(lambda leaf: np.asarray(leaf)[np.asarray(methods)], lanes.methods)
        per_seed = lanes.instances.per_seed
        chosen = np.asarray(seeds)
        self.problem = (
            jax.tree.map(lambda leaf: leaf[chosen], lanes.instances.batched) if per_seed else lanes.instances.batched
        )
        self.axis, self.count = lanes.instances.seed_axis, len(methods)

    def after(self, carry: LaneState, lo: int) -> LaneState:
        """The chosen lanes of a carry, a few steps on."""
        some = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[self.where]), carry)
        for k in range(lo, lo + STEPS):
            some = _step(
                self.problem, self.methods, self.words, some, np.int32(k), self.bound,
                axis=self.axis, count=self.count, traced=self.traced,
            )  # fmt: skip
        return some

    def difference(self, advance: Callable[[LaneState, int, int], LaneState], carry: LaneState, lo: int) -> str | None:
        """How a program differs from XLA beyond rounding; None if it does not."""
        expected = self.after(carry, lo)
        found = jax.tree.map(lambda leaf: np.asarray(leaf)[self.where], advance(carry, lo, lo + STEPS))
        return compare(found, expected)


def compare(found: PyTree, expected: PyTree, when: str = f" after {STEPS} steps") -> str | None:
    """How carries differ, a few steps from the same one on, or rows, beyond rounding; None if they do not."""
    for a, b in zip(jax.tree.leaves(found), map(np.asarray, jax.tree.leaves(expected)), strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"it gives {a.dtype}{list(a.shape)} where XLA gives {b.dtype}{list(b.shape)}"
        if b.dtype.kind != "f":
            if not np.array_equal(a, b):
                return "its whole numbers differ from XLA's"
        elif not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return "its numbers overflow where XLA's do not, or the reverse"
        elif b.size:
            finite = np.isfinite(b)
            size = np.max(np.abs(b), where=finite, initial=0.0)
            worst = np.max(np.abs(a[finite] - b[finite]), initial=0.0)
            if worst > _ROUNDING.get(b.dtype.name, 1e-2) * max(size, 1.0):
                return f"it differs from XLA by {worst:.1e}{when}"
    return None


def _spread(count: int, most: int) -> list[int]:
    return sorted({int(i) for i in np.linspace(0, count - 1, min(count, most))})


def _lane(
    problem: Problem, method: Method, words: jax.Array, carry: LaneState, k: Scalar, bound: Scalar | None
) -> LaneState:
    return lane_step(problem, method, prng.stream_of(words), carry, k, bound)


def _steps(
    problem: Problem,
    methods: Method,
    words: jax.Array,
    carry: LaneState,
    k: Scalar,
    bound: Scalar | None,
    *,
    axis: int | None,
    count: int,
    traced: TracedProgram | None,
) -> LaneState:
    """``traced`` tells functions apart that have changed since they were compiled."""
    by_seed = jax.vmap(_lane, in_axes=(axis, None, 0, 0, None, None))
    by_method = jax.vmap(by_seed, in_axes=(None, 0, None, 0, None, None), axis_size=count)
    return by_method(problem, methods, words, carry, k, bound)


_step = jax.jit(_steps, static_argnames=("axis", "count", "traced"))
