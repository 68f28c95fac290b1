"""Ctrl-C takes effect between blocks.

Python raises KeyboardInterrupt wherever it stands: in the middle of a compilation, of a checkpoint being written, or in
a callback of the garbage collector, where it is swallowed. A run notes it instead, and stops at the next tick.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the message says where it stopped and how to go on."""


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether Ctrl-C was pressed. Pressed again, it stops at once, as usual."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield lambda: False  # another handler is in charge, or this thread gets no signals
        return
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, usual)
