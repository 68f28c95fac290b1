"""Ctrl-C while the command is still loading: one line, and out. It takes a second, and nothing is lost yet.

Imported first of all. In a program that only uses the library nothing happens here.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType


def is_command() -> bool:
    """Whether this process is `twoclock` or `python -m twoclock`."""
    if sys.argv[:1] == ["-m"]:  # the module is being looked for
        return any(word.split(".")[0] == "twoclock" for word in sys.orig_argv[1:3])
    return bool(sys.argv) and Path(sys.argv[0]).name in ("twoclock", "twoclock.exe")


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"twoclock: stopped\n")
    os._exit(128 + number)


def begin() -> None:
    here = threading.current_thread() is threading.main_thread()
    if here and is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def end() -> None:
    """Everything is loaded: from here on Ctrl-C is an exception like any other."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


begin()
