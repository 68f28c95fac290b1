"""Memory checks before a run: the system kills a process that takes too much."""

from __future__ import annotations

import os
from pathlib import Path

from twoclock.protocols import InputError

_GROUP = Path("/sys/fs/cgroup")


def check(needed: float | int, what: str, remedy: str) -> None:
    """Complain if so many bytes are not there.

    Args:
        needed: an estimate from below; what it lets pass may still be too much.
        what: the argument, and what it asks for.
        remedy: how to split it.
    """
    free = available()
    if free is not None and needed > free:
        raise InputError(f"{what} takes about {text(needed)} of memory and there are {text(free)}; {remedy}")


def check_size(what: str, numbers: int) -> None:
    """Complain if a problem with so many numbers cannot be held."""
    check(8 * numbers, f"{what}: a problem of that size", "take a smaller one")


def available() -> int | None:
    """The bytes that this process can still have, or None where the system does not say."""
    return min((free for free in (_of_machine(), _of_group()) if free is not None), default=None)


def text(size: float | int) -> str:
    """A size in words: 3.2 GiB."""
    if size >= 2**70:
        return "more than 1,000 EiB"
    power = min(max(int(size).bit_length() - 1, 0) // 10, 5)
    unit, size = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")[power], size / 1024**power
    return f"{size:,.3g} {unit}" if size < 1e6 else f"{size:.1e} {unit}"


def _of_machine() -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _of_group() -> int | None:
    """What is left of a container's share."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            return max(int((_GROUP / limit).read_text()) - int((_GROUP / used).read_text()), 0)
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return None
