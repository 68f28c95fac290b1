"""How lanes, methods × seeds, are shared out in groups.

Each group is walked on one thread and, where there are several devices, on one of them. On the CPU the size of a group
is fixed, not taken from the machine, so that the same seeds give the same bits on any number of cores.
"""

from __future__ import annotations

import os

LARGEST_GROUP = 256
SMALLEST_SHARE = 32
# Lanes of several methods that share the noise of their seeds: as many as a core's own cache holds.
LARGEST_SHARED_GROUP = 1024


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
