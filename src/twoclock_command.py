"""The installed command ``twoclock``: a quiet Ctrl-C and no garbage collection while the library loads.

It stands beside the package because Python runs ``twoclock/__init__.py``, which takes most of the time, before any
module inside the package. Programs that import the library, child processes of the command among them, never run this.
"""

from __future__ import annotations

import gc
import os
import signal


def program() -> None:
    """Load the command line and run it on argv."""
    quiet = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if quiet:
        signal.signal(signal.SIGINT, _leave)
    gc.disable()  # nothing that is loaded is garbage, and looking for some takes a quarter of the time
    from twoclock import cli

    gc.freeze()
    gc.enable()
    if quiet:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.program()


def _leave(number: int, frame: object) -> None:
    os.write(2, b"twoclock: stopped\n")
    os._exit(128 + number)


if __name__ == "__main__":
    program()
