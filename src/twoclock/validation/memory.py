"""Memory checks before a run: the system kills a process that takes too much."""

from __future__ import annotations

import os
from contextlib import suppress
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
    found = []
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        with suppress(AttributeError, OSError, ValueError):
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    # What is left of a container's share: there is no such file, or it says "max", where there is no limit.
    for folder, limit, used in ((_GROUP, "max", "current"), (_GROUP / "memory", "limit_in_bytes", "usage_in_bytes")):
        with suppress(OSError, ValueError):
            left = int((folder / f"memory.{limit}").read_text()) - int((folder / f"memory.{used}").read_text())
            found.append(max(left, 0))
    return min(found, default=None)


def text(size: float | int) -> str:
    """A size in words: 3.2 GiB."""
    if size >= 2**70:
        return "more than 1,000 EiB"
    power = min(max(int(size).bit_length() - 1, 0) // 10, 5)
    unit, size = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")[power], size / 1024**power
    return f"{size:,.3g} {unit}" if size < 1e6 else f"{size:.1e} {unit}"
