"""A command that stops before its end says how to go on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from twoclock.cli.exit_codes import FULL, Stopped
from twoclock.engine.signals import Interrupted


@contextmanager
def resumable(command: str) -> Iterator[None]:
    """What stops the work inside (a signal, a full disk, a process that is killed) ends in one line: how to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(f"{str(stop).split(';')[0] or 'stopped'}; to go on: {command}") from None
    except BrokenProcessPool:
        raise Stopped(
            "a process of this run was ended from outside, perhaps for want of memory; what was finished is kept; "
            f"to go on: {command}"
        ) from None
    except OSError as error:
        if error.errno not in FULL:
            raise
        where = f" ({os.fsdecode(error.filename)})" if error.filename else ""
        raise Stopped(f"the disk is full{where}; what was finished is kept; make room, then go on: {command}") from None
