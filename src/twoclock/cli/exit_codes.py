"""What went wrong, in one line, and the exit status for it."""

from __future__ import annotations

import errno
import os

from twoclock.engine import signals
from twoclock.protocols import InputError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Stopped(RuntimeError):
    """The machine is in the way. The message says how to go on when it is not."""


def explained(error: BaseException) -> tuple[str, int] | None:
    """One line and an exit status: 2 for a wrong argument, 1 for the machine, 128 + n for signal n; None for a bug."""
    if isinstance(error, InputError):
        return str(error), 2
    if isinstance(error, KeyboardInterrupt):
        return str(error) or "stopped", 128 + signals.last_signal()
    if isinstance(error, Stopped):
        return str(error), 1
    if isinstance(error, OSError):
        return _of_system(error), 1
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return "there is not enough memory for this; take fewer seeds, fewer marks or a smaller problem", 1
    return None


def _of_system(error: OSError) -> str:
    where = f" ({os.fsdecode(error.filename):.200})" if error.filename else ""
    if error.errno in FULL:
        return f"the disk is full{where}; what was finished is kept; make room and run the same command again"
    return f"{error.strerror or error}{where}"
