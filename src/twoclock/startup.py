"""While the command is still loading: Ctrl-C is one line, and out, since nothing is lost yet; no garbage is looked for.

Imported first of all, with next to no imports of its own. In a program that only uses the library nothing happens here.
"""

from __future__ import annotations

import gc
import os
import signal
import sys


def is_command() -> bool:
    """Whether this process is `twoclock` or `python -m twoclock`, and not one that it started, which has its argv."""
    if "--multiprocessing-fork" in sys.orig_argv:
        return False
    if sys.argv[:1] == ["-m"]:  # the module is being looked for
        return any(word.split(".")[0] == "twoclock" for word in sys.orig_argv[1:3])
    return bool(sys.argv) and os.path.basename(sys.argv[0]) in ("twoclock", "twoclock.exe")


def _leave(number: int, frame: object) -> None:
    os.write(2, b"twoclock: stopped\n")
    os._exit(128 + number)


def begin() -> None:
    if not is_command():
        return
    gc.disable()  # what is loaded stays: to look through it again and again takes a quarter of the time
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        try:  # noqa: SIM105  (contextlib would be one more thing to load first)
            signal.signal(signal.SIGINT, _leave)
        except ValueError:  # another thread than the main one gets no signals
            pass


def end() -> None:
    """The command is loaded: from here on Ctrl-C is an exception like any other, and garbage is looked for.

    Nothing is asked of argv: by now Python has written another name into it for `python -m twoclock`.
    """
    gc.freeze()
    gc.enable()
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


begin()
