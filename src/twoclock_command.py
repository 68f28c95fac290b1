"""The installed command ``twoclock``: a quiet Ctrl-C and no garbage collection while the library loads.

It stands beside the package because Python runs ``twoclock/__init__.py``, which takes most of the time, before any
module inside the package. Programs that import the library, child processes of the command among them, never run this.
"""

from __future__ import annotations

import gc
import os
import signal
from types import ModuleType


def load(name: str) -> ModuleType:
    """Import the command line of the library; Ctrl-C meanwhile is one line that begins with the program's name."""

    def leave(number: int, frame: object) -> None:
        os.write(2, f"{name}: stopped\n".encode())
        os._exit(128 + number)

    quiet = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if quiet:
        signal.signal(signal.SIGINT, leave)
    gc.disable()  # nothing that is loaded is garbage, and looking for some takes a quarter of the time
    from twoclock import cli

    gc.freeze()
    gc.enable()
    if quiet:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return cli


def program() -> None:
    """Load the command line and run it on argv."""
    load("twoclock").program()


if __name__ == "__main__":
    program()
