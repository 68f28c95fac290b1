"""The installed command ``twoclock``: streams that are there, and a quiet Ctrl-C while the library loads.

It stands beside the package because Python runs ``twoclock/__init__.py``, which takes most of the time, before any
module inside the package. Programs that import the library, child processes of the command among them, never run this.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import ModuleType


def load(name: str) -> ModuleType:
    """Import the command line of the library; Ctrl-C meanwhile is one line that begins with the program's name."""

    def leave(number: int, frame: object) -> None:
        os.write(2, f"{name}: stopped\n".encode())
        os._exit(128 + number)

    while os.open(os.devnull, os.O_RDWR) <= 2:  # else the first files that are opened would stand for closed streams
        pass
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if not os.environ.get("COLUMNS", "80").strip("0"):
        del os.environ["COLUMNS"]  # in no columns nothing would be written
    quiet = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if quiet:
        signal.signal(signal.SIGINT, leave)
    gc.disable()  # nothing that is loaded is garbage, and looking for some takes a quarter of the time
    try:
        from twoclock import cli
    except Exception as error:  # a variable that JAX does not understand, a broken installation, too few files
        sys.exit(f"{name}: it cannot be loaded, with {type(error).__name__}: {' '.join(str(error).split())}")
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
