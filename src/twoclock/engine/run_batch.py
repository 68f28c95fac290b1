"""Lanes: methods × seeds on one problem, which methods can run as one program, and how lanes are shared out in groups.

Each group is walked on one thread and, where there are several devices, on one of them. On the CPU the size of a group
is fixed, not taken from the machine, so that the same seeds give the same bits on any number of cores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import jax
import numpy as np

from twoclock.engine.problem_batch import Instances
from twoclock.protocols import Method

T = TypeVar("T")

LARGEST_GROUP = 256
SMALLEST_SHARE = 32
# Lanes of several methods that share the noise of their seeds: as many as a core's own cache holds.
LARGEST_SHARED_GROUP = 1024


@dataclass(frozen=True)
class Lanes:
    """What an engine walks: every method on every seed.

    Attributes:
        instances: the problem, or one a seed.
        methods: methods that differ only in numbers, as one whose leaves have a leading axis (see ``stack``).
        count: how many methods; one without numbers has no leaf to tell it.
        seeds: integers; step k of seed s draws from the key of (s, k).
        bound: a lane whose θ or ω leaves [−bound, bound] in any entry has diverged.
    """

    instances: Instances
    methods: Method
    count: int
    seeds: Sequence[int]
    bound: float | None = None

    @classmethod
    def of(cls, instances: Instances, methods: Sequence[Method], seeds: Sequence[int], bound: float | None) -> Lanes:
        return cls(instances, stack(methods), len(methods), seeds, bound)

    @property
    def shape(self) -> tuple[int, int]:
        """Methods × seeds."""
        return self.count, len(self.seeds)

    def part(self, methods: slice, seeds: slice) -> Lanes:
        """Some of the methods on some of the seeds."""
        all_methods = methods == slice(None)
        some = self.methods if all_methods else jax.tree.map(lambda leaf: leaf[methods], self.methods)
        count = len(range(self.count)[methods])
        return Lanes(self.instances.of(seeds), some, count, self.seeds[seeds], self.bound)


def stack(methods: Sequence[Method]) -> Method:
    """Methods that differ only in numbers, as one method with a leading axis on every leaf."""
    # Put together here, then transferred at once: on a GPU each number would take a tenth of a millisecond.
    return jax.device_put(
        jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, float) for leaf in leaves]), *methods)
    )


def by_program(methods: Mapping[str, Method]) -> list[list[str]]:
    """Labels of methods that differ only in numbers, together: each group runs as one program."""
    groups: dict[jax.tree_util.PyTreeDef, list[str]] = {}
    for label, method in methods.items():
        groups.setdefault(jax.tree.structure(method), []).append(label)
    return list(groups.values())


def padded(items: Sequence[T], size: int) -> list[T]:
    """As many as a program of that size wants: the last one is repeated."""
    return [*items, *[items[-1]] * (size - len(items))]


def whole(parts: Sequence[tuple[slice, np.ndarray]]) -> np.ndarray:
    """The parts of all groups, each with its methods, put together again to methods × seeds."""
    by_methods: dict[int, list[np.ndarray]] = {}
    for methods, part in parts:
        by_methods.setdefault(methods.start, []).append(part)
    return np.concatenate([row[0] if len(row) == 1 else np.concatenate(row, axis=1) for row in by_methods.values()])


def cut(methods: int, seeds: int, accelerators: int | None) -> tuple[list[slice], list[slice]]:
    """Which methods and which seeds go together; each pair of the two is a group, all of one shape.

    Accelerators get an even share of the seeds each.
    """
    if accelerators is None:
        share = _group_size(seeds)
        together = _methods_together(methods, share, seeds // share)
    else:
        share, together = -(-seeds // accelerators), methods
    return _slices(methods, together), _slices(seeds, share)


def _slices(whole: int, size: int) -> list[slice]:
    return [slice(i, i + size) for i in range(0, whole, size)]


def threads() -> int:
    """One for each core, or what OMP_NUM_THREADS says."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(int(asked) if asked.isdecimal() else os.cpu_count() or 1, 1)


def _group_size(seeds: int) -> int:
    """The largest even share that leaves two groups or more; too few seeds to share stay together."""
    shares = range(min(LARGEST_GROUP, seeds // 2), SMALLEST_SHARE - 1, -1)
    return next((size for size in shares if seeds % size == 0), seeds)


def _methods_together(methods: int, seeds: int, shares: int) -> int:
    """The largest even share of the methods that fits a group, and leaves two groups or more where it can."""
    most = methods if shares > 1 or methods * seeds < 2 * SMALLEST_SHARE else max(methods // 2, 1)
    sizes = range(max(min(most, LARGEST_SHARED_GROUP // seeds), 1), 0, -1)
    return next(size for size in sizes if methods % size == 0)
